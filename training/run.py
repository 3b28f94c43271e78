"""The steps that the training programs have in common, from an empty folder to a model that says how to load it."""

import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager, nullcontext
from pathlib import Path
from signal import Signals
from typing import Any

import torch
from datasets import DatasetDict, disable_progress_bars
from huggingface_hub.utils import disable_progress_bars as disable_hub_progress_bars
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from vanillaformer.hub.reporting import optional, report
from vanillaformer.tokenization import ModelKind, load_pair, save_pair, train, train_pair

from .arguments import ModelArguments, TokenizerArguments
from .cards.examples import card_example, terminal_example
from .cards.run_card import training_facts
from .data.arguments import DataArguments
from .data.corpora import embedded_corpus
from .data.streaming import check_streaming
from .evaluation.plots import loss_curve
from .evaluation.predictions import PREFIXES, score_and_predict
from .finishing import finish, searches_otherwise
from .machine import free_core_threads, use_machine_well
from .models import check_model
from .preprocessing.statistics import shortfalls
from .progress import Advance, stage
from .run_folder.files import SAVING, locked
from .run_folder.run import Run, open_folder, recover, replace
from .run_folder.settings import compared_settings, default_settings
from .tasks import TASKS, TaskName
from .trainer.admin_profile import profile_new_model
from .trainer.averaging import AverageCheckpoints
from .trainer.callbacks import RecordProgress, replace_callbacks, scores_text
from .trainer.guards import StopWithCheckpoint, kept, make_writable
from .trainer.pushing import check_pushing
from .trainer.trainer import RunTrainer

Pair = tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]

# Details that stand among the scores in all_results.json.
MORE = {"signatures", "classes", "confusion_matrix"}


@contextmanager
def start(
    program: str,
    argv: Sequence[str] | None,
    training: Any,
    model: ModelArguments,
    data: DataArguments,
    tokenizer: TokenizerArguments,
    *,
    task: TaskName,
    length: int,
) -> Iterator[Run]:
    """Have the run that the arguments ask for, new, to be resumed or finished already, as the only one in its folder.

    What a signal or an error ends leaves a folder that the same command can continue.

    Args:
        program: Name of the program.
        argv: Its arguments.
        training: Training arguments.
        model: Model arguments.
        data: Data arguments.
        tokenizer: Tokenizer arguments.
        task: What the model does.
        length: The longest row in tokens.

    Raises:
        ValueError: The folder holds another run, or is another process's, or an option cannot be what it is.
        SystemExit: A signal ended it, with the exit status 128 + its number.
    """
    use_machine_well()
    if training.disable_tqdm:
        disable_progress_bars()
        disable_hub_progress_bars()
    card_example(data, task)  # before anything is done
    groups = {"model": model, "data": data, "tokenizer": tokenizer}
    settings = compared_settings(program, training, groups)
    run = Run(Path(training.output_dir), command_line(program, argv), settings)
    run.defaults = default_settings({**groups, "training": training})
    if data.streaming:
        check_streaming(data, training)
    first = training.process_index == 0
    with run.stopping.handling(), locked(run.folder) if first else nullcontext():
        try:
            _open(run, training, model, task, length)
            yield run
        except BaseException as error:
            if first and run.folder.is_dir():
                recover(run.folder)
            if not isinstance(error, KeyboardInterrupt) or not run.stopping.number:
                raise
            without = " without --overwrite_output_dir" if training.overwrite_output_dir else ""
            report(
                f"Stopped by {Signals(run.stopping.number).name}: {kept(run.folder)}; the same command{without} "
                "resumes the run."
            )
            raise SystemExit(128 + run.stopping.number) from None


def _open(run: Run, training: Any, model: ModelArguments, task: TaskName, length: int) -> None:
    resume = training.resume_from_checkpoint
    with training.main_process_first(local=False, desc="looking at the run's folder"):
        if training.process_index == 0 and run.folder.is_dir():
            recover(run.folder)
        open_folder(
            run,
            overwrite=training.overwrite_output_dir,
            resume_from=None if str(resume).lower() in ("none", "true") else resume,
        )
        if not run.finished:
            check_model(task, model, length=length)  # a saved one is fetched and looked through
        if training.should_save and not run.finished:
            make_writable(run.folder)
        if training.should_save and training.push_to_hub:
            check_pushing(training)
    if run.finished:
        run.new_search = searches_otherwise(run.folder, training)
    else:
        report(f"Run {run.folder}: " + (f"going on from {run.checkpoint}" if run.checkpoint else "from the beginning"))


