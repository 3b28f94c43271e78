"""The steps that all training programs share, from an empty folder to a scored model with its card."""

import dataclasses
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from signal import Signals
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from datasets import DatasetDict, disable_progress_bars
from huggingface_hub.utils import disable_progress_bars as disable_hub_progress_bars
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from vanillaformer.acceleration import chosen, keep, speed_up
from vanillaformer.acceleration.plug_in import limit_kernels
from vanillaformer.configuration import PRESETS
from vanillaformer.configuration.options import OPTIONS, SEQUENCE_POSITION_CHOICES
from vanillaformer.console.parsing import parse
from vanillaformer.console.reporting import optional, report
from vanillaformer.data.arguments import COLUMNS
from vanillaformer.data.caching import fingerprints
from vanillaformer.data.loading import TaskData, load_data
from vanillaformer.data.preprocessing.batching import order_seed
from vanillaformer.data.preprocessing.packing import PackedBatches
from vanillaformer.data.preprocessing.statistics import describe_data
from vanillaformer.data.streaming import check_streaming
from vanillaformer.data.tasks import KINDS, TASKS
from vanillaformer.hub.loading import readable_length, set_language

from .arguments import Arguments, report_unused
from .auto_defaults import explicit_settings, follow_data
from .hardware import configure_cpu
from .models import build_model, check_model, check_preset
from .report.facts import card_example, data_source, training_facts
from .run_folder.files import locked, move_aside, resume_point, spent_of_budget
from .run_folder.run import Run, compared_settings, keep_rows_per_step, open_folder, recover
from .tasks import PROGRAMS, task_of
from .tasks.base import TrainingTask
from .tokenizers import prepare_tokenizers
from .trainer.account import check_equal
from .trainer.adaptation import measure_new_model, with_adapters
from .trainer.averaging import AverageCheckpoints
from .trainer.budget import budget_in_words, budget_option, set_length
from .trainer.callbacks import RecordProgress, StopWithCheckpoint, replace_callbacks
from .trainer.parallel import AUTO, check_layout, divided, share_weights
from .trainer.saving import check_pushing, make_writable, save_state
from .trainer.sharing import built_by_first, with_empty_weights
from .trainer.trainer import RunTrainer

# Details that stand among the scores in all_results.json
EXTRA_METRICS = {"signatures", "classes", "confusion_matrix", "baselines", "training_rows"}


def train(task_class: type[TrainingTask], argv: Sequence[str] | None = None) -> Run:
    """Train for a task as the arguments say; a run that is finished already is returned as it is."""
    task = task_class(parse_arguments(task_class.program, argv))
    first = task.training_args.main_process_first  # the others find what it has cached
    aside: Any = nullcontext()
    if task.training_args.dry_run:  # which leaves nothing behind
        aside = TemporaryDirectory()
        task.training_args.output_dir, task.training_args.push_to_hub = aside.name, False
    with aside, start(task, argv) as run:
        task.fit_to_model()
        with first(desc="reading the data"):
            data = load_data(task.data_args, task.name, order_seed(task.training_args))
            run.check_data(prints := fingerprints(data.splits.select_columns(list(COLUMNS[task.name]))))
            follow_data(run, task, data)
        check_equal(prints, "the rows", task.training_args.device)
        example = task.example(run, data)
        if run.finished and not run.needs_test:
            from .finishing import finish  # with pictures and cards, which a start does not need

            finish(run, task, example=example)
            return run
        if columns := task.columns(data):
            task.tokenizers = prepare_tokenizers(run, task, *columns)
        with first(desc="preparing the rows"):
            rows = task.rows(data)
        stream = None if data.stream is None else task.stream(data.stream)
        build = partial(new_model, run, task, task.labels(data))
        if task.training_args.dry_run:
            from .plan import print_plan  # which other runs do not need

            print_plan(task, build, rows["train"])
            return run
        model = built_by_first(build)
        task.fit_model(model, run)
        collator = task.collator(model, rows)
        transformers_logging.disable_progress_bar()  # from here on: there would be one per file
        counted = collator.computed if isinstance(collator, PackedBatches) else None
        options: dict[str, Any] = {"sample": stream is not None, "packed": counted}
        run.details["data"] = describe_data(rows, task.tokenizers, task.training_args, data.stats, **options)
        model, train_rows = divide(model, task, rows["train"]), rows["train"]
        if stream is not None:
            train_rows, stream.first_rows = stream, rows.pop("train")  # type: ignore[assignment]
        trainer = task.trainer_class(
            model=model,
            args=task.training_args,
            train_dataset=train_rows,
            eval_dataset=rows["validation"],
            data_collator=collator,
            **task.scoring(run),
        )
        if task.model_args.saved is not None or task.model_args.save_as is not None:
            from .native import native_form

            # Another tokenizer is saved as it is, one of dialogues with its chat template
            other = getattr(task.tokenizer_args, "tokenizer_name_or_path", None) or task.data_args.turns_column
            kept = None if other else task.model_args.saved
            trainer.saved_form = partial(native_form, save_as=task.model_args.save_as, origin=kept)
        train_and_save(run, task, trainer, rows, data, example)
        task.finish(run, data)
        return run


