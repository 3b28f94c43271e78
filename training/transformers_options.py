"""What the programs make of each of transformers' training arguments: it works, has particulars, or is refused.

Every field of `Seq2SeqTrainingArguments` is in exactly one of the three. `docs/training.md` has the table.
"""

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

import torch
from accelerate.utils import DynamoBackend
from transformers import TrainingArguments
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK, get_available_reporting_integrations

WORKS = frozenset(
    (
        *("output_dir", "per_device_train_batch_size", "num_train_epochs", "max_steps", "learning_rate"),
        *("warmup_steps", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "gradient_accumulation_steps"),
        *("average_tokens_across_devices", "max_grad_norm", "bf16", "tf32", "activation_checkpointing"),
        *("activation_checkpointing_kwargs", "gradient_checkpointing", "gradient_checkpointing_kwargs"),
        *("torch_compile", "torch_compile_backend", "torch_compile_mode", "neftune_noise_alpha"),
        *("torch_empty_cache_steps", "logging_strategy", "logging_steps", "logging_first_step", "log_on_each_node"),
        *("logging_nan_inf_filter", "include_num_input_tokens_seen", "log_level", "log_level_replica"),
        *("disable_tqdm", "report_to", "run_name", "project", "trackio_space_id", "trackio_bucket_id"),
        *("trackio_static_space_id", "eval_strategy", "eval_delay", "per_device_eval_batch_size", "eval_on_start"),
        *("eval_use_gather_object", "eval_accumulation_steps", "save_on_each_node", "save_total_limit"),
        *("push_to_hub", "hub_token", "hub_private_repo", "hub_model_id", "hub_revision"),
        *("load_best_model_at_end", "full_determinism", "seed", "data_seed", "dataloader_drop_last"),
        *("dataloader_pin_memory", "dataloader_prefetch_factor", "dataloader_multiprocessing_context"),
        *("ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph"),
        *("ddp_backend", "ddp_timeout", "fsdp_config", "resume_from_checkpoint", "generation_max_length"),
        "generation_num_beams",
    )
)
"""Those that do what transformers' documentation says."""

HERE = {
    "lr_scheduler_type": "all; with `--max_time` they follow the time, `warmup_stable_decay` decays in the last tenth",
    "lr_scheduler_kwargs": "checked before data is read; with `--max_time`, steps in it are thousandths of the run",
    "optim": "also `muon` and `radam`; an optimizer whose package is missing is refused before data is read",
    "optim_args": "for the optimizers that read it, refused with others",
    "optim_target_modules": "for GaLore and APOLLO, refused with other optimizers",
    "label_smoothing_factor": "in training only: evaluations have the plain cross-entropy",
    "fp16": "on accelerators",
    "use_cache": "the value in the saved config",
    "eval_steps": "as `--save_steps` where only one is given; with `--max_time` a fraction is one of the time",
    "save_steps": "as `--eval_steps` where only one is given; with `--max_time` a fraction is one of the time",
    "save_strategy": "as `--eval_strategy` unless it is given",
    "hub_strategy": "`end`: the model is pushed once, without files of this machine",
    "metric_for_best_model": "one of the task's scores, by its plain name",
    "greater_is_better": "follows from the score; the other direction is refused",
    "use_cpu": "also set where there is no accelerator",
    "dataloader_num_workers": "a stream has one at most",
    "dataloader_persistent_workers": "for training batches; evaluations start workers of their own",
    "remove_unused_columns": "raw texts stay out of batches in any case",
    "train_sampling_strategy": "`random`, `sequential` or `group_by_length`; the order depends on seed and data",
    "fsdp": "FSDP2 on several processes",
    "deepspeed": "not tested with DeepSpeed installed",
    "debug": "`underflow_overflow`",
    "skip_memory_metrics": "the memory is among the metrics",
    "local_rank": "set by launchers, without effect",
    "predict_with_generate": "on unless it is switched off, which leaves the loss as the only score",
}
"""Those that work, with what is particular to the programs."""

