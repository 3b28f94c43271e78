"""Texts packed into rows without attention between them: no padding, and nothing learned across texts.

Rows of a language model are packed once, before training; pairs and classified texts while a batch is made, which has
the same texts with packing as without: its loss and gradient are the same, on any number of processes. The model
separates the texts of a row by their positions, which start at 0 in each, and lets each target attend to its own
source. From positions transformers makes the masks when no `attention_mask` is given.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from datasets import Dataset, DatasetDict, Value
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanillaformer.acceleration.length_buckets import takes_buckets
from vanillaformer.configuration import VanillaConfig, VanillaEncoderConfig, VanillaEncoderDecoderConfig
from vanillaformer.console.reporting import report
from vanillaformer.modeling.heads import IGNORE_INDEX
from vanillaformer.modeling.stack import EncoderStack
from vanillaformer.tokenization.control_tokens import text_tokenizer

from ..arguments import LongTexts
from .blocks import IDS, flat_values
from .collators import EVALUATION, EpochCollator
from .statistics import padding_share
from .tokenizing import Batch, TokenizedSplits, frame, handle_long_texts, map_splits, token_ids

SEPARATING = ("eager", "sdpa", "flex_attention")
"""Attention implementations that take a mask of the texts in each row of a batch."""
ROOM = 96
"""Tokens in a row of a packed batch, about, unless a text is longer: attention computes what is masked too, so that
long rows would cost more than the padding of short ones."""
Row = dict[str, Any]
PAYS = 0.25
"""Share of padding in a batch from which packing is the default."""
LONG = 64
"""Tokens in the texts of a batch, on average, from which those of similar length are neighbors, in a single row."""
SIMILAR = 0.85
"""Shortest of the texts that are padded to the same length, as a part of the longest."""
# What packed rows cannot be trained with, and what it is then
NEEDED = {"decoding": "autoregressive", "output_distribution": "softmax"}
OFF = {"guided_attention": 0.0, "scheduled_sampling": "none", "ensemble": 0}


def packed_rows(
    dataset: DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    *,
    block_size: int,
    masked: bool = False,
    num_proc: int | None = None,
    long_texts: LongTexts = "cut",
) -> TokenizedSplits:
    """Put whole texts, `<s> text </s>` (masked: `[CLS] text [SEP]`), into rows {input_ids, position_ids}.

    Raises:
        ValueError: A row has no room for a text, or the tokenizer has no tokens to separate texts.
    """
    start, end = frame(tokenizer, masked=masked)
    room = block_size - len(start) - len(end) if masked else block_size
    if block_size < 2 or room < 1:
        raise ValueError(f"block_size={block_size}: a row needs room for a token and what frames a text")
    text = text_tokenizer(tokenizer)
    batch = partial(_text_batch, tokenizer=text, start=start, end=end, longest=room, reframe=masked)
    columns = {"input_ids": IDS, "lengths": IDS, "text_cut": Value("bool")}
    tokenized = map_splits(dataset, batch, num_proc, features=columns)
    how = "cut into pieces of"
    tokenized = handle_long_texts(dataset, tokenized, {"text": block_size}, long_texts, how)
    packed = {}
    for split, rows in tokenized.items():
        packed[split] = _rows(rows, block_size)
        count, total = len(packed[split]), len(flat_values(rows, "input_ids"))
        report(
            f"{split} data: {len(rows):,} texts packed into {count:,} rows, {1 - total / count / block_size:.1%} free."
        )
    return TokenizedSplits(packed, tokenized.stats)


def pack(lengths: np.ndarray, size: int) -> list[list[int]]:
    """Return which items share a bin of `size`, by best-fit decreasing (Johnson 1973).

    The longest go first, each where the least room is left. Items of a bin, and bins by their first item, are in the
    order of the items.
    """
    bins: list[list[int]] = []
    open_bins: list[list[int]] = [[] for _ in range(size + 1)]  # by the room that is left
    rooms = 0  # the bit `room` is set where there is such a bin
    for item in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[item])
        fitting = rooms >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            number = open_bins[room].pop()
            rooms &= ~(0 if open_bins[room] else 1 << room)
        else:
            room, number = size, len(bins)
            bins.append([])
        bins[number].append(item)
        if left := room - length:
            open_bins[left].append(number)
            rooms |= 1 << left
    return sorted(map(sorted, bins))


def share_rows(lengths: np.ndarray) -> list[list[int]]:
    """Return which texts of a batch share a row, given their lengths (B, 1), or those of sources and targets (B, 2).

    As many rows as the longer side fills, and the longest texts go first, each where the row stays shortest (Graham
    1969): rows of a batch are of about the same length on both sides.
    """
    count = -(-lengths.sum(axis=0).max() // max(ROOM, lengths.max()))
    rows: list[list[int]] = [[] for _ in range(count)]
    filled = np.zeros((count, lengths.shape[1]), np.int64)
    for text in np.argsort(-lengths.max(axis=1), kind="stable"):
        row = int((filled + lengths[text]).max(axis=1).argmin())
        rows[row].append(int(text))
        filled[row] += lengths[text]
    return [sorted(texts) for texts in rows if texts]


def _text_batch(
    batch: Batch,
    *,
    tokenizer: PreTrainedTokenizerBase,
    start: list[int],
    end: list[int],
    longest: int,
    reframe: bool,
) -> Batch:
    """Return the pieces of each text, in one list with their lengths; `reframe` frames each piece, else the text."""
    rows: Batch = {"input_ids": [], "lengths": [], "text_cut": []}
    for ids in token_ids(tokenizer, batch["text"]):
        framed = ids if reframe else [*start, *ids, *end]
        pieces = [framed[first : first + longest] for first in range(0, len(framed), longest)]
        if reframe:
            pieces = [[*start, *piece, *end] for piece in pieces]
        rows["input_ids"].append(list(chain.from_iterable(pieces)))
        rows["lengths"].append(list(map(len, pieces)))
        rows["text_cut"].append(len(pieces) > 1)
    return rows


def _rows(texts: Dataset, size: int) -> Dataset:
    """Pack the pieces of texts into rows."""
    tokens, lengths = flat_values(texts, "input_ids"), flat_values(texts, "lengths").to_numpy()
    starts = np.cumsum(lengths) - lengths
    bins = pack(lengths, size)
    order = np.fromiter(chain.from_iterable(bins), dtype=np.int64)
    counts = lengths[order]
    ends = np.cumsum(counts)
    within = np.arange(ends[-1]) - np.repeat(ends - counts, counts)  # each token's position in its piece
    positions = np.repeat(starts[order], counts) + within
    offsets = np.concatenate([[0], ends[np.cumsum([len(items) for items in bins]) - 1]])
    columns = {"input_ids": pc.take(tokens, pa.array(positions)), "position_ids": pa.array(within.astype(np.int32))}
    bounds = pa.array(offsets, pa.int64())
    return Dataset(pa.table({name: pa.LargeListArray.from_arrays(bounds, values) for name, values in columns.items()}))


class PackedBatches(EpochCollator):
    """Makes batches of packed rows for training, and of padded ones for evaluation.

    A batch has `input_ids`, `attention_mask` and `position_ids` (R, S); each text has its positions from 0 on.
    """

    sides: tuple[str, ...]
    """Columns of the rows whose tokens are counted."""

    def __init__(self, model: PreTrainedModel, padded: Callable[[list[Row]], Any], compiled: bool = False):
        self.model: Any = model
        self.compiled = compiled
        self.padded = padded
        self.tokenizer = getattr(padded, "tokenizer", None)  # which Trainer saves with its checkpoints
        self.set_epoch(0)

    def __call__(self, rows: list[Row]) -> dict[str, torch.Tensor]:
        if self.epoch == EVALUATION:
            return self.padded(rows)
        bins, sizes = self.layout(np.array([[len(row[side]) for side in self.sides] for row in rows]))
        return self.packed([[rows[number] for number in numbers] for numbers in bins], sizes)

    def layout(self, lengths: np.ndarray) -> tuple[list[list[int]], list[int] | None]:
        """Return which rows of a batch, of lengths (B, 1 or 2), share one, and what each is padded to, if anything."""
        return share_rows(lengths), None

    def computed(self, lengths: np.ndarray) -> int:
        """Return the tokens that a batch of rows of `lengths` is computed with, padding included."""
        bins, sizes = self.layout(lengths)
        filled = np.stack([lengths[numbers].sum(axis=0) for numbers in bins])
        return sum(sizes) if sizes else int((filled.max(axis=0) * len(filled)).sum())

    def packed(self, bins: list[list[Row]], sizes: Sequence[int] | None = None) -> dict[str, torch.Tensor]:
        """Return the batch with the rows of each bin in one row, each padded to its size if it has one."""
        padding = self.model.config.pad_token_id
        ids, positions, mask = joined([[row["input_ids"] for row in rows] for rows in bins], padding, sizes)
        return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}


class PackedPairs(PackedBatches):
    """The same of pairs {input_ids, labels}, with `decoder_input_ids`, `decoder_position_ids` and `labels` (R, T)."""

    sides = ("input_ids", "labels")

    def packed(self, bins: list[list[Row]], sizes: Sequence[int] | None = None) -> dict[str, torch.Tensor]:
        targets = [torch.tensor(row["labels"])[None] for rows in bins for row in rows]
        inputs = iter(self.model.prepare_decoder_input_ids_from_labels(labels)[0].tolist() for labels in targets)
        first = [[next(inputs) for _ in rows] for rows in bins]
        ids, positions, _ = joined(first, self.model.config.pad_token_id)
        labels, _, _ = joined([[row["labels"] for row in rows] for rows in bins], IGNORE_INDEX)
        decoder = {"decoder_input_ids": ids, "decoder_position_ids": positions, "labels": labels}
        return super().packed(bins) | decoder


class PackedTexts(PackedBatches):
    """The same of classified texts {input_ids, labels}, with `labels` (N) in the order of the texts.

    Long texts are in a single row on a CPU, and each padded to the length of others: these attend as a batch.
    """

    sides = ("input_ids",)

    def layout(self, lengths: np.ndarray) -> tuple[list[list[int]], list[int] | None]:
        if lengths.mean() < LONG or not self.attends_in_groups():
            return super().layout(lengths)
        longest_first = np.argsort(-lengths[:, 0], kind="stable")
        sizes: list[int] = []  # few different ones
        for length in lengths[longest_first, 0].tolist():
            sizes.append(sizes[-1] if sizes and length >= SIMILAR * sizes[-1] else length)
        return [longest_first.tolist()], sizes

    def attends_in_groups(self) -> bool:
        """Tell whether the model attends to texts of equal length as a batch, and treats no row as a whole."""
        stack = next(module for module in self.model.modules() if isinstance(module, EncoderStack))
        whole = self.compiled or self.model.config.drop_path_rate
        return takes_buckets(stack) and stack.device.type == "cpu" and not whole

    def packed(self, bins: list[list[Row]], sizes: Sequence[int] | None = None) -> dict[str, torch.Tensor]:
        batch = super().packed(bins, sizes)
        if "token_type_ids" in bins[0][0]:
            types = [[row["token_type_ids"] for row in rows] for rows in bins]
            batch["token_type_ids"], _, _ = joined(types, 0, sizes)
        return batch | {"labels": torch.tensor([row["labels"] for rows in bins for row in rows])}


COLLATORS: dict[type, type[PackedBatches]] = {
    VanillaEncoderDecoderConfig: PackedPairs,
    VanillaEncoderConfig: PackedTexts,
}
"""By the config of the model."""


def joined(
    rows: Sequence[Sequence[Sequence[int]]], fill: int, sizes: Sequence[int] | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the texts of each row one after the other, filled up, their positions and the mask, all (R, T)."""
    longest = sum(sizes) if sizes else max(sum(map(len, texts)) for texts in rows)
    values, positions, mask = [], [], []
    for texts in rows:
        widths = sizes or list(map(len, texts))
        missing = longest - sum(widths)
        filled = chain.from_iterable([*text, *[fill] * (width - len(text))] for text, width in zip(texts, widths))
        real = chain.from_iterable([1] * len(text) + [0] * (width - len(text)) for text, width in zip(texts, widths))
        counted = [position for width in widths for position in range(width)]
        values.append([*filled, *[fill] * missing])
        positions.append(counted + counted[-1:] * missing)
        mask.append([*real, *[0] * missing])
    return torch.tensor(values), torch.tensor(positions), torch.tensor(mask)


