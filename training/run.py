"""The steps that the training programs have in common, from an empty folder to a model that says how to load it."""

import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from signal import Signals
from typing import Any, cast

import torch
from datasets import DatasetDict, disable_progress_bars
from huggingface_hub.utils import disable_progress_bars as disable_hub_progress_bars
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from vanillaformer.console.reporting import optional, report
from vanillaformer.data.arguments import COLUMNS, DataArguments
from vanillaformer.data.embedded import embedded_corpus
from vanillaformer.data.fingerprints import fingerprints
from vanillaformer.data.loading import TaskData, load_data
from vanillaformer.data.preprocessing.batching import order_seed
from vanillaformer.data.preprocessing.images import describe_images
from vanillaformer.data.preprocessing.statistics import describe_data, shortfalls
from vanillaformer.data.streaming import StreamedRows, check_streaming
from vanillaformer.data.tasks import TASKS, TaskName
from vanillaformer.hub.tokenizers import limit_length, readable_length

from .defaults.following import follow_data, follows_data, without_defaults
from .finishing import finish, searches_otherwise
from .machine import configure_cpu
from .models import build_model, check_attention, check_model, check_preset, fit_attention
from .programs import Arguments
from .report.calibration import accepted_in_words, calibrate
from .report.card.examples import card_example, terminal_example
from .report.card.run_card import training_facts
from .report.class_report import report_classes
from .report.ngram_logits import add_ngram_logits, fit_ngram_svm
from .report.predictions import PREFIXES, score_and_predict
from .report.samples import print_samples
from .report.summary import add_trained_baselines, summarize_run
from .run_folder.checkpoints import spent_of_budget
from .run_folder.files import locked
from .run_folder.run import Run, open_folder, recover, replace
from .run_folder.settings import compared_settings, default_settings
from .trainer.averaging import AverageCheckpoints
from .trainer.callbacks import RecordProgress, replace_callbacks, scores_text
from .trainer.distillation import train_teachers
from .trainer.guards import StopWithCheckpoint, make_writable, resume_point
from .trainer.measured_initialization import measure_new_model
from .trainer.pushing import check_pushing
from .trainer.time_budget import budget_in_words, budget_option, spent_in_words
from .trainer.trainer import RunTrainer

Tokenizers = tuple[PreTrainedTokenizerBase, ...]
"""Those of source and target; of models of images, none."""

# Details that stand among the scores in all_results.json
EXTRA_METRICS = {"signatures", "classes", "confusion_matrix", "baselines", "training_rows"}


@contextmanager
def start(
    program: str, argv: Sequence[str] | None, args: Arguments, *, task: TaskName, length: int = 0
) -> Iterator[Run]:
    """Have the run that the arguments ask for, new, to be resumed or finished already, as the only one in its folder.

    After a signal or an error the same command resumes from the folder.

    Args:
        program: Name of the program.
        argv: Its command line.
        args: Its arguments.
        task: What the model does.
        length: The longest row in tokens, if rows have any.

    Raises:
        ValueError: The folder holds another run, or is another process's, or an option cannot be what it is.
        SystemExit: A signal ended it, with the exit status 128 + its number.
    """
    model_args, data_args, tokenizer_args, training_args = args
    check_preset(task, model_args)
    check_attention(model_args, training_args)
    configure_cpu()
    if training_args.disable_tqdm:
        disable_progress_bars()
        disable_hub_progress_bars()
    card_example(data_args, task)  # before anything is done
    groups = {"model": model_args, "data": data_args, "tokenizer": tokenizer_args}
    groups = {name: group for name, group in groups.items() if group is not None}
    settings = compared_settings(program, training_args, groups)
    run = Run(
        Path(training_args.output_dir),
        command_line(program, argv),
        without_defaults(settings, args) if follows_data(task, args) else settings,
        defaults=default_settings({**groups, "training": training_args}),
    )
    data_args.check()
    if data_args.streaming:
        check_streaming(data_args, training_args)
    first = training_args.process_index == 0
    with run.stopping.handling(), locked(run.folder) if first else nullcontext():
        try:
            _open(run, args, task, length)
            yield run
        except BaseException as error:
            if first and run.folder.is_dir():
                recover(run.folder)
            if not isinstance(error, KeyboardInterrupt) or not run.stopping.number:
                raise
            without = " without --overwrite_output_dir" if training_args.overwrite_output_dir else ""
            report(
                f"Stopped by {Signals(run.stopping.number).name}: {resume_point(run.folder)}; the same "
                f"command{without} resumes the run."
            )
            raise SystemExit(128 + run.stopping.number) from None


