"""The steps that the training programs have in common, from an empty folder to a model that says how to load it."""

import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

import torch
from datasets import DatasetDict, disable_progress_bars
from huggingface_hub.utils import disable_progress_bars as disable_hub_progress_bars
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from vanillaformer.tokenization import ModelKind, load_pair, save_pair, train, train_pair

from .arguments import DataArguments, ModelArguments, TokenizerArguments
from .averaging import AverageCheckpoints
from .callbacks import SaveTargetTokenizer, replace_callbacks, scores_text
from .card_runs import run_facts, write_card
from .data_report import shortfalls
from .guards import make_writable
from .hub_trainer import check_pushing
from .machine import free_core_threads, use_machine_well
from .models import HEADS, Job
from .plots import loss_curve
from .predictions import PREFIXES, score_and_predict
from .profiling import profile_new_model
from .reporting import report
from .run_folder import Run, open_folder
from .trainers import RunTrainer

Pair = tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]
# Fields that change how fast something is done or what is said of it, not what is done.
NOT_COMPARED = ("attn_implementation", "preprocessing_num_workers", "data_license", "data_description")
COMPARED = (
    *("objective", "mlm_probability", "num_train_epochs", "max_steps", "seed", "data_seed", "learning_rate"),
    *("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "weight_decay", "optim", "adam_beta1", "adam_beta2"),
    *("adam_epsilon", "max_grad_norm", "label_smoothing_factor", "train_sampling_strategy", "bf16", "fp16"),
    *("metric_for_best_model", "load_best_model_at_end", "average_checkpoints", "ema_decay", "ema_warmup"),
    *("tokens_per_batch", "muon_momentum", "muon_lr_factor", "r_drop", "scheduled_sampling", "scheduled_sampling_k"),
    *(
        *("scheduled_sampling_floor", "lm_loss_weight", "token_dropout"),
        "early_stopping_patience",
        "early_stopping_threshold",
        "nan_loss",
    ),
    *("freeze", "lora_rank", "lora_alpha", "lora_dropout", "lora_targets"),
)

# Details that stand among the scores in all_results.json.
MORE = {"signatures", "classes", "confusion_matrix"}


def start(
    program: str,
    argv: Sequence[str] | None,
    training: Any,
    model: ModelArguments,
    data: DataArguments,
    tokenizer: TokenizerArguments,
) -> Run:
    """Return the run that the arguments ask for, set up in its folder: new, to be continued, or finished already.

    Raises:
        ValueError: The folder holds another run.
    """
    use_machine_well()
    if training.disable_tqdm:
        disable_progress_bars()
        disable_hub_progress_bars()
    groups = {"model": asdict(model), "data": asdict(data), "tokenizer": asdict(tokenizer)}
    settings: dict[str, dict[str, Any]] = {
        group: {name: value for name, value in values.items() if name not in NOT_COMPARED}
        for group, values in groups.items()
    }
    chosen = training.to_dict()
    rows: Any = training.train_batch_size * training.gradient_accumulation_steps * training.world_size
    if training.tokens_per_batch is not None:
        rows = None  # as many as have so many tokens
    settings["training"] = {name: chosen[name] for name in COMPARED if name in chosen} | {"rows_per_step": rows}
    run = Run(Path(training.output_dir), command_line(program, argv), {"program": {"name": program}, **settings})
    kinds = {"model": model, "data": data, "tokenizer": tokenizer, "training": training}
    run.defaults = {
        group: {name: value for name, value in defaults(kind).items() if name in settings[group]}
        for group, kind in kinds.items()
    }
    resume = training.resume_from_checkpoint
    with training.main_process_first(local=False, desc="looking at the run's folder"):
        open_folder(
            run,
            overwrite=training.overwrite_output_dir and training.should_save,
            resume_from=None if str(resume).lower() in ("none", "true") else resume,
        )
        if not run.finished:
            _ = model.saved  # fetched and looked through before anything is done
        if training.should_save and not run.finished:
            make_writable(run.folder)
            if training.push_to_hub:
                check_pushing(training)
            run.write()
    if not run.finished:
        report(f"Run {run.folder}: " + (f"going on from {run.checkpoint}" if run.checkpoint else "from the beginning"))
    return run


def prepare_tokenizers(
    run: Run,
    training: Any,
    model: ModelArguments,
    tokenizer: TokenizerArguments,
    kind: ModelKind,
    *columns: Iterable[str],
) -> Pair:
    """Return the tokenizers of source and target (one, twice, for one column), saved in the run's folder.

    A run that goes on uses those it began with, a saved model brings its own; otherwise they are loaded or trained.

    Args:
        run: The run.
        training: Its training arguments.
        model: Its model arguments.
        tokenizer: Which tokenizer to load or train.
        kind: The kind of model, which decides the special tokens.
        *columns: The training texts: one column, or source and target.
    """
    with training.main_process_first(local=False, desc="tokenizer"):
        if training.should_save and not (run.checkpoint and run.checkpoint.parent.samefile(run.folder)):
            origin = run.checkpoint or tokenizer.tokenizer_name_or_path or model.saved
            pair = load_pair(origin, trust_remote_code=False) if origin else _trained(tokenizer, kind, columns)
            if model.saved and tokenizer.tokenizer_name_or_path and not run.checkpoint:
                names = tokenizer.tokenizer_name_or_path, model.saved, str(model.model_name_or_path)
                warn_of_other_tokenizers(pair, *names)
            save_pair(*pair, run.folder)
    source, target = load_pair(run.folder)
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
    job: Job,
    trainer: RunTrainer,
    data: DataArguments,
    rows: DatasetDict,
    *,
    example: str,
    tokenizers: Pair,
    **test_options: Any,
) -> Run:
    """Train (or go on), score the best checkpoint, and leave model, scores, predictions, card and record behind.

    Args:
        run: The run.
        job: What the model does.
        trainer: The trainer, ready to train.
        data: The data arguments, for the card.
        rows: Tokenised splits; the test split, if there is one, is scored at the end.
        example: An input for the card.
        tokenizers: The tokenizers of source and target.
        **test_options: For the evaluation of the test split (`num_beams`).
    """
    transformers_logging.disable_progress_bar()  # it has one for each file it writes
    replace_callbacks(trainer)
    trainer.add_callback(free_core_threads())
    if trainer.args.average_checkpoints:
        trainer.add_callback(AverageCheckpoints(trainer.args.average_checkpoints))
    if tokenizers[0] is not tokenizers[1]:
        trainer.add_callback(SaveTargetTokenizer(tokenizers[1]))
    sizes = {split: len(part) for split, part in rows.items()}
    _describe(trainer, data_name(data, job), sizes)
    profile_new_model(run, trainer)
    result = trainer.train(resume_from_checkpoint=str(run.checkpoint) if run.checkpoint else None)
    report(f"Trained to step {trainer.state.global_step:,}; this took {result.metrics['train_runtime']:.0f} s.")
    run.metrics = {}
    score_and_predict(run, job, trainer, rows, tokenizers, **test_options)
    run.metrics |= {"train_loss": result.training_loss, "train_runtime": result.metrics["train_runtime"]}
    run.details |= {"rows": sizes, "steps": trainer.state.global_step}
    trainer.save_metrics(
        "all", run.metrics | {name: run.details[name] for name in MORE & run.details.keys()}, combined=False
    )
    trainer.save_state()
    if trainer.is_world_process_zero():
        loss_curve(trainer.state.log_history, run.folder / "loss_curve.png")
        separate = tokenizers[0] is not tokenizers[1]
        facts = run_facts(
            run, job, trainer, data, source=data_name(data, job), example=example, separate_target=separate
        )
        write_card(run, facts)
    trainer.save_model()  # last, because with --push_to_hub it uploads the folder
    if trainer.is_world_process_zero():
        run.finished = True
        run.write()
    return run


