"""What data is by its content, so that a run is not continued on other data under the same name."""

import hashlib
from collections.abc import Mapping
from textwrap import shorten
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import ClassLabel, Dataset, DatasetDict

from vanillaformer.console.progress import stage

from .arrow_files import batch_size

Prints = dict[str, dict[str, Any]]


@stage("Fingerprinting the data")
def fingerprints(texts: DatasetDict) -> Prints:
    """Return, for each split of loaded data, its number of rows, a hash of their content, and the names of its labels.

    The hash depends on the columns' values only: not on files, on the order of columns, or on how Arrow stores them.
    """
    return {split: _fingerprint(rows) for split, rows in texts.items()}


def changed_splits(old: Mapping[str, Mapping[str, Any]], new: Prints) -> dict[str, str]:
    """Return the splits that are other ones, or new, and how they differ in words."""
    pairs = ((split, dict(old.get(split, {})), now) for split, now in new.items())
    return {split: _difference(was, now) for split, was, now in pairs if was != now}


def _fingerprint(rows: Dataset) -> dict[str, Any]:
    digests = {name: (hashlib.blake2b(), hashlib.blake2b()) for name in sorted(rows.column_names)}
    for table in rows.with_format("arrow").iter(batch_size(rows)):
        for name, (lengths, content) in digests.items():
            _update(lengths, content, table.column(name).combine_chunks())
    whole = hashlib.blake2b(digest_size=16)
    for name, pair in digests.items():
        whole.update(f"{name}:{':'.join(digest.hexdigest() for digest in pair)};".encode())
    classes = {name: feature for name, feature in rows.features.items() if isinstance(feature, ClassLabel)}
    names = {f"{name} names": list(feature.names) for name, feature in classes.items()}
    return {"rows": len(rows), "hash": whole.hexdigest(), **names}


def _update(lengths: Any, content: Any, column: pa.Array | pa.ChunkedArray) -> None:
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    if isinstance(column, pa.StringArray | pa.LargeStringArray | pa.BinaryArray | pa.LargeBinaryArray):
        column = column.cast(pa.large_binary())
        offsets = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]
        lengths.update(np.diff(offsets))
        if (texts := column.buffers()[2]) is not None:
            content.update(memoryview(texts)[offsets[0] : offsets[-1]])
    else:
        content.update("".join(f"{value!r};" for value in column.to_pylist()).encode("utf-8", "surrogatepass"))


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    if not old:
        return f"none then, {new['rows']:,} rows now"
    for name in new.keys() - {"hash"}:
        if old.get(name) != new[name]:
            return f"{name} {shorten(str(old.get(name)), 80)} then, {shorten(str(new[name]), 80)} now"
    return f"{new['rows']:,} rows of other content"