def _open(run: Run, args: Arguments, task: TaskName, length: int) -> None:
    training_args = args.training_args
    resume = training_args.resume_from_checkpoint
    with training_args.main_process_first(local=False, desc="looking at the run's folder"):
        if training_args.process_index == 0 and run.folder.is_dir():
            recover(run.folder)
        open_folder(
            run,
            overwrite=training_args.overwrite_output_dir,
            resume_from=None if str(resume).lower() in ("none", "true") else resume,
        )
        if not run.finished:
            # A saved one is fetched and looked through; one that follows the data will be long enough
            check_model(task, args.model_args, length=0 if follows_data(task, args) else length)
        if training_args.should_save and not run.finished:
            make_writable(run.folder)
        if training_args.should_save and training_args.push_to_hub:
            check_pushing(training_args)
    if run.finished:
        run.new_search = searches_otherwise(run.folder, training_args)
    else:
        report(f"Run {run.folder}: {f'resuming from {run.checkpoint}' if run.checkpoint else 'from the beginning'}")
        if option := budget_option(training_args):
            spent = spent_of_budget(run.checkpoint) if run.checkpoint else 0.0
            resumed = f"; {spent_in_words(option, spent)} of it were spent before" if spent else ""
            amount = budget_in_words(option, getattr(training_args, option))
            report(f"Training for up to {amount} (--{option}){resumed}")


def open_data(run: Run, task: TaskName, args: Arguments) -> TaskData:
    """Return the data of a task, which has to be that of the run in the folder if there is one."""
    data = load_data(args.data_args, task, order_seed(args.training_args))
    run.check_data(fingerprints(data.splits.select_columns(list(COLUMNS[task]))))
    follow_data(run, task, args, data)
    return data


def describe_rows(
    run: Run,
    args: Arguments,
    data: TaskData,
    rows: Any,
    tokenizers: Tokenizers,
    stream: StreamedRows | None,
    *,
    packed: Callable[..., int] | None = None,
) -> Any:
    """Report and note statistics of the rows; return what to train on.

    Args:
        run: The run.
        args: The arguments.
        data: The data.
        rows: Its splits as the model reads them, of which `train` goes if there is a stream.
        tokenizers: The tokenizers of source and target; none of images.
        stream: With --streaming, the rows to train on.
        packed: Counts the tokens of a batch whose texts share rows.
    """
    sample = stream is not None
    if tokenizers:
        pair = cast(Any, tokenizers)
        run.details["data"] = describe_data(rows, pair, args.training_args, data.stats, sample=sample, packed=packed)
    else:
        run.details["data"] = describe_images(rows, data.stats, sample=sample)
    if stream is None:
        return rows["train"]
    stream.first_rows = rows.pop("train")
    return stream


def new_model(
    run: Run,
    task: TaskName,
    args: Arguments,
    *tokenizers: PreTrainedTokenizerBase,
    length: int = 0,
    labels: list[str] | None = None,
    fields: dict[str, Any] | None = None,
    seed: int | None = None,
) -> PreTrainedModel:
    """Return the model to train, that of the folder if the run is finished.

    Args:
        run: The run.
        task: What it does.
        args: The arguments.
        *tokenizers: The tokenizer, or those of source and target.
        length: The longest row in tokens.
        labels: Names of the classes.
        fields: Fields of a new model that follow the data, where they are not set.
        seed: Seed of new weights; by default that of the run.
    """
    seed = args.training_args.seed if seed is None else seed
    sizes: dict[str, Any] = {"length": length, "labels": labels, "fields": fields}
    sizes["trained"] = run.folder if run.finished else None
    model = build_model(task, args.model_args, *tokenizers, seed=seed, **sizes)
    if args.model_args.attn_implementation is None:
        fit_attention(model, args.training_args, length)
    return model