@contextmanager
def start(task: TrainingTask, argv: Sequence[str] | None) -> Iterator[Run]:
    """Open or create the run folder and yield its run; hold its lock.

    Raises ValueError where the folder holds another run or is in use by another process, or for an impossible option.
    A signal ends the program with the exit status 128 + its number; after it, or an error, the same command resumes.
    """
    model_args, data_args, tokenizer_args, training_args = task.args
    check_preset(task.name, model_args)
    if model_args.attn_implementation == "flex_attention" and training_args.device.type == "cpu":  # no backward pass
        raise ValueError("--attn_implementation flex_attention cannot train on a CPU: use sdpa or eager")
    configure_cpu()
    limit_kernels()
    if training_args.disable_tqdm:
        disable_progress_bars()
        disable_hub_progress_bars()
    card_example(data_args, task.name)  # before anything is done
    keep_rows_per_step(Path(training_args.output_dir), training_args)
    groups = {"model": model_args, "data": data_args, "tokenizer": tokenizer_args}
    settings = compared_settings(task.program.replace("-", "_"), training_args, groups)
    check_equal(settings, "the options", training_args.device)
    run = Run(Path(training_args.output_dir), command_line(task.program, argv), explicit_settings(settings, task))
    data_args.check()
    if data_args.streaming:
        check_streaming(data_args, training_args)
    first = training_args.process_index == 0
    with run.stopping.handling(), locked(run.folder) if first else nullcontext():
        try:
            _open(run, task)
            keep(run.details.get("acceleration", {}) if run.checkpoint else {})
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


def _open(run: Run, task: TrainingTask) -> None:
    """Examine the folder of a run, check the model, and report where training begins."""
    training_args = task.training_args
    given = training_args.resume_from_checkpoint
    resume = None if str(given).lower() in ("none", "true") else given
    with training_args.main_process_first(local=False, desc="opening the run's folder"):
        if training_args.process_index == 0 and run.folder.is_dir():
            recover(run.folder)
        open_folder(run, overwrite=training_args.overwrite_output_dir, resume_from=resume)
        if not run.finished:
            # This fetches and examines a saved model; a new one is made to fit lengths that follow the data
            length = 0 if task.uses_auto_defaults else task.length
            config = check_model(task.name, task.model_args, length=length)
            check_layout(config, training_args.parallel)
            if training_args.dry_run:
                from .plan import check_counted  # which other runs do not need

                check_counted(config, "--dry_run")
        if training_args.should_save and not run.finished:
            make_writable(run.folder)
        if training_args.should_save and training_args.push_to_hub:
            check_pushing(training_args)
    if run.finished:
        from .finishing import searches_otherwise

        run.search_changed = searches_otherwise(run.folder, training_args)
    elif not training_args.dry_run:
        report(f"Run {run.folder}: {f'resuming from {run.checkpoint}' if run.checkpoint else 'from the beginning'}")
        if option := budget_option(training_args):
            spent = spent_of_budget(run.checkpoint) if run.checkpoint else 0.0
            resumed = f"; {budget_in_words(option, spent, rounded=True)} of it were spent before" if spent else ""
            amount = budget_in_words(option, getattr(training_args, option))
            report(f"Training for up to {amount} (--{option}){resumed}")


