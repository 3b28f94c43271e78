"""A dialogue with a model on the terminal, or with the lines of a file."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from .arguments import GenerateArguments
from .chat import Chat
from .tasks import continue_prompts, load
from .text_files import at_terminal, hint, output_stream, prompted, read_texts, standard_input

RESET, QUIT = "/reset", "/quit"


def open_chat(generate_args: GenerateArguments) -> Chat:
    """Return a dialogue with the model; raise ValueError unless it, and the reranker, are language models of it."""
    loaded, function, _ = load(generate_args)
    path, judge_path = generate_args.model_name_or_path, generate_args.rerank_model
    if function is not continue_prompts or not isinstance(loaded.model, PreTrainedModel):
        raise ValueError(f"--chat: --model {path} is not a causal language model run by torch")
    reranker = None
    if judge_path is not None:
        judge, function, _ = load(replace(generate_args, model_name_or_path=judge_path, revision=None))
        if function is not continue_prompts or judge.tokenizer.get_vocab() != loaded.tokenizer.get_vocab():
            raise ValueError(f"--rerank_model {judge_path}: it must be a language model with the tokens of --model")
        reranker = judge.model
    return Chat(
        loaded.model,
        loaded.tokenizer,
        max_history=generate_args.max_history,
        candidates=generate_args.candidates,
        reranker=reranker,
        options=generate_args.options(),
    )


def replies(chat: Chat, turns: Iterable[str]) -> Iterator[str]:
    """Yield the reply to each turn."""
    for turn in turns:
        if turn.strip() == QUIT:
            return
        if turn.strip() == RESET:
            chat.reset()
        elif turn.strip():
            yield chat.reply(turn.strip())


def converse(generate_args: GenerateArguments) -> None:
    """Answer turn by turn, to what a person types or to the lines given."""
    is_given = bool(generate_args.text or generate_args.input_file)
    given = read_texts(generate_args.text, generate_args.input_file) if is_given else None
    chat = open_chat(generate_args)
    turns: Iterable[str] = given or standard_input()
    if given is None and at_terminal():
        path = generate_args.model_name_or_path
        hint(f"Chatting with {path}: {RESET} forgets the dialogue, {QUIT} or Ctrl-D ends it.")
        turns = prompted(turns)
    torch.manual_seed(generate_args.seed)
    with output_stream(generate_args.output_file) as stream:
        for reply in replies(chat, turns):
            print(reply, file=stream, flush=True)