def train_and_save(
    run: Run,
    task: TaskName,
    args: Arguments,
    trainer: RunTrainer,
    rows: DatasetDict,
    tokenizers: Tokenizers,
    *,
    data: TaskData,
    example: str,
    **test_options: Any,
) -> Run:
    """Train (or resume), save the best model, score it, and write predictions, pictures, card and record.

    A run that is finished is not trained, but its test data scored.

    Args:
        run: The run.
        task: What the model does.
        args: The arguments.
        trainer: The trainer, ready to train.
        rows: Splits as the model reads them; the test split, if there is one, is scored at the end.
        tokenizers: The tokenizers of source and target; none of images.
        data: The data, whose training rows baselines are computed from.
        example: An input from the data.
        **test_options: For the evaluation of the test split (`num_beams`).
    """
    transformers_logging.disable_progress_bar()  # it has one for each file it writes
    if tokenizers and tokenizers[0] is not tokenizers[1]:
        trainer.target_tokenizer = tokenizers[1]
    sizes = {split: len(part) for split, part in rows.items()}
    _report_sizes(trainer, data_name(args.data_args, task), sizes)
    add_callbacks(run, trainer)
    if run.finished:
        rows = DatasetDict(test=rows["test"])
    else:
        limit_length(tokenizers, readable_length(cast(Any, trainer.model).config))
        _train(run, trainer, rows)
    history = list(trainer.state.log_history)
    with optional("Scores and predictions", run.failed):
        score_and_predict(run, task, trainer, rows, tokenizers, **test_options)
    run.details |= {"rows": sizes}
    summarize_run(run, task, trainer, rows, tokenizers, data=data, history=history, data_args=args.data_args)
    details = {name: run.details[name] for name in EXTRA_METRICS & run.details.keys()}
    with optional("all_results.json", run.failed):
        trainer.save_metrics("all", run.metrics | details, combined=False)
    if trainer.is_world_process_zero():
        finish(run, task, args, source=data_name(args.data_args, task), example=example)
    return print_summary(run, task, args.data_args, example=example)


def add_callbacks(run: Run, trainer: RunTrainer) -> None:
    """Give a trainer the callbacks of a run."""
    replace_callbacks(trainer)
    if trainer.args.average_checkpoints:
        trainer.add_callback(AverageCheckpoints(trainer.args.average_checkpoints))
    trainer.add_callback(RecordProgress(run))
    trainer.add_callback(StopWithCheckpoint(run.stopping, trainer))  # the last: others decide what else is saved


def _train(run: Run, trainer: RunTrainer, rows: DatasetDict) -> None:
    """Train, calibrate a classifier, and save the model."""
    measure_new_model(run, trainer)
    if trainer.is_world_process_zero():
        if run.replaces:
            replace(run.folder)
        if not run.longer:  # whose record stays as it is until there is more to it
            run.write()
    trainer.accelerator.wait_for_everyone()
    svm = fit_ngram_svm(trainer)
    begun = time.monotonic()
    trainer.teachers = train_teachers(run, trainer)
    for_teachers = time.monotonic() - begun
    result = trainer.train(resume_from_checkpoint=str(run.checkpoint) if run.checkpoint else None)
    seconds = time.monotonic() - begun
    teachers = f", {for_teachers:.0f} s of it for the teachers" if trainer.teachers and not run.checkpoint else ""
    report(f"Trained to step {trainer.state.global_step:,}; this took {seconds:.0f} s{teachers}.")
    trainer.save_model()  # first of all: nothing that follows can cost it
    trainer.save_state()
    if svm is not None:
        with optional("The n-gram logits", run.failed):
            add_ngram_logits(run, trainer, svm, rows.get("validation"))
    if trainer.args.calibrate:
        with optional("The calibration", run.failed):
            calibrate(run, trainer, rows.get("validation"))
    if {"ngram_logits", "calibration"} & run.details.keys():  # which change weights
        trainer.save_model()
    found = {"train_loss": result.training_loss, "train_runtime": seconds}
    if run.metrics and trainer.state.global_step == trainer._initial_global_step:  # nothing was left to train
        found = {name: run.metrics.get(name, value) for name, value in found.items()}
    run.metrics = found
    run.details["consumed"] = trainer.account.record()
    run.details |= {"steps": trainer.state.global_step, "training": training_facts(run, trainer)}


