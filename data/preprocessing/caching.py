"""Tokenized rows in the cache of `datasets`, so that the next run on the same data does not make them again.

`datasets.map` identifies a function by its pickle, which a fast tokenizer changes with its first call, and caches
nothing for data in memory. Here rows are identified by their content, a tokenizer by its file.
"""

import hashlib
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import tokenizers
import transformers
from datasets import Dataset
from datasets.utils import are_progress_bars_disabled
from transformers import PreTrainedTokenizerBase

from vanillaformer.console.progress import Advance, stage

from ..arrow_files import FOLDER, batch_size

VERSION = 1
"""To be raised when a function that is cached returns other rows for the same arguments."""
UNREAD = ("name_or_path", "is_local", "local_files_only", "model_max_length")
"""Settings of a tokenizer that no id depends on: where it was loaded from, and where others cut."""


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
    settings = options.get("remove_columns"), repr(options.get("features"))
    fingerprint = _hash(VERSION, _rows_key(rows), f"{inner.__module__}.{inner.__qualname__}", keywords, *settings)
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


def _rows_key(rows: Dataset) -> str:
    digest = hashlib.blake2b(repr(rows.features).encode(), digest_size=16)
    for table in rows.with_format("arrow").iter(batch_size(rows)):
        for batch in table.combine_chunks().to_batches():
            digest.update(batch.serialize())
    return digest.hexdigest()


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