def announce(run: Run, job: Job, *, example: str, already: bool = False) -> Run:
    """Print how good the model of a finished run is, where it lies, and how to load it."""
    if already:
        report(f"Run {run.folder} is finished already: nothing to train (--overwrite_output_dir starts it anew).")
    for split, prefix in PREFIXES.items():
        if scores := scores_text(run.metrics, prefix):
            report(f"{split.capitalize()}: {scores}")
            cut = shortfalls(run.details.get("data", {}).get(split, {}))
            if cut and job in ("translation", "classification"):
                report(f"{split.capitalize()} data: {'; '.join(cut)}")
    for name, signature in run.details.get("signatures", {}).items():
        report(f"sacrebleu signature of {name}: {signature}")
    use = f"python -m vanillaformer.scripts.generate --model {shlex.quote(str(run.folder))}"
    report(f"Try it: {use} --text {shlex.quote(example)}")
    report(
        f"The model is in {run.folder}: after `import vanillaformer`, load it with "
        f"{HEADS[job].auto_class.__name__}.from_pretrained({str(run.folder)!r})"
    )
    return run


def defaults(settings: Any) -> dict[str, Any]:
    """Return the defaults of a dataclass's fields, by name."""
    return {
        entry.name: entry.default if entry.default_factory is MISSING else entry.default_factory()
        for entry in fields(settings)
    }


def command_line(program: str, argv: Sequence[str] | None) -> str:
    """Return the command that starts a program with these arguments, without secrets."""
    words = list(sys.argv[1:] if argv is None else argv)
    for index, word in enumerate(words):
        name, sign, _ = word.partition("=")
        if name.replace("-", "_").endswith("_token"):  # the parser takes --hub-token too
            words[index] = f"{name}=..." if sign else name
            if not sign and index + 1 < len(words):
                words[index + 1] = "..."
    return shlex.join(["python", "-m", f"vanillaformer.scripts.{program}", *words])


def data_name(data: DataArguments, job: Job) -> str:
    """Return where the data is from, in words."""
    if data.train_file is not None:
        names = [Path(name).name for name in data.train_file]
        return ", ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} more files"
    if data.dataset != "embedded":
        return " ".join(filter(None, (data.dataset, data.dataset_config)))
    if job == "translation":
        return f"Unicode CLDR formats, {data.source_locale} to {data.target_locale}"
    if job == "classification":
        return "Unicode CLDR names"
    return "Python standard library"


# ----------------------------------------------------------------------------------------------------- details
def _trained(arguments: TokenizerArguments, kind: ModelKind, columns: Sequence[Iterable[str]]) -> Pair:
    options = arguments.training_options()
    if len(columns) == 2:
        return train_pair(*columns, joint=arguments.joint_vocabulary, kind=kind, **options)
    tokenizer = train(columns[0], kind=kind, **options)
    return tokenizer, tokenizer


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
