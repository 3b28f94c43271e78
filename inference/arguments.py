"""Options of `generate`, and what can be checked of them before a model is loaded."""

from dataclasses import dataclass, field
from typing import Any

from vanillaformer.training.limits import (
    FINITE,
    NOT_NEGATIVE,
    POSITIVE,
    POSITIVE_INT,
    SEED,
    SHARE,
    Limit,
    check_limits,
)

from .text_files import check_output, check_text

LIMITS: dict[str, Limit] = {
    **dict.fromkeys(("batch_size", "num_beams", "max_new_tokens", "max_history", "candidates"), POSITIVE_INT),
    **dict.fromkeys(("temperature", "repetition_penalty"), POSITIVE),
    "length_penalty": FINITE,
    "top_k": NOT_NEGATIVE,
    "top_p": SHARE,
    "seed": SEED,
}
SAMPLING = ("temperature", "top_k", "top_p")


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
    do_sample: bool = field(
        default=False,
        metadata={"help": "Sample tokens at random; --temperature, --top_k and --top_p imply it (default: search)."},
    )
    temperature: float | None = field(
        default=None, metadata={"help": "Sampling: probabilities are flatter above 1, sharper below 1."}
    )
    top_k: int | None = field(
        default=None, metadata={"help": "Sampling: only among this many most likely tokens; 0 for all."}
    )
    top_p: float | None = field(
        default=None, metadata={"help": "Sampling: only among the most likely tokens of this total probability."}
    )
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
            "help": "Talk with a model of dialogues (--turns_column): a line of input is a turn; /reset forgets the "
            "dialogue, /quit ends it. Samples, unless --num_beams is given."
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
        if self.do_sample or given.keys() & set(SAMPLING) or (self.chat and self.num_beams is None):
            given = {"num_beams": 1, **given, "do_sample": True}
        return given


def check_arguments(arguments: GenerateArguments) -> None:
    """Raise ValueError for options that make no sense, before anything is read or loaded."""
    check_limits(arguments, LIMITS)
    check_text("--text", arguments.text)
    check_output(arguments.output_file, arguments.input_file)
    if not arguments.chat and (arguments.max_history or arguments.rerank_model or arguments.candidates > 1):
        raise ValueError("--max_history, --candidates and --rerank_model are for --chat")
    if (arguments.candidates > 1) != (arguments.rerank_model is not None):
        raise ValueError(
            f"--candidates {arguments.candidates} and --rerank_model {arguments.rerank_model}: one needs the other"
        )
