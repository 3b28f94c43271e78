"""The needed columns of text files of every format, read by Python's `csv` and `json`.

The builders of `datasets` guess the types of cells, and do not tell which row is damaged.
"""

import csv
import glob
import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper
from itertools import chain, groupby, islice, zip_longest
from pathlib import Path
from typing import IO, Any, Literal, cast

from .dialogue import dialogue_text

ROW, FILE, LINES, PROBLEM = "__row__", "__file__", "__lines__", "__problem__"
"""Columns with a row's number in its file, the file if there are several, the number of lines that the row takes
there, and the reason why it cannot be read."""

LIST_OPTIONS = ("turns_column", "tokens_column", "tags_column", "labels_column")
"""Options that name columns of lists."""
NAME = "name"  # column of the file name of an image, empty if it has none
MAX_CELL = 1 << 26  # characters of a cell; a longer one has a quotation mark that was never closed
FIRST_ROWS = 1_000  # rows of a JSON file among which at least one must have each column
PASSAGE, PART, MAX_DOCUMENT = 1 << 11, 1 << 20, 1 << 24
"""Characters of a passage, of a part of a very large document, and of the largest undivided document."""

Paths = tuple[Path, ...]  # a file, or a text file and the file of its translations
Columns = Mapping[str, str]  # the needed columns, by the option that names each: {"source_column": "en"}
Row = tuple[tuple[Any, ...] | None, int, str | None]
"""The needed cells of a row, its number of lines in the file, and the reason why it cannot be read."""
Quoting = Literal["minimal", "none"]


@dataclass(frozen=True)
class ReadOptions:
    """Options for reading text files."""

    # The character between the cells of .csv and .tsv files; None is a comma, in .tsv files a tab
    separator: str | None = None
    # minimal: cells may be in quotation marks; none: they are text. None is minimal, for .tsv files none.
    quoting: Quoting | None = None
    sample_by: str = "line"  # the unit of text in .txt files: line, paragraph, passage or document
    # The part of a file that is read: the bytes in which its lines begin, or row groups of a .parquet file
    span: tuple[int, int] | None = None


@dataclass(frozen=True)
class ImageOptions:
    """Options for reading images."""

    size: int = 0  # height and width in pixels
    folder: Path = Path()  # folder of relative paths
    workers: int = 1  # threads that decode
    kept: bool = True  # whether the pixels are cached for another run


def matching_files(option: str, name: str) -> list[Path]:
    """Return the files that a name or pattern stands for; raise ValueError if there is none."""
    matches = [Path(name)] if Path(name).is_file() else sorted(map(Path, glob.glob(name, recursive=True)))
    if not (found := [path for path in matches if path.is_file()]):
        other = ", nor one that matches" if glob.has_magic(name) else ""
        raise ValueError(f"--{option} {name!r}: no such file{other}")
    return found


def format_of(path: Path) -> str:
    """Return a file's extension without the .gz of a compressed one."""
    return Path(path.stem if path.suffix.lower() == ".gz" else path.name).suffix.lower()


def open_file(path: Path, mode: str = "rt", **options: Any) -> IO[Any]:
    """Open a file, compressed or not; a text without its byte order mark."""
    if mode == "rt":
        options = {"encoding": "utf-8-sig", "newline": "\n", **options}
    return cast(Any, gzip.open if path.suffix.lower() == ".gz" else open)(path, mode, **options)


def open_part(path: Path, span: tuple[int, int] | None) -> IO[Any]:
    """Open the lines of a file that begin at a byte in the span (first, last); None is all of them."""
    if span is None:
        return open_file(path)
    first, last = span
    with path.open("rb") as file:
        file.seek(max(0, first - 1))
        if first:
            file.readline()  # its end belongs to the previous part
        content = file.read(max(0, last - file.tell()))
        if content and not content.endswith(b"\n"):
            content += file.readline()
    return TextIOWrapper(BytesIO(content), encoding="utf-8-sig", newline="\n")


