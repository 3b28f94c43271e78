"""Marks before the sources of a translator: a prefix, tasks and languages; and how often each is read."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from .rows import GROUP, SplitRows

LANGUAGE_TOKEN = "<2{}>"  # before a source, the language to write (Johnson et al. 2017)


def with_marks(split: SplitRows, data_args: Any) -> SplitRows:
    """Return rows whose source follows `--source_prefix`, the row's task ("task: ") and its token of the language."""
    forms = {data_args.task_column: "{}: ", data_args.target_lang_column: LANGUAGE_TOKEN}
    forms = {column: form for column, form in forms.items() if column is not None}
    if forms:
        values = [[str("" if name is None else name).strip() for name in split.rows[column][:]] for column in forms]
        split = split.without_empty(list(forms), np.array(values) == "")
    names = [[str(name).strip() for name in split.rows[column][:]] for column in forms]
    source, prefix = split.columns["source_column"], data_args.source_prefix or ""
    texts: list[str | None] = []
    for text, *row in zip(split.rows[source][:], *names):
        marks = "".join(form.format(name) for form, name in zip(forms.values(), row))
        texts.append(text if text is None or not text.strip() else prefix + marks + text)
    rows = split.rows.remove_columns(source).add_column(source, pa.array(texts, pa.large_string()))
    return split.with_rows(rows.add_column(GROUP, pa.array(map("_".join, zip(*names)))) if names else rows)


def sampled_rows(groups: Sequence[str], temperature: float, seed: int) -> np.ndarray:
    """Return the rows of an epoch in which groups of n rows have shares of n^(1/T) (Arivazhagan et al. 2019).

    The largest group is read once and the others are repeated; the last repetition is a random part of the group.
    """
    _, group_of, counts = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    times = (counts.max() / counts) ** (1 - 1 / temperature)
    draw, parts = np.random.default_rng(seed), []
    for group, factor in enumerate(times):
        rows = np.flatnonzero(group_of == group)
        rest = round((factor - int(factor)) * len(rows))
        parts += [np.tile(rows, int(factor)), draw.permutation(rows)[:rest]]
    return np.sort(np.concatenate(parts))
