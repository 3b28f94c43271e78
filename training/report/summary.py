"""The summary of a run after training: scores on training rows, baselines, the diagnosis."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict
from transformers import PreTrainedTokenizerBase

from vanillaformer.configuration import VanillaConfig
from vanillaformer.console.reporting import optional, report
from vanillaformer.data.loading import TaskData
from vanillaformer.data.tasks import TASKS, TaskName
from vanillaformer.hub.atomic_files import write_text

from ..metrics.scores import SCORES
from ..run_folder.run import Run
from ..trainer.budget import option_value
from ..trainer.trainer import RunTrainer
from .baselines import TRAINED, TRIVIAL, Baseline, BaselineData, baseline_scores
from .classes import PREFIXES
from .diagnosis import RunSummary, diagnose
from .plots import loss_curve

MAX_ROWS, MIN_ROWS = 1_000, 64
"""Training rows that are scored."""
SHARE = 0.05
"""Most training rows to score, of those trained on: a row scored takes about a third of the time of one trained on."""
PREFIX = "train_rows"
ADVISED = {"label_smoothing_factor", "token_dropout", "r_drop", "shift", "mixup"}
"""Training arguments that the diagnosis can recommend."""


def training_scores(task: TaskName, trainer: RunTrainer, rows: Dataset, held_out: int) -> dict[str, float]:
    """Return the scores of the trained model on some training rows, computed as those on held-out rows.

    The losses logged while training are of changing weights, with dropout, and maybe smoothed: no loss of held-out
    rows can be compared with them. Of a translator and a masked image model there is only the loss. Of a stream
    the rows are the first; `held_out` is the number of validation rows.
    """
    batch = trainer.args.train_batch_size * trainer.args.gradient_accumulation_steps * trainer.args.world_size
    enough = max(MIN_ROWS, math.ceil(SHARE * trainer.state.global_step * batch))
    count = min(len(rows), MAX_ROWS, max(held_out, MIN_ROWS), enough)
    sample = rows.select(np.linspace(0, len(rows) - 1, count).round().astype(int))
    without_scores = {"texts", "pixels"} & set(TASKS[task].predicts)
    loss_only, trainer.args.prediction_loss_only = trainer.args.prediction_loss_only, bool(without_scores)
    try:
        metrics = trainer.predict(sample, metric_key_prefix=PREFIX).metrics or {}
    finally:
        trainer.args.prediction_loss_only = loss_only
    return {"rows": count, **{name: metrics[f"{PREFIX}_{name}"] for name in SCORES if f"{PREFIX}_{name}" in metrics}}


def summarize_run(
    run: Run,
    task: TaskName,
    trainer: RunTrainer,
    rows: DatasetDict,
    tokenizers: tuple[PreTrainedTokenizerBase, ...],
    *,
    data: TaskData,
    history: Sequence[dict[str, Any]],
    data_args: Any,
) -> None:
    """Put scores on training rows, baselines and the diagnosis into `run.details`, and draw `loss_curve.png`.

    Of a finished run there are only baselines for the splits that are scored now. The history is the log
    of the training without what was scored after it.
    """
    dataset: Any = trainer.train_dataset
    train_rows = getattr(dataset, "first_rows", dataset)
    if not run.finished:
        with optional("Scores of training rows", run.failed):
            run.details["training_rows"] = training_scores(task, trainer, train_rows, len(rows["validation"]))
    if not trainer.is_world_process_zero():
        return
    texts = data.splits["train"]
    if data.stream is not None:
        for split, stats in data.stream.leaks.stats().items() if not run.finished else ():
            run.details["data"][split] |= stats
        report(f"Baselines are computed from the first {len(texts):,} rows of the stream.")
    given = vars(data_args)
    bleu = {name: given[f"bleu_{name}"] for name in ("tokenize", "lowercase") if f"bleu_{name}" in given}
    fitted = BaselineData(texts, train_rows, tokenizers, trainer.data_collator, trainer.compute_metrics, bleu)
    baselines = (*TRIVIAL[task], *(TRAINED.get(task, ()) if trainer.args.baseline else ()))
    with optional("Baselines", run.failed):
        _add_baselines(run, baselines, fitted, rows)
    if not run.finished:
        with optional("The diagnosis", run.failed):
            run.details["diagnosis"] = diagnose(_summary(run, task, trainer, history))
        with optional("loss_curve.png", run.failed):
            loss_curve(history, run.folder / "loss_curve.png")


def add_trained_baselines(run: Run, task: TaskName, splits: DatasetDict) -> bool:
    """Put trained baselines that a finished run lacks into its record; tell whether there are any."""
    known = run.details.get("baselines", {})
    missing = [baseline for baseline in TRAINED.get(task, ()) if baseline.name not in known]
    if not missing:
        return False
    _add_baselines(run, missing, BaselineData(splits["train"]), splits)
    path = run.folder / "all_results.json"
    with optional(path.name):
        results = json.loads(path.read_text()) | {"baselines": run.details["baselines"]}
        write_text(path, json.dumps(results, indent=4, sort_keys=True))
    return True


def _add_baselines(
    run: Run, baselines: Sequence[Baseline], fitted: BaselineData, splits: Mapping[str, Dataset]
) -> None:
    """Put the scores of baselines that the model has too into `run.details`."""
    held_out = {prefix: splits[split] for split, prefix in PREFIXES.items() if split in splits}
    known = run.details.get("baselines", {})
    for name, scores in baseline_scores(baselines, fitted, held_out, run.failed).items():
        shared = {key: value for key, value in scores.items() if key in run.metrics}
        known = known | {name: known.get(name, {}) | shared}
    run.details["baselines"] = {name: scores for name, scores in known.items() if scores}


def _summary(run: Run, task: TaskName, trainer: RunTrainer, history: Sequence[dict[str, Any]]) -> RunSummary:
    args, state, budget = trainer.args, trainer.state, trainer.budget
    stats, baselines = run.details.get("data", {}), run.details.get("baselines", {})
    trivial = {baseline.name for baseline in TRIVIAL[task]}
    training = {name: value for name, value in run.details.get("training_rows", {}).items() if name in SCORES}
    if "ngram_logits" in run.details:
        training = {}  # a linear classifier memorizes its training texts: that says nothing of the stack
    validation = stats.get("validation", {})
    targets = validation.get("rows", 1)  # about how many predictions the validation loss is a mean of
    if "classes" not in TASKS[task].predicts:
        length = validation.get("target mean length", validation.get("mean length", 1))
        targets = round(targets * length * (args.mlm_probability if task in ("masked", "mlm+nsp") else 1.0))
    if budget is not None and state.max_steps != budget.largest:
        more = budget.option, option_value(budget.option, 2 * budget.amount)
    else:
        option = "max_epochs" if budget is not None else "max_steps" if args.max_steps > 0 else "num_train_epochs"
        more = option, f"{2 * getattr(args, option):g}" if option != "max_steps" else str(2 * args.max_steps)
    return RunSummary(
        task=task,
        score=SCORES[(args.metric_for_best_model or "loss").removeprefix("eval_")],
        log_history=history,
        steps=state.global_step,
        planned=state.max_steps,
        length=f"{state.max_steps:,}" if budget is None else budget.steps_text(state),
        metrics=run.metrics,
        training=training,
        trivial={name: scores for name, scores in baselines.items() if name in trivial},
        trained={name: scores for name, scores in baselines.items() if name not in trivial},
        rows={prefix: stats[split]["rows"] for split, prefix in PREFIXES.items() if split in stats},
        targets=targets,
        command=run.command,
        more=more,
        settings=_settings(run, task, trainer),
    )


def _settings(run: Run, task: TaskName, trainer: RunTrainer) -> dict[str, Any]:
    """Return the settings that advice is chosen by, those that the task has."""
    model: Any = trainer.model
    pretrained = run.settings.get("model", {}).get("model_name_or_path") is not None
    settings = {"dropout": model.config.dropout} if isinstance(model.config, VanillaConfig) and not pretrained else {}
    if not {"classes", "texts"} & set(TASKS[task].predicts):
        return settings  # whose losses are probabilities of text, which smoothing would spoil, or distances of pixels
    offered = ADVISED & {entry.name for entry in fields(trainer.args)}
    settings |= {name: getattr(trainer.args, name) for name in offered}
    return settings | ({"pretrained": pretrained} if task == "classification" else {})
