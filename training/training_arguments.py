"""Training arguments of all programs: transformers' own, with defaults for models trained from scratch."""

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import yaml
from accelerate.utils import DynamoBackend
from transformers import TrainingArguments
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK, get_available_reporting_integrations

from vanillaformer.console import limits
from vanillaformer.console.help_page import OTHERS
from vanillaformer.console.limits import POSITIVE_INT, check_limits, option
from vanillaformer.console.reporting import report
from vanillaformer.data.tasks import TaskName

from .hardware import warn_of_emulation
from .metrics.scores import SCORES, ranking_names, ranking_score
from .trainer.adaptation import AdaptationArguments
from .trainer.averaging import AveragingArguments
from .trainer.budget import TimeBudgetArguments
from .trainer.callbacks import GuardArguments
from .trainer.losses import LossArguments
from .trainer.optimizers import OPTIMIZERS, OptimizerArguments, check_optimizer, check_schedule
from .trainer.parallel import ParallelArguments

OUTPUT, TRAINING, OPTIMIZER = "Output", "Training", "Optimizer"
EVALUATION, LOGGING, CARD = "Evaluation and checkpoints", "Logging", "Model card and Hub"
TABLES = yaml.safe_load(Path(__file__).with_name("transformers_options.yaml").read_text(encoding="utf-8"))
REFUSED: dict[str, str] = TABLES["refused"]
"""Options of transformers that are refused with any value but their default, and what to use instead."""
# Limits of each number, checked before anything is loaded
LIMITS = {name: getattr(limits, limit) for limit, names in TABLES["limits"].items() for name in names}
LIMITS["max_steps"] = "at least 1, or -1 for as many as --num_train_epochs has", lambda n: n == -1 or n >= 1
STRATEGIES = {"eval_strategy": ("steps", "epoch", "no"), "save_strategy": ("steps", "epoch", "best", "no")}

EPOCHS = "Passes over the data (default: by the budget)"
AS_EVALUATION = "as_evaluation"
SAMPLING_STRATEGIES = ["random", "sequential", "group_by_length"]
FOLLOWING = ("reduce_lr_on_plateau", "greedy")
"""Schedules that follow the score of --metric_for_best_model, and need to know which direction is better."""


def best_checkpoint_help(*tasks: TaskName) -> str:
    names = dict.fromkeys(name for task in tasks for name in ranking_names(task) if not SCORES[name].optional)
    return f"Best by: {', '.join(names)}"