def check_attention(model: PreTrainedModel) -> None:
    """Raise ValueError for a model whose attention would not keep the texts of a row apart."""
    if not isinstance(model.config, VanillaConfig):
        raise ValueError(
            f"--packing: {type(model).__name__} (model_type={model.config.model_type!r}) would mix the texts of a "
            "row, which only models of this package keep apart"
        )
    implementation = model.config._attn_implementation
    if implementation not in SEPARATING:
        raise ValueError(
            f"--packing: {implementation} attention does not keep the texts of a batch of rows apart; "
            f"--attn_implementation {', '.join(SEPARATING)} does"
        )


def check_packing(model: PreTrainedModel, training_args: Any) -> None:
    """Raise ValueError for a model or a training to which the texts of a row would not be what they are alone."""
    config: Any = model.config
    if type(config) not in COLLATORS:
        raise ValueError(
            f"--packing: texts are packed for encoders and for encoder-decoders of Transformer layers, not for "
            f"model_type={config.model_type!r}"
        )
    check_attention(model)
    for name, needed in NEEDED.items():
        if getattr(config, name, needed) != needed:
            raise ValueError(f"--packing needs {name}={needed!r}, not {getattr(config, name)!r}")
    for name, off in OFF.items():
        if getattr(training_args, name, off) != off:
            raise ValueError(f"--packing cannot be used with --{name} {getattr(training_args, name)}")


def fit_packing(
    model: PreTrainedModel, packing: bool | None, rows: Dataset, training_args: Any, padded: Callable
) -> Callable:
    """Return the collator of a training: one that packs if `packing` says so or, with `None`, if it can and pays.

    Raises:
        ValueError: As from `check_packing`, if packing is asked for.
    """
    if packing is False:
        return padded
    try:
        check_packing(model, training_args)
    except ValueError:
        if packing:
            raise
        return padded
    if packing is None:
        # A whole step is taken as one batch of one process: its parts have the same choice.
        parts = training_args.gradient_accumulation_steps * training_args.world_size
        names = ("train_sampling_strategy", "tokens_per_batch", "seed", "data_seed")
        step: dict[str, Any] = {name: getattr(training_args, name) for name in names}
        step |= {"gradient_accumulation_steps": 1, "world_size": 1, "process_index": 0}
        step["train_batch_size"] = training_args.train_batch_size * parts
        share = padding_share(rows, SimpleNamespace(**step))
        if share < PAYS:
            return padded
        report(f"Packing: {share:.0%} of a batch would be padding (--packing false for rows of one text each).")
    return COLLATORS[type(model.config)](model, padded, compiled=training_args.torch_compile)
