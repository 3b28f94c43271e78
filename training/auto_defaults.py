"""Defaults that follow the data: values for the options that a user did not give, each with its reason."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from joblib import cpu_count
from transformers import PreTrainedTokenizerBase
from transformers.utils import is_torch_bf16_gpu_available

from vanillaformer.console.parsing import was_given
from vanillaformer.console.reporting import report
from vanillaformer.data.loading import TaskData
from vanillaformer.data.preprocessing.tokenizing import text_lengths

from .hardware import has_bfloat16
from .run_folder.run import BY_DATA, Run, Settings
from .tasks.base import Default, HardwareFacts, LengthRule, TrainingTask

PERCENT = 99  # percentile of the text lengths to which half is added for the chosen length
SHORTEST = 64
# The options that may be chosen: of data, tokenizer and training
OPTIONS = {
    *("max_length", "max_source_length", "max_target_length", "block_size", "block_stride"),
    *("tokenizer_algorithm", "tokenizer_vocab_size", "tokenizer_min_frequency", "lowercase", "strip_punctuation"),
    *("per_device_train_batch_size", "rows_per_step", "tokens_per_batch", "optim", "learning_rate"),
    *("lr_scheduler_type", "weight_decay", "label_smoothing_factor", "token_dropout", "max_epochs", "shift"),
    *("early_stopping_patience", "metric_for_best_model", "greater_is_better", "bf16"),
}
# By option: other options that, if given, keep its default from being chosen
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


def explicit_settings(settings: Settings, task: TrainingTask) -> Settings:
    """Return the settings of a run with `BY_DATA` for the options that the data chooses."""
    if not task.uses_auto_defaults:
        return settings
    given = {name for part in task.args for name in getattr(part, "given", ())}
    if "per_device_train_batch_size" in given:
        given.add("rows_per_step")
    return {
        group: {name: BY_DATA if name in OPTIONS - given else value for name, value in values.items()}
        for group, values in settings.items()
    }


def follow_data(run: Run, task: TrainingTask, data: TaskData) -> None:
    """Choose the options that were not given from the data, print each with its reason, and record them.

    A resumed run keeps its recorded choices. Lengths are chosen once there is a tokenizer (`follow_tokens`).
    """
    if not task.uses_auto_defaults:
        return
    recorded = run.details.get("defaults")
    accelerator = torch.accelerator.is_available()
    bfloat16 = is_torch_bf16_gpu_available() if accelerator else has_bfloat16()
    hardware = HardwareFacts(task.training_args.max_time, cpu_count(), accelerator, bfloat16)
    found = task.defaults(data, hardware) if recorded is None else [Default(*entry) for entry in recorded]
    run.details["defaults"] = []
    _apply(run, task, found, "Defaults for this data, each of which is an option:")


def follow_tokens(
    run: Run, task: TrainingTask, tokenizers: Sequence[PreTrainedTokenizerBase], texts: Sequence[Any]
) -> None:
    """Choose the lengths that were not given from the tokens of the training texts (of a stream, the first texts)."""
    given, rule = task.data_args, task.lengths
    if rule is None or not task.uses_auto_defaults:
        return
    if any(entry[0] in rule.texts for entry in run.details["defaults"]):
        return  # a resumed run has them
    counts = {
        option: np.array(text_lengths(tokenizer, column.sample(), side))
        for option, tokenizer, column, side in zip(rule.texts, tokenizers, texts, ("text", "text_target"))
    }
    known = {option: getattr(given, option) for option in rule.texts if was_given(given, option)}
    limit = task.model_args.config_overrides().get("max_position_embeddings")
    _apply(run, task, length_defaults(rule, counts, known, limit), "Lengths for these tokens:")


def _apply(run: Run, task: TrainingTask, found: Sequence[Default], heading: str) -> None:
    applied = set_defaults(task.args, found)
    run.details["defaults"] += [list(entry) for entry in applied]
    if applied and not run.finished:
        report(heading)
        for option, value, reason in applied:
            text = f"--set {' '.join(value)}" if option == "overrides" else f"--{option} {value}"
            report(f"  {text}: {reason}")


def length_defaults(
    rule: LengthRule, counts: Mapping[str, np.ndarray], given: Mapping[str, int], limit: int | None = None
) -> list[Default]:
    """Return the lengths that were not given, and the number of positions that a model for such rows needs.

    `counts` has the numbers of tokens of sampled training texts, by the option for their length; `limit` is the number
    of positions of the model, if it was given.
    """
    lengths, found = dict(given), []
    for option, texts in rule.texts.items():
        if option not in given:
            most = int(np.percentile(counts[option], PERCENT, method="inverted_cdf"))
            lengths[option] = min(max(SHORTEST, most * 3 // 2), rule.longest, limit or rule.longest)
            found.append(Default(option, lengths[option], f"{PERCENT} % of the {texts} have at most {most} tokens"))
    positions = max(*lengths.values(), 0 if given else rule.readable)
    return [
        *found,
        Default("overrides", [f"max_position_embeddings={positions}"], "the longest text that the model reads"),
    ]


def set_defaults(groups: Sequence[Any], found: Sequence[Default]) -> list[Default]:
    """Set options of the parsed arguments that were not given, and return what was set.

    Chosen entries of `overrides`, the fields of a new model, go before the given ones.
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
    """Return the fields that were not given, adjusted to a width or number of heads that was given."""
    fields = dict(entry.split("=", 1) for entry in chosen)
    if "hidden_size" in fields and "num_attention_heads" in fields:
        width, heads = int(fields["hidden_size"]), int(fields["num_attention_heads"])
        if "hidden_size" in given:
            new = int(given["hidden_size"])
            most = max(1, new * heads // width)  # keeps the width of a head
            fields["num_attention_heads"] = str(next(number for number in range(most, 0, -1) if new % number == 0))
            if "intermediate_size" in fields:
                fields["intermediate_size"] = str(int(fields["intermediate_size"]) * new // width)
        elif "num_attention_heads" in given and "head_dim" not in given:
            step = 2 * int(given["num_attention_heads"])  # rotary positions need an even width of heads
            fields["hidden_size"] = str(-(-width // step) * step)
    return [f"{name}={value}" for name, value in fields.items() if name not in given]
