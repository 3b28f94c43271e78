"""Batches that depend only on the seed, the epoch and the data, on any number of processes: orders and collators."""

import contextlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow.compute as pc
import torch
from datasets import Dataset
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Sampler
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerBase
from transformers.trainer_pt_utils import get_length_grouped_indices

from vanillaformer.modeling.heads import IGNORE_INDEX

COLUMNS = ("input_ids", "labels")  # columns whose tokens are counted: source and target
POOL = 100  # number of batches whose rows are sorted together


class RandomEpochs(Sampler[int]):
    """Rows in random order, drawn for every epoch from the seed and the epoch."""

    def __init__(self, count: int, seed: int):
        self.count, self.seed, self.epoch = count, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def order(self, generator: torch.Generator) -> torch.Tensor:
        return torch.randperm(self.count, generator=generator)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        order = self.order(self.generator())  # Python's own numbers would take four times the memory
        return (row for part in order.split(1_000) for row in part.tolist())

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(epoch_seed(self.seed, self.epoch))


class LengthGroupedEpochs(RandomEpochs):
    """The same, with rows of similar length together, and the batches in random order."""

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int):
        super().__init__(len(lengths), seed)
        self.lengths, self.batch_size = lengths, batch_size

    def order(self, generator: torch.Generator) -> torch.Tensor:
        # transformers sorts the rows of each hundred batches by length: without another shuffle, the loss would swing
        # between their long and their short rows.
        rows = get_length_grouped_indices(self.lengths, self.batch_size, generator=generator)
        whole = len(rows) // self.batch_size * self.batch_size
        batches = torch.tensor(rows[:whole]).view(-1, self.batch_size)
        shuffled = batches[torch.randperm(len(batches), generator=generator)]
        return torch.cat([shuffled.flatten(), torch.tensor(rows[whole:], dtype=torch.int64)])


class ProcessBatches(Sampler[list[int]]):
    """The share of one process in batches of rows: all processes together have each row once.

    If the last batch of an epoch has fewer rows than there are processes, those without a row are idle: they get the
    first row of the batch, which must not count.
    """

    def __init__(self, order: Any, batch_size: int, processes: int, process: int, *, drop_last: bool = False):
        self.sampler, self.size, self.drop_last = order, batch_size * processes, drop_last  # accelerate sets its epoch
        self.processes, self.process = processes, process

    def __len__(self) -> int:
        return len(self.sampler) // self.size if self.drop_last else -(-len(self.sampler) // self.size)

    @property
    def idle(self) -> bool:
        """Return whether the last batch of an epoch has no row for this process."""
        last = 0 if self.drop_last else len(self.sampler) % self.size
        return 0 < last <= self.process

    def __iter__(self) -> Iterator[list[int]]:
        rows = iter(self.sampler)
        for _ in range(len(self)):
            batch = list(islice(rows, self.size))
            yield batch[self.process :: self.processes] or batch[:1]