def new_model(run: Run, task: TrainingTask, labels: list[str] | None) -> PreTrainedModel:
    """Return the model to train, or that of the folder if the run is finished."""
    model = build_model(
        task.name,
        task.model_args,
        *task.tokenizers,
        length=task.length,
        seed=task.training_args.seed,
        labels=labels,
        fields=task.fields(),
        trained=run.folder if run.finished else None,
    )
    if task.name == "translation":
        set_language(model, task.tokenizers[-1])
    if task.model_args.saved is not None or task.model_args.save_as is not None:
        from .native import as_ours  # with the tables of all architectures, which other runs do not need

        model = as_ours(model, task.model_args.save_as, task.training_args, run.checkpoint)
    return speed_up(model)  # a native one too


def divide(model: PreTrainedModel, task: TrainingTask, rows: Any) -> PreTrainedModel:
    """Return the model, or this process's part of it if it is to be divided; `rows` are for `--parallel auto`."""
    args = task.training_args
    if args.parallel == AUTO:
        from .plan import chosen_layout  # which other runs do not need

        args.parallel = chosen_layout(task, model.config, rows)
    if args.parallel is None:
        if args.world_size > 1:
            empty = any(weight.is_meta for weight in model.parameters())
            model = (with_empty_weights(model, args.device) if empty else model).to(args.device)
            share_weights(model, weights := model.state_dict(keep_vars=True), weights)
        return model
    return divided(with_adapters(model, args) if args.lora_rank else model, args.parallel)


def train_and_save(
    run: Run, task: TrainingTask, trainer: RunTrainer, rows: DatasetDict, data: TaskData, example: str
) -> None:
    """Train (or resume), save the best model, score it, and write predictions, pictures, card and record.

    A finished run is not trained; only its test data is scored.
    """
    from .finishing import finish, score_and_predict, summarize_run  # before the training, which may take days

    if task.tokenizers and task.tokenizers[0] is not task.tokenizers[1]:
        trainer.target_tokenizer = task.tokenizers[1]
    sizes = {split: len(part) for split, part in rows.items()}
    name = data_source(task.data_args, task.name).name
    report(f"Data: {name}: " + ", ".join(f"{size:,} {split} rows" for split, size in sizes.items()))
    device, processes = trainer.args.device.type, trainer.args.world_size
    where = f"{device} (processes: {processes}, threads: {torch.get_num_threads()})"
    name = type(getattr(trainer.model, "get_base_model", lambda: trainer.model)()).__name__.removeprefix("FSDP")
    report(f"Model: {name}, {trainer.model.num_parameters():,} parameters, on {where}")
    replace_callbacks(trainer)
    if trainer.args.average_checkpoints:
        trainer.add_callback(AverageCheckpoints())
    trainer.add_callback(RecordProgress(run))
    trainer.add_callback(StopWithCheckpoint(run.stopping, trainer))  # the last: others decide what else is saved
    if run.finished:
        rows = DatasetDict(test=rows["test"])
    else:
        report_unused(task.args)
        longest = readable_length(cast(Any, trainer.model).config)
        for tokenizer in task.tokenizers if longest else ():
            tokenizer.model_max_length = longest
        _train(run, task, trainer, rows)
    history = list(trainer.state.log_history)
    with optional("Scores and predictions", run.failed):
        score_and_predict(run, task, trainer, rows)
    run.details |= {"rows": sizes}
    summarize_run(run, task, trainer, rows, data, history)
    details = {name: run.details[name] for name in EXTRA_METRICS & run.details.keys()}
    with optional("all_results.json", run.failed):
        trainer.save_metrics("all", run.metrics | details, combined=False)
    finish(run, task, example=example)


