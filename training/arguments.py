"""Options of the training programs for tokenizers and models; those for data are in `data/arguments.py`."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from vanillaformer.console.limits import POSITIVE_INT, check_limits, option
from vanillaformer.console.parsing import yaml_value
from vanillaformer.console.reporting import report
from vanillaformer.data.arguments import DataArguments
from vanillaformer.hub.loading import saved_folder
from vanillaformer.tokenization import TokenizerAlgorithm


@dataclass
class TokenizerArguments:
    """Arguments of the tokenizer: one to load, or one to train on the training split."""

    HELP_GROUP = "Tokenizer"

    tokenizer_name_or_path: str | None = option(None, "Saved tokenizer to use (folder or Hub id)")
    tokenizer_algorithm: TokenizerAlgorithm = option("byte_level_bpe", "Algorithm of a new tokenizer")
    tokenizer_vocab_size: int = option(8_000, "Maximum vocabulary size", limit=POSITIVE_INT)
    tokenizer_min_frequency: int | None = option(
        None, "Minimum count of a piece (default: algorithm's)", limit=POSITIVE_INT
    )
    lowercase: bool = option(False, "Lowercase the text")
    split_digits: bool = option(False, "Make each digit a token")
    strip_punctuation: bool = option(False, "Word tokenizers: drop punctuation and symbols")
    extra_special_tokens: list[str] = option([], "Placeholders and tags that are never split")

    def __post_init__(self) -> None:
        check_limits(self)

    def training_options(self) -> dict[str, Any]:
        """Return the keyword arguments of `vanillaformer.tokenization.train` that these fields stand for."""
        names = [entry.name for entry in fields(TokenizerArguments) if entry.name != "tokenizer_name_or_path"]
        return {name.removeprefix("tokenizer_"): getattr(self, name) for name in names}


@dataclass
class ModelArguments:
    """Arguments of the model to build or to start from."""

    HELP_GROUP = "Model"

    preset: str | None = option(None, "Configuration of a new model")
    overrides: list[str] = option(
        [], "Config fields: hidden_size=256 norm=rms_norm", aliases=["--set"], action="extend"
    )
    model_name_or_path: str | None = option(None, "Saved model to start from (folder or Hub id)")
    model_revision: str | None = option(None, "Branch, tag or commit of --model_name_or_path")
    save_as: Literal["native", "vanilla"] | None = option(None, "Form to save (default: kept)")
    attn_implementation: str | None = option(None, "Attention: eager, sdpa, flex_attention, ...")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option("float32", "Dtype")

    @cached_property
    def saved(self) -> Path | None:
        """The folder of the model to start from, fetched if it is on the Hub; only once, because a branch may move."""
        if self.model_name_or_path is not None:
            return saved_folder(self.model_name_or_path, self.model_revision, "--model_name_or_path")
        if self.model_revision is not None:
            raise ValueError(f"--model_revision {self.model_revision} needs a --model_name_or_path")
        return None

    def config_overrides(self) -> dict[str, Any]:
        """Return `overrides` as a dictionary; a field named twice keeps its last value."""
        changes = {}
        for entry in self.overrides:
            name, sign, text = entry.partition("=")
            if not sign or not name.isidentifier():
                raise ValueError(f"--set {entry!r}: write field=value, for example hidden_size=256")
            changes[name] = yaml_value(f"--set {entry!r}", text)
        return changes


class Arguments(NamedTuple):
    """The arguments of a training program; a program for images has no tokenizer."""

    model_args: ModelArguments
    data_args: DataArguments
    tokenizer_args: TokenizerArguments | None
    training_args: Any


WITHOUT_WARMUP = ("constant", "reduce_lr_on_plateau", "greedy")  # values of --lr_scheduler_type
# Options that have no effect without another one: that one in words, and whether it is given or chosen
PARTNERS: dict[tuple[str, ...], tuple[str, Callable[[Any, Any, Any], Any]]] = {
    ("mlm_probability",): (
        "--objective masked or mlm+nsp",
        lambda data, tokens, args: args.objective in ("masked", "mlm+nsp"),
    ),
    ("scheduled_sampling_k", "scheduled_sampling_floor"): (
        "--scheduled_sampling",
        lambda data, tokens, args: args.scheduled_sampling != "none",
    ),
    ("muon_momentum", "muon_lr_factor"): ("--optim muon", lambda data, tokens, args: args.optim == "muon"),
    ("warmup_steps",): (
        "--lr_scheduler_type constant_with_warmup or another with a warm-up",
        lambda data, tokens, args: args.lr_scheduler_type not in WITHOUT_WARMUP or not args.warmup_steps,
    ),
    ("ema_warmup",): ("--ema_decay", lambda data, tokens, args: args.ema_decay),
    ("tokenizer_min_frequency",): (
        "--tokenizer_algorithm bpe or another than unigram",
        lambda data, tokens, args: tokens.tokenizer_algorithm != "unigram",
    ),
    ("streaming_buffer", "tokenizer_samples"): ("--streaming", lambda data, tokens, args: data.streaming),
}


def report_unused(arguments: Arguments) -> None:
    """Report the options that were given but have no effect, since the one that they belong to is not in use."""
    for names, (partner, is_there) in PARTNERS.items():
        given = [(name, group) for name in names for group in arguments if name in getattr(group, "given", ())]
        for name, group in given if given and not is_there(*arguments[1:]) else ():
            report(f"--{name} {getattr(group, name)} is not used without {partner}.")