def check_columns(where: str, found: Sequence[str], columns: Columns, hint: str = "") -> None:
    """Raise ValueError, naming the option to set, if a needed column is missing or occurs twice."""
    for option, name in columns.items():
        if name not in found:
            listed = ", ".join(found)
            raise ValueError(f"{where} has no column {name!r} (--{option}); its columns are: {listed}{hint}")
        if found.count(name) > 1:
            raise ValueError(f"{where} has {found.count(name)} columns {name!r} (--{option}): rename all but one")


def _read_csv(paths: Paths, columns: Columns, options: ReadOptions) -> Iterator[Row]:
    """Yield the rows of a file whose first row names its columns; empty lines are skipped."""
    (path,) = paths
    if lists := [option for option in LIST_OPTIONS if option in columns]:
        raise ValueError(f"{path}: --{lists[0]} needs lists, which are in .jsonl, .json and .parquet files")
    separator = options.separator or ("\t" if format_of(path) == ".tsv" else ",")
    quoted = (options.quoting or ("none" if format_of(path) == ".tsv" else "minimal")) == "minimal"
    csv.field_size_limit(max(csv.field_size_limit(), MAX_CELL))
    header: list[str] | None = None
    number = 0
    with open_file(path, newline="") as lines:
        dialect: dict[str, Any] = {"delimiter": separator, "strict": True}
        reader = csv.reader(lines, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE, **dialect)
        while True:
            first = reader.line_num + 1
            try:
                cells = next(reader, None)
            except csv.Error as error:
                quotes = f"a quotation mark is not closed or not doubled ({error})"
                quotes += "; --csv_quoting none takes marks as text"
                if header is None:
                    raise ValueError(f"{path}, line {reader.line_num}: {quotes}") from error
                number += 1
                if reader.line_num > first:  # which of these lines are rows is unknown
                    name = f"{path}, row {number}, lines {first} to {reader.line_num}"
                    raise ValueError(f"{name}: {quotes}") from error
                yield None, 1, f"line {first}: {quotes}"
                continue
            if cells is None:
                break
            if not cells:
                continue
            if header is None:
                others = [character for character in ",;\t|" if character != separator and character in cells[0]]
                hint = f"; or is it --csv_separator {others[0]!r}?" if others and len(cells) == 1 else ""
                check_columns(str(path), cells, columns, hint)
                header, positions = cells, [cells.index(name) for name in dict.fromkeys(columns.values())]
                continue
            number += 1
            if len(cells) == len(header):
                yield tuple([cells[position] for position in positions]), reader.line_num - first + 1, None
            else:
                counts = f"it has {len(cells)} cells and the header {len(header)}"
                yield None, 1, f"{counts}, with {separator!r} between cells"
    if header is None:
        raise ValueError(f"{path} has no rows")


def _read_json(paths: Paths, columns: Columns, options: ReadOptions) -> Iterator[Row]:
    """Yield the rows of a file that holds a list of objects, a single one, or one per line."""
    (path,) = paths
    with open_part(path, options.span) as lines:
        if format_of(path) == ".jsonl":
            beginning = options.span is None or not options.span[0]
            yield from _json_rows(path, columns if beginning else {}, columns, _parsed_lines(lines))
            return
        text = lines.read()
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        if not isinstance(next(_parsed_lines(text.split("\n")), (None, ""))[0], dict):
            raise ValueError(f"{path} is not JSON ({error})") from error
        parsed = _parsed_lines(text.split("\n"))
    else:
        parsed = ((row, "it is not a JSON object") for row in (content if isinstance(content, list) else [content]))
    yield from _json_rows(path, columns, columns, parsed)


