"""Training data that is read while training: never whole in memory, nor on disk where it comes from the Hub.

Every process reads all of the stream and takes its part of each batch, so that the batches are the same on any number
of processes. A stream begins anew, in another order, when it has ended; a resumed run skips what it has
read.
"""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
from datasets import Dataset
from torch.utils.data import IterableDataset, get_worker_info

from ..arguments import LongTexts
from ..rows import SplitRows
from ..streaming import TextStream
from .blocks import Blocks
from .encoding import Batch


class StreamedRows(IterableDataset):
    """Tokenized rows without an end: the epochs of a stream one after the other.

    Args:
        texts: The stream.
        encode: From a batch of texts to rows, or to pieces of the stream that `blocks` cuts.
        blocks: How to cut blocks, if rows are blocks.
        long_texts: Whether rows whose texts had to be cut stay, are left out, or are an error.

    Attributes:
        first_rows: The first of the rows, in the order of the data.
    """

    first_rows: Dataset | None = None

    def __init__(
        self,
        texts: TextStream,
        encode: Callable[[Batch], Batch],
        blocks: Blocks | None = None,
        long_texts: LongTexts = "cut",
    ):
        self.texts, self.encode, self.blocks, self.long_texts = texts, encode, blocks, long_texts

    def __iter__(self) -> Iterator[dict[str, Any]]:
        workers = get_worker_info()
        if workers is not None and workers.num_workers > 1:
            raise ValueError(
                f"--dataloader_num_workers {workers.num_workers}: a stream can be read by one worker only"
            )
        for epoch in count():
            empty = True
            for row in self.epoch_rows(epoch):
                empty = False
                yield row
            if empty:
                raise ValueError(f"{self.texts.name}: --streaming finds no rows to train on")

    def epoch_rows(self, epoch: int) -> Iterator[dict[str, Any]]:
        """Yield the rows of one epoch."""
        made = (row for batch in self.texts.batches(epoch) for row in self._encoded(batch))
        if self.blocks is None:
            return made
        found = self.blocks.cut(np.array(row["input_ids"], np.int32) for row in made)
        return ({"input_ids": block} for blocks in found for block in blocks.tolist())

    def _encoded(self, batch: SplitRows) -> Iterator[dict[str, Any]]:
        columns = batch.rows[:]
        encoded = dict(self.encode(columns))
        if "label" in columns:
            encoded["labels"] = columns["label"]
        cuts = [name for name in encoded if name.endswith("_cut")]
        for index in range(len(batch.rows)):
            long = [name.removesuffix("_cut") for name in cuts if encoded[name][index]]
            if long and self.long_texts == "error":
                raise ValueError(
                    f"{batch.name}, {batch.row_name(index)}: the {long[0]} has too many tokens; --long_texts cut "
                    "or skip, or a larger --max_length, --max_source_length, --max_target_length"
                )
            if not (long and self.long_texts == "skip"):
                yield {name: values[index] for name, values in encoded.items() if name not in cuts}
