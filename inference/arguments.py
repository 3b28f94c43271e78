"""Options of `generate`, and what can be checked of them before a model is loaded."""

from dataclasses import dataclass, field
from typing import Any, Literal

from vanillaformer.console.limits import FINITE, NOT_NEGATIVE, POSITIVE, POSITIVE_INT, SEED, SHARE, Limit, check_limits

from .text_files import check_output, check_text

LIMITS: dict[str, Limit] = {
    **dict.fromkeys(("batch_size", "num_beams", "max_new_tokens", "max_history", "candidates"), POSITIVE_INT),
    "refinement_steps": POSITIVE_INT,
    **dict.fromkeys(("temperature", "repetition_penalty", "length_scale"), POSITIVE),
    "length_penalty": FINITE,
    "top_k": NOT_NEGATIVE,
    "top_p": SHARE,
    "reject_below": SHARE,
    "seed": SEED,
}
SAMPLING = ("temperature", "top_k", "top_p")
FILES, SEARCH, SAMPLING_GROUP, CHAT, MACHINE = "Input and output", "Search", "Sampling", "Chat", "Machine"
CLASSIFIERS = "Classifiers"


@dataclass
class GenerateArguments:
    """Which model to use, on what, and how."""

    HELP_GROUP = "Model"

    model_name_or_path: str = field(metadata={"help": "Model (folder or Hub id)", "aliases": ["--model"]})
    revision: str | None = field(default=None, metadata={"help": "Branch, tag or commit of the model on the Hub"})
    text: list[str] = field(default_factory=list, metadata={"help": "Texts to work on", "group": FILES})
    input_file: str | None = field(
        default=None, metadata={"help": "File whose lines are the texts (UTF-8)", "group": FILES}
    )
    image: list[str] = field(
        default_factory=list, metadata={"help": "Images to classify: files, or folders of them", "group": FILES}
    )
    output_format: Literal["plain", "jsonl"] = field(
        default="plain", metadata={"help": "Format of the output for images", "group": FILES}
    )
    output_file: str | None = field(
        default=None, metadata={"help": "File to write to (default: standard output)", "group": FILES}
    )
    batch_size: int = field(default=32, metadata={"help": "Texts per batch", "group": MACHINE})
    num_beams: int | None = field(
        default=None,
        metadata={"help": "Beam search: number of beams, 1 for greedy search (default: the model's)", "group": SEARCH},
    )
    do_sample: bool = field(
        default=False,
        metadata={"help": "Sample tokens; implied by --temperature, --top_k and --top_p", "group": SAMPLING_GROUP},
    )
    temperature: float | None = field(
        default=None, metadata={"help": "Temperature: above 1 more varied, below 1 less", "group": SAMPLING_GROUP}
    )
    top_k: int | None = field(
        default=None,
        metadata={"help": "Number of most likely tokens to draw from; 0 for all", "group": SAMPLING_GROUP},
    )
    top_p: float | None = field(
        default=None,
        metadata={"help": "Total probability of the most likely tokens to draw from", "group": SAMPLING_GROUP},
    )
    max_new_tokens: int | None = field(
        default=None,
        metadata={"help": "Maximum length of an output in tokens (default: the model's)", "group": SEARCH},
    )
    seed: int = field(default=42, metadata={"help": "Seed of the sampling", "group": SAMPLING_GROUP})
    device: str | None = field(
        default=None, metadata={"help": "Device: cpu, cuda, ... (default: a GPU if there is one)", "group": MACHINE}
    )
    bf16: bool = field(default=False, metadata={"help": "Compute in bfloat16", "group": MACHINE})
    engine: str | None = field(
        default=None,
        metadata={
            "help": "Engine: torch, auto (CTranslate2 if it gives the same output), or that of an export",
            "group": MACHINE,
        },
    )
    length_penalty: float | None = field(
        default=None,
        metadata={"help": "Beam search: exponent of the length; above 0 for longer output", "group": SEARCH},
    )
    early_stopping: bool | None = field(
        default=None,
        metadata={"help": "Beam search: stop as soon as --num_beams outputs are complete", "group": SEARCH},
    )
    refinement_steps: int | None = field(
        default=None, metadata={"help": "Mask-predict: number of passes over an output", "group": SEARCH}
    )
    length_scale: float | None = field(
        default=None, metadata={"help": "Mask-predict: factor on the predicted length", "group": SEARCH}
    )
    repetition_penalty: float | None = field(
        default=None, metadata={"help": "Penalty of tokens that occurred already; above 1", "group": SEARCH}
    )
    reject_below: float | None = field(
        default=None,
        metadata={"help": "Probability below which a label is replaced by (uncertain)", "group": CLASSIFIERS},
    )
    chat: bool = field(
        default=False,
        metadata={
            "help": "Chat with a model of dialogues (--turns_column), one line of input per turn; /reset forgets the "
            "dialogue, /quit ends it. Samples unless --num_beams is given",
            "group": CHAT,
        },
    )
    max_history: int | None = field(
        default=None, metadata={"help": "Maximum number of turns seen (default: all that fit)", "group": CHAT}
    )
    candidates: int = field(
        default=1, metadata={"help": "Number of replies that --rerank_model chooses from", "group": CHAT}
    )
    rerank_model: str | None = field(
        default=None,
        metadata={"help": "Model trained with --reverse_turns that chooses the reply (MMI)", "group": CHAT},
    )

    def options(self) -> dict[str, Any]:
        """Return the arguments of `model.generate` that were given."""
        names = (
            *("num_beams", "length_penalty", "early_stopping", "temperature", "top_k", "top_p", "max_new_tokens"),
            *("repetition_penalty", "refinement_steps", "length_scale"),
        )
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.do_sample or given.keys() & set(SAMPLING) or (self.chat and self.num_beams is None):
            given = {"num_beams": 1, **given, "do_sample": True}
        elif self.num_beams is not None:
            given["do_sample"] = False  # also where the model samples by default
        return given


def check_arguments(arguments: GenerateArguments) -> None:
    """Raise ValueError for options that make no sense, before anything is read or loaded."""
    check_limits(arguments, LIMITS)
    check_text("--text", arguments.text)
    check_output(arguments.output_file, arguments.input_file)
    check_images(arguments)
    if not arguments.chat and (arguments.max_history or arguments.rerank_model or arguments.candidates > 1):
        raise ValueError("--max_history, --candidates and --rerank_model are for --chat")
    if (arguments.candidates > 1) != (arguments.rerank_model is not None):
        raise ValueError(
            f"--candidates {arguments.candidates} and --rerank_model {arguments.rerank_model}: one needs the other"
        )


def check_images(arguments: GenerateArguments) -> None:
    """Raise ValueError for options that do not go together with images, or only with them."""
    if not arguments.image:
        if arguments.output_format != "plain":
            raise ValueError(f"--output_format {arguments.output_format} is for --image")
        return
    given = [name for name in ("text", "input_file", "chat", *arguments.options()) if getattr(arguments, name)]
    if given:
        raise ValueError(f"--image and --{given[0]}: images are classified, give one of them")