@dataclass
class RunDefaults(
    ParallelArguments,
    AveragingArguments,
    LossArguments,
    OptimizerArguments,
    GuardArguments,
    AdaptationArguments,
    TimeBudgetArguments,
):
    """Defaults of the training programs that differ from those of `TrainingArguments`.

    Goes before it among the bases. Evaluation, saving and logging are given as fractions of the run, so that
    they fit a run of any length; saving follows evaluation, because the best checkpoint is kept.
    """

    HELP_GROUP = TRAINING
    TRANSFORMERS_HELP = TABLES["help"]

    baseline = calibrate = cast(bool, False)  # options of some tasks, off for all others

    output_dir: str | None = option(None, "Folder of the run, resumed if unfinished", OUTPUT)
    overwrite_output_dir: bool = option(False, "Replace the run in the folder", OUTPUT)
    async_save: bool = option(False, "Write checkpoints while training continues", EVALUATION)
    license: str | None = option(None, "License of the model, such as apache-2.0", CARD)
    num_train_epochs: float = option(3.0, EPOCHS)
    per_device_train_batch_size: int = option(64, "Rows per batch and process")
    tokens_per_batch: int | None = option(None, "Tokens per optimizer step, instead of rows", limit=POSITIVE_INT)
    per_device_eval_batch_size: int = option(128, "Rows per batch and process", EVALUATION)
    learning_rate: float = option(1e-3, "Peak learning rate", OPTIMIZER)
    warmup_steps: float = option(0.05, "Warm-up steps; below 1 a fraction of all", OPTIMIZER)
    weight_decay: float = option(0.01, "Decoupled weight decay of the matrices", OPTIMIZER)
    adam_beta2: float = option(0.98, "Decay of Adam's second moment", OPTIMIZER)
    logging_steps: float = option(0.02, "Logging interval in steps; below 1 a fraction", LOGGING)
    eval_strategy: str = option("steps", "Evaluation time: steps, epoch or no", EVALUATION)
    eval_steps: float | None = option(None, "Evaluation interval (default: --save_steps, 0.1)", EVALUATION)
    save_strategy: str = option(AS_EVALUATION, "Checkpoint time: steps, epoch, best or no", EVALUATION)
    save_steps: float = option(0, "Checkpoint interval; 0 for --eval_steps", EVALUATION)
    save_total_limit: int | None = option(2, "Maximum number of checkpoints kept", EVALUATION)
    load_best_model_at_end: bool = option(True, "Save the best checkpoint, not the last", EVALUATION)
    use_cache: bool = option(True, "Value of use_cache in the saved config", OTHERS)
    disable_tqdm: bool | None = option(None, "Disable progress bars", OTHERS)
    hub_strategy: str = option("end", "Pushes: the model, at the end", OTHERS)
    # As strings; the parser takes only true and false for transformers' own field
    include_num_input_tokens_seen: str = option(
        "no", "Tokens counted in logs", OTHERS, choices=["no", "all", "non_padding"]
    )
    # Always done; true by default, so that an explicit false is recognized
    do_train: bool = option(True, "Always", OTHERS)
    do_eval: bool = option(True, "Always", OTHERS)
    do_predict: bool = option(True, "Always", OTHERS)

    def __post_init__(self) -> None:
        check_transformers_options(self)
        self.plan_evaluations()
        check_limits(self, LIMITS)
        if self.disable_tqdm is None:
            self.disable_tqdm = not sys.stderr.isatty()
        for group in RunDefaults.__bases__:
            if hasattr(group, "check"):
                group.check(self)
        if not torch.accelerator.is_available():
            self.use_cpu = True  # else transformers refuses --bf16, and processes of torchrun do not find each other
        optimizer = self.optim
        if optimizer in OPTIMIZERS:
            self.optim = "adamw_torch"  # transformers accepts only its own
        super().__post_init__()  # type: ignore[misc]  # of TrainingArguments, the next base
        fields: Any = self  # with those of TrainingArguments
        if fields.greater_is_better and fields.lr_scheduler_type in FOLLOWING:
            fields.lr_scheduler_kwargs = {"mode": "max", **(fields.lr_scheduler_kwargs or {})}
        check_optimizer(self, optimizer)
        self.optim = optimizer if optimizer in OPTIMIZERS else self.optim
        for name in fields.report_to:
            if name not in INTEGRATION_TO_CALLBACK:
                raise ValueError(f"--report_to {name}: choose from none, all, {', '.join(INTEGRATION_TO_CALLBACK)}")
            if name not in (*get_available_reporting_integrations(), "azure_ml", "flyte"):  # it ignores these two
                raise ValueError(f"--report_to {name}: it is not installed (pip install {name})")
        check_schedule(self)
        self.check_processes()
        if fields.device.type == "cpu":
            self.dataloader_pin_memory = False
            if fields.bf16:
                warn_of_emulation("--bf16", "cpu")
            if fields.fp16:
                raise ValueError("--fp16 needs an accelerator: on the CPU it would change nothing; --bf16 works there")

    def plan_evaluations(self) -> None:
        """Set when to save and to evaluate, each like the other if only one is given, and check that they fit."""
        if self.save_strategy == AS_EVALUATION:
            self.save_strategy = "steps" if self.eval_strategy == "no" else self.eval_strategy
        for name, allowed in STRATEGIES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"--{name} {getattr(self, name)}: choose from {', '.join(allowed)}")
        following = self.save_steps == 0
        if self.eval_steps is None:
            self.eval_steps = self.save_steps or 0.1
        checked = [what for what in ("save", "eval", "logging") if getattr(self, f"{what}_strategy") == "steps"]
        check_limits(self, {f"{what}_steps": limits.STEPS for what in checked if not (following and what == "save")})
        if following:
            self.save_steps = self.eval_steps
        if self.eval_strategy == "no":
            self.load_best_model_at_end = False
        if self.save_strategy == "no" and self.load_best_model_at_end:
            self.load_best_model_at_end = False
            report("--save_strategy no: without checkpoints, the last weights become the model, not the best.")
        if self.load_best_model_at_end and self.save_strategy != "best":
            self.check_best()

    def check_best(self) -> None:
        """Raise ValueError if checkpoints are not saved when the model is evaluated: no best one could be kept."""
        remedy = "or give --load_best_model_at_end false"
        if self.save_strategy != self.eval_strategy:
            raise ValueError(
                f"--save_strategy {self.save_strategy} and --eval_strategy {self.eval_strategy}: the best checkpoint "
                f"is one that was evaluated, so make them equal, {remedy}"
            )
        evaluated, saved = self.eval_steps or 0.1, self.save_steps
        given = f"--save_steps {saved:g} and --eval_steps {evaluated:g}"
        if self.eval_strategy != "steps":
            return
        if (evaluated < 1) != (saved < 1):
            raise ValueError(f"{given}: give both in steps or both as fractions of the run, {remedy}")
        if abs(saved / evaluated - round(saved / evaluated)) > 1e-6:
            raise ValueError(f"{given}: the first must be a multiple of the second, {remedy}")

    def choose_by(self, task: TaskName) -> None:
        """Set the plain name and the direction of the score that chooses the best checkpoint."""
        fields: Any = self  # with those of TrainingArguments
        if fields.metric_for_best_model is None:
            return
        score = ranking_score(fields.metric_for_best_model, task)
        if fields.greater_is_better not in (None, score.greater_is_better):
            raise ValueError(
                f"--greater_is_better {fields.greater_is_better}: a "
                f"{'greater' if score.greater_is_better else 'lower'} {score.name} is better; leave the option out"
            )
        fields.metric_for_best_model, fields.greater_is_better = score.name, score.greater_is_better


def check_transformers_options(arguments: Any) -> None:
    """Raise ValueError for an option of transformers that the programs do not have, naming it and its value."""
    for name in TrainingArguments._VALID_DICT_FIELDS:
        value = getattr(arguments, name)
        if isinstance(value, str) and (value.startswith("{") or name.endswith("_kwargs")):
            try:
                found = json.loads(value)
            except ValueError:
                found = None
            if not isinstance(found, dict):
                raise ValueError(f"--{name} {value}: it must be a JSON object, such as '{{\"name\": 0.1}}'")
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
