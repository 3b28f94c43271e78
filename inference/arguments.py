"""Options of `generate`, and the checks of them that need no model."""

from dataclasses import dataclass, field
from typing import Any, Literal

from vanillaformer.console import limits
from vanillaformer.console.limits import check_limits, option

from .text_files import check_output, check_text

LIMITS: dict[str, limits.Limit] = {
    **dict.fromkeys(("batch_size", "num_beams", "max_new_tokens", "max_history", "candidates"), limits.POSITIVE_INT),
    "refinement_steps": limits.POSITIVE_INT,
    **dict.fromkeys(("temperature", "repetition_penalty", "length_scale"), limits.POSITIVE),
    "length_penalty": limits.FINITE,
    "top_k": limits.NOT_NEGATIVE,
    "top_p": limits.SHARE,
    "reject_below": limits.SHARE,
    "seed": limits.SEED,
}
SAMPLING = ("temperature", "top_k", "top_p")
GENERATION = (
    "num_beams", "length_penalty", "early_stopping", "temperature", "top_k", "top_p", "max_new_tokens",
    "repetition_penalty", "refinement_steps", "length_scale",
)  # fmt: skip
FILES, SEARCH, SAMPLING_GROUP, CHAT, MACHINE = "Input and output", "Search", "Sampling", "Chat", "Machine"
CLASSIFIERS, LANGUAGES = "Classifiers", "Languages"


@dataclass
class GenerateArguments:
    """Arguments of `generate`."""

    HELP_GROUP = "Model"

    model_name_or_path: str = field(metadata={"help": "Model (folder or Hub id)", "aliases": ["--model"]})
    revision: str | None = option(None, "Branch, tag or commit of the model on the Hub")
    text: list[str] = option([], "Texts to work on", FILES)
    text_pair: list[str] = option([], "Second texts of pairs, one for each --text", FILES)
    input_file: str | None = option(None, "File whose lines are the texts (UTF-8)", FILES)
    image: list[str] = option([], "Images to classify: files, or folders of them", FILES)
    output_format: Literal["plain", "jsonl"] = option("plain", "Format of the output for images", FILES)
    output_file: str | None = option(None, "File to write to (default: standard output)", FILES)
    batch_size: int = option(32, "Texts per batch", MACHINE)
    num_beams: int | None = option(None, "Number of beams, 1 for greedy search (default: the model's)", SEARCH)
    do_sample: bool | None = option(
        None, "Sample tokens; implied by --temperature, --top_k and --top_p", SAMPLING_GROUP, nargs="?", const=True
    )
    temperature: float | None = option(None, "Temperature: above 1 more varied, below 1 less", SAMPLING_GROUP)
    top_k: int | None = option(None, "Number of most likely tokens to draw from; 0 for all", SAMPLING_GROUP)
    top_p: float | None = option(None, "Total probability of the most likely tokens to draw from", SAMPLING_GROUP)
    max_new_tokens: int | None = option(None, "Maximum length of an output in tokens (default: the model's)", SEARCH)
    seed: int = option(42, "Random seed of sampling", SAMPLING_GROUP)
    source_lang: str | None = option(None, "Code of the source's language (multilingual translators)", LANGUAGES)
    target_lang: str | None = option(None, "Code of the language to translate into; both or none", LANGUAGES)
    device: str | None = option(None, "Device: cpu, cuda, ... (default: a GPU if there is one)", MACHINE)
    bf16: bool = option(False, "Compute in bfloat16", MACHINE)
    quantization: Literal["int8"] | None = option(None, "Round the linear layers to int8: faster on a CPU", MACHINE)
    engine: str | None = option(None, "torch, auto (CTranslate2 if its output is the same), or an export's", MACHINE)
    length_penalty: float | None = option(None, "Exponent of the length of beams; above 0 for longer output", SEARCH)
    early_stopping: bool | None = option(None, "Beam search: stop as soon as --num_beams outputs are complete", SEARCH)
    refinement_steps: int | None = option(None, "Mask-predict: number of passes over an output", SEARCH)
    length_scale: float | None = option(None, "Mask-predict: factor on the predicted length", SEARCH)
    repetition_penalty: float | None = option(None, "Penalty on tokens that occurred already; above 1", SEARCH)
    reject_below: float | None = option(None, "Probability below which a label becomes (uncertain)", CLASSIFIERS)
    chat: bool = option(
        False,
        "Chat with a dialogue model (--turns_column), one line of input per turn; /reset forgets the dialogue, "
        "/quit ends it. Samples unless --num_beams is given",
        CHAT,
    )
    max_history: int | None = option(None, "Maximum number of turns seen (default: all that fit)", CHAT)
    candidates: int = option(1, "Number of replies that --rerank_model chooses from", CHAT)
    rerank_model: str | None = option(None, "Model trained with --reverse_turns that chooses the reply (MMI)", CHAT)

    def options(self) -> dict[str, Any]:
        """Return the arguments of `model.generate` that were given."""
        given = {name: getattr(self, name) for name in GENERATION if getattr(self, name) is not None}
        drawn = given.keys() & set(SAMPLING) or (self.chat and self.num_beams is None)
        if self.do_sample or (drawn and self.do_sample is None):
            given = {"num_beams": 1, **given, "do_sample": True}
        elif self.num_beams is not None or self.do_sample is False:
            given["do_sample"] = False  # also where the model samples by default
        return given


def check_arguments(arguments: GenerateArguments) -> None:
    """Raise ValueError for invalid or contradictory options, before anything is read or loaded."""
    check_limits(arguments, LIMITS)
    check_text("--text", arguments.text)
    check_text("--text_pair", arguments.text_pair)
    if arguments.text_pair and len(arguments.text_pair) != len(arguments.text):
        raise ValueError(f"--text_pair: {len(arguments.text_pair)} texts for {len(arguments.text)} of --text")
    if empty := [pair for pair in zip(arguments.text, arguments.text_pair) if not all(map(str.strip, pair))]:
        raise ValueError(f"--text_pair: the pair {empty[0]!r:.80} has an empty text")
    source, target = arguments.source_lang, arguments.target_lang
    if (source is None) != (target is None):
        raise ValueError(f"--source_lang {source} --target_lang {target}: one needs the other")
    check_output(arguments.output_file, arguments.input_file)
    if arguments.quantization and (arguments.bf16 or arguments.engine or arguments.device not in (None, "cpu")):
        raise ValueError(f"--quantization {arguments.quantization} is for torch on the CPU without --bf16 or --engine")
    candidates, judge = arguments.candidates, arguments.rerank_model
    if not arguments.chat and (arguments.max_history or judge or candidates > 1):
        raise ValueError("--max_history, --candidates and --rerank_model are for --chat")
    if (candidates > 1) != (judge is not None):
        raise ValueError(f"--candidates {candidates} and --rerank_model {judge}: one needs the other")
    beams, drawn = arguments.num_beams, arguments.options().get("do_sample")
    if beams is not None and candidates > beams and not (drawn and beams == 1):
        raise ValueError(f"--candidates {candidates} --num_beams {beams}: sample, or give as many beams as candidates")
    if not arguments.image and arguments.output_format != "plain":
        raise ValueError(f"--output_format {arguments.output_format} is for --image")
    others = ("text", "input_file", "chat", "source_lang", *arguments.options())
    given = [name for name in others if getattr(arguments, name)]
    if arguments.image and given:
        raise ValueError(f"--image and --{given[0]}: images are classified, give one of them")