def _train(run: Run, task: TrainingTask, trainer: RunTrainer, rows: DatasetDict) -> None:
    """Train, calibrate a classifier, and save the model."""
    measure_new_model(run, trainer)
    if trainer.is_world_process_zero():
        if run.overwrites:
            report(f"The earlier run is in {move_aside(run.folder)} until the new one has its first checkpoint.")
        if not run.is_extension:  # whose record stays until there is a new checkpoint
            run.write()
    trainer.accelerator.wait_for_everyone()
    task.before_training(trainer)
    begun = time.monotonic()
    result = trainer.train(resume_from_checkpoint=str(run.checkpoint) if run.checkpoint else None)
    seconds = time.monotonic() - begun
    report(f"Trained to step {trainer.state.global_step:,}; this took {seconds:.0f} s.")
    trainer.save_model()  # first of all: nothing that follows can cost it
    if trainer.args.should_save:
        save_state(trainer, run.folder)  # as of the end, also without any checkpoint
    task.after_training(run, trainer, rows.get("validation"))
    found = {"train_loss": result.metrics["train_loss"], "train_runtime": seconds}
    if run.metrics and trainer.state.global_step == trainer._initial_global_step:  # nothing was left to train
        found = {name: run.metrics.get(name, value) for name, value in found.items()}
    run.metrics = found
    run.details["consumed"] = trainer.account.record()
    run.details["acceleration"] = run.details.get("acceleration", {}) | chosen()
    run.details |= {"steps": trainer.state.global_step, "training": training_facts(run, trainer)}


# ------------------------------------------------------------------------------------------------------- command lines
def parse_arguments(program: str, argv: Sequence[str] | None = None) -> Arguments:
    """Return the arguments of a training program, a subcommand, from the command line or a settings file."""
    task = task_of(program)
    follow = f"Without --preset and --max_steps, {task.follow} follow the data."
    kinds = tuple(dict.fromkeys(kind for name in task.tasks() for kind in TASKS[name].model_kinds))
    fields = config_fields(kinds)
    names = [
        ", ".join(name for name, entry in PRESETS.items() if KINDS[entry.config_class.model_type] == kind)
        for kind in kinds
    ]
    used = " or ".join(dict.fromkeys(TASKS[name].preset for name in task.tasks()))  # where none is named
    description = sys.modules[task.__module__].__doc__ or ""
    found = parse(
        task.arguments,
        argv,
        description=description.replace("\n\nExamples:", f" {follow}\n\nExamples:"),
        notes={"preset": f"{'; '.join(names)} (default: {used})"},
        names={"Configuration fields for --set": fields},
        config_fields=[text.partition(" ")[0] for text in fields],
        elsewhere=lambda: {f"vanillaformer {name}": task_of(name).arguments for name in PROGRAMS if name != program},
    )
    model_args, data_args, *tokenizer_args, training_args = found
    set_length(training_args)
    return Arguments(model_args, data_args, next(iter(tokenizer_args), None), training_args)


def config_fields(kinds: Sequence[str]) -> list[str]:
    """Return the config fields that our models of these kinds add to those of transformers, with their choices."""
    classes = {entry.config_class for entry in PRESETS.values() if KINDS[entry.config_class.model_type] in kinds}
    known = {entry.name for entry in dataclasses.fields(PreTrainedConfig)}  # type: ignore[arg-type]
    found = {entry.name for config_class in classes for entry in dataclasses.fields(config_class)}
    names = sorted(name for name in found - known if not name.endswith(("_token_id", "vocab_size")))
    choices = OPTIONS if "image_encoder" in kinds else OPTIONS | {"position_embedding_type": SEQUENCE_POSITION_CHOICES}
    return [f"{name} ({', '.join(choices[name])})" if name in choices else name for name in names]


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
