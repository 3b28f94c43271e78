"""The settings that identify a run, and the differences between those of two commands."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

from transformers import Seq2SeqTrainingArguments

from vanillaformer.console.limits import BUDGETS

Settings = dict[str, dict[str, Any]]
Changes = dict[str, tuple[Any, Any]]

BY_DATA = "by the data"
"""The setting of an option whose default follows the data; the details of the record have the value."""
LENGTH = ("num_train_epochs", "max_steps", *BUDGETS, "max_epochs")
# Saved with the model, and read from there
GENERATION = ("num_beams", "length_penalty", "early_stopping")
# Fields without influence on the weights and scores of a run: all others are compared. Rows per step are compared as
# their product, test data by its content, options of numerical precision not at all.
NOT_COMPARED = frozenset(
    (
        *("output_dir", "overwrite_output_dir", "resume_from_checkpoint", "do_train", "do_eval", "do_predict"),
        *("baseline",),
        *("test_file", "test_target_file", "max_test_samples", "preprocessing_num_workers", "attn_implementation"),
        *("license", "data_license", "data_description", "card_example", *GENERATION),
        *("push_to_hub", "hub_token", "hub_private_repo", "hub_model_id", "hub_strategy", "hub_always_push"),
        *("hub_revision", "run_name", "project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),
        *("logging_strategy", "logging_steps", "logging_first_step", "log_on_each_node", "logging_nan_inf_filter"),
        *("log_level", "log_level_replica", "disable_tqdm", "report_to", "include_num_input_tokens_seen"),
        *("per_device_train_batch_size", "gradient_accumulation_steps", "per_device_eval_batch_size"),
        *("eval_accumulation_steps", "eval_use_gather_object", "bf16_full_eval", "fp16_full_eval", "tf32"),
        *("gradient_checkpointing", "gradient_checkpointing_kwargs", "activation_checkpointing"),
        *("activation_checkpointing_kwargs", "torch_compile", "torch_compile_backend", "torch_compile_mode"),
        *("use_liger_kernel", "liger_kernel_config", "torch_empty_cache_steps", "full_determinism", "use_cpu"),
        *("save_only_model", "save_on_each_node", "save_total_limit", "enable_jit_checkpoint", "local_rank"),
        *("restore_callback_states_from_checkpoint", "accelerator_config", "parallelism_config"),
        *("dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers"),
        *("dataloader_prefetch_factor", "dataloader_multiprocessing_context", "dataloader_in_order"),
        *("ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph"),
        *("ddp_backend", "ddp_timeout", "fsdp", "fsdp_config", "deepspeed", "debug", "skip_memory_metrics"),
    )
)
# Records made before all settings were compared lack these, whatever they were
TRANSFORMERS = frozenset(entry.name for entry in fields(Seq2SeqTrainingArguments))
# Fields that are `None` by default now, with their earlier defaults, which old records have or stand for
EARLIER_DEFAULTS = {"sample_by": "line", "packing": False}


def compared_settings(program: str, training: Any, groups: Mapping[str, Any]) -> Settings:
    """Return the settings of a run that are compared with those of an earlier one, by group of arguments."""
    chosen = {**{group: asdict(values) for group, values in groups.items()}, "training": training.to_dict()}
    rows = training.train_batch_size * training.gradient_accumulation_steps * training.world_size
    settings = {
        group: {
            name: EARLIER_DEFAULTS.get(name) if value is None else value
            for name, value in values.items()
            if name not in NOT_COMPARED
        }
        for group, values in chosen.items()
    }
    settings["training"]["rows_per_step"] = None if training.tokens_per_batch is not None else rows
    return as_written({"program": {"name": program}, **settings})


def default_settings(groups: Mapping[str, Any]) -> Settings:
    """Return the defaults of the fields that are compared, which records made before there was a field lack."""
    found: Settings = {}
    for group, kind in groups.items():
        found[group] = {}
        for entry in fields(kind):
            if entry.name not in NOT_COMPARED | TRANSFORMERS:
                default = entry.default if entry.default_factory is MISSING else entry.default_factory()
                found[group][entry.name] = EARLIER_DEFAULTS.get(entry.name, default)
    return as_written(found)


def as_written(settings: Any) -> Any:
    """Return settings as they are after writing them to a file."""
    return json.loads(json.dumps(settings, default=str))


def with_defaults(recorded: Settings, chosen: Mapping[str, Any], now: Settings) -> Settings:
    """Return recorded settings with the values that the data chose for the options that a command gives now."""
    return {
        group: {
            name: chosen.get(name, value) if BY_DATA == value != now.get(group, {}).get(name) else value
            for name, value in values.items()
        }
        for group, values in recorded.items()
    }


def changed_settings(old: Settings, new: Settings, default: Settings) -> Changes:
    """Return the differences, as `group.name` → (old, new)."""
    was, now = _flat(default) | _flat(old), _flat(new)
    names = sorted(name for name in was.keys() & now.keys() if name.split(".", 1)[1] not in NOT_COMPARED)
    changes = {name: (was[name], now[name]) for name in names if not _same(name, was[name], now[name])}
    if all(settings.get("training.max_steps", 0) > 0 for settings in (was, now)):  # in which epochs have no part
        changes.pop("training.num_train_epochs", None)
    return changes


def is_longer(changes: Changes) -> bool:
    """Tell whether a run with these changes is the same one, trained for more steps, epochs or time."""
    return bool(changes) and all(
        name.removeprefix("training.") in LENGTH and BY_DATA not in change and 0 < (change[0] or 0) < (change[1] or 0)
        for name, change in changes.items()
    )


def listed(changes: Changes) -> str:
    """Return changes in words."""
    return ", ".join(f"{name.split('.', 1)[1]}: {old!r} there, {new!r} now" for name, (old, new) in changes.items())


def _flat(settings: Settings) -> dict[str, Any]:
    """Return settings by `group.name`; a list of one as its item, for options have come to take several values."""
    flat = {f"{group}.{name}": value for group, values in settings.items() for name, value in values.items()}
    return {name: value[0] if isinstance(value, list) and len(value) == 1 else value for name, value in flat.items()}


def _same(name: str, old: Any, new: Any) -> bool:
    if name.endswith(("_file", "_name_or_path")):  # a path can be written in many ways
        names = [value if isinstance(value, list) else [value] for value in (old, new)]
        old, new = ([Path(name).resolve() if isinstance(name, str) else name for name in part] for part in names)
    return old == new
