"""The last steps of a run: scores, baselines, the diagnosis, the card; some are repeated for a finished run."""

import math
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict
from torch.utils._pytree import tree_map
from transformers import AutoConfig, GenerationConfig
from transformers.trainer_utils import PredictionOutput

from vanillaformer.configuration import VanillaConfig
from vanillaformer.console.reporting import optional, report
from vanillaformer.data.arguments import DataArguments
from vanillaformer.data.loading import TaskData
from vanillaformer.data.preprocessing.batching import evaluation_order
from vanillaformer.data.preprocessing.statistics import shortfalls
from vanillaformer.data.tasks import TASKS, TaskName

from .metrics.scores import PREFIXES, SCORES, scores_of_group
from .report.baselines import BaselineData, baseline_scores
from .report.card.writing import update_card
from .report.classes import accepted_in_words, report_classes
from .report.diagnosis import RunSummary, diagnose
from .report.facts import card_example, input_option, read_samples, run_facts, terminal_example
from .report.plots import loss_curve
from .run_folder.files import CARD, extra_checkpoints, write_lines, written_aside
from .run_folder.run import Run, discard
from .tasks.base import TrainingTask
from .trainer.budget import option_value
from .trainer.callbacks import scores_text
from .trainer.saving import push_run, temporarily
from .trainer.trainer import RunTrainer

# Defaults of fields that a generation config lacks
SEARCH = {"num_beams": 1, "length_penalty": 1.0, "early_stopping": False}
MAX_ROWS, MIN_ROWS = 1_000, 64  # training rows that are scored
SHARE = 0.05
"""Maximum share of the rows trained on that are scored; scoring takes about a third of the time of training on one."""
PREFIX = "train_rows"
PROMPT_END = 60  # characters shown of the text before a sample
ADVISED = {"label_smoothing_factor", "token_dropout", "r_drop", "shift"}
"""Training arguments that the diagnosis can recommend."""


def score_and_predict(run: Run, task: TrainingTask, trainer: RunTrainer, rows: DatasetDict) -> None:
    """Score validation and test data into `run.metrics`, and write the predictions for the test data.

    The file is `predictions_test.jsonl`, or `predictions_validation.jsonl` without test data: a line for each row, in
    the order of the data, with texts and references as they are in the data. Where nothing is predicted
    (`--predict_with_generate False`) there is no file. The task adds samples, such as continuations of rows.
    """
    splits = [split for split in PREFIXES if split in rows]
    for split in splits:
        options: Any = {"metric_key_prefix": PREFIXES[split], **(task.test_options() if split == "test" else {})}
        if split != splits[-1] or trainer.compute_metrics is None:
            known = trainer.scored(rows[split])  # the scores of these weights, if training has found them
            run.metrics |= trainer.evaluate(rows[split], **options) if known is None else known.metrics or {}
            continue
        output = trainer.predict(rows[split], **options)
        run.metrics |= (output.metrics or {}) | ({} if split == "test" else {"epoch": trainer.state.epoch})
        trainer.log(output.metrics or {})
        if trainer.is_world_process_zero():
            order = np.argsort(evaluation_order(rows[split]), kind="stable")
            sides: Any = tree_map(lambda values, order=order: values[order], tuple(output[:2]))
            output = PredictionOutput(sides[0], sides[1], {})
            with optional(f"predictions_{split}.jsonl", run.failed):
                records = task.records(run, trainer, rows[split], output, split)
                if records is not None:
                    write_lines(run.folder / f"predictions_{split}.jsonl", records)
    task.add_samples(run, trainer, rows)


def training_scores(task: TrainingTask, trainer: RunTrainer, rows: Dataset, held_out: int) -> dict[str, float]:
    """Return the scores of the trained model on some training rows, computed like those on held-out rows.

    The losses logged in training are of changing weights, with dropout, and maybe smoothed: they cannot be compared
    with a loss on held-out rows. For a translator and a masked image model there is only the loss. From a stream, the
    rows are the first ones; `held_out` is the number of validation rows.
    """
    enough = max(MIN_ROWS, math.ceil(SHARE * trainer.state.global_step * trainer.args.step_rows))
    count = min(len(rows), MAX_ROWS, max(held_out, MIN_ROWS), enough)
    sample = rows.select(np.linspace(0, len(rows) - 1, count).round().astype(int))
    without_scores = not {"texts", "pixels"}.isdisjoint(TASKS[task.name].predicts)
    with temporarily(trainer.args, prediction_loss_only=without_scores):
        metrics = trainer.predict(sample, metric_key_prefix=PREFIX).metrics or {}
    return {"rows": count, **{name: metrics[f"{PREFIX}_{name}"] for name in SCORES if f"{PREFIX}_{name}" in metrics}}


