"""Rows in cache files of `datasets`, identified by their content: nothing is read or tokenized twice.

`datasets.map` identifies a function by its pickle, which a fast tokenizer changes with its first call, and caches
nothing for data in memory. Here rows are identified by their content, a tokenizer by its file.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten
from typing import Any
from weakref import WeakKeyDictionary

import datasets
import numpy as np
import pyarrow as pa
import tokenizers
import transformers
from datasets import ClassLabel, Dataset, DatasetDict, List, Value
from datasets.fingerprint import get_temporary_cache_files_directory
from datasets.utils import are_progress_bars_disabled
from transformers import PreTrainedTokenizerBase

from vanillaformer.console.reporting import Advance, stage

FOLDER = "vanillaformer"
SAMPLE, SAMPLE_BYTES = 20_000, 10_000_000  # maximum number of texts in a sample, and approximate maximum of bytes
BATCH_BYTES = 2**20
"""Text that is processed together: its tokenization takes 70 times as much memory."""


def arrow_file(name: str, schema: pa.Schema, tables: Callable[[], Iterable[pa.Table | pa.RecordBatch]]) -> Dataset:
    """Return the rows of a cache file, which is written first if it does not exist."""
    path = cache_file(name)
    if not path.is_file():
        unfinished = path.with_suffix(f".{os.getpid()}")
        try:
            with pa.ipc.new_stream(str(unfinished), schema) as file:
                for part in tables():
                    file.write(part)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    return Dataset.from_file(str(path))


def cache_file(name: str) -> Path:
    """Return the path of a cache file; without caching, in a folder that is deleted with the process."""
    folder = Path(datasets.config.HF_DATASETS_CACHE) / FOLDER if datasets.is_caching_enabled() else None
    folder = folder or Path(get_temporary_cache_files_directory())
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.arrow"


def batch_size(rows: Dataset) -> int:
    """Return how many rows to read at once: 1,000, or as many long ones as have about `BATCH_BYTES`."""
    return max(1, min(1_000, BATCH_BYTES * rows.data.num_rows // max(1, rows.data.nbytes)))


class TextColumn:
    """The texts of a column, to be iterated any number of times, with only one batch in memory.

    `datasets` yields the cells of a column one by one, which takes as long as training a tokenizer on them. Each
    `separator` in a text is replaced by a space.
    """

    def __init__(self, rows: Dataset, column: str, separator: str | None = None):
        self.rows, self.column = rows.select_columns([column]).with_format("arrow"), column
        self.separator = separator

    def __len__(self) -> int:
        return len(self.rows)

    def sample(self) -> list[str]:
        """Return texts from the whole column, which may be sorted by length: all of them if they are few."""
        share = min(1.0, SAMPLE_BYTES * self.rows.data.num_rows / max(1, self.rows.data.nbytes) / max(1, len(self)))
        count = min(SAMPLE, max(1, int(share * len(self))))
        numbers = np.linspace(0, len(self) - 1, min(count, len(self))).round().astype(int)
        return self.rows.select(numbers).with_format("arrow")[self.column].to_pylist()

    def __iter__(self) -> Iterator[str]:
        for table in self.rows.iter(batch_size(self.rows)):
            texts = table[self.column].to_pylist()
            yield from texts if self.separator is None else (text.replace(self.separator, " ") for text in texts)


VERSION = 2  # to be raised when a cached function returns other rows for the same arguments
UNREAD = ("name_or_path", "is_local", "local_files_only", "target_vocab_file", "model_max_length")
"""Settings of a tokenizer on which ids do not depend: its origin, and the length to which texts are cut."""
Prints = dict[str, dict[str, Any]]
_known: WeakKeyDictionary[Dataset, str] = WeakKeyDictionary()
"""Hashes of rows that have been computed."""


@stage("Fingerprinting the data")
def fingerprints(texts: DatasetDict) -> Prints:
    """Return, for each split of loaded data, its number of rows, `content_hash`, and the names of its labels."""
    prints: Prints = {}
    for split, rows in texts.items():
        prints[split] = {"rows": len(rows), "hash": content_hash(rows)}
        for name, feature in rows.features.items():
            if isinstance(feature, ClassLabel):
                prints[split][f"{name} names"] = list(feature.names)
    return prints


def changed_splits(old: Mapping[str, Mapping[str, Any]], new: Prints) -> dict[str, str]:
    """Return the splits that differ, or are new, and how they differ in words."""
    changed = {}
    for split, now in new.items():
        if (was := dict(old.get(split, {}))) == now:
            continue
        names = [name for name in now.keys() - {"hash"} if was.get(name) != now[name]]
        if not was:
            changed[split] = f"none then, {now['rows']:,} rows now"
        elif names:
            then, here = (shorten(str(prints.get(names[0])), 80) for prints in (was, now))
            changed[split] = f"{names[0]} {then} then, {here} now"
        else:
            changed[split] = f"{now['rows']:,} rows of other content"
    return changed


def content_hash(rows: Dataset) -> str:
    """Return a hash of the columns' values only: not of files, the order of columns, or how Arrow stores them."""
    if rows in _known:
        return _known[rows]
    digests = {name: (hashlib.blake2b(), hashlib.blake2b()) for name in sorted(rows.column_names)}
    for table in rows.with_format("arrow").iter(batch_size(rows)):
        for name, (lengths, content) in digests.items():
            column = table.column(name).combine_chunks()
            column = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
            if isinstance(column, pa.StringArray | pa.LargeStringArray | pa.BinaryArray | pa.LargeBinaryArray):
                column = column.cast(pa.large_binary())
                offsets = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]
                lengths.update(np.diff(offsets).tobytes())
                if (texts := column.buffers()[2]) is not None:
                    content.update(memoryview(texts)[offsets[0] : offsets[-1]])
            else:
                content.update("".join(f"{value!r};" for value in column.to_pylist()).encode("utf-8", "surrogatepass"))
    whole = hashlib.blake2b(digest_size=16)
    for name, pair in digests.items():
        whole.update(f"{name}:{':'.join(digest.hexdigest() for digest in pair)};".encode())
    _known[rows] = whole.hexdigest()
    return _known[rows]


