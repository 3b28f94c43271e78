"""The tokenizers of a run: those of its checkpoint, those of a saved model, or new ones trained on its data."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence, Sized
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from vanillaformer.console.reporting import report, stage
from vanillaformer.hub.loading import fit_token_types
from vanillaformer.tokenization import ModelKind, load_pair, save_pair

from .arguments import TokenizerArguments
from .auto_defaults import follow_tokens
from .models import check_model, check_preset
from .run_folder.files import SAVING
from .run_folder.run import Run
from .tasks.base import TrainingTask

Pair = tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]
SHOWN = 12  # tokens of the first text that are printed


def prepare_tokenizers(run: Run, task: TrainingTask, *columns: Iterable[str]) -> Pair:
    """Return the tokenizers of source and target (one, twice, for one column).

    A resumed run uses those of its checkpoint, a saved model brings its own; otherwise they are loaded, or trained on
    the columns. Lengths of rows that follow the data are chosen by the tokens.
    """
    model_args, tokenizer_args, training_args = task.model_args, task.tokenizer_args, task.training_args
    assert tokenizer_args is not None
    folder = run.checkpoint or run.folder
    if run.checkpoint is None and not run.finished:
        folder = run.folder / SAVING / "tokenizer"  # all processes find it, and it has no model's files
        with training_args.main_process_first(local=False, desc="tokenizer"):
            if training_args.should_save:
                origin = tokenizer_args.tokenizer_name_or_path or model_args.saved
                kind: Any = check_preset(task.name, model_args)
                ready = {field.name for field in dataclasses.fields(tokenizer_args)} - {"tokenizer_name_or_path"}
                for name in sorted(ready & getattr(tokenizer_args, "given", set())) if origin else ():
                    value = getattr(tokenizer_args, name)
                    report(f"--{name} {value} is not used: the tokenizer is that of {origin}.")
                pair = _loaded(origin, tokenizer_args) if origin else _trained(tokenizer_args, kind, columns)
                if model_args.saved and tokenizer_args.tokenizer_name_or_path:
                    names = tokenizer_args.tokenizer_name_or_path, model_args.saved, str(model_args.model_name_or_path)
                    warn_of_other_tokenizers(pair, *names)
                task.complete(pair)
                config = check_model(task.name, model_args, length=0)
                for tokenizer in pair:
                    fit_token_types(tokenizer, config)
                save_pair(*pair, folder)
    source, target = load_pair(folder, trust_remote_code=False)
    size = f"{len(source):,} tokens" if source is target else f"{len(source):,} and {len(target):,} tokens"
    ids = source(next(iter(columns[0]))[:200], add_special_tokens=False, verbose=False)["input_ids"]
    pieces = "|".join(str(source.decode([token])) for token in ids[:SHOWN])
    report(f"Tokenizer: {size}; {pieces!r}{' ...' if len(ids) > SHOWN else ''}")
    follow_tokens(run, task, (source, target), columns)
    return source, target


def warn_of_other_tokenizers(pair: Pair, name: str, saved: Path, model_name: str) -> None:
    """Print a warning when the tokenizers are not those that a saved model was trained with."""
    try:
        trained_with = load_pair(saved, trust_remote_code=False)
    except (OSError, ValueError):
        return  # a model without a tokenizer
    if any(given.get_vocab() != original.get_vocab() for given, original in zip(pair, trained_with)):
        report(
            f"Warning: --tokenizer_name_or_path {name} is not the tokenizer of --model_name_or_path {model_name}: the "
            "embeddings of the model do not fit its tokens."
        )


def _loaded(origin: str | Path, tokenizer_args: TokenizerArguments) -> Pair:
    try:
        return load_pair(origin, trust_remote_code=False)
    except (OSError, ValueError) as error:
        if tokenizer_args.tokenizer_name_or_path is None:
            raise
        here = "" if Path(origin).is_dir() else " is not a directory, nor can it be fetched from the Hub"
        raise ValueError(f"--tokenizer_name_or_path {origin}{here}: {error}") from error


def _trained(tokenizer_args: TokenizerArguments, kind: ModelKind, columns: Sequence[Iterable[str]]) -> Pair:
    from vanillaformer.tokenization import train, train_pair  # only new ones need it

    options = tokenizer_args.training_options()
    total = sum(len(column) for column in columns if isinstance(column, Sized))
    with stage("Training the tokenizer", total or None) as advance:

        def counted(texts: Iterable[str]) -> Iterator[str]:
            for text in texts:
                advance(1)
                yield text

        texts = [counted(column) for column in columns]
        if len(texts) == 2:
            return train_pair(*texts, joint=getattr(tokenizer_args, "joint_vocabulary", True), kind=kind, **options)
        tokenizer = train(texts[0], kind=kind, **options)
        return tokenizer, tokenizer
