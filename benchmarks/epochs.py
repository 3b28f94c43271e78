"""What a pass over the same rows costs: our trainer's batches beside those of transformers' Trainer.

    python benchmarks/epochs.py
    python benchmarks/epochs.py --tasks classifier --rows 2000 --repeats 5 --wait_idle 10

Model, weights and rows are the same on both sides; what differs is how rows are put into batches, and what the head
computes. Theirs: random batches of `--batch` rows, padded to their longest (the Trainer's default), or with rows of
similar length (`group_by_length`), or every row padded to the longest of all, as tutorials do. Ours: batches of as
many tokens as theirs have on average (`--tokens_per_batch`), rows of similar length (`group_by_length`, the default of
`train_classifier`), or texts and pairs packed into rows (`--packing`). Lengths are log-normal, half of them below a
third of the longest. `speed` is their time through ours.
"""

import contextlib
import io
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import transformers
from datasets import Dataset, disable_progress_bars
from measuring import Call, measure, undisturbed
from transformers import HfArgumentParser, PreTrainedModel, Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer
from weights import END, FIRST_WORD, PAD, Size, pair

from vanillaformer.data.preprocessing.packed_batches import PackedPairs
from vanillaformer.data.preprocessing.packing import pack
from vanillaformer.modeling.heads import IGNORE_INDEX
from vanillaformer.training.trainer.trainer import RunTrainer
from vanillaformer.training.training_arguments import TranslationTrainingArguments

TASKS = {"translation": ("marian", 42), "language model, short texts": ("gpt2", 96), "classifier": ("bert", 200)}
COMMON: dict[str, Any] = {"num_train_epochs": 1, "save_strategy": "no", "eval_strategy": "no", "report_to": "none"}
COMMON |= {"use_cpu": True, "disable_tqdm": True, "logging_strategy": "no", "learning_rate": 1e-4}


@dataclass
class Options:
    """The comparison's command line."""

    tasks: list[str] = field(default_factory=lambda: list(TASKS), metadata={"help": "What to train."})
    rows: int = field(default=1000, metadata={"help": "Rows of the pass."})
    batch: int = field(default=32, metadata={"help": "Rows of their batches."})
    repeats: int = field(default=3, metadata={"help": "Repetitions; the median of their ratios is reported."})
    wait_idle: float = field(default=0.0, metadata={"help": "Wait so many seconds for idle cores before a sample."})
    threads: int = field(default=torch.get_num_threads(), metadata={"help": "CPU threads of torch."})
    layers: int = field(default=4, metadata={"help": "Blocks of each stack."})
    width: int = field(default=128, metadata={"help": "Model width."})
    vocab: int = field(default=8000, metadata={"help": "Tokens in the vocabulary."})


def lengths(rows: int, longest: int, rng: np.random.Generator) -> np.ndarray:
    return np.exp(rng.normal(0, 0.45, rows)) * longest / 3


def texts(rows: int, longest: int, vocab: int, rng: np.random.Generator) -> list[list[int]]:
    sizes = lengths(rows, longest, rng).round().clip(3, longest).astype(int)
    return [[*rng.integers(FIRST_WORD, vocab, size - 1).tolist(), END] for size in sizes]


def make_rows(task: str, options: Options, longest: int) -> Dataset:
    rng = np.random.default_rng(0)
    cells: dict[str, list[Any]] = {"input_ids": texts(options.rows, longest, options.vocab, rng)}
    if task == "translation":
        cells["labels"] = texts(options.rows, longest, options.vocab, rng)
    if task == "classifier":
        cells["labels"] = rng.integers(0, 4, options.rows).tolist()
    return Dataset.from_dict(cells)


def padded(column: list[list[int]], fill: int, length: int | None = None) -> torch.Tensor:
    length = length or max(map(len, column))
    return torch.tensor([[*row, *[fill] * (length - len(row))] for row in column])


def collate(task: str, rows: list[dict[str, Any]], length: int | None = None) -> dict[str, torch.Tensor]:
    """Return a batch padded to its longest row, or to a length."""
    ids = [row["input_ids"] for row in rows]
    inputs = padded(ids, PAD, length)
    mask = padded([[1] * len(row) for row in ids], 0, length)
    if task == "classifier":
        labels = torch.tensor([row["labels"] for row in rows])
    else:
        labels = padded([row.get("labels", row["input_ids"]) for row in rows], IGNORE_INDEX, length)
    return {"input_ids": inputs, "attention_mask": mask, "labels": labels}


