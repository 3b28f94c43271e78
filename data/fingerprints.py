"""Data identified by its content: no run continues on other data under the same name, no rows are tokenized twice.

`datasets.map` identifies a function by its pickle, which a fast tokenizer changes with its first call, and caches
nothing for data in memory. Here rows are identified by their content, a tokenizer by its file.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any
from weakref import WeakKeyDictionary

import datasets
import numpy as np
import pyarrow as pa
import tokenizers
import transformers
from datasets import ClassLabel, Dataset, DatasetDict
from datasets.utils import are_progress_bars_disabled
from transformers import PreTrainedTokenizerBase

from vanillaformer.console.progress import Advance, stage

from .arrow_files import FOLDER, batch_size

VERSION = 1
"""To be raised when a function that is cached returns other rows for the same arguments."""
UNREAD = ("name_or_path", "is_local", "local_files_only", "model_max_length")
"""Settings of a tokenizer that no id depends on: where it was loaded from, and where others cut."""
Prints = dict[str, dict[str, Any]]
_known: WeakKeyDictionary[Dataset, str] = WeakKeyDictionary()
"""Hashes of rows that have been read for one already."""


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
    """Apply a function to batches of rows, or return the rows that it returned for them before.

    Args:
        rows: The rows.
        function: A function of a module, or a `partial` of one with keywords that are tokenizers or plain values.
        desc: Description for the progress.
        num_proc: Number of processes, at most one per row.
        **options: More of `Dataset.map`.
    """
    inner, keywords = (function.func, function.keywords) if isinstance(function, partial) else (function, {})
    settings = options.get("remove_columns"), repr(options.get("features")), repr(rows.features)
    fingerprint = _hash(VERSION, content_hash(rows), f"{inner.__module__}.{inner.__qualname__}", keywords, *settings)
    workers = None if num_proc is None else min(num_proc, len(rows))
    if datasets.is_caching_enabled():
        folder = Path(datasets.config.HF_DATASETS_CACHE) / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        options["cache_file_name"] = str(folder / f"{fingerprint}.arrow")
    with stage(desc, len(rows), bar=not are_progress_bars_disabled()) as advance:
        # `datasets` copies the function to workers, which cannot count here.
        function = partial(_counted, function, advance) if workers is None else partial(_in_worker, function)
        options["batch_size"] = batch_size(rows)
        return rows.map(function, batched=True, num_proc=workers, new_fingerprint=fingerprint, desc=desc, **options)


def _counted(function: Callable[..., Any], advance: Advance, batch: Any) -> Any:
    returned = function(batch)
    advance(len(next(iter(batch.values()))))
    return returned


def _in_worker(function: Callable[..., Any], batch: Any) -> Any:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are as many as the cores, and threads were not forked
    return function(batch)


def tokenizer_key(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a hash of all that the ids of a text depend on; padding and truncation are not part of it."""
    if tokenizer.is_fast:
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        content |= {"truncation": None, "padding": None}
    else:
        content = sorted(tokenizer.get_vocab().items())
    settings = {name: str(value) for name, value in tokenizer.init_kwargs.items() if name not in UNREAD}
    versions = (transformers.__version__, tokenizers.__version__)
    return _hash(type(tokenizer).__name__, content, settings, tokenizer.special_tokens_map, versions)


def _hash(*parts: Any) -> str:
    def plain(value: Any) -> str:
        return tokenizer_key(value) if isinstance(value, PreTrainedTokenizerBase) else str(value)

    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, default=plain)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