def summarize_run(
    run: Run, task: TrainingTask, trainer: RunTrainer, rows: DatasetDict, data: TaskData, history: list[dict[str, Any]]
) -> None:
    """Put scores on training rows, baselines and the diagnosis into `run.details`, and draw `loss_curve.png`.

    For a finished run, only the baselines on the splits that are scored now are computed. `history` is the log of
    the training, without the scores after it.
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
        report(f"Baselines are computed from the first {len(texts):,} rows of the stream.")
    fitted = BaselineData(texts, train_rows, task.tokenizers, trainer.data_collator, trainer.compute_metrics)
    baselines = (*task.baselines, *(task.trained_baselines if trainer.args.baseline else ()))
    with optional("Baselines", run.failed):
        held_out = {prefix: rows[split] for split, prefix in PREFIXES.items() if split in rows}
        known = run.details.get("baselines", {})  # of a finished run, on the splits that were scored before
        for name, scores in baseline_scores(baselines, fitted, held_out, run.failed).items():
            shared = {key: value for key, value in scores.items() if key in run.metrics}
            known = known | {name: known.get(name, {}) | shared}
        run.details["baselines"] = {name: scores for name, scores in known.items() if scores}
    if not run.finished:
        with optional("The diagnosis", run.failed):
            run.details["diagnosis"] = diagnose(_summary(run, task, trainer, history))
        with optional("loss_curve.png", run.failed):
            loss_curve(history, run.folder / "loss_curve.png")


def _summary(run: Run, task: TrainingTask, trainer: RunTrainer, history: Sequence[dict[str, Any]]) -> RunSummary:
    args, state, budget = trainer.args, trainer.state, trainer.budget
    stats, baselines = run.details.get("data", {}), run.details.get("baselines", {})
    trivial = {baseline.name for baseline in task.baselines}
    training = {name: value for name, value in run.details.get("training_rows", {}).items() if name in SCORES}
    if "ngram_logits" in run.details:
        training = {}  # a linear classifier memorizes its training texts, which says nothing about the stack
    validation = stats.get("validation", {})
    targets = validation.get("rows", 1)  # about how many predictions the validation loss is a mean of
    if {"classes", "labels", "values"}.isdisjoint(TASKS[task.name].predicts):
        length = validation.get("target mean length", validation.get("mean length", 1))
        targets = round(targets * length * task.predicted_share())
    if budget is not None and state.max_steps != budget.largest:
        more = budget.option, option_value(budget.option, 2 * budget.amount)
    else:
        option = "max_epochs" if budget is not None else "max_steps" if args.max_steps > 0 else "num_train_epochs"
        more = option, f"{2 * getattr(args, option):g}" if option != "max_steps" else str(2 * args.max_steps)
    model: Any = trainer.model
    pretrained = run.settings.get("model", {}).get("model_name_or_path") is not None
    settings = {"dropout": model.config.dropout} if isinstance(model.config, VanillaConfig) and not pretrained else {}
    if not {"classes", "tags", "texts"}.isdisjoint(TASKS[task.name].predicts):
        # Smoothing would distort the probabilities of language models, and other losses cannot be smoothed
        settings |= {name: getattr(args, name) for name in ADVISED & {entry.name for entry in fields(args)}}
        settings |= {"pretrained": pretrained} if "encoder" in TASKS[task.name].model_kinds else {}
    return RunSummary(
        task=task.name,
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
        more=more,
        settings=settings,
    )


def finish(run: Run, task: TrainingTask, *, example: str) -> None:
    """Write search settings, card and record where they differ from those in the folder, push if asked to, and print.

    A run that was finished before is not evaluated again.
    """
    data_args, training_args = task.data_args, task.training_args
    if training_args.process_index != 0:
        return
    if run.finished and not run.needs_test:
        report(f"Run {run.folder} is finished already: nothing to train (--overwrite_output_dir starts over).")
    if searches_otherwise(run.folder, training_args):
        search, saved = training_args.search(), GenerationConfig.from_pretrained(run.folder)
        saved.update(**search)
        with written_aside(run.folder) as part:
            saved.save_pretrained(part)
        report("generation_config.json: " + ", ".join(f"{name} {value}" for name, value in search.items()))
    # The options of the card: those given now, or else those given before, which are set again
    of_data = {name: getattr(data_args, name) for name in ("data_license", "data_description", "card_example")}
    repository = training_args.hub_model_id if training_args.push_to_hub else None
    options = {"license": training_args.license, **of_data, "repository": repository}
    before = run.details.get("card", {}) if run.finished else {}
    options = {name: before.get(name) if value is None else value for name, value in options.items()}
    training_args.license, data_args.data_license = options["license"], options["data_license"]
    data_args.data_description, data_args.card_example = options["data_description"], options["card_example"]
    if not run.finished or run.needs_test or options != run.details.get("card", options):
        run.details["card"] = options
        with optional(CARD, run.failed):
            config = AutoConfig.from_pretrained(run.folder, trust_remote_code=False)
            text = card_example(data_args, task.name, example)
            facts = run_facts(run, task.name, training_args, data_args, config=config, example=text)
            update_card(run, facts)
        run.finished = True
        run.write()
    discard(run.folder)
    for path in extra_checkpoints(run.folder):
        shutil.rmtree(path, ignore_errors=True)
    if training_args.push_to_hub:
        push_run(training_args)
    print_summary(run, task.name, data_args, example=example)


def searches_otherwise(folder: Path, training_args: Any) -> bool:
    """Return whether the model in a folder is saved with other search settings than the command asks for."""
    if not hasattr(training_args, "search"):
        return False
    saved = GenerationConfig.from_pretrained(folder)
    found = {name: getattr(saved, name, None) for name in SEARCH}
    return {name: SEARCH[name] if value is None else value for name, value in found.items()} != training_args.search()


def print_summary(run: Run, task: TaskName, data_args: DataArguments, *, example: str) -> None:
    """Print the scores of a finished run, where its model is, and how to load it."""
    for split, prefix in PREFIXES.items():
        if scores := scores_text(run.metrics, prefix):
            report(f"{split.capitalize()}: {scores}")
            for name, found in run.details.get("baselines", {}).items():
                if scores := scores_text(found, prefix):
                    report(f"{split.capitalize()}, {name}: {scores}")
            for group in run.details.get("groups", ()):
                report(f"{split.capitalize()}, {group}: {scores_text(scores_of_group(run.metrics, group), prefix)}")
            cut = shortfalls(run.details.get("data", {}).get(split, {}))
            if cut and TASKS[task].whole_texts:
                report(f"{split.capitalize()} data: {'; '.join(cut)}")
    if "classes" in TASKS[task].predicts:
        report_classes(run)
    if trained := run.details.get("training_rows"):
        scores = scores_text({f"train_{name}": value for name, value in trained.items()}, "train")
        report(f"Training, {trained['rows']:,} rows: {scores}")
    for name, signature in run.details.get("signatures", {}).items():
        report(f"sacrebleu signature of {name}: {signature}")
    if "calibration" in run.details:
        accepted = accepted_in_words(run.details["calibration"])
        report(f"Validation, labels accepted by probability: {accepted} (generate --reject_below)")
    print_samples(run.folder)
    for sentence in run.details.get("diagnosis") or run.details.get("verdict", ()):
        report(sentence)
    folder, option = shlex.quote(str(run.folder)), TASKS[task].input_option
    if option:
        text = terminal_example(data_args, task, example)
        more = "--chat" if text is None else input_option(text, option)
        report(f"Try it: vanillaformer generate --model {folder} {more}")
    else:
        report(f"Fine-tune it: vanillaformer {TASKS[task].program} --model_name_or_path {folder}")
    is_ours = isinstance(AutoConfig.from_pretrained(run.folder, trust_remote_code=False), VanillaConfig)
    report(
        f"The model is in {run.folder}: {'after `import vanillaformer`, ' * is_ours}load it with "
        f"{TASKS[task].auto_class.__name__}.from_pretrained({str(run.folder)!r})"
    )


def print_samples(folder: Path) -> None:
    """Print what the model of a run wrote after the beginnings of some held-out texts."""
    for sample in read_samples(folder):
        before, shown = sample["prompt"][-PROMPT_END:], indent(sample["prediction"], "  | ", lambda line: True)
        report(f"Sample, after {before!r}:\n{shown}")
