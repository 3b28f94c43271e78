"""Batches of packed rows: several texts in a row without attention between them, and less padding.

Pairs and classified texts are packed when a batch is made, which has the same texts as without packing: its loss and
gradient are the same, on any number of processes. The model separates the texts of a row by their positions, which
start at 0 in each, and lets each target attend only to its source. Transformers makes masks from positions if no
`attention_mask` is given.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedModel

from vanillaformer.acceleration.length_buckets import takes_buckets
from vanillaformer.configuration import VanillaConfig, VanillaEncoderConfig, VanillaEncoderDecoderConfig
from vanillaformer.console.reporting import report
from vanillaformer.modeling.heads import IGNORE_INDEX
from vanillaformer.modeling.stack import EncoderStack

from .batching import EVALUATION, EpochCollator
from .statistics import padding_share

SEPARATING = ("eager", "sdpa", "flex_attention")
"""Attention implementations that take a mask of the texts in each row of a batch."""
ROOM = 96
"""Approximate tokens in a row of a packed batch, unless a text is longer: attention also computes masked scores, so
that long rows would cost more than the padding of short ones."""
Row = dict[str, Any]
MIN_PADDING = 0.25  # share of padding in a batch from which packing is the default
LONG = 64
"""Mean tokens of the texts of a batch from which they form a single row, sorted by length."""
SIMILAR = 0.85  # minimum ratio of the shortest and the longest of texts that are padded to the same length
# The only values of config fields that allow packing, and values that turn off arguments that exclude it
NEEDED = {"decoding": "autoregressive", "output_distribution": "softmax"}
OFF = {"guided_attention": 0.0, "scheduled_sampling": "none"}


def share_rows(lengths: np.ndarray) -> list[list[int]]:
    """Return which texts of a batch share a row, given their lengths (B, 1), or those of sources and targets (B, 2).

    There are as many rows as the longer side fills. The longest texts go first, each to the row that stays shortest
    (Graham 1969), so that the rows of a batch have about the same length on both sides.
    """
    count = -(-lengths.sum(axis=0).max() // max(ROOM, lengths.max()))
    rows: list[list[int]] = [[] for _ in range(count)]
    filled = np.zeros((count, lengths.shape[1]), np.int64)
    for text in np.argsort(-lengths.max(axis=1), kind="stable"):
        row = int((filled + lengths[text]).max(axis=1).argmin())
        rows[row].append(int(text))
        filled[row] += lengths[text]
    return [sorted(texts) for texts in rows if texts]


class PackedBatches(EpochCollator):
    """Collator of packed rows for training, and of padded ones for evaluation.

    A batch has `input_ids`, `attention_mask` and `position_ids` (R, S); the positions of each text begin at 0.
    """

    sides: tuple[str, ...]
    """Columns of the rows whose tokens are counted."""

    def __init__(self, model: PreTrainedModel, padded: Callable[[list[Row]], Any], compiled: bool = False):
        self.model: Any = model
        self.compiled = compiled
        self.padded = padded
        self.tokenizer = getattr(padded, "tokenizer", None)  # Trainer saves it with its checkpoints
        self.set_epoch(0)

    def __call__(self, rows: list[Row]) -> dict[str, torch.Tensor]:
        if self.epoch == EVALUATION:
            return self.padded(rows)
        bins, sizes = self.layout(np.array([[len(row[side]) for side in self.sides] for row in rows]))
        return self.packed([[rows[number] for number in numbers] for numbers in bins], sizes)

    def layout(self, lengths: np.ndarray) -> tuple[list[list[int]], list[int] | None]:
        """Return which texts of a batch, of lengths (B, 1 or 2), share a row, and their padded lengths, if any."""
        return share_rows(lengths), None

    def computed(self, lengths: np.ndarray) -> int:
        """Return the number of tokens in a batch of rows of `lengths`, padding included."""
        bins, sizes = self.layout(lengths)
        filled = np.stack([lengths[numbers].sum(axis=0) for numbers in bins])
        return sum(sizes) if sizes else int((filled.max(axis=0) * len(filled)).sum())

    def packed(self, bins: list[list[Row]], sizes: Sequence[int] | None = None) -> dict[str, torch.Tensor]:
        """Return the batch with the texts of each bin in one row, each padded to its size if it has one."""
        padding = self.model.config.pad_token_id
        ids, positions, mask = joined([[row["input_ids"] for row in rows] for rows in bins], padding, sizes)
        return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}


class PackedPairs(PackedBatches):
    """Packs pairs {input_ids, labels}, adding `decoder_input_ids`, `decoder_position_ids` and `labels` (R, T)."""

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
    """Packs classified texts {input_ids, labels}, with `labels` (N) in the order of the texts.

    On a CPU, long texts form a single row, and similar ones are padded to the same length, to attend as a batch.
    """

    sides = ("input_ids",)

    def layout(self, lengths: np.ndarray) -> tuple[list[list[int]], list[int] | None]:
        # If the model attends to texts of equal length as a batch, and treats no row as a whole
        stack = next(module for module in self.model.modules() if isinstance(module, EncoderStack))
        whole = self.compiled or self.model.config.drop_path_rate
        if lengths.mean() < LONG or not takes_buckets(stack) or stack.device.type != "cpu" or whole:
            return super().layout(lengths)
        longest_first = np.argsort(-lengths[:, 0], kind="stable")
        sizes: list[int] = []  # few different ones
        for length in lengths[longest_first, 0].tolist():
            sizes.append(sizes[-1] if sizes and length >= SIMILAR * sizes[-1] else length)
        return [longest_first.tolist()], sizes

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
    """Return the concatenated and padded texts of each row, their positions and the mask, all (R, T)."""
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


def check_attention(model: PreTrainedModel, option: str = "--packing") -> None:
    """Raise ValueError, naming the option, for a model whose attention would not keep the texts of a row apart."""
    if not isinstance(model.config, VanillaConfig):
        raise ValueError(
            f"{option}: {type(model).__name__} (model_type={model.config.model_type!r}) would mix the texts of a "
            "row, which only models of this package keep apart"
        )
    implementation = model.config._attn_implementation
    if implementation not in SEPARATING:
        raise ValueError(
            f"{option}: {implementation} attention does not keep the texts of a batch of rows apart; "
            f"--attn_implementation {', '.join(SEPARATING)} does"
        )


def check_packing(model: PreTrainedModel, training_args: Any) -> None:
    """Raise ValueError for a model or a training that would treat packed texts otherwise than single ones."""
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
    """Return the training collator, which packs if `packing` is true or, with None, if it can and there is padding."""
    if packing is False:
        return padded
    try:
        check_packing(model, training_args)
    except ValueError:
        if packing:
            raise
        return padded
    if packing is None:
        # Estimated for whole steps, so that the choice is the same for any number of processes
        share = padding_share(rows, training_args, whole_steps=True)
        if share < MIN_PADDING:
            return padded
        report(f"Packing: {share:.0%} of a batch would be padding (--packing false for rows of one text each).")
    return COLLATORS[type(model.config)](model, padded, compiled=training_args.torch_compile)