def cached_map(
    rows: Dataset, function: Callable[..., Any], *, desc: str, num_proc: int | None = None, **options: Any
) -> Dataset:
    """Apply a function to batches of rows like `Dataset.map`, or return the cached rows of an earlier call.

    The function is one of a module, or a `partial` of one with keywords that are tokenizers or plain values.
    """
    inner, keywords = (function.func, function.keywords) if isinstance(function, partial) else (function, {})
    settings = options.get("remove_columns"), repr(options.get("features")), repr(rows.features)
    fingerprint = _hash(VERSION, content_hash(rows), f"{inner.__module__}.{inner.__qualname__}", keywords, *settings)
    workers = None if num_proc is None else min(num_proc, len(rows))
    if datasets.is_caching_enabled():
        options["cache_file_name"] = str(cache_file(fingerprint))
    with stage(desc, len(rows), bar=not are_progress_bars_disabled()) as advance:
        if workers is None:  # workers have a copy of the function, which cannot count here
            function = partial(_counted, function, advance)
        options["batch_size"] = batch_size(rows)
        return rows.map(function, batched=True, num_proc=workers, new_fingerprint=fingerprint, desc=desc, **options)


def _counted(function: Callable[..., Any], advance: Advance, batch: Any) -> Any:
    returned = function(batch)
    advance(len(next(iter(batch.values()))))
    return returned


def tokenizer_key(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a hash of all that the ids of a text depend on; padding and truncation are not part of it."""
    if tokenizer.is_fast:
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        content |= {"truncation": None, "padding": None}
    else:  # whose ids depend on more than the vocabulary, such as the pieces of SentencePiece
        with TemporaryDirectory() as folder:
            tokenizer.save_vocabulary(folder)
            files = {path.name: hashlib.blake2b(path.read_bytes()).hexdigest() for path in Path(folder).iterdir()}
        content = [sorted(tokenizer.get_vocab().items()), files]
    settings = {name: str(value) for name, value in tokenizer.init_kwargs.items() if name not in UNREAD}
    versions = (transformers.__version__, tokenizers.__version__)
    return _hash(type(tokenizer).__name__, content, settings, tokenizer.special_tokens_map, versions)


def _hash(*parts: Any) -> str:
    def plain(value: Any) -> str:
        return tokenizer_key(value) if isinstance(value, PreTrainedTokenizerBase) else str(value)

    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, default=plain)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


IDS = List(Value("int32"))  # token ids in half the memory and disk space of the default type


def value_chunks(rows: Dataset, column: str) -> Iterator[pa.Array]:
    """Yield the values of a column of lists in parts, in their order in its file."""
    if rows._indices is None:
        yield from (chunk.flatten() for chunk in rows.data.column(column).chunks)
        return
    for table in rows.select_columns([column]).with_format("arrow").iter(batch_size(rows)):
        yield from (chunk.flatten() for chunk in table.column(column).chunks)


def flat_values(rows: Dataset, column: str) -> pa.Array:
    return pa.concat_arrays(list(value_chunks(rows, column)))