def _parsed_lines(lines: Iterable[str]) -> Iterator[tuple[Any, str]]:
    """Yield the value of each line that is not blank, and its problem if that is not an object."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield json.loads(line), f"line {number} is not a JSON object"
        except (ValueError, RecursionError) as error:
            yield None, f"line {number} is not JSON ({getattr(error, 'msg', error)})"


def _json_rows(path: Path, known: Columns, columns: Columns, parsed: Iterator[tuple[Any, str]]) -> Iterator[Row]:
    """Yield rows with their columns; the first rows must have those of `known`."""
    first = list(islice(parsed, FIRST_ROWS))
    if objects := [content for content, _ in first if isinstance(content, dict)]:
        names = dict.fromkeys(name for content in objects for name in column_names(content))
        check_columns(str(path), list(names), known)
    for content, problem in chain(first, parsed):
        if isinstance(content, dict):
            cells, found = needed_cells(content, columns)
            yield tuple(cells.values()), 1, found
        else:
            yield None, 1, problem


def _read_text(paths: Paths, columns: Columns, options: ReadOptions) -> Iterator[Row]:
    if "tokens_column" in columns:
        yield from _read_conll(paths, columns, options)
        return
    (path,) = paths
    check_columns(f"{path} (a .txt file)", [columns.get("text_column", "text")], columns)
    with open_part(path, options.span) as lines:
        for text in TEXTS[options.sample_by](lines):
            yield (text,), 1, None


def _read_conll(paths: Paths, columns: Columns, options: ReadOptions) -> Iterator[Row]:
    """Yield texts of a file with a token first and its tag last in each line, and blank lines between texts."""
    (path,) = paths
    check_columns(f"{path} (CoNLL)", [columns.get(f"{name}_column", name) for name in ("tokens", "tags")], columns)
    with open_file(path, "rt") as lines:
        rows = ((number, line.split()) for number, line in enumerate(lines, start=1))
        for is_text, group in groupby(rows, lambda row: row[1][:1] not in ([], ["-DOCSTART-"])):
            numbers, words = zip(*group)
            if is_text and (short := [number for number, cells in zip(numbers, words) if len(cells) == 1]):
                yield None, 1, f"line {short[0]} has one column, not a token and its tag"
            elif is_text:
                yield tuple(" ".join(cells[index] for cells in words) for index in (0, -1)), 1, None


def parallel_rows(paths: Paths, columns: Columns, options: ReadOptions) -> Iterator[Row]:
    """Yield the pairs of lines of two text files."""
    source, target = paths
    check_columns(f"{source} (a text file)", list(columns.values())[:2], columns)
    with open_file(source) as sources, open_file(target) as targets:
        sides = _lines(sources), _lines(targets)
        for number, pair in enumerate(zip_longest(*sides)):
            if None in pair:
                counts = [number + (line is not None) + sum(1 for _ in rest) for line, rest in zip(pair, sides)]
                raise ValueError(f"{source} has {counts[0]} lines and {target} has {counts[1]}: they must be parallel")
            yield pair, 1, None


def _lines(file: Iterable[str]) -> Iterator[str]:
    """Yield lines without their ends, which are LF or CR LF; nothing else separates lines."""
    for line in file:
        yield line[:-2] if line.endswith("\r\n") else line.removesuffix("\n")


def _paragraphs(file: Iterable[str]) -> Iterator[str]:
    """Yield the texts between empty lines."""
    for is_text, lines in groupby(_lines(file), key=bool):
        if is_text:
            yield "\n".join(lines)


def _passages(file: Iterable[str], size: int = PASSAGE) -> Iterator[str]:
    """Yield consecutive lines, with their line breaks, of about `size` characters together."""
    buffer: list[str] = []
    length = 0
    for line in file:
        line = f"{line[:-2]}\n" if line.endswith("\r\n") else line
        for start in range(0, len(line), size):
            buffer.append(line[start : start + size])
            length += len(buffer[-1])
            if length >= size:
                yield "".join(buffer)
                buffer, length = [], 0
    if buffer:
        yield "".join(buffer)


def _document(file: Iterable[str]) -> Iterator[str]:
    """Yield a file as one text, or a very large one in parts whose tokens fit into memory."""
    parts = _passages(file, PART)
    first = list(islice(parts, MAX_DOCUMENT // PART + 1))
    yield from ["".join(first)] if len(first) * PART <= MAX_DOCUMENT else chain(first, parts)


def needed_cells(row: Mapping[str, Any], columns: Columns) -> tuple[dict[str, Any], str | None]:
    """Return the needed cells of a row, maybe in structs, as text, and the problem of the first bad one."""
    cells: dict[str, Any] = {}
    problem = None
    for option, name in columns.items():
        if isinstance(cell := row.get(name), str) and cell.isascii() and option not in LIST_OPTIONS:
            cells[name] = cell  # the usual case; the rest takes three times as long
            continue
        try:
            cells[name] = _as_text(option, _cell(row, name))
        except TypeError as error:
            cells[name], problem = None, problem or str(error)
    return cells, problem


def _cell(row: Mapping[str, Any], name: str) -> Any:
    """Return a cell of a row; `translation.en` reaches into a struct."""
    if name in row or "." not in name:
        return row.get(name)
    outer, inner = name.split(".", 1)
    struct = row.get(outer)
    return _cell(struct, inner) if isinstance(struct, Mapping) else None


def column_names(row: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the names of the cells of a row, including those in structs."""
    names = [f"{prefix}{name}" for name in row]
    structs = {name: cell for name, cell in row.items() if isinstance(cell, dict)}
    return names + [each for name in structs for each in column_names(structs[name], f"{prefix}{name}.")]