def already_finished(run: Run, task: TaskName, args: Arguments, *, data: TaskData, example: str) -> Run:
    """Do what a command asks of a finished run that needs no scores: its search, its card, a baseline, a push."""
    report(f"Run {run.folder} is finished already: nothing to train (--overwrite_output_dir starts it anew).")
    if args.training_args.process_index == 0:
        changed = args.training_args.baseline and add_trained_baselines(run, task, data.splits)
        finish(run, task, args, source=data_name(args.data_args, task), example=example, changed=changed)
    return print_summary(run, task, args.data_args, example=example)


def print_summary(run: Run, task: TaskName, data_args: DataArguments, *, example: str) -> Run:
    """Print the scores of a finished run, where its model is, and how to load it."""
    for split, prefix in PREFIXES.items():
        if scores := scores_text(run.metrics, prefix):
            report(f"{split.capitalize()}: {scores}")
            for name, found in run.details.get("baselines", {}).items():
                if scores := scores_text(found, prefix):
                    report(f"{split.capitalize()}, {name}: {scores}")
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
    report(
        f"The model is in {run.folder}: after `import vanillaformer`, load it with "
        f"{TASKS[task].auto_class.__name__}.from_pretrained({str(run.folder)!r})"
    )
    return run


def input_option(text: str, option: str = "text") -> str:
    """Return the option of `generate` with an input, as a shell reads it."""
    return f"--{option}{'=' if text.startswith('-') else ' '}{shlex.quote(text)}"


def command_line(program: str, argv: Sequence[str] | None) -> str:
    """Return the command that starts a program with these arguments, without secrets."""
    words = list(sys.argv[1:] if argv is None else argv)
    for index, word in enumerate(words):
        name, sign, _ = word.partition("=")
        if name.replace("-", "_").endswith("_token"):  # the parser takes --hub-token too
            words[index] = f"{name}=..." if sign else name
            if not sign and index + 1 < len(words):
                words[index + 1] = "..."
    return shlex.join(["vanillaformer", program.replace("_", "-"), *words])


def data_name(data_args: DataArguments, task: TaskName) -> str:
    """Return the name of the data: its files, its id on the Hub, or what embedded data is made of."""
    if data_args.train_file is not None:
        names = [Path(name).name for name in data_args.train_file]
        return ", ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} more files"
    if data_args.dataset != "embedded":
        return " ".join(filter(None, (data_args.dataset, data_args.dataset_config)))
    return embedded_corpus(data_args, task).name


def _report_sizes(trainer: RunTrainer, name: str, sizes: dict[str, int]) -> None:
    """Print what is trained on what."""
    model: Any = trainer.model
    report(f"Data: {name}: " + ", ".join(f"{size:,} {split} rows" for split, size in sizes.items()))
    device, processes = trainer.args.device.type, trainer.args.world_size
    where = f"{device} (processes: {processes}, threads: {torch.get_num_threads()})"
    name = type(getattr(model, "get_base_model", lambda: model)()).__name__
    report(f"Model: {name}, {model.num_parameters():,} parameters, on {where}")
