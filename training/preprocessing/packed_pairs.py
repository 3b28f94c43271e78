"""Pairs of texts packed into rows while a batch is made: several sources in one row, their targets in another.

A batch has the same pairs with packing as without, so that its loss and gradient are the same, on any number of
processes; most of the padding is gone. Positions begin again with each text: by them the model keeps texts apart, and
lets each target attend to its own source.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from vanillaformer.configuration import VanillaEncoderDecoderConfig
from vanillaformer.modeling.heads import IGNORE_INDEX

from .collators import EVALUATION, EpochCollator
from .packing import check_attention, pack_pairs

Row = dict[str, Any]


class PackedPairs(EpochCollator):
    """Makes batches of packed pairs for training, and of padded ones for evaluation.

    A packed batch has `input_ids`, `position_ids` (R, S), `decoder_input_ids`, `decoder_position_ids` and `labels`
    (R, T). What fills a row up are texts of one token, without labels.

    Args:
        model: The encoder-decoder, which makes decoder inputs of labels.
        padded: Makes batches of rows {input_ids, labels} without packing.
    """

    def __init__(self, model: PreTrainedModel, padded: Callable[[list[Row]], Any]):
        self.model: Any = model  # whose class says how inputs are made of labels
        self.padded = padded
        self.epoch = 0

    def __call__(self, rows: list[Row]) -> dict[str, torch.Tensor]:
        if self.epoch == EVALUATION:
            return self.padded(rows)
        lengths = np.array([(len(row["input_ids"]), len(row["labels"])) for row in rows])
        bins = [[rows[number] for number in numbers] for numbers in pack_pairs(lengths)]
        targets = [torch.tensor(row["labels"])[None] for pairs in bins for row in pairs]
        inputs = iter(self.model.prepare_decoder_input_ids_from_labels(labels)[0].tolist() for labels in targets)
        first = [[next(inputs) for _ in pairs] for pairs in bins]
        padding = self.model.config.pad_token_id
        ids, positions = joined([[row["input_ids"] for row in pairs] for pairs in bins], padding)
        decoder_ids, decoder_positions = joined(first, padding)
        labels, _ = joined([[row["labels"] for row in pairs] for pairs in bins], IGNORE_INDEX)
        return {
            "input_ids": ids,
            "position_ids": positions,
            "decoder_input_ids": decoder_ids,
            "decoder_position_ids": decoder_positions,
            "labels": labels,
        }


def joined(rows: Sequence[Sequence[Sequence[int]]], fill: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the texts of each row one after the other, filled up, and each token's position in its text (R, T)."""
    longest = max(sum(map(len, texts)) for texts in rows)
    values, positions = [], []
    for texts in rows:
        flat = [value for text in texts for value in text]
        missing = longest - len(flat)
        values.append(flat + [fill] * missing)
        positions.append([place for text in texts for place in range(len(text))] + [0] * missing)
    return torch.tensor(values), torch.tensor(positions)


def check_packing(model: PreTrainedModel, training_args: Any) -> None:
    """Raise ValueError for a model or a training to which the pairs of a row would not be what they are alone."""
    config: Any = model.config
    if not isinstance(config, VanillaEncoderDecoderConfig):
        raise ValueError(f"--packing: pairs are packed for Transformers, not for model_type={config.model_type!r}")
    check_attention(model)
    for name, needed in {"decoding": "autoregressive", "output_distribution": "softmax"}.items():
        if getattr(config, name) != needed:
            raise ValueError(f"--packing needs {name}={needed!r}, not {getattr(config, name)!r}")
    for name, off in {"guided_attention": 0.0, "scheduled_sampling": "none"}.items():
        if getattr(training_args, name) != off:
            raise ValueError(f"--packing cannot be used with --{name} {getattr(training_args, name)}")