def prepare_tokenizers(
    run: Run,
    training: Any,
    model: ModelArguments,
    tokenizer: TokenizerArguments,
    kind: ModelKind,
    *columns: Iterable[str],
) -> Pair:
    """Return the tokenizers of source and target (one, twice, for one column).

    A resumed run uses those of its checkpoint, a saved model brings its own; otherwise they are loaded or trained.

    Args:
        run: The run.
        training: Its training arguments.
        model: Its model arguments.
        tokenizer: Which tokenizer to load or train.
        kind: The kind of model, which decides the special tokens.
        *columns: The training texts: one column, or source and target.
    """
    folder = run.checkpoint or run.folder
    if run.checkpoint is None and not run.finished:
        folder = run.folder / SAVING / "tokenizer"  # where all processes find it, and no model's files are
        with training.main_process_first(local=False, desc="tokenizer"):
            if training.should_save:
                origin = tokenizer.tokenizer_name_or_path or model.saved
                pair = _loaded(origin, tokenizer) if origin else _trained(tokenizer, kind, columns)
                if model.saved and tokenizer.tokenizer_name_or_path:
                    names = tokenizer.tokenizer_name_or_path, model.saved, str(model.model_name_or_path)
                    warn_of_other_tokenizers(pair, *names)
                save_pair(*pair, folder)
    source, target = load_pair(folder, trust_remote_code=False)
    size = f"{len(source):,} tokens" if source is target else f"{len(source):,} and {len(target):,} tokens"
    report(f"Tokenizer: {size}; {_pieces(source, next(iter(columns[0])))}")
    return source, target


def warn_of_other_tokenizers(pair: Pair, name: str, saved: Path, model_name: str) -> None:
    """Print a warning when the tokenizers are not those that a saved model was trained with."""
    try:
        trained_with = load_pair(saved, trust_remote_code=False)
    except (OSError, ValueError):
        return  # a model without a tokenizer
    moved, total = 0, 0
    for tokenizer, own in {id(own): (tokenizer, own) for tokenizer, own in zip(pair, trained_with)}.values():
        found, tokens = tokenizer.get_vocab(), own.get_vocab()
        moved += sum(tokens.get(token) != number for token, number in found.items())
        total += len(found)
    if moved:
        report(
            f"Warning: --tokenizer_name_or_path {name} is not the tokenizer of --model_name_or_path "
            f"{model_name}: {moved:,} of its {total:,} tokens have another id there or none, so that "
            "the embeddings of the model do not fit them."
        )


def train_and_save(
    run: Run,
    task: TaskName,
    trainer: RunTrainer,
    data: DataArguments,
    rows: DatasetDict,
    *,
    example: str,
    tokenizers: Pair,
    **test_options: Any,
) -> Run:
    """Train (or resume), save the best model, score it, and leave predictions, pictures, card and record behind.

    A run that is finished is not trained, but its test data scored.

    Args:
        run: The run.
        task: What the model does.
        trainer: The trainer, ready to train.
        data: The data arguments, for the card.
        rows: Tokenised splits; the test split, if there is one, is scored at the end.
        example: An input from the data.
        tokenizers: The tokenizers of source and target.
        **test_options: For the evaluation of the test split (`num_beams`).
    """
    transformers_logging.disable_progress_bar()  # it has one for each file it writes
    if tokenizers[0] is not tokenizers[1]:
        trainer.target_tokenizer = tokenizers[1]
    sizes = {split: len(part) for split, part in rows.items()}
    _describe(trainer, data_name(data, task), sizes)
    add_callbacks(run, trainer)
    if run.finished:
        rows = DatasetDict(test=rows["test"])
    else:
        _train(run, trainer)
    score_and_predict(run, task, trainer, rows, tokenizers, **test_options)
    run.details |= {"rows": sizes}
    details = {name: run.details[name] for name in MORE & run.details.keys()}
    trainer.save_metrics("all", run.metrics | details, combined=False)
    if trainer.is_world_process_zero():
        if not run.finished:
            with optional("loss_curve.png"):
                loss_curve(trainer.state.log_history, run.folder / "loss_curve.png")
        finish(run, task, trainer.args, data, source=data_name(data, task), example=example)
    return run


def add_callbacks(run: Run, trainer: RunTrainer) -> None:
    """Give a trainer the callbacks of a run."""
    replace_callbacks(trainer)
    trainer.add_callback(free_core_threads())
    if trainer.args.average_checkpoints:
        trainer.add_callback(AverageCheckpoints(trainer.args.average_checkpoints))
    trainer.add_callback(RecordProgress(run))
    trainer.add_callback(StopWithCheckpoint(run.stopping, trainer))  # the last: others decide what else is saved


