r"""Use a trained model: translate lines, continue prompts, classify texts or fill in masked tokens.

What is done follows from the model: an encoder-decoder translates, a causal language model continues, a masked one
fills every [MASK], a classifier prints label and probability. Input is `--text ...`, the lines of `--input_file`, or
those of standard input. Several texts make one line of output each (a line break within one is written `\n`).

With `--chat`, a model of dialogues answers turn by turn, each line of input being a turn, and remembers what was said.

A folder that `vanillaformer-export` has made runs on the engine that it was made for, with the same options.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import torch
from huggingface_hub.utils import disable_progress_bars
from tqdm.auto import tqdm
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerBase,
    set_seed,
)
from transformers.utils import logging

import vanillaformer  # noqa: F401 - makes the Auto classes know the models
from vanillaformer.conversion.exports import EngineModel, exporter_of, is_export, load_engine, read_record
from vanillaformer.modeling.loading import open_config, open_model, saved_folder
from vanillaformer.tokenization.opening import open_tokenizers
from vanillaformer.training.arguments import parse
from vanillaformer.training.chat import Chat
from vanillaformer.training.machine import inference_dtype, use_machine_well

TORCH = "torch"
RESET = "/reset"
SORTED = 20  # batches


@dataclass
class GenerateArguments:
    """Which model to use, on what, and how."""

    model_name_or_path: str = field(metadata={"help": "Folder or Hub id of the model.", "aliases": ["--model"]})
    revision: str | None = field(default=None, metadata={"help": "Hub: branch, tag or commit of the model."})
    text: list[str] = field(default_factory=list, metadata={"help": "Texts to work on."})
    input_file: str | None = field(default=None, metadata={"help": "Work on the lines of this file (UTF-8)."})
    output_file: str | None = field(default=None, metadata={"help": "Write here (default: standard output)."})
    batch_size: int = field(default=32, metadata={"help": "Texts at a time."})
    num_beams: int | None = field(default=None, metadata={"help": "Beams (default: the model's)."})
    do_sample: bool = field(default=False, metadata={"help": "Draw tokens at random in place of the likeliest."})
    temperature: float | None = field(default=None, metadata={"help": "Sampling: above 1 bolder, below 1 safer."})
    top_k: int | None = field(default=None, metadata={"help": "Sampling: only among so many likeliest tokens."})
    top_p: float | None = field(default=None, metadata={"help": "Sampling: only among the likeliest of this mass."})
    max_new_tokens: int | None = field(default=None, metadata={"help": "Longest output (default: the model's)."})
    seed: int = field(default=42, metadata={"help": "Seed of the sampling."})
    device: str | None = field(default=None, metadata={"help": "cpu, cuda, ... (default: a GPU if there is one)."})
    bf16: bool = field(default=False, metadata={"help": "Compute in bfloat16."})
    engine: str | None = field(
        default=None, metadata={"help": "torch, ctranslate2, ... (default: what the model was exported for)."}
    )
    length_penalty: float | None = field(
        default=None,
        metadata={"help": "Beams: a score is divided by length to this power; above 0 for longer output."},
    )
    early_stopping: bool | None = field(
        default=None, metadata={"help": "Beams: stop as soon as --num_beams outputs are complete."}
    )
    repetition_penalty: float | None = field(
        default=None, metadata={"help": "Above 1: makes tokens that were there already less likely."}
    )
    chat: bool = field(
        default=False,
        metadata={
            "help": "Talk with a model of dialogues (--turns_column): a line of input is a turn, /reset starts anew. "
            "Samples, but with --num_beams."
        },
    )
    max_history: int | None = field(default=None, metadata={"help": "--chat: turns kept (default: all that fit)."})
    candidates: int = field(default=1, metadata={"help": "--chat: replies drawn for --rerank_model to choose from."})
    rerank_model: str | None = field(
        default=None, metadata={"help": "--chat: model trained with --reverse_turns, which chooses the reply (MMI)."}
    )

    def options(self) -> dict[str, Any]:
        """Return the arguments of `model.generate` that were given."""
        names = (
            *("num_beams", "length_penalty", "early_stopping", "temperature", "top_k", "top_p", "max_new_tokens"),
            "repetition_penalty",
        )
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.do_sample or (self.chat and self.num_beams is None):
            given = {"num_beams": 1, **given, "do_sample": True}
        return given


@dataclass
class Loaded:
    """A model with its tokenizers, ready to use."""

    model: Any
    tokenizer: PreTrainedTokenizerBase
    target_tokenizer: PreTrainedTokenizerBase
    architecture: str

    def encode(self, texts: list[str], *, room: int = 0, side: str | None = None) -> Any:
        """Return a padded batch on the model's device, with every text cut to leave room for so many new tokens.

        Padding and cut are at the given side, or the padding on the right and the cut where the tokenizer has it.
        """
        limit = getattr(self.model.config, "max_position_embeddings", None)
        length = None if limit is None else limit - room
        if length is not None and length < 1:
            raise ValueError(f"--max_new_tokens {room}: the model handles no more than {limit} tokens")
        self.tokenizer.padding_side = side or "right"
        self.tokenizer.truncation_side = side or self.tokenizer.truncation_side
        truncation = {} if length is None else {"truncation": True, "max_length": length}
        batch = self.tokenizer(texts, return_tensors="pt", padding=True, **truncation)
        for text, encoding in zip(texts, batch.encodings or []):
            if encoding.overflowing:
                print(f"cut to {length} tokens: {text[:60]!r} ...", file=sys.stderr)
        return batch.to(self.model.device)


def translate(loaded: Loaded, texts: list[str], **options: Any) -> list[str]:
    """Return the translations of texts."""
    output = loaded.model.generate(**loaded.encode(texts), **options)
    return loaded.target_tokenizer.batch_decode(output, skip_special_tokens=True)


def continue_prompts(loaded: Loaded, texts: list[str], **options: Any) -> list[str]:
    """Return prompts with what the model makes follow them."""
    inputs = loaded.encode(texts, room=options.get("max_new_tokens", 1), side="left")
    output = loaded.model.generate(**inputs, **options)
    return loaded.tokenizer.batch_decode(output, skip_special_tokens=True)


def classify(loaded: Loaded, texts: list[str]) -> list[str]:
    """Return the likeliest label of each text and its probability, separated by a tab."""
    probabilities = loaded.model(**loaded.encode(texts)).logits.float().softmax(dim=-1)
    best = probabilities.max(dim=-1)
    names = loaded.model.config.id2label
    return [f"{names[label]}\t{value:.4f}" for label, value in zip(best.indices.tolist(), best.values.tolist())]


def fill_masks(loaded: Loaded, texts: list[str]) -> list[str]:
    """Return texts with the likeliest token in place of each mask token."""
    mask = loaded.tokenizer.mask_token
    missing = [text for text in texts if mask not in text]
    if missing:
        raise ValueError(f"a masked language model fills in {mask}, which is not in {missing[0]!r}")
    inputs = loaded.encode(texts)
    likeliest = loaded.model(**inputs).logits.argmax(dim=-1)
    filled = torch.where(inputs["input_ids"] == loaded.tokenizer.mask_token_id, likeliest, inputs["input_ids"])
    return loaded.tokenizer.batch_decode(filled, skip_special_tokens=True)


# By the end of the architecture's name: the Auto class, what it does, and whether it generates.
TASKS: dict[str, tuple[Any, Callable[..., list[str]], bool]] = {
    "ForConditionalGeneration": (AutoModelForSeq2SeqLM, translate, True),
    "MTModel": (AutoModelForSeq2SeqLM, translate, True),
    "ForCausalLM": (AutoModelForCausalLM, continue_prompts, True),
    "LMHeadModel": (AutoModelForCausalLM, continue_prompts, True),
    "ForMaskedLM": (AutoModelForMaskedLM, fill_masks, False),
    "ForPreTraining": (AutoModelForMaskedLM, fill_masks, False),  # BERT's: its token head is a masked LM's
    "ForSequenceClassification": (AutoModelForSequenceClassification, classify, False),
}


def load(arguments: GenerateArguments) -> tuple[Loaded, Callable[..., list[str]], bool]:
    """Return the model with its tokenizers, the function that uses it, and whether that takes generation options.

    Raises:
        ValueError: The folder does not exist or holds no model, or one that does none of these things.
    """
    path = arguments.model_name_or_path
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
        disable_progress_bars()
    folder = saved_folder(path, arguments.revision, exported=True)
    if is_export(folder):
        return load_export(arguments, folder)
    if arguments.engine not in (None, TORCH):
        raise ValueError(f"--engine {arguments.engine}: --model {path} is no folder made by vanillaformer-export")
    config = open_config(folder)
    architecture = next(iter(config.architectures or []), "none")
    auto_class, function, generates = task_of(architecture, path)
    device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    model = open_model(auto_class, folder, f"--model {path}", dtype=inference_dtype(device, arguments.bf16))
    tokenizers = open_tokenizers(folder, config, f"--model {path}")
    return Loaded(model.to(device).eval(), *tokenizers, architecture), function, generates


def task_of(architecture: str, path: str) -> tuple[Any, Callable[..., list[str]], bool]:
    """Return the entry of `TASKS` for an architecture."""
    task = next((entry for ending, entry in TASKS.items() if architecture.endswith(ending)), None)
    if task is None:
        raise ValueError(f"--model {path}: architecture {architecture} does none of: {', '.join(TASKS)}")
    return task


def load_export(arguments: GenerateArguments, folder: Path) -> tuple[Loaded, Callable[..., list[str]], bool]:
    """Return the same for an exported model.

    Raises:
        ValueError: It was made for another engine or has no tokenizer, or an option does not fit.
        ImportError: The engine is not installed.
    """
    path = arguments.model_name_or_path
    runtime = exporter_of(read_record(folder)["engine"]).runtime
    if arguments.engine not in (None, runtime):
        raise ValueError(f"--engine {arguments.engine}: --model {path} was exported for {runtime}")
    if arguments.bf16:
        raise ValueError("--bf16: an exported model has the precision that it was exported with")
    if not (folder / "tokenizer_config.json").is_file():
        raise ValueError(f"--model {path} was exported without a tokenizer")
    engine = load_engine(folder, arguments.device or "cpu")
    _, function, generates = task_of(engine.architecture, path)
    model = EngineModel(engine, seed=arguments.seed)
    return Loaded(model, *open_tokenizers(folder, where=f"--model {path}"), engine.architecture), function, generates


def read_texts(arguments: GenerateArguments) -> list[str]:
    """Return the texts to work on.

    Raises:
        ValueError: There are none, or one has nothing in it, or the file does not exist.
    """
    if arguments.text and arguments.input_file:
        raise ValueError(f"give --text or --input_file {arguments.input_file}, not both")
    texts, where = arguments.text, "--text"
    if arguments.input_file is not None:
        if not Path(arguments.input_file).is_file():
            raise ValueError(f"--input_file {arguments.input_file} does not exist")
        texts, where = lines(Path(arguments.input_file).read_text(encoding="utf-8")), arguments.input_file
    elif not texts:
        texts, where = lines(sys.stdin.read()), "standard input"
    if not any(text.strip() for text in texts):
        raise ValueError(f"{where} has no text in it")
    return texts


def lines(text: str) -> list[str]:
    """Return the lines of a text, parted by line feeds alone: other separators may stand within a sentence."""
    return text.removesuffix("\n").split("\n")


@contextmanager
def output_stream(path: str | None) -> Iterator[TextIO]:
    """Open the file to write to, or give standard output."""
    if path is None:
        yield sys.stdout
        return
    with open(path, "w", encoding="utf-8") as stream:
        yield stream


def run(
    loaded: Loaded, function: Callable[..., list[str]], texts: list[str], batch_size: int, **options: Any
) -> Iterator[str]:
    """Yield the result for each text, an empty one for an empty text.

    Texts of similar length make a batch, among as many as `SORTED` batches hold.
    """
    hidden = len(texts) <= batch_size or not sys.stderr.isatty()
    with torch.inference_mode(), tqdm(total=len(texts), disable=hidden) as bar:
        for start in range(0, len(texts), SORTED * batch_size):
            part = texts[start : start + SORTED * batch_size]
            order = sorted((row for row, text in enumerate(part) if text.strip()), key=lambda row: len(part[row]))
            results = [""] * len(part)
            for first in range(0, len(order), batch_size):
                rows = order[first : first + batch_size]
                for row, result in zip(rows, function(loaded, [part[row] for row in rows], **options)):
                    results[row] = result
                bar.update(len(rows))
            yield from results


def check_chat(arguments: GenerateArguments) -> None:
    """Raise ValueError for options of --chat that do not fit."""
    for name in ("max_history", "candidates"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name} {value}: it must be at least 1")
    if not arguments.chat and (arguments.max_history or arguments.rerank_model or arguments.candidates > 1):
        raise ValueError("--max_history, --candidates and --rerank_model are for --chat")
    if (arguments.candidates > 1) != (arguments.rerank_model is not None):
        raise ValueError(
            f"--candidates {arguments.candidates} and --rerank_model {arguments.rerank_model}: one needs the other"
        )


def chat_with(arguments: GenerateArguments) -> Chat:
    """Return a dialogue with the model.

    Raises:
        ValueError: A model is no causal language model of dialogues, or the two have different tokens.
    """
    loaded, function, _ = load(arguments)
    if function is not continue_prompts or isinstance(loaded.model, EngineModel):
        raise ValueError(f"--chat: --model {arguments.model_name_or_path} is no causal language model run by torch")
    reranker = None
    if arguments.rerank_model is not None:
        judge, function, _ = load(replace(arguments, model_name_or_path=arguments.rerank_model, revision=None))
        if function is not continue_prompts or judge.tokenizer.get_vocab() != loaded.tokenizer.get_vocab():
            raise ValueError(
                f"--rerank_model {arguments.rerank_model}: it must be a language model with the tokens of --model"
            )
        reranker = judge.model
    own = (arguments.max_history, arguments.candidates, reranker, arguments.options())
    return Chat(loaded.model, loaded.tokenizer, *own)


def converse(chat: Chat, turns: Iterable[str]) -> Iterator[str]:
    """Yield the reply to each turn."""
    for turn in turns:
        if turn.strip() == RESET:
            chat.reset()
        elif turn.strip():
            yield chat.reply(turn.strip())


def main(argv: Sequence[str] | None = None) -> None:
    """Run the program."""
    (arguments,) = parse(GenerateArguments, argv, description=__doc__)
    if arguments.batch_size < 1:
        raise ValueError(f"--batch_size {arguments.batch_size}: it must be at least 1")
    check_chat(arguments)
    use_machine_well()
    if arguments.chat:
        interactive = not arguments.text and arguments.input_file is None
        turns = sys.stdin if interactive else read_texts(arguments)
        chat = chat_with(arguments)
        set_seed(arguments.seed)
        with output_stream(arguments.output_file) as stream:
            for reply in converse(chat, turns):
                print(reply, file=stream, flush=True)
        return
    texts = read_texts(arguments)
    loaded, function, generates = load(arguments)
    options = arguments.options()
    if options and not generates:
        raise ValueError(f"{', '.join(f'--{name}' for name in options)}: {loaded.architecture} generates nothing")
    set_seed(arguments.seed)
    results = run(loaded, function, texts, arguments.batch_size, **options)
    with output_stream(arguments.output_file) as stream:
        for result in results:
            print(result if len(texts) == 1 else result.replace("\n", "\\n"), file=stream, flush=True)


if __name__ == "__main__":
    main()
