"""Rows of each split, checked and mapped to the task's columns: a bad row is an error, or all bad rows are skipped."""

import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, Value, concatenate_datasets
from datasets.fingerprint import generate_random_fingerprint

from vanillaformer.console.reporting import report
from vanillaformer.tokenization.passages import PAIR

from .arguments import COLUMNS
from .caching import arrow_file
from .formats import FILE, LINES, PROBLEM, ROW, Columns, ImageOptions, check_columns, needed_cells
from .tasks import TASKS, TaskName

READ = "__read__"  # column of a row's number in the reading order of a stream
ORDER = "__order__"  # column of the value by which rows are ordered
GROUP = "__group__"  # column of the task or language of a row
PLAIN = "__plain__"  # column of the source without prefix, task and language, by which rows stay together
KEPT = (ORDER, GROUP, PLAIN)  # until rows are divided
RESERVED = (ROW, FILE, LINES, PROBLEM, READ, *KEPT)
TEXT_OPTIONS = ("source_column", "target_column", "text_column", "turns_column", "text_pair_column", "score_column")
DataStats = dict[str, dict[str, Any]]  # statistics of the data of a run, by split and name
BAD, BLANK = "bad rows left out", "blank texts left out"


@dataclass
class SplitRows:
    """The rows of a split, or some of those of a stream."""

    split: str
    name: str  # name of their source in messages
    rows: Any  # the rows, with columns for a row's number and file
    # The columns needed, by the option that names each, {"source_column": "en"}; those of the task come first
    columns: Columns = field(default_factory=dict)
    skip_bad: bool = False  # leave out rows that cannot be used; otherwise the first is an error
    images: ImageOptions = field(default_factory=ImageOptions)  # how images are read
    stats: dict[str, int] = field(default_factory=dict)  # numbers of rows that were left out, by reason
    reported: set[str] | None = None  # for a stream, the kinds of messages that were printed; None for a whole split

    def with_rows(self, rows: Dataset) -> "SplitRows":
        return replace(self, rows=rows)

    def without(self, bad: np.ndarray, problem: Callable[[int], str], hint: str = "") -> "SplitRows":
        """Return the rows that are not bad; unless bad rows are skipped, raise a ValueError that names the first."""
        if not bad.any():
            return self
        first, count = int(bad.argmax()), int(bad.sum())
        what = f"{self.row_name(first)}: {problem(first)}"
        if not self.skip_bad:
            others = f" ({count} such rows)" if self.reported is None else ""
            raise ValueError(f"{self.name}, {what}{others}; {hint}--bad_rows skip leaves them out")
        self.report("bad", f"{self.share(count)} are bad and left out, first {what}.")
        return self.select(~bad, BAD)

    def without_problems(self, problems: pa.ChunkedArray) -> "SplitRows":
        """Return the rows without a problem; raises as `without` does."""
        return self.without(np.asarray(pc.is_valid(problems), dtype=bool), lambda index: problems[index].as_py())

    def without_empty(self, columns: Sequence[str], empty: np.ndarray) -> "SplitRows":
        """Return the rows in which no column is `empty` (columns, rows); raises as `without` does."""
        bad = np.asarray(empty.any(axis=0))
        return self.without(bad, lambda row: f"the column {columns[int(empty[:, row].argmax())]!r} is empty")

    def select(self, chosen: np.ndarray, reason: str) -> "SplitRows":
        """Return the chosen rows, and count the others under a reason."""
        self.stats[reason] = self.stats.get(reason, 0) + int((~chosen).sum())
        return self.with_rows(select_rows(self.rows, np.flatnonzero(chosen)))

    def share(self, count: int) -> str:
        """Return a number of rows in words; the total of a stream is not known."""
        return f"{count:,} of {len(self.rows):,} rows" if self.reported is None else "rows of the stream"

    def report(self, kind: str, message: str) -> None:
        """Print a message about the rows; for a stream, only the first of its kind."""
        if self.reported is None or kind not in self.reported:
            report(f"{self.name}: {message}")
        if self.reported is not None:
            self.reported.add(kind)

    def row_name(self, index: int) -> str:
        """Return the name of a row in messages: its number in its file, or else in the order of reading."""
        row = self.rows[index]
        if ROW not in row and READ in row:
            return f"row {row[READ]} as read"
        return f"row {row.get(ROW, index + 1)}" + (f" of {row[FILE]}" if FILE in row else "")