def _train(run: Run, trainer: RunTrainer) -> None:
    """Train, and save the model."""
    profile_new_model(run, trainer)
    if trainer.is_world_process_zero():
        if run.replaces:
            replace(run.folder)
        if not run.longer:  # whose record stays as it is until there is more to it
            run.write()
    trainer.accelerator.wait_for_everyone()
    result = trainer.train(resume_from_checkpoint=str(run.checkpoint) if run.checkpoint else None)
    report(f"Trained to step {trainer.state.global_step:,}; this took {result.metrics['train_runtime']:.0f} s.")
    trainer.save_model()
    trainer.save_state()
    run.metrics = {"train_loss": result.training_loss, "train_runtime": result.metrics["train_runtime"]}
    run.details |= {"steps": trainer.state.global_step, "training": training_facts(run, trainer)}


def already_finished(run: Run, task: TaskName, training: Any, data: DataArguments, *, example: str) -> Run:
    """Do what a command asks of a finished run that needs no scores: its search, its card, a push."""
    report(f"Run {run.folder} is finished already: nothing to train (--overwrite_output_dir starts it anew).")
    if training.process_index == 0:
        finish(run, task, training, data, source=data_name(data, task), example=example)
    return announce(run, task, data, example=example)


def announce(run: Run, task: TaskName, data: DataArguments, *, example: str) -> Run:
    """Print how good the model of a finished run is, where it lies, and how to load it."""
    for split, prefix in PREFIXES.items():
        if scores := scores_text(run.metrics, prefix):
            report(f"{split.capitalize()}: {scores}")
            cut = shortfalls(run.details.get("data", {}).get(split, {}))
            if cut and TASKS[task].whole_texts:
                report(f"{split.capitalize()} data: {'; '.join(cut)}")
    for name, signature in run.details.get("signatures", {}).items():
        report(f"sacrebleu signature of {name}: {signature}")
    use = f"vanillaformer generate --model {shlex.quote(str(run.folder))}"
    text = terminal_example(data, task, example)
    report(f"Try it: {use} {'--chat' if text is None else f'--text {shlex.quote(text)}'}")
    report(
        f"The model is in {run.folder}: after `import vanillaformer`, load it with "
        f"{TASKS[task].auto_class.__name__}.from_pretrained({str(run.folder)!r})"
    )
    return run


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


def data_name(data: DataArguments, task: TaskName) -> str:
    """Return where the data is from, in words."""
    if data.train_file is not None:
        names = [Path(name).name for name in data.train_file]
        return ", ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} more files"
    if data.dataset != "embedded":
        return " ".join(filter(None, (data.dataset, data.dataset_config)))
    return embedded_corpus(data, task).name


# ----------------------------------------------------------------------------------------------------- details
def _loaded(origin: str | Path, arguments: TokenizerArguments) -> Pair:
    try:
        return load_pair(origin, trust_remote_code=False)
    except (OSError, ValueError) as error:
        if arguments.tokenizer_name_or_path is None:
            raise
        here = "" if Path(origin).is_dir() else " is not a directory, nor can it be fetched from the Hub"
        raise ValueError(f"--tokenizer_name_or_path {origin}{here}: {error}") from error


def _trained(arguments: TokenizerArguments, kind: ModelKind, columns: Sequence[Iterable[str]]) -> Pair:
    options = arguments.training_options()
    total = sum(len(column) for column in columns if isinstance(column, Sized))
    with stage("Training the tokenizer", total or None) as advance:
        texts = [_counted(column, advance) for column in columns]
        if len(texts) == 2:
            return train_pair(*texts, joint=arguments.joint_vocabulary, kind=kind, **options)
        tokenizer = train(texts[0], kind=kind, **options)
        return tokenizer, tokenizer


def _counted(texts: Iterable[str], advance: Advance) -> Iterator[str]:
    for text in texts:
        advance(1)
        yield text


def _pieces(tokenizer: PreTrainedTokenizerBase, text: str, count: int = 12) -> str:
    ids = tokenizer(text[:200], add_special_tokens=False)["input_ids"]
    pieces = "|".join(str(tokenizer.decode([token])) for token in ids[:count])
    return f"{pieces!r}{' ...' if len(ids) > count else ''}"


def _describe(trainer: RunTrainer, name: str, sizes: dict[str, int]) -> None:
    """Print what is trained on what."""
    model: Any = trainer.model
    report(f"Data: {name}: " + ", ".join(f"{size:,} {split} rows" for split, size in sizes.items()))
    device, processes = trainer.args.device.type, trainer.args.world_size
    where = f"{device} (processes: {processes}, threads: {torch.get_num_threads()})"
    name = type(getattr(model, "get_base_model", lambda: model)()).__name__
    report(f"Model: {name}, {model.num_parameters():,} parameters, on {where}")