class TokenBatches(Sampler[list[int]]):
    """The batches of `--tokens_per_batch`: of about equal numbers of tokens, in random order.

    The rows of an epoch are shuffled, sorted by their lengths within pools of `POOL` batches unless they are packed,
    and cut where the running sum of tokens passes a multiple of the batch's share: batches differ in size by no more
    than one row, and every epoch has the same number of batches. A batch is the work of one optimizer step;
    every process gets `accumulation` parts of it.

    `lengths` are those of rows (rows, 1 or 2), with a column for each side that is padded.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        tokens: int,
        seed: int,
        *,
        accumulation: int = 1,
        processes: int = 1,
        process: int = 0,
        packed: bool = False,
    ):
        self.lengths, self.packed = np.asarray(lengths), packed
        self.totals = self.lengths.sum(axis=1)
        self.epochs = RandomEpochs(len(self.totals), seed)
        self.accumulation, self.processes, self.process = accumulation, processes, process
        self.batches = max(1, round(int(self.totals.sum()) / tokens))
        share, longest = self.totals.sum() / self.batches, int(self.totals.max())
        parts = self.accumulation * self.processes
        if share < (parts + 1) * longest and (parts > 1 or share < longest):
            raise ValueError(
                f"--tokens_per_batch {tokens}: the longest row has {longest} tokens, and a batch is divided into "
                f"{parts} parts ({self.processes} processes x {self.accumulation} accumulated steps): give at least "
                f"{(parts + 1) * longest if parts > 1 else longest}, or cut the rows"
            )

    @classmethod
    def of(cls, lengths: np.ndarray, args: Any, *, packed: bool) -> "TokenBatches":
        """Return the batches of a process by its training arguments."""
        parts = {"accumulation": args.gradient_accumulation_steps, "processes": args.data_processes}
        return cls(lengths, args.tokens_per_batch, order_seed(args), **parts, process=args.data_process, packed=packed)

    def set_epoch(self, epoch: int) -> None:
        self.epochs.set_epoch(epoch)

    def __len__(self) -> int:
        return self.batches * self.accumulation

    def __iter__(self) -> Iterator[list[int]]:
        parts = self.accumulation * self.processes
        for rows in self.epoch_batches():
            if parts > 1:  # dealt longest first, back and forth: parts have equal work
                rows = rows[np.argsort(-self.totals[rows], kind="stable")]
            dealt = np.arange(len(rows)) % (2 * parts)
            dealt = np.minimum(dealt, 2 * parts - 1 - dealt)
            for turn in range(self.accumulation):
                yield rows[dealt == turn * self.processes + self.process].tolist()

    def epoch_batches(self) -> list[np.ndarray]:
        """Return the rows of each batch of the epoch, for all processes together."""
        generator = self.epochs.generator()
        order = self.epochs.order(generator).numpy()
        pools = -(-self.batches // POOL)
        bounds = [0, *np.linspace(0, self.batches, pools + 1)[1:].round().astype(int).tolist()]
        if not self.packed:
            order = np.concatenate([self._sorted(pool) for pool in self._cut(order, np.asarray(bounds))])
        batches = self._cut(order, np.arange(self.batches + 1))
        return [batches[number] for number in torch.randperm(len(batches), generator=generator).tolist()]

    def _cut(self, order: np.ndarray, bounds: np.ndarray) -> list[np.ndarray]:
        """Cut an order of all rows where its running sum of tokens passes the given multiples of a batch's share."""
        sums = np.cumsum(self.totals[order])
        ends = np.searchsorted(sums, bounds[1:-1] * sums[-1] // self.batches, side="right")
        return np.split(order, ends)

    def _sorted(self, rows: np.ndarray) -> np.ndarray:
        """Sort rows by the first length, then by the second, alternately up and down, so that neither jumps."""
        first, last = self.lengths[rows, 0], self.lengths[rows, -1]
        return rows[np.lexsort((np.where(first % 2, -last, last), first))]


def order_seed(training_args: Any) -> int:
    """Return the seed of the order of rows by training arguments."""
    return training_args.seed if training_args.data_seed is None else training_args.data_seed


def row_order(lengths: np.ndarray, arguments: Any) -> RandomEpochs | None:
    """Return the order of `--train_sampling_strategy`, or None for the order of the data."""
    if arguments.train_sampling_strategy == "random":
        return RandomEpochs(len(lengths), order_seed(arguments))
    if arguments.train_sampling_strategy == "group_by_length":
        step = arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.data_processes
        return LengthGroupedEpochs(lengths.sum(axis=1).tolist(), step, order_seed(arguments))
    return None


def evaluation_order(rows: Dataset) -> np.ndarray:
    """Return the order in which held-out rows are evaluated: the longest first, so that batches have little padding.

    It depends only on the rows, so that predictions can be matched with them.
    """
    return np.argsort(-row_lengths(rows).sum(axis=1), kind="stable")


def row_lengths(rows: Dataset) -> np.ndarray:
    """Return the number of tokens of each row, with a column for the source and one for the target if there is one."""
    columns = [name for name in COLUMNS if isinstance(rows[0].get(name), list)]
    if not columns:  # images
        return np.ones((len(rows), 1), np.int64)
    tables = rows.select_columns(columns).with_format("arrow")
    return np.stack([pc.list_value_length(tables[column]).to_numpy() for column in columns], axis=1).astype(np.int64)


def epoch_seed(seed: int, epoch: int) -> int:
    """Return a seed for the pair; `seed + epoch` would be shared with other runs."""
    return crc32(b"%d %d" % (seed, epoch))


EVALUATION = -1  # the "epoch" of the masks used to evaluate, which are always the same


class EpochCollator:
    """A collator whose batches depend on the epoch, also in workers, which have a copy of it."""

    _epoch: torch.Tensor

    @property
    def epoch(self) -> int:
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next batches; workers that outlive an epoch read it from shared memory."""
        if "_epoch" not in vars(self):
            self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        self._epoch.fill_(epoch)

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        """Draw as in evaluations while this lasts, except in workers that still make training batches."""
        training, self._epoch = self._epoch, torch.tensor(EVALUATION)
        try:
            yield
        finally:
            self._epoch = training


class RowMasking(EpochCollator, DataCollatorForLanguageModeling):
    """Masks tokens (Devlin et al. 2019), also of packed rows, by a draw from the seed, the epoch and the row."""

    def __init__(self, *arguments: Any, mask_seed: int = 0, **keywords: Any):
        super().__init__(*arguments, **keywords)
        self.mask_seed = mask_seed
        self.set_epoch(0)

    def torch_call(self, examples: list[Any]) -> dict[str, Any]:
        if "position_ids" not in examples[0]:
            return super().torch_call(examples)
        batch = super().torch_call([{"input_ids": row["input_ids"]} for row in examples])
        positions = padded_positions(examples, batch["input_ids"].shape[1])
        return {"input_ids": batch["input_ids"], "position_ids": positions, "labels": batch["labels"]}

    def torch_mask_tokens(
        self, inputs: Any, special_tokens_mask: Any | None = None, offset_mapping: Any | None = None
    ) -> tuple[Any, Any]:
        labels, share = torch.full_like(inputs, IGNORE_INDEX), self.mlm_probability
        for ids, targets in zip(inputs, labels):
            # The padding of a row depends on the other rows in its batch, so it must not influence the draw.
            real = torch.ones_like(ids, dtype=torch.bool)
            if self.tokenizer.pad_token_id is not None:
                real = ids != self.tokenizer.pad_token_id
            row = ids[real][None]
            seed = crc32(row.numpy().tobytes(), epoch_seed(self.mask_seed, self.epoch))
            self.generator = torch.Generator().manual_seed(seed)
            masked, wanted = super().torch_mask_tokens(row)
            if (wanted == IGNORE_INDEX).all():  # a step or an evaluation may have no other row
                special = self.tokenizer.get_special_tokens_mask(row[0].tolist(), already_has_special_tokens=True)
                text = (torch.tensor(special) == 0).nonzero().flatten()
                if len(text):
                    chosen = text[torch.randint(len(text), (1,), generator=self.generator)]
                    self.mlm_probability = 1.0  # it becomes [MASK] or a random token, or stays unchanged
                    masked[:, chosen], wanted[:, chosen] = super().torch_mask_tokens(row[:, chosen])
                    self.mlm_probability = share
            ids[real], targets[real] = masked[0], wanted[0]
        return inputs, labels


class BlockCollator:
    """Collator of batches for a causal language model: of blocks, the last of which is shorter, or of packed rows.

    Labels ignore padded positions, not the padding token: if a tokenizer pads with its </s>, texts still end in it. In
    packed rows they ignore the first token of each text, which has position 0.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        ids = tokenizer.pad_token_id, tokenizer.eos_token_id
        self.padding = next((each for each in ids if each is not None), 0)  # no position attends to it

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        lengths = torch.tensor([len(row["input_ids"]) for row in rows])
        longest = int(lengths.max())
        texts = [torch.tensor(row["input_ids"]) for row in rows]
        ids = pad_sequence(texts, batch_first=True, padding_value=self.padding)
        real = torch.arange(longest) < lengths[:, None]
        if "position_ids" not in rows[0]:
            return {"input_ids": ids, "attention_mask": real.long(), "labels": ids.masked_fill(~real, IGNORE_INDEX)}
        positions = padded_positions(rows, longest)
        labels = ids.masked_fill(~real | (positions == 0), IGNORE_INDEX)
        return {"input_ids": ids, "position_ids": positions, "labels": labels}


def padded_positions(rows: list[dict[str, Any]], length: int) -> torch.Tensor:
    """Return the positions of packed rows (R, `length`)."""
    found = (row["position_ids"] for row in rows)  # padding is one more text
    return torch.tensor([[*positions, *range(length - len(positions))] for positions in found])