def text_columns(split: SplitRows) -> SplitRows:
    """Return the rows that can be read, with the needed columns as texts or labels; a missing column is an error."""
    columns = split.columns
    rows = split.rows.flatten() if any("." in name for name in columns.values()) else split.rows
    check_columns(split.name, [name for name in rows.column_names if name not in RESERVED], columns)
    reserved = [name for name in rows.column_names if name in RESERVED]
    rows = rows.select_columns([*dict.fromkeys(columns.values()), *reserved])
    others = {}
    for option, name in columns.items():  # texts, images, classes, and numbers if no text is needed, stay
        feature = rows.features[name]
        is_text = getattr(feature, "dtype", None) in ("string", "large_string")
        is_image = option == "image_column" and isinstance(feature, Image | dict)
        is_class = option not in TEXT_OPTIONS and isinstance(feature, Value | ClassLabel)
        if not (is_text or is_image or is_class):
            others[option] = name
    if others:
        old = [*others.values(), *({PROBLEM} & set(reserved))]
        features = {name: feature for name, feature in rows.features.items() if name not in old}
        features |= dict.fromkeys([*others.values(), PROBLEM], Value("string"))
        options = {"remove_columns": old, "features": Features(features), "desc": "Reading texts"}

        known = {name: getattr(rows.features[name], "feature", None) for name in others.values()}
        names = {name: dict(enumerate(each.names)) for name, each in known.items() if isinstance(each, ClassLabel)}

        def text_cells(row: Mapping[str, Any]) -> dict[str, Any]:
            tags = {name: list(map(names[name].get, row[name])) for name in names if row[name]}
            cells, problem = needed_cells({**row, **tags}, others)
            return {**cells, PROBLEM: row.get(PROBLEM) or problem}

        rows = rows.map(text_cells, **options)
    return readable_rows(split.with_rows(rows))


def readable_rows(split: SplitRows) -> SplitRows:
    """Return the rows that could be read, and report rows that take more than one line of their file."""
    if LINES in split.rows.column_names:
        lines = arrow_column(split.rows, LINES).to_numpy()
        if len(lines) and lines.max() > 1:
            longest, count = int(lines.argmax()), int((lines > 1).sum())
            split.report(
                "lines",
                f"{split.share(count)} have cells with line breaks, most in {split.row_name(longest)} with "
                f"{lines[longest]:,} lines: is its quotation mark closed in the right place?",
            )
    if PROBLEM in split.rows.column_names:
        split = split.without_problems(arrow_column(split.rows, PROBLEM))
    read = [name for name in (LINES, PROBLEM) if name in split.rows.column_names]
    return split.with_rows(split.rows.remove_columns(read))


def usable_rows(split: SplitRows, task: TaskName) -> SplitRows:
    """Return the rows that have a text or an image in each of the task's columns, without blank running texts."""
    for column in COLUMNS[task]:
        if column == "image":
            from .image_rows import decoded  # which texts do not need

            found = decoded(split.rows, column, split.images)
            problems = arrow_column(found, PROBLEM)
            pixels = concatenate_datasets([split.rows.remove_columns(column), found.remove_columns(PROBLEM)], axis=1)
            split = split.with_rows(pixels).without_problems(problems)
        elif column != "label":
            split = _with_texts(split, column, drop_blank=not TASKS[task].whole_texts)
    if "score" in COLUMNS[task]:
        scores = split.rows["score"][:]
        bad = np.array([not is_number(score) for score in scores], dtype=bool)
        split = split.without(bad, lambda row: f"the score {scores[row]!r} is not a number")
    if "tags" in COLUMNS[task]:
        sizes = [pc.add(pc.count_substring(arrow_column(split.rows, name), " "), 1) for name in ("tokens", "tags")]
        tokens, tags = (np.asarray(size) for size in sizes)
        split = split.without(tokens != tags, lambda row: f"it has {tokens[row]} tokens and {tags[row]} tags")
    if not len(split.rows) and split.reported is None:
        raise ValueError(f"{split.name} has no rows")
    return split


def is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def with_pairs(split: SplitRows, column: str) -> SplitRows:
    """Return rows with the text of another column appended to their text, separated by `PAIR`."""
    text = split.columns["text_column"]
    names = (text, column)
    cells = [pc.utf8_trim_whitespace(pc.fill_null(arrow_column(split.rows, name), "")) for name in names]
    split = split.without_empty(names, np.stack([np.asarray(pc.equal(side, ""), dtype=bool) for side in cells]))
    kind = pa.large_string()
    sides = (pc.replace_substring(pc.cast(arrow_column(split.rows, name), kind), PAIR, " ") for name in names)
    joined = pc.binary_join_element_wise(*sides, pa.scalar(PAIR, kind))
    rows = split.rows.remove_columns(text).add_column(text, joined)
    return split.with_rows(rows)