REFUSED = {
    "do_train": "a run always trains; vanillaformer generate uses a trained model",
    "do_eval": "--eval_strategy no trains without evaluations",
    "do_predict": "test data is scored where there is any: leave out --test_file",
    "prediction_loss_only": "scores and predictions need what the model predicts; --eval_strategy no saves the time",
    "eval_do_concat_batches": "scores are computed on all rows together",
    "batch_eval_metrics": "scores are computed on all rows together; --eval_accumulation_steps saves memory",
    "include_for_metrics": "no score reads inputs or losses of rows",
    "label_names": "the task says which columns are labels",
    "length_column_name": "lengths are counted in the tokens of the rows",
    "bf16_full_eval": "it would convert the model that is saved; --bf16 evaluates in bfloat16",
    "fp16_full_eval": "it would convert the model that is saved; --fp16 evaluates in float16",
    "use_liger_kernel": "its kernels replace layers and losses of native models; use --torch_compile",
    "liger_kernel_config": "its kernels replace layers and losses of native models; use --torch_compile",
    "auto_find_batch_size": "the batches of a run depend on seed and data, not on free memory; use a smaller "
    "--per_device_train_batch_size with --gradient_accumulation_steps, which trains the same",
    "hub_always_push": "the model is pushed once, at the end",
    "save_only_model": "a run could not resume from its checkpoints; --save_total_limit 1 keeps few of them",
    "enable_jit_checkpoint": "SIGTERM and SIGINT always save a checkpoint",
    "ignore_data_skip": "a resumed run would see rows again, and end at other weights",
    "restore_callback_states_from_checkpoint": "a run's state is restored in any case; its options are those given",
    "accelerator_config": "the programs divide batches among processes themselves",
    "parallelism_config": "it cannot be given in words; use --fsdp",
    "dataloader_in_order": "batches would come in another order each time",
    "sortish_sampler": "transformers no longer reads it; use --train_sampling_strategy group_by_length",
    "generation_config": "use --num_beams, --length_penalty, --early_stopping and --generation_max_length",
}
"""Those that are refused with any value but their default, and what to use instead."""


def check_transformers_options(arguments: Any) -> None:
    """Raise ValueError for an option of transformers that the programs do not have, naming it and its value."""
    for name in TrainingArguments._VALID_DICT_FIELDS:
        check_json(name, getattr(arguments, name))
    for entry in dataclasses.fields(arguments):
        value = getattr(arguments, entry.name)
        if entry.name in REFUSED and value != (entry.default if entry.default_factory is dataclasses.MISSING else []):
            raise ValueError(f"--{entry.name} {value} is not supported: {REFUSED[entry.name]}")
    for name in ("persistent_workers", "prefetch_factor", "multiprocessing_context"):
        if (value := getattr(arguments, f"dataloader_{name}")) and not arguments.dataloader_num_workers:
            raise ValueError(f"--dataloader_{name} {value} needs --dataloader_num_workers 1 or more")
    choices = {"mode": torch._inductor.list_mode_options(), "backend": [each.value.lower() for each in DynamoBackend]}
    for name, known in choices.items():
        value = getattr(arguments, f"torch_compile_{name}")
        if value is not None and value.lower() not in known:
            raise ValueError(f"--torch_compile_{name} {value}: choose from {', '.join(known)}")
    if arguments.hub_strategy != "end":
        raise ValueError(f"--hub_strategy {arguments.hub_strategy} is not supported: the model is pushed at the end")
    if "tpu_metrics_debug" in str(arguments.debug):
        raise ValueError(f"--debug {arguments.debug} is not supported: choose underflow_overflow")


def check_json(name: str, value: Any) -> None:
    """Raise ValueError for an option of several values that is not a JSON object."""
    if isinstance(value, str) and (value.startswith("{") or name.endswith("_kwargs")):
        try:
            found = json.loads(value)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ValueError(f"--{name} {value}: it must be a JSON object, such as '{{\"name\": 0.1}}'")


def check_reports(names: Iterable[str]) -> None:
    """Raise ValueError for a tracker of experiments that transformers does not know or that is not installed."""
    for name in names:
        if name not in INTEGRATION_TO_CALLBACK:
            raise ValueError(f"--report_to {name}: choose from none, all, {', '.join(INTEGRATION_TO_CALLBACK)}")
        if name not in (*get_available_reporting_integrations(), "azure_ml", "flyte"):  # two it does not look for
            raise ValueError(f"--report_to {name}: it is not installed (pip install {name})")


def options_table() -> str:
    """Return the table of the documentation."""
    rows = [("all others of `TrainingArguments`", "as in transformers")]
    rows += [(f"`--{name}`", text) for name, text in sorted(HERE.items())]
    rows += [(f"`--{name}`", f"refused: {text}") for name, text in sorted(REFUSED.items())]
    return "\n".join(
        ["| option | in the programs |", "| --- | --- |", *(f"| {name} | {text} |" for name, text in rows)]
    )
