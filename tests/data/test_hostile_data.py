"""Whatever a file holds, its rows are those that Python's `csv` and `json` find in it, or an error names them."""

import csv
import gzip
import io
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from vanillaformer.data import files
from vanillaformer.data.files import load_files, stream_files
from vanillaformer.data.formats import LINES, PROBLEM, ROW, ReadOptions

SIGNS = 'ab",;\t \r\n\x00\x0b\x1c\x85\u2028\ufeffé𝄞'
COLUMNS = {"text_column": "text", "label_column": "label"}
hostile = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch):
    """Rows lie on both sides of the ends of batches."""
    monkeypatch.setattr(files, "MAX_BATCH_ROWS", 3)
    monkeypatch.setattr(files, "MAX_BATCH_CHARACTERS", 40)


def read(name, data, columns=COLUMNS, options=ReadOptions()):  # noqa: B008 (it is frozen)
    """Return the rows that loading gives, or its error; streaming must do the same."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        for load in (load_files, stream_files):
            try:
                found.append(list(load([(path,)], columns, options)))
            except ValueError as error:
                found.append(str(error))
    assert found[0] == found[1]
    assert not isinstance(found[0], str) or str(path) in found[0]
    return found[0]


def cells(rows):
    return [None if row[PROBLEM] else (row["text"], row["label"]) for row in rows]


def csv_rows(text, marks):
    """Return the rows that Python finds, with the lines of each; None for a row that is none."""
    quoting = csv.QUOTE_MINIMAL if marks else csv.QUOTE_NONE
    reader = csv.reader(io.StringIO(text, newline=""), quoting=quoting, strict=True)
    rows, line = [], 0
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return [(row, lines) for row, lines in rows if row != []]
        except csv.Error:
            row = None
        rows.append((row, reader.line_num - line))
        line = reader.line_num


table = st.lists(st.tuples(*[st.text(SIGNS, max_size=8)] * 3), min_size=1, max_size=9)


@hostile
@given(
    rows=table, separator=st.sampled_from(",;\t|"), end=st.sampled_from(["\n", "\r\n", "\r"]),
    mark=st.sampled_from(["", "\ufeff"]), suffix=st.sampled_from([".csv", ".tsv", ".csv.gz"]),
)  # fmt: skip
def test_a_table_that_python_has_written(rows, separator, end, mark, suffix):
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=separator, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerows([("text", "more", "label"), *rows])
    found = read("a" + suffix, (mark + file.getvalue()).encode(), options=ReadOptions(separator, "minimal"))
    assert cells(found) == [(text, label) for text, _, label in rows]
    assert [row[ROW] for row in found] == list(range(1, len(rows) + 1))


@hostile
@given(
    header=st.sampled_from(["text,label", '"text","label"', "label,more,text", "text,label,", "\ntext,label"]),
    body=st.text(SIGNS.replace(";", ",\n") + ',"\n', max_size=60),
    marks=st.booleans(),
    mark=st.sampled_from(["", "\ufeff"]),
)
@example(header="text,label", body='"a\nb,c\nd,e\n', marks=True, mark="")
@example(header="text,label", body='a,b\n\n"a"b,c\nd,e\n', marks=True, mark="")
@example(header="text,label", body="a,b,c\n" * 3, marks=True, mark="")
def test_any_table(header, body, marks, mark):
    text = f"{header}\n{body}"
    found = read("a.csv", (mark + text).encode(), options=ReadOptions(None, "minimal" if marks else "none"))
    (names, _), *rows = csv_rows(text, marks)
    if any(row is None and lines > 1 for row, lines in rows):
        assert "a quotation mark is not closed or not doubled" in found
    elif "text" not in names:  # in quotation marks that are text
        assert "has no column 'text'" in found
    else:
        fit = [None if row is None or len(row) != len(names) else dict(zip(names, row)) for row, _ in rows]
        assert cells(found) == [row and (row["text"], row["label"]) for row in fit]
        assert [row[ROW] for row in found] == list(range(1, len(rows) + 1))
        assert [row[LINES] for row in found if not row[PROBLEM]] == [rows[n][1] for n, row in enumerate(fit) if row]


scalars = st.none() | st.booleans() | st.integers(-9, 10**20) | st.floats() | st.text(SIGNS + "\ud800", max_size=6)
objects = st.dictionaries(st.sampled_from(["text", "label", "more"]), scalars | st.lists(scalars, max_size=2))
HEAD = {"text": "first", "label": "x"}


def json_cells(content):
    """Return what a row of these cells is: None if it cannot be used."""
    if not isinstance(content, dict):
        return None
    text, label = content.get("text"), content.get("label")
    if not isinstance(text, str | None) or not isinstance(label, str | int | None):
        return None
    if "\ud800" in f"{text}{label}":
        return None
    return text, label if label is None else str(label)


@hostile
@given(
    lines=st.lists(st.one_of(st.builds(json.dumps, objects, ensure_ascii=st.just(True)),
                             st.builds(json.dumps, objects.filter(lambda row: "\\ud8" not in json.dumps(row)),
                                       ensure_ascii=st.just(False)),
                             st.builds(json.dumps, scalars), st.text(SIGNS.replace("\n", "") + "{}[]:", max_size=9)),
                   max_size=9),
    end=st.sampled_from(["\n", "\r\n"]), mark=st.sampled_from(["", "\ufeff"]),
    suffix=st.sampled_from([".jsonl", ".json", ".jsonl.gz"]),
)  # fmt: skip
def test_any_json_lines(lines, end, mark, suffix):
    lines = [json.dumps(HEAD), *lines, json.dumps(HEAD)]
    wanted = []
    for line in lines:
        if line.strip():
            try:
                wanted.append(json_cells(json.loads(line)))
            except ValueError:
                wanted.append(None)
    assert cells(read("a" + suffix, (mark + end.join(lines)).encode())) == wanted


@hostile
@given(
    rows=st.lists(objects | scalars, max_size=9), mark=st.sampled_from(["", "\ufeff"]), indent=st.none() | st.just(2)
)
def test_any_json_list(rows, mark, indent):
    text = mark + json.dumps([HEAD, *rows], indent=indent)
    assert cells(read("a.json", text.encode())) == [json_cells(row) for row in [HEAD, *rows]]


@hostile
@given(lines=st.lists(st.text(SIGNS.replace("\n", ""), max_size=9), min_size=1), mark=st.sampled_from(["", "\ufeff"]))
def test_lines_of_text(lines, mark):
    """As many as `wc -l` counts: nothing else than a line feed ends one."""
    data = "".join(f"{line}\n" for line in lines).removeprefix("\ufeff")
    wanted = [line.removesuffix("\r") for line in data.removesuffix("\n").split("\n")]
    rows = read("a.txt", (mark + data).encode(), {"text_column": "text"})
    assert [row["text"] for row in rows] == wanted
    assert len(rows) == data.count("\n")


@hostile
@given(data=st.binary(min_size=1, max_size=12), suffix=st.sampled_from(["csv", "tsv", "json", "jsonl", "txt"]))
def test_any_bytes(data, suffix):
    """Bytes that are not UTF-8 are named with their line."""
    head = {"json": b"", "jsonl": b'{"text": "a"}\n', "txt": b""}.get(suffix, b"text\n")
    found = read(f"a.{suffix}", head + data, {"text_column": "text"})
    try:
        data.decode()
    except UnicodeDecodeError as error:
        line = (head + data[: error.start]).count(b"\n") + 1
        assert f"not UTF-8: line {line}: " in found


@pytest.mark.parametrize("suffix", [".csv.gz", ".txt.gz"])
def test_a_damaged_archive(tmp_path, suffix):
    whole = gzip.compress(b"text\nsome words\n" * 50)
    for damaged in (whole[:-9], whole[:30] + b"\x00\xff\x13" + whole[33:], b"no archive"):
        (tmp_path / f"a{suffix}").write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"a{suffix} cannot be read as .gz"):
            load_files([(tmp_path / f"a{suffix}",)], {"text_column": "text"}, ReadOptions())


def test_a_huge_cell(tmp_path):
    text = 'word ""quoted"", ' * 200_000
    (tmp_path / "a.csv").write_text(f'text,label\n"{text}",x\n{"y" * 140_000},z\n')
    rows = load_files([(tmp_path / "a.csv",)], COLUMNS, ReadOptions())
    assert list(rows["text"]) == [text.replace('""', '"'), "y" * 140_000]
