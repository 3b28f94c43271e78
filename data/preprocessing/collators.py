"""Collators: from rows to the tensors of a batch, masked tokens among them."""

import contextlib
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import torch
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerBase

from vanillaformer.modeling.heads import IGNORE_INDEX

from .batching import epoch_seed

EVALUATION = -1  # the "epoch" of the masks used to evaluate, which are always the same


class EpochCollator:
    """A collator whose batches depend on the epoch, in the workers that have a copy of it too."""

    _epoch: torch.Tensor

    @property
    def epoch(self) -> int:
        """The epoch that batches are drawn for."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose what is drawn for the batches to come; workers that outlive an epoch read it from shared memory."""
        if "_epoch" not in vars(self):
            self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        self._epoch.fill_(epoch)

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        """Use what is drawn for evaluations, but not in workers that draw training batches meanwhile."""
        training, self._epoch = self._epoch, torch.tensor(EVALUATION)
        try:
            yield
        finally:
            self._epoch = training


class RowMasking(EpochCollator, DataCollatorForLanguageModeling):
    """Masks tokens (Devlin et al. 2019) by a random draw that depends on seed, epoch and the row itself."""

    def __init__(self, *arguments: Any, mask_seed: int = 0, **keywords: Any):
        super().__init__(*arguments, **keywords)
        self.mask_seed = mask_seed
        self.set_epoch(0)

    def torch_mask_tokens(
        self, inputs: Any, special_tokens_mask: Any | None = None, offset_mapping: Any | None = None
    ) -> tuple[Any, Any]:
        labels = torch.full_like(inputs, IGNORE_INDEX)
        for ids, targets in zip(inputs, labels):
            # How far a row is padded depends on the others in its batch: padding has no part in the draw.
            real = torch.ones_like(ids, dtype=torch.bool)
            if self.tokenizer.pad_token_id is not None:
                real = ids != self.tokenizer.pad_token_id
            masked, wanted = self._mask_row(ids[real][None])
            ids[real], targets[real] = masked[0], wanted[0]
        return inputs, labels

    def _mask_row(self, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seed = crc32(row.numpy().tobytes(), epoch_seed(self.mask_seed, self.epoch))
        self.generator = torch.Generator().manual_seed(seed)
        masked, targets = super().torch_mask_tokens(row)
        if (targets == IGNORE_INDEX).all():  # a step or an evaluation may have no other row
            special = self.tokenizer.get_special_tokens_mask(row[0].tolist(), already_has_special_tokens=True)
            text = (torch.tensor(special) == 0).nonzero().flatten()
            if len(text):
                chosen = text[torch.randint(len(text), (1,), generator=self.generator)]
                masked[:, chosen], targets[:, chosen] = self._mask_all(row[:, chosen])
        return masked, targets

    def _mask_all(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Make targets of all tokens: most become [MASK], the others a random token or stay as they are."""
        share, self.mlm_probability = self.mlm_probability, 1.0
        try:
            return super().torch_mask_tokens(tokens)
        finally:
            self.mlm_probability = share


class BlockCollator:
    """Makes batches of blocks for a causal language model, of which the last of a split is shorter: filled up.

    Labels ignore filled positions, not a token: where a tokenizer pads with its </s>, texts still end in it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.padding = pad_token(tokenizer)

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        lengths = torch.tensor([len(row["input_ids"]) for row in rows])
        longest = int(lengths.max())
        ids = torch.tensor([_padded(row["input_ids"], longest, [self.padding]) for row in rows])
        real = torch.arange(longest) < lengths[:, None]
        return {"input_ids": ids, "attention_mask": real.long(), "labels": ids.masked_fill(~real, IGNORE_INDEX)}


class PackedCollator:
    """Makes batches of packed rows for a causal language model: ids, positions, and labels but for first tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.padding = pad_token(tokenizer)

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        length = max(len(row["input_ids"]) for row in rows)
        ids = torch.tensor([_padded(row["input_ids"], length, [self.padding]) for row in rows])
        positions = torch.tensor([_padded(row["position_ids"], length, range(length)) for row in rows])
        labels = ids.masked_fill(positions == 0, IGNORE_INDEX)
        for row, targets in zip(rows, labels):
            targets[len(row["input_ids"]) :] = IGNORE_INDEX
        return {"input_ids": ids, "position_ids": positions, "labels": labels}


class PackedMasking(RowMasking):
    """Makes batches of packed rows for a masked language model."""

    def torch_call(self, examples: list[Any]) -> dict[str, Any]:
        batch = super().torch_call([{"input_ids": row["input_ids"]} for row in examples])
        length = batch["input_ids"].shape[1]
        positions = torch.tensor([_padded(row["position_ids"], length, range(length)) for row in examples])
        return {"input_ids": batch["input_ids"], "position_ids": positions, "labels": batch["labels"]}


def pad_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the id that pads rows; no position attends to it."""
    return next((i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id) if i is not None), 0)


def _padded(values: list[int], length: int, fill: Any) -> list[int]:
    """Return values filled up to a length, from the start of `fill`, whose last value is repeated."""
    missing = length - len(values)
    tail = list(fill[:missing])
    return [*values, *tail, *tail[-1:] * (missing - len(tail))]