def packed(rows: Dataset, size: int) -> Dataset:
    """Return rows of several texts, with the positions that tell them apart."""
    ids = rows["input_ids"]
    groups = pack(np.array([len(row) for row in ids]), size)
    return Dataset.from_dict(
        {
            "input_ids": [[token for number in group for token in ids[number]] for group in groups],
            "position_ids": [[place for number in group for place in range(len(ids[number]))] for group in groups],
        }
    )


def collate_packed(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    ids, positions = padded([row["input_ids"] for row in rows], PAD), padded([row["position_ids"] for row in rows], 0)
    return {"input_ids": ids, "position_ids": positions, "labels": ids.masked_fill(positions == 0, IGNORE_INDEX)}


def their_epoch(
    task: str, model: PreTrainedModel, rows: Dataset, batch: int, *, longest: int | None, how: str
) -> Call:
    trainer = Seq2SeqTrainer if task == "translation" else Trainer
    collator = partial(collate, task, length=longest)

    def epoch() -> None:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            options = {"per_device_train_batch_size": batch, "train_sampling_strategy": how, **COMMON}
            arguments = Seq2SeqTrainingArguments(folder, **options)
            trainer(model=model, args=arguments, train_dataset=rows, data_collator=collator).train()

    return epoch


def our_epoch(
    task: str, model: PreTrainedModel, rows: Dataset, batch: int, longest: int, *, by_tokens: bool, packing: bool
) -> Call:
    collator: Callable[..., Any] = partial(collate, task)
    how: dict[str, Any] = {"per_device_train_batch_size": batch, "train_sampling_strategy": "group_by_length"}
    tokens = sum(
        len(cell) for name in rows.column_names if name != "labels" or task == "translation" for cell in rows[name]
    )
    if task == "translation":
        size = {"tokens_per_batch": round(tokens * batch / len(rows))}
        how = size if by_tokens else {"per_device_train_batch_size": batch}
        collator = PackedPairs(model, collator) if packing else collator
    if task.startswith("language"):
        collator, longest = collate_packed, 4 * longest
        how["per_device_train_batch_size"] = max(1, round(tokens * batch / len(rows) / longest))
        rows = packed(rows, longest)

    def epoch() -> None:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            arguments = TranslationTrainingArguments(output_dir=folder, remove_unused_columns=False, **how, **COMMON)
            RunTrainer(model=model, args=arguments, train_dataset=rows, data_collator=collator).train()

    return epoch


def compare(task: str, options: Options) -> None:
    peer, longest = TASKS[task]
    rows = make_rows(task, options, longest)
    models = pair(peer, Size(options.layers, options.width, 4, options.vocab, 4 * longest + 2))
    theirs = partial(their_epoch, task, models["theirs"], rows, options.batch)
    ours = partial(our_epoch, task, models["ours"], rows, options.batch, longest)
    calls = {"ours": ours(by_tokens=True, packing=False)}
    if task == "translation":
        calls["ours: random batches, packed"] = ours(by_tokens=False, packing=True)
        calls["ours: --tokens_per_batch, packed"] = ours(by_tokens=True, packing=True)
    calls[f"{peer}: random batches"] = theirs(longest=None, how="random")
    calls[f"{peer}: batches by length"] = theirs(longest=None, how="group_by_length")
    calls[f"{peer}: all as long as the longest"] = theirs(longest=longest, how="random")
    samples = measure(calls, options.repeats, 1e-9, "cpu", options.wait_idle)
    kept = undisturbed(samples) if len(undisturbed(samples)) >= 3 else samples
    for number, name in enumerate(calls):
        ratios = [each[number].seconds / each[0].seconds for each in kept]
        seconds = statistics.median(each[number].seconds for each in kept)
        print(
            f"{task} | {name} | {seconds:.1f} s | speed {statistics.median(ratios):.2f} "
            f"[{min(ratios):.2f}, {max(ratios):.2f}]",
            flush=True,
        )


def main() -> None:
    """Compare task by task."""
    (options,) = HfArgumentParser(Options, description=__doc__).parse_args_into_dataclasses()
    unknown = [name for name in options.tasks if name not in TASKS]
    if unknown:
        raise SystemExit(f"--tasks {unknown[0]!r}: choose from {', '.join(map(repr, TASKS))}")
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    disable_progress_bars()
    for task in options.tasks:
        compare(task, options)


if __name__ == "__main__":
    main()