def _as_text(option: str, cell: Any) -> Any:
    """Return a cell as text, with the items of a list joined; raise TypeError for a type that does not fit."""
    listed: list[Any] = cell if isinstance(cell, list) else [None]
    if option == "turns_column":
        turns: list[Any] = [turn.get("content") if isinstance(turn, dict) else turn for turn in listed]
        if not all(isinstance(turn, str) for turn in turns):
            needed = "lists of strings or of messages with content"
            raise TypeError(f"--turns_column must name {needed}, not {str(cell)[:60]!r}")
        return dialogue_text([_unicode("turn", turn) for turn in turns])
    column = option.removesuffix("_column")
    if option == "labels_column":
        if not all(isinstance(name, str | int) and str(name).strip() for name in listed):
            raise TypeError(f"--{option} must name lists of labels, not {str(cell)[:60]!r}")
        return json.dumps([_unicode(column, str(name).strip()) for name in listed], ensure_ascii=False)
    if option in LIST_OPTIONS:
        words = [str(word) if isinstance(word, int) else word for word in listed]
        if not all(isinstance(word, str) and word.strip() and " " not in word for word in words):
            raise TypeError(f"--{option} must name lists of {column} without spaces, not {str(cell)[:60]!r}")
        return " ".join(_unicode(column, str(word)) for word in words)
    if cell is None:
        return None
    if isinstance(cell, str):
        return _unicode(column, cell)
    if column in ("source", "target", "text", "text_pair"):
        raise TypeError(f"the {column} is not text")
    if column == "label" and not isinstance(cell, int):
        columns = {list: "lists of labels with --labels_column", float: "numbers with --score_column"}
        more = f"; train-classifier reads {columns[type(cell)]}" if type(cell) in columns else ""
        raise TypeError(f"{str(cell)[:60]} is not a label (a name or an integer){more}")
    if isinstance(cell, list | dict):
        raise TypeError(f"--{option} must name texts or numbers, not {str(cell)[:60]!r}")
    return str(cell)


def _unicode(column: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON can hold half of a surrogate pair
        raise TypeError(f"the {column} is not Unicode ({error.reason})") from None
    return text


def image_cell(cell: Any) -> dict[str, Any]:
    """Return the bytes and the path of an image, as the feature `Image` of `datasets` has them."""
    if isinstance(cell, Mapping):
        return {"bytes": cell.get("bytes"), "path": cell.get("path")}
    return {"bytes": cell, "path": None} if isinstance(cell, bytes) else {"bytes": None, "path": cell}


READERS: dict[str, Callable[[Paths, Columns, ReadOptions], Iterator[Row]]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".json": _read_json,
    ".jsonl": _read_json,
    ".txt": _read_text,
    ".conll": _read_conll,
}
TEXTS: dict[str, Callable[[Iterable[str]], Iterator[str]]] = {
    "line": _lines,
    "paragraph": _paragraphs,
    "passage": _passages,
    "document": _document,
}
FORMATS = (*READERS, ".parquet", *(f"{name}.gz" for name in READERS))
