"""The account of a training: the data that it has read, and its floating-point operations."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from zlib import crc32

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather
from torch.nn.functional import pad
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from vanillaformer.data.targets import targets_of
from vanillaformer.modeling.counts import TextFlops, patch_grid, polynomial_terms, text_flops
from vanillaformer.modeling.heads import IGNORE_INDEX
from vanillaformer.modeling.parts.packed_texts import text_numbers

WITH_GRADIENT = 3  # a forward and a backward pass cost as much as three forward passes
COUNTED = ("steps", "rows", "tokens", "flops")
LOSSES = ("_total_loss_scalar", "_globalstep_last_logged", "_tr_loss")  # sum until the last log, its step, sum since


class StatefulCallback(TrainerCallback, ExportableState):
    """A callback whose `saved_attributes` are saved in checkpoints and restored when a run resumes.

    Transformers would restore the arguments of the earlier run with them.
    """

    saved_attributes: tuple[str, ...] = ()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        entry = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        for name in self.saved_attributes:
            setattr(self, name, entry["attributes"].get(name, getattr(self, name)))  # earlier versions saved fewer

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {name: getattr(self, name) for name in self.saved_attributes}}


def from_all(number: Any, device: torch.device) -> list[Any]:
    """Return the number that each process has, in the order of the processes."""
    if PartialState().num_processes == 1:
        return [number]
    kind = torch.float64 if isinstance(number, float) else torch.int64
    return gather(torch.tensor([number], dtype=kind, device=device)).tolist()


def check_equal(value: Any, words: str, device: torch.device) -> None:
    """Raise ValueError on all processes if the value of one, which JSON can hold, differs from that of the first."""
    sums = from_all(crc32(json.dumps(value, sort_keys=True).encode()), device)
    if others := [number for number, each in enumerate(sums) if each != sums[0]]:
        raise ValueError(f"{words} of process {others[0]} differ from those of process 0")


@dataclass
class Reading:
    """The size of a batch, without padding."""

    rows: int
    tokens: int  # of source and target; for images, patches
    sums: np.ndarray  # of the `polynomial_terms` of the texts' lengths
    labeled: np.ndarray  # the same for the numbers of their labeled positions


class Account(StatefulCallback):
    """Counts what a training consumes on all its processes.

    That is optimizer `steps`, `rows` and `tokens` of data read, and `flops` of matrix products, without those for
    padding and those that gradient checkpointing repeats.
    """

    saved_attributes = (*COUNTED, "losses")
    reading: Reading | None = None  # of the current batch

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self.steps = self.rows = self.tokens = self.flops = 0
        self.step: list[int] = [0, 0, 0]  # rows, tokens and operations of this process in this step
        self.losses_since: float = 0  # the step after which losses are summed

    # ----------------------------------------------------------------------------------------------- the numbers
    def record(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in COUNTED}

    @property
    def losses(self) -> list[float]:
        """The Trainer's sums of losses, which it resets when a run resumes, and the step from which they count."""
        return [*(float(getattr(self.trainer, name, 0.0)) for name in LOSSES), self.losses_since]

    @losses.setter
    def losses(self, values: list[float]) -> None:
        *found, later, self.losses_since = values
        vars(self.trainer).update(zip(LOSSES, found))
        self.trainer._tr_loss.fill_(later)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.losses_since = state.global_step  # unless the checkpoint has earlier sums
        super().on_train_begin(args, state, control, **kwargs)
        _ = self.cost  # counted before the first step

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        processes = self.trainer.get_tp_size()  # which have the same rows
        rows, tokens, flops = (sum(from_all(number, args.device)) // processes for number in self.step)
        self.step = [0, 0, 0]
        self.rows, self.tokens, self.flops = self.rows + rows, self.tokens + tokens, self.flops + flops
        self.steps += 1

    # ------------------------------------------------------------------------------------- batches and passes
    def read(self, inputs: Mapping[str, Any]) -> Reading:
        """Return the size of a batch."""
        inner = inner_model(self.trainer.model)
        if "pixel_values" in inputs:
            images = len(inputs["pixel_values"])
            sums = np.array([images, 0, 0, 0, 0, 0], dtype=np.float64)
            return Reading(images, images * int(np.prod(patch_grid(inner.config))), sums, sums)
        lengths = text_lengths(inputs, inner, getattr(self.trainer.data_collator, "padding", None))
        terms = torch.stack([polynomial_terms(lengths[:2]), polynomial_terms(lengths[[2, 1]])])
        texts = (lengths[:2].sum(dim=0) > 0).to(terms.dtype)
        sums, labeled = (terms @ texts).cpu().numpy()
        rows = round(sums[0]) if "attention_mask" in inputs else len(inputs["input_ids"])
        return Reading(rows, round(sums[1] + sums[2]), sums, labeled)

    def size_of(self, inputs: Mapping[str, Any], *, flops: bool) -> int:
        """Return the tokens of a batch, or the operations of a forward pass over it."""
        reading = self.read(inputs)
        return self.cost.of(reading.sums, reading.labeled) if flops else reading.tokens

    @cached_property
    def cost(self) -> TextFlops:
        """The operations of the trained model's passes."""
        return text_flops(inner_model(self.trainer.model))

    def count(self, passes: int, *, labeled: bool = True) -> None:
        """Add forward passes over the batch; without labels, the output layer reads all positions."""
        if self.reading is not None:  # None for a loss outside of a step
            reading = self.reading
            self.step[2] += passes * self.cost.of(reading.sums, reading.labeled if labeled else reading.sums)


def inner_model(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def text_lengths(inputs: Mapping[str, Any], model: Any, padding: int | None) -> torch.Tensor:
    """Return the lengths of the texts of a batch, of their sources, and of their parts with a target (3, N).

    The positions of each packed text begin at 0; `padding` is the token that fills rows where there is no mask.
    """
    ids, positions = inputs["input_ids"], inputs.get("position_ids")
    labels: Any = inputs.get("labels")
    mask = inputs.get("attention_mask")
    if mask is None or mask.ndim != 2:
        mask = torch.ones_like(ids)
        if positions is not None:  # the rest of a row is a text of nothing but padding
            padding = model.config.pad_token_id if padding is None else padding
            words = lengths_in_rows(ids != padding, positions)
            mask = (words.gather(1, text_numbers(positions, None, len(positions))) > 0).long()
    read = lengths_in_rows(mask, positions)
    if model.config.is_encoder_decoder:
        targets = lengths_in_rows((labels != IGNORE_INDEX).long(), inputs.get("decoder_position_ids"))
        longest = max(read.shape[1], targets.shape[1])
        read, targets = (pad(each, (0, longest - each.shape[1])) for each in (read, targets))
        found = targets, read, targets
    elif labels is None or labels.ndim < 2:
        found = read, torch.zeros_like(read), read
    else:
        labels = targets_of(model, labels)
        found = read, torch.zeros_like(read), lengths_in_rows((labels != IGNORE_INDEX).long(), positions)
    return torch.stack(found).flatten(1).double()


def lengths_in_rows(mask: torch.Tensor, positions: torch.Tensor | None) -> torch.Tensor:
    """Return the number of counted tokens of each text (R, N), from a mask of them (R, T)."""
    if positions is None:
        return mask.sum(dim=1, keepdim=True)
    texts = text_numbers(positions, None, len(positions))
    lengths = torch.zeros(len(mask), int(texts.max()) + 1, dtype=torch.long, device=mask.device)
    return lengths.scatter_add_(1, texts, mask.long())
