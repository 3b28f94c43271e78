"""Trainers whose batches depend on the seed, the epoch and the data alone.

With transformers' own length grouping and token masking, what a run sees after an interruption, or on several
processes, is not what it would have seen: both draw from the global random state. Here an epoch's order and masks are
the same on any number of processes, and a resumed run ends at the same weights as one that was never interrupted.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from zlib import crc32

import torch
from datasets import Dataset
from torch.utils.data import Sampler
from transformers import DataCollatorForLanguageModeling, Seq2SeqTrainer, Trainer, TrainerCallback
from transformers.trainer_pt_utils import get_length_grouped_indices

EVALUATION = -1  # the "epoch" of the masks used to evaluate, which are always the same


class RandomEpochs(Sampler[int]):
    """Rows in an order drawn anew for every epoch from seed and epoch.

    Args:
        count: Number of rows.
        seed: Seed of all the orders.
    """

    def __init__(self, count: int, seed: int):
        self.count, self.seed, self.epoch = count, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order that the next iteration follows."""
        self.epoch = epoch

    def order(self, generator: torch.Generator) -> list[int]:
        """Draw the order of one epoch."""
        return torch.randperm(self.count, generator=generator).tolist()

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        return iter(self.order(torch.Generator().manual_seed(_mixed(self.seed, self.epoch))))


class LengthGroupedEpochs(RandomEpochs):
    """The same, with rows of similar length together, and the batches in random order.

    Args:
        lengths: Length of each row.
        batch_size: Rows in one step of all processes together.
        seed: Seed of all the orders.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int):
        super().__init__(len(lengths), seed)
        self.lengths, self.batch_size = lengths, batch_size

    def order(self, generator: torch.Generator) -> list[int]:
        # transformers groups rows by hundreds of batches, sorted: left so, all long rows would be followed by all
        # short ones, again and again, and the loss would swing with them.
        rows = get_length_grouped_indices(self.lengths, self.batch_size, generator=generator)
        whole = len(rows) // self.batch_size * self.batch_size
        batches = torch.tensor(rows[:whole]).view(-1, self.batch_size)
        shuffled = batches[torch.randperm(len(batches), generator=generator)]
        return shuffled.flatten().tolist() + rows[whole:]


class RowMasking(DataCollatorForLanguageModeling):
    """Masks tokens (Devlin et al. 2019) by a random draw that depends on seed, epoch and the row itself."""

    def __init__(self, *arguments: Any, mask_seed: int = 0, **keywords: Any):
        super().__init__(*arguments, **keywords)
        self.mask_seed, self.epoch = mask_seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the masks of the batches to come."""
        self.epoch = epoch

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        """Use the masks of the evaluation."""
        epoch, self.epoch = self.epoch, EVALUATION
        yield
        self.epoch = epoch

    def torch_mask_tokens(
        self, inputs: Any, special_tokens_mask: Any | None = None, offset_mapping: Any | None = None
    ) -> tuple[Any, Any]:
        labels = torch.full_like(inputs, -100)
        for ids, targets in zip(inputs, labels):
            # How far a row is padded depends on the others in its batch: padding has no part in the draw.
            real = torch.ones_like(ids, dtype=torch.bool)
            if self.tokenizer.pad_token_id is not None:
                real = ids != self.tokenizer.pad_token_id
            masked, wanted = self._mask_row(ids[real][None])
            ids[real], targets[real] = masked[0], wanted[0]
        return inputs, labels

    def _mask_row(self, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seed = crc32(row.numpy().tobytes(), _mixed(self.mask_seed, self.epoch))
        self.generator = torch.Generator().manual_seed(seed)
        return super().torch_mask_tokens(row)


class RunTrainer(Trainer):
    """`Trainer` with reproducible batches, which leaves the model card to the run."""

    def __init__(self, *arguments: Any, **keywords: Any):
        self.sampler: RandomEpochs | None = None
        super().__init__(*arguments, **keywords)
        self.add_callback(_SetEpoch(self))

    def set_epoch(self, epoch: int) -> None:
        """Choose the order and the masks of an epoch."""
        if self.sampler is not None:
            self.sampler.set_epoch(epoch)
        if isinstance(self.data_collator, RowMasking):
            self.data_collator.set_epoch(epoch)

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> Sampler[int] | None:
        rows: Any = self.train_dataset if train_dataset is None else train_dataset
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        if self.args.train_sampling_strategy == "random":
            self.sampler = RandomEpochs(len(rows), seed)
        elif self.args.train_sampling_strategy == "group_by_length":
            batch_size = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
            self.sampler = LengthGroupedEpochs(row_lengths(rows), batch_size, seed)
        else:
            return super()._get_train_sampler(train_dataset)
        return self.sampler

    def evaluation_loop(self, *arguments: Any, **keywords: Any) -> Any:
        masks = self.data_collator
        with masks.evaluation() if isinstance(masks, RowMasking) else contextlib.nullcontext():
            return super().evaluation_loop(*arguments, **keywords)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # A saved model has each shared tensor once, under one of its names: the others are not missing.
        model: Any = self.model
        tied = model.all_tied_weights_keys
        load_result.missing_keys[:] = [key for key in load_result.missing_keys if key not in tied]
        super()._issue_warnings_after_load(load_result)

    def create_model_card(self, *arguments: Any, **keywords: Any) -> None:
        """Leave the card alone: the run has written one that says more."""


class TranslationTrainer(RunTrainer, Seq2SeqTrainer):
    """`Seq2SeqTrainer` with the same."""


class _SetEpoch(TrainerCallback):
    """Tells a trainer which epoch begins."""

    def __init__(self, trainer: RunTrainer):
        self.trainer = trainer

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.set_epoch(int(state.epoch or 0))


def row_lengths(rows: Dataset) -> list[int]:
    """Return the number of tokens of each row, source and target together."""
    columns = [name for name in ("input_ids", "labels") if isinstance(rows[0].get(name), list)]
    lengths = [0] * len(rows)
    for column in columns:
        lengths = [length + len(ids) for length, ids in zip(lengths, rows[column])]
    return lengths


def _mixed(seed: int, epoch: int) -> int:
    """Return one seed for the pair, unlike `seed + epoch`, which other runs would share."""
    return crc32(b"%d %d" % (seed, epoch))
