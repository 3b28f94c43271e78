"""Defaults that follow the data: values for the options that a user did not give, each with its reason."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

ACCELERATOR = 150
"""Processor cores that an accelerator stands for."""
# Options that keep the default of another one from being chosen, besides that one
INSTEAD = {
    **dict.fromkeys(("optim", "learning_rate", "weight_decay"), ("optim", "learning_rate", "weight_decay")),
    "tokenizer_algorithm": ("tokenizer_name_or_path",),
    **dict.fromkeys(
        ("tokenizer_vocab_size", "tokenizer_min_frequency", "lowercase", "strip_punctuation"),
        ("tokenizer_name_or_path", "tokenizer_algorithm"),
    ),
    **dict.fromkeys(("per_device_train_batch_size", "tokens_per_batch"), ("tokens_per_batch",)),
    "bf16": ("fp16", "dtype"),
    "block_stride": ("packing", "turns_column"),
    **dict.fromkeys(("greater_is_better", "metric_for_best_model"), ("metric_for_best_model", "lr_scheduler_type")),
}


class Default(NamedTuple):
    """The value of an option that the user did not give, and why."""

    option: str
    value: Any
    reason: str


class Machine(NamedTuple):
    """What a run has to compute with.

    Attributes:
        seconds: Time to train.
        cores: Processor cores.
        accelerator: Whether there is an accelerator.
        bfloat16: Whether bfloat16 is fast on the device.
    """

    seconds: float
    cores: int
    accelerator: bool = False
    bfloat16: bool = False

    @property
    def name(self) -> str:
        """What computes, in words."""
        return "an accelerator" if self.accelerator else "one core" if self.cores == 1 else f"{self.cores} cores"

    @property
    def words(self) -> str:
        """The time on what computes, in words."""
        return f"{self.seconds / 60:.3g} minutes on {self.name}"

    @property
    def core_seconds(self) -> float:
        """The time of all cores together, in seconds."""
        return self.seconds * (ACCELERATOR if self.accelerator else self.cores)


def set_defaults(groups: Sequence[Any], found: Sequence[Default]) -> list[Default]:
    """Set options that were not given, and return what was set.

    The entries of `overrides`, the fields of a new model, go before those that were given.

    Args:
        groups: The parsed dataclasses of arguments.
        found: The defaults.
    """
    applied, given = [], frozenset[str]().union(*(getattr(group, "given", ()) for group in groups))
    for option, value, reason in found:
        group = next((group for group in groups if hasattr(type(group), option) or hasattr(group, option)), None)
        if option == "overrides":
            value = _fields(value, group.config_overrides())  # type: ignore[union-attr]
            if not value:
                continue
            group.overrides = [*value, *group.overrides]  # type: ignore[union-attr]
        elif group is None or not given.isdisjoint((option, *INSTEAD.get(option, ()))):
            continue
        else:
            setattr(group, option, value)
            if option == "bf16":
                group.mixed_precision = "bf16"  # type: ignore[union-attr]  # the Trainer reads this one
        applied.append(Default(option, value, reason))
    return applied


def _fields(chosen: Sequence[str], given: Mapping[str, Any]) -> list[str]:
    """Return the fields that were not given; those that depend on a width or heads that were given fit these."""
    fields = dict(entry.split("=", 1) for entry in chosen)
    if "hidden_size" in fields and "num_attention_heads" in fields:
        width, heads = int(fields["hidden_size"]), int(fields["num_attention_heads"])
        if "hidden_size" in given:
            new = int(given["hidden_size"])
            most = max(1, new * heads // width)  # heads as wide
            fields["num_attention_heads"] = str(next(number for number in range(most, 0, -1) if new % number == 0))
            if "intermediate_size" in fields:
                fields["intermediate_size"] = str(int(fields["intermediate_size"]) * new // width)
        elif "num_attention_heads" in given and "head_dim" not in given:
            step = 2 * int(given["num_attention_heads"])  # rotary positions need an even width of heads
            fields["hidden_size"] = str(-(-width // step) * step)
    return [f"{name}={value}" for name, value in fields.items() if name not in given]
