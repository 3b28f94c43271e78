"""Chat with a dialogue model, on the terminal or with the lines of a file."""

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanillaformer.data.dialogue import SEPARATOR, end_ids, separator_id
from vanillaformer.tokenization.passages import text_tokenizer

from .arguments import GenerateArguments
from .tasks import continue_prompts, load
from .text_files import hint, output_stream, prompted, read_texts, standard_input

RESET, QUIT = "/reset", "/quit"
TOKENS = 64  # default length of a reply


@dataclass
class Chat:
    """A dialogue with a model trained on `--turns_column`.

    With a reranker the reply is the candidate y with the highest p(history | y): maximum mutual information (Li et al.
    2016), as DialoGPT does (Zhang et al. 2020).
    """

    model: Any
    tokenizer: PreTrainedTokenizerBase
    max_history: int | None = None  # latest turns that the model sees; None for as many as fit
    candidates: int = 1  # replies that the reranker chooses from
    reranker: Any = None  # a model trained on `--reverse_turns`, with the same tokens
    options: dict[str, Any] = field(default_factory=dict)  # for `model.generate`
    history: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.separator = separator_id(self.tokenizer)
        start, end = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        self.start: list[int] = [] if start in (None, end) else [start]
        ends = dict.fromkeys([self.separator, end, *end_ids(self.model)])  # a native model may have several
        self.ends = [each for each in ends if each is not None]
        self.text_tokenizer = text_tokenizer(self.tokenizer, [SEPARATOR])
        self.room: int = self.options.get("max_new_tokens") or TOKENS
        limit = getattr(self.model.config, "max_position_embeddings", None)
        if limit is not None and self.room > limit - 3:  # <s>, a token and its separator
            if self.options.get("max_new_tokens"):
                raise ValueError(f"--max_new_tokens {self.room} leaves no room for a turn in {limit} positions")
            self.room = limit // 2
        self.limit = None if limit is None else limit - self.room

    def reply(self, text: str) -> str:
        """Return the answer to a turn, and remember both."""
        self.history.append(text)
        replies = self.draw()
        best = replies[0]
        if self.reranker is not None and len(replies) > 1:
            losses = self.backward_losses(replies)
            best = replies[losses.index(min(losses))]
        answer = str(self.tokenizer.decode(best, skip_special_tokens=True)).strip()
        self.history.append(answer)
        return answer

    def draw(self) -> list[list[int]]:
        """Return the tokens of the candidates, without their end tokens."""
        prompt = self.prompt()
        inputs = torch.tensor([prompt], device=self.model.device)
        with torch.inference_mode():
            output = self.model.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                **{**self.options, "max_new_tokens": self.room, "min_new_tokens": 1, "max_length": None},
                num_return_sequences=self.candidates,
                eos_token_id=self.ends,
                pad_token_id=self.separator if self.tokenizer.pad_token_id is None else self.tokenizer.pad_token_id,
            )
        replies = output[:, len(prompt) :].tolist()
        return [list(itertools.takewhile(lambda token: token not in self.ends, ids)) for ids in replies]

    def prompt(self) -> list[int]:
        """Return `<s> turn [SEP] ... turn [SEP]`: the latest turns that fit, or the end of the last one."""
        *earlier, kept = self._turns()
        if self.limit is None:
            return [*self.start, *itertools.chain(*earlier), *kept]
        room = self.limit - len(self.start)
        for turn in reversed(earlier):
            if len(kept) + len(turn) > room:
                break
            kept = [*turn, *kept]
        return [*self.start, *kept[-room:]]

    def backward_losses(self, replies: Sequence[Sequence[int]]) -> list[float]:
        """Return -log p(history | reply) of the backward model, for which the latest turn comes first."""
        limit = getattr(self.reranker.config, "max_position_embeddings", None)
        longest = max(map(len, replies))
        context = [token for turn in reversed(self._turns()) for token in turn]
        if limit is not None:  # the same tokens for every candidate, so that sums are comparable
            context = context[: max(1, limit - len(self.start) - longest - 1)]
        losses = []
        for reply in replies:
            known = [*self.start, *reply, self.separator]
            ids = torch.tensor([[*known, *context]], device=self.reranker.device)
            with torch.inference_mode():
                logits = self.reranker(ids).logits[0, len(known) - 1 : -1].float()
            losses.append(torch.nn.functional.cross_entropy(logits, ids[0, len(known) :], reduction="sum").item())
        return losses

    def _turns(self) -> list[list[int]]:
        """Return the tokens of the turns that the model may see, each with its separator."""
        seen = self.history if self.max_history is None else self.history[-self.max_history :]
        encoded = self.text_tokenizer(seen, add_special_tokens=False)["input_ids"]
        return [[*(token for token in ids if token != self.separator), self.separator] for ids in encoded]


def open_chat(args: GenerateArguments) -> Chat:
    """Return a chat with the model; raise ValueError unless it and the reranker are causal models of equal tokens."""
    loaded, function, _ = load(args)
    path, judge_path = args.model_name_or_path, args.rerank_model
    if function is not continue_prompts or not isinstance(loaded.model, PreTrainedModel):
        raise ValueError(f"--chat: --model {path} is not a causal language model run by torch")
    reranker = None
    if judge_path is not None:
        judge, function, _ = load(replace(args, model_name_or_path=judge_path, revision=None, engine=None))
        if function is not continue_prompts or judge.tokenizer.get_vocab() != loaded.tokenizer.get_vocab():
            raise ValueError(f"--rerank_model {judge_path}: it must be a language model with the tokens of --model")
        reranker = judge.model
    return Chat(loaded.model, loaded.tokenizer, args.max_history, args.candidates, reranker, args.options())


def replies(chat: Chat, turns: Iterable[str]) -> Iterator[str]:
    """Yield the reply to each turn."""
    for turn in turns:
        if turn.strip() == QUIT:
            return
        if turn.strip() == RESET:
            chat.history.clear()
        elif turn.strip():
            yield chat.reply(turn.strip())


def converse(generate_args: GenerateArguments) -> None:
    """Answer turn by turn, to a person or to the lines given."""
    is_given = bool(generate_args.text or generate_args.input_file)
    given = read_texts(generate_args.text, generate_args.input_file) if is_given else None
    chat = open_chat(generate_args)
    turns: Iterable[str] = given or standard_input()
    if given is None and sys.stdin.isatty():
        path = generate_args.model_name_or_path
        hint(f"Chatting with {path}: {RESET} forgets the dialogue, {QUIT} or Ctrl-D ends it.")
        turns = prompted(turns)
    torch.manual_seed(generate_args.seed)
    with output_stream(generate_args.output_file) as stream:
        for reply in replies(chat, turns):
            print(reply, file=stream, flush=True)