def _with_texts(split: SplitRows, column: str, *, drop_blank: bool) -> SplitRows:
    empty, blank = np.zeros((2, len(split.rows)), dtype=bool)
    start = 0
    for cells in arrow_column(split.rows, column).chunks:  # chunk by chunk, because trimming copies texts
        here = slice(start, start := start + len(cells))
        empty[here] = pc.is_null(cells)
        blank[here] = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(cells), ""), False)
    if drop_blank and blank.any():
        if split.reported is None:
            report(f"{split.name}: {blank.sum()} of {len(blank)} texts are blank and left out.")
        split, empty, blank = split.select(~blank, BLANK), empty[~blank], blank[~blank]
    return split.without(empty | blank, lambda _: f"the {column} is empty", hint="fill it in, remove it, or ")


def select_rows(rows: Dataset, numbers: np.ndarray) -> Dataset:
    """Return the rows with the given numbers, in a separate file if they are in order and on disk.

    `Dataset.select` would keep the numbers in memory, and copy row by row whenever rows are read.
    """
    if not len(numbers):  # `Dataset.select` leaves some tables without columns, or with all their rows
        return Dataset(rows.features.arrow_schema.empty_table(), fingerprint=generate_random_fingerprint())
    ordered = bool((numbers[1:] > numbers[:-1]).all())
    if not ordered or not rows.cache_files or rows._indices is not None:
        return rows.select(numbers)
    if len(numbers) == 1 + numbers[-1] - numbers[0]:
        return rows.select(range(numbers[0], numbers[-1] + 1))

    def parts() -> Iterable[pa.RecordBatch]:
        start = 0
        for batch in rows.data.table.to_batches():
            here = numbers[slice(*np.searchsorted(numbers, [start, start + len(batch)]))]
            if len(here):
                yield batch.take(pa.array(here - start))
            start += len(batch)

    key = hashlib.blake2b(numbers.astype(np.int64).tobytes(), key=rows._fingerprint.encode(), digest_size=16)
    return arrow_file(f"rows-{key.hexdigest()}", rows.features.arrow_schema, parts)


def arrow_column(rows: Dataset, column: str) -> pa.ChunkedArray:
    """Return a column of selected rows at once, whereas `datasets` first makes a table of each row."""
    cells = rows.data.column(column)
    return cells if rows._indices is None else cells.take(rows._indices.column(0))


def distinct_cells(rows: Dataset, column: str) -> tuple[list[Any], np.ndarray]:
    """Return the distinct cells of a column in the order of their first rows, and the number of each row's cell."""
    cells = arrow_column(rows, column)
    if pa.types.is_string(cells.type):
        cells = cells.cast(pa.large_string())  # distinct texts may have more than 2 GiB
    chunks = cells.dictionary_encode(null_encoding="encode").chunks  # which share a dictionary
    numbers = [np.array([], dtype=np.int32), *(chunk.indices.to_numpy() for chunk in chunks)]
    return (chunks[0].dictionary.to_pylist() if chunks else []), np.concatenate(numbers)


def distinct_words(rows: Dataset, column: str) -> tuple[list[Any], np.ndarray]:
    """Return the distinct cells of a column like `distinct_cells`, with names of classes instead of numbers."""
    cells, number_of = distinct_cells(rows, column)
    if isinstance(feature := rows.features[column], ClassLabel):
        cells = [feature.names[cell] if cell in range(feature.num_classes) else None for cell in cells]
    return cells, number_of


LISTED = 12  # maximum number of classes in a list
WIDTH = 40  # characters of a name there
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)


def label_names(dataset: DatasetDict) -> list[str]:
    return list(next(iter(dataset.values())).features["label"].names)


def encode_labels(splits: Mapping[str, SplitRows]) -> dict[str, SplitRows]:
    """Turn the column `label` of every split into a `ClassLabel` with the classes of the training split.

    Labels may be a `ClassLabel` already, or strings, integers or booleans; whitespace around strings is removed, and
    the names are sorted (as numbers, when all are). A test split of a Hub data set whose labels are withheld (all -1)
    is left out. Other labels, and those that are not in the training split, are bad rows; one class is an error.
    """
    if "test" in splits and _names(splits["test"])[2] == [-1]:
        report("The test split has no labels: it is left out.")
        splits = {split: rows for split, rows in splits.items() if split != "test"}
    train = with_labels(splits["train"], None)
    feature = train.rows.features["label"]
    names = feature.names if isinstance(feature, ClassLabel) else _sorted(filter(None, _names(train)[0]))
    if len(names) < 2:
        found = f"all labels are {names[0]!r}" if names else "there is no label"
        raise ValueError(f"{train.name}: {found}: nothing to classify")
    for problem in doubtful_names(names, len(train.rows)):
        report(f"Warning: {train.name}: {problem}.")
    encoded = {split: with_labels(rows, names) for split, rows in {**splits, "train": train}.items()}
    for split, part in encoded.items():
        if not len(part.rows):
            raise ValueError(f"{split} data: no row has one of the labels {', '.join(names[:20])}")
    return encoded


def classes_in_words(names: Sequence[str], counts: np.ndarray) -> str:
    """Return the number of classes with rows and the rows of each; of many classes, the most and the fewest."""
    number, order = int(np.count_nonzero(counts)), np.argsort(-counts, kind="stable")
    chosen: Any = np.flatnonzero(counts) if number <= LISTED else order[[0, number - 1]]
    words = [f"{short_name(names[each])} {counts[each]:,}" for each in chosen]
    return f"{number:,} {'class' if number == 1 else 'classes'}: {(', ' if number <= LISTED else ' to ').join(words)}"


def short_name(name: str) -> str:
    """Return the name of a class on one line, or the beginning of a long name."""
    words = " ".join(name.split())
    return words if len(words) <= WIDTH else f"{words[: WIDTH - 4].rstrip()} ..."


def doubtful_names(names: Sequence[str], rows: int) -> Iterator[str]:
    """Yield reasons why the names of labels may not be what the user expects."""
    numbers = [float(name) if NUMBER.fullmatch(name) else None for name in names]
    alike: dict[Any, list[str]] = defaultdict(list)
    for name, number in zip(names, numbers):
        alike[" ".join(name.casefold().split()) if number is None else number].append(name)
    if pairs := [" and ".join(map(repr, group)) for group in alike.values() if len(group) > 1]:
        what = "differ only in letter case, white space or the way a number is written"
        yield f"labels that {what} are separate classes: {_examples(pairs)}"
    if all(number is not None for number in numbers) and any(number % 1 for number in numbers if number):
        yield f"the labels are numbers ({_examples(names)}), each a separate class: --score_column predicts numbers"
    elif 3 * len(names) > rows:
        yield f"{len(names):,} classes in {rows:,} rows: --label_column may name the wrong column"
    parts = {name: set(filter(None, re.split(r"\s*[|;,]\s*", name))) for name in names}
    known = Counter(part for found in parts.values() for part in found)
    joined = [repr(name) for name, found in parts.items() if len(found) > 1 and any(known[part] > 1 for part in found)]
    joined += [repr(name) for name in names if re.fullmatch(r"\[.*\]|\(.*,.*\)|\{.*\}", name)]
    if joined:
        yield f"labels like {_examples(joined)} look like several in one: each is a separate class"


def _examples(found: Sequence[str]) -> str:
    return ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")


def with_labels(split: SplitRows, names: Sequence[str] | None) -> SplitRows:
    """Return the rows whose label is one of the names, with its number; without names, all rows with a valid label."""
    found, number_of, labels = _names(split)

    def problem(row: int) -> str:
        name, label = found[number_of[row]], labels[number_of[row]]
        if name is not None:
            return f"label {name!r} does not occur in the training data, which has {', '.join((names or [])[:20])}"
        feature = split.rows.features["label"]
        if isinstance(feature, ClassLabel):
            return f"label {label!r} is not one of the {feature.num_classes} classes"
        return f"{label!r} is not a label (a name or an integer)"

    index: dict[str | None, int] = {name: number for number, name in enumerate(found if names is None else names)}
    ids = np.array([-1 if name is None else index.get(name, -1) for name in found], dtype=np.int64)[number_of]
    split = split.without(ids < 0, problem)
    if names is None:
        return split
    spaced = np.array([isinstance(label, str) and label != label.strip() for label in labels], dtype=bool)
    if (padded := spaced[number_of[ids >= 0]]).any():
        first = labels[number_of[ids >= 0][padded.argmax()]]
        share = split.share(int(padded.sum()))
        split.report("padded", f"whitespace around the labels of {share} is removed, as in {first!r}.")
    rows, feature = split.rows.remove_columns("label"), ClassLabel(names=list(names))
    return split.with_rows(rows.add_column("label", ids[ids >= 0], feature=feature))


def _names(split: SplitRows) -> tuple[list[str | None], np.ndarray, list[Any]]:
    """Return the names of the distinct labels (None for a missing one), the number of each row's, and the labels."""
    labels, number_of = distinct_cells(split.rows, "label")
    feature = split.rows.features["label"]
    if isinstance(feature, ClassLabel):
        known = range(feature.num_classes)
        return [feature.names[label] if label in known else None for label in labels], number_of, labels
    texts = [str(label).strip() if isinstance(label, str | int) else None for label in labels]
    return [text or None for text in texts], number_of, labels


def _sorted(names: Iterable[str]) -> list[str]:
    def key(name: str) -> tuple[Any, ...]:
        return (0, int(name)) if re.fullmatch(r"-?\d{1,99}", name) else (1, name)

    found = sorted(set(names))
    return sorted(found, key=key) if all(key(name)[0] == 0 for name in found) else found
