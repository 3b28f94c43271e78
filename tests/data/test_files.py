"""Files as users have them: several, compressed, odd names and rows; and what is put before their sources."""

import gzip
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, Features, Value
from refusals import refused

from vanillaformer.console.parsing import parse
from vanillaformer.data.arguments import ClassifierDataArguments, DataArguments
from vanillaformer.data.loading import load_data
from vanillaformer.data.order import sampled_rows
from vanillaformer.data.rows import GROUP, PLAIN, label_names

from .test_loading import load, write
from .test_streaming import open_stream, stream_rows


def put(path: Path, text: str, mark: str = "") -> str:
    """Write a file, compressed if it is named so."""
    data = (mark + text).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


def texts(path, column="text", task="causal", **options):
    """Return a column of the rows that loading gives; streaming gives the same."""
    options = {"train_file": path, "validation_file": path, **options}
    loaded = list(load(task, **options)["train"][column])
    assert [cells[column] for cells in stream_rows(open_stream(task, **options)[1])] == loaded
    return loaded


def refused_by_both(message, task, **options):
    """Loading and streaming have to end in an error that says so."""
    refused(message, load, task, **options)
    with pytest.raises(ValueError, match=message):
        stream_rows(open_stream(task, **options)[1])


@pytest.mark.parametrize("suffix", ["csv", "tsv.gz"])
def test_rows_of_too_few_or_too_many_cells_are_left_out_and_counted(tmp_path, suffix, capsys):
    text = "text,label\none,a\ntwo,b,b\nthree,a\nfour\nfive,b\n"
    path = put(tmp_path / f"a.{suffix}", text.replace(",", "\t") if "tsv" in suffix else text)
    options = {"train_file": path, "validation_file": path, "bad_rows": "skip"}
    data = load_data(ClassifierDataArguments(**options), "classification")
    assert list(data.splits["train"]["text"]) == ["one", "three", "five"]
    assert data.stats["train"]["bad rows left out"] == 2
    assert "2 of 5 rows are bad and left out, first row 2: it has 3 cells" in capsys.readouterr().out
    stream = open_stream("classification", **options)[1]
    assert [cells["text"] for cells in stream_rows(stream)] == ["one", "three", "five"]
    out = capsys.readouterr().out
    assert "rows of the stream are bad and left out, first row 2: it has 3 cells" in out
    assert out.count(": 2 of 5 rows are bad and left out.") == 2  # training and validation


def test_tsv_knows_no_quotation_marks(tmp_path):
    lines = "".join(f"say {n}\t{chr(34) * (n in (11, 61))}sag {n}\n" for n in range(120))
    path = put(tmp_path / "a.tsv", f"source\ttarget\n{lines}")
    found = texts(path, "target", "translation")
    assert len(found) == 120
    assert (found[11], found[12]) == ('"sag 11', "sag 12")
    message = r"a.tsv, row 12, lines 13 to 63: a quotation mark is not closed"
    for bad_rows in ("error", "skip"):  # what the file means from there on is not known
        options = {"csv_quoting": "minimal", "bad_rows": bad_rows}
        refused_by_both(message, "translation", train_file=path, validation_file=path, **options)


def test_a_row_of_several_lines_is_named(tmp_path, capsys):
    """Two stray marks can look like one cell with line breaks: nobody but the user can tell."""
    path = put(tmp_path / "a.csv", 'text,label\none,a\n"two,b\nthree,a\nfour",b\n')
    load("classification", train_file=path, validation_file=path)
    assert "1 of 2 rows have cells with line breaks, most in row 2 with 3 lines" in capsys.readouterr().out
    stream_rows(open_stream("classification", train_file=path, validation_file=path)[1])
    assert "rows of the stream have cells with line breaks, most in row 2 with 3 lines" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("name", ["c[v1]", "all*", "a?b", "{a,b}"])
def test_names_that_look_like_patterns(tmp_path, name, suffix):
    write(tmp_path / f"allother.{suffix}", [{"text": "other"}])
    assert texts(write(tmp_path / f"{name}.{suffix}", [{"text": "one"}])) == ["one"]


@pytest.mark.parametrize("suffix", ["csv.gz", "jsonl", "txt", "parquet"])
def test_several_files_and_patterns(tmp_path, suffix):
    for number, name in enumerate(["part-2", "part-10", "first"]):
        path = tmp_path / f"{name}.{suffix}"
        rows = [{"text": f"{name} {n}"} for n in range(number + 1)]
        if suffix == "csv.gz":
            pd.DataFrame(rows).to_csv(path, index=False)
        else:
            write(path, [row["text"] for row in rows] if suffix == "txt" else rows)
    names = [str(tmp_path / f"first.{suffix}"), str(tmp_path / f"part-*.{suffix}")]
    wanted = ["first 0", "first 1", "first 2", "part-10 0", "part-10 1", "part-2 0"]
    assert texts(names) == wanted
    shuffled = open_stream("causal", train_file=names, validation_file=names, streaming_buffer=4)[1]
    assert sorted(cells["text"] for cells in stream_rows(shuffled)) == sorted(wanted)


def test_a_row_of_several_files_is_named_with_its_file(tmp_path):
    good, bad = put(tmp_path / "a.csv", "text\none\n"), put(tmp_path / "b.csv", "text\none\ntwo,\n")
    refusal = r"a.csv and 1 more file, row 2 of .*b.csv: it has 2 cells and the header 1, with ','"
    refused_by_both(refusal, "causal", train_file=[good, bad], validation_file=good)
    train = put(tmp_path / "c.csv", "text,label\none,a\ntwo,b\n")
    late = [put(tmp_path / f"{n}.csv", f"text,label\nmore {n},{label}\n") for n, label in enumerate("ac")]
    unknown = r"row 1 of .*1.csv: label 'c' does not occur in the training data"
    refused(unknown, load, "classification", train_file=train, validation_file=late)


def test_parallel_files_in_parts(tmp_path):
    english = [put(tmp_path / f"{n}.en.txt", f"one {n}\n") for n in range(2)]
    german = [put(tmp_path / f"{n}.de.txt.gz", f"eins {n}\n") for n in range(2)]
    options = {"validation_file": english[0], "validation_target_file": german[0]}
    rows = load("translation", train_file=english, train_target_file=german, **options)["train"]
    assert list(rows["target"]) == ["eins 0", "eins 1"]
    uneven = {"train_file": english, "train_target_file": german[:1], **options}
    refused("name 2 and 1 files: each needs its translation", load, "translation", **uneven)


@pytest.mark.parametrize(("names", "message"), [
    (["part-*.csv"], r"--train_file .*part-\*.csv': no such file, nor one that matches"),
    (["a.csv", "*.csv"], r"--train_file: .*a.csv is named 2 times"),
    (["a.csv", "b.docx"], r"--train_file .*unknown extension '.docx', use .csv, .tsv"),
    (["c.parquet.gz"], r"--train_file .*unknown extension '.gz'"),
    (["twice.csv"], r"twice.csv has 2 columns 'text' \(--text_column\): rename all but one"),
])  # fmt: skip
def test_files_that_cannot_be_used(tmp_path, names, message):
    for name in ("a.csv", "b.docx", "c.parquet.gz"):
        put(tmp_path / name, "text\none\n")
    put(tmp_path / "twice.csv", "text,text,n,n\none,two,1,2\n")
    refused(message, load, "causal", train_file=[str(tmp_path / name) for name in names])


def test_one_name_or_several_on_the_command_line_and_in_a_file(tmp_path):
    assert parse(DataArguments, ["--train_file", "a.csv", "b.csv"])[0].train_file == ["a.csv", "b.csv"]
    settings = tmp_path / "settings.yaml"
    settings.write_text("train_file: a.csv\nvalidation_file: [b.csv, c.csv]\n")
    data = parse(DataArguments, [str(settings)])[0]
    assert (data.train_file, data.validation_file) == (["a.csv"], ["b.csv", "c.csv"])
    assert DataArguments(train_file="a.csv").train_file == ["a.csv"]


def test_separators(tmp_path):
    path = put(tmp_path / "a.csv", "text;label\none, two;a\n")
    refused(r"its columns are: text;label; or is it --csv_separator ';'\?", load, "causal", train_file=path)
    assert texts(path, csv_separator=";") == ["one, two"]
    assert texts(put(tmp_path / "b.csv", "text\tlabel\none\ta\n"), csv_separator="\\t") == ["one"]
    refused(r"--csv_separator ';;': it must be one character", load, "causal", train_file=path, csv_separator=";;")


def test_texts_that_look_like_something_else(tmp_path):
    """A text is a text: pyarrow takes the first for a time, the others for numbers and nothing."""
    wanted = ["2020-01-01 00:00:00", "1e5", "NaN", "null", "007", "a\x00b"]
    assert texts(put(tmp_path / "a.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in wanted))) == wanted
    assert texts(put(tmp_path / "a.csv", "text,n\n" + "".join(f"{text},\n" for text in wanted))) == wanted


def test_parquet_types(tmp_path):
    """Classes keep their names; categories are those of pandas."""
    features = Features({"text": Value("string"), "label": ClassLabel(names=["good", "bad"])})
    path = str(tmp_path / "a.parquet")
    Dataset.from_dict({"text": ["one", "two"], "label": [1, 0]}, features=features).to_parquet(path)
    loaded = load("classification", train_file=path, validation_file=path)
    assert (label_names(loaded), list(loaded["train"]["label"])) == (["good", "bad"], [1, 0])
    pd.DataFrame({"text": ["one", "two"], "label": pd.Categorical(["x", "y"])}).to_parquet(path)
    assert label_names(load("classification", train_file=path, validation_file=path)) == ["x", "y"]
    pairs = pa.array([[("en", "one")]], pa.map_(pa.string(), pa.string()))
    pq.write_table(pa.table({"text": ["one"], "label": ["x"], "map": pairs}), tmp_path / "map.parquet")
    other = str(tmp_path / "map.parquet")
    found = load("classification", train_file=path, validation_file=other)
    assert len(found["validation"]) == 1, "a map that is not needed is not read"
    refused("map.parquet has no column 'map.en'", load, "classification", train_file=other, text_column="map.en")


ROWS = [
    {"source": "a cat", "target": "eine Katze", "task": "translate", "lang": "de"},
    {"source": "a dog", "target": "un chien", "task": "translate", "lang": "fr"},
    {"source": "a long text", "target": "text", "task": "sum up", "lang": "de"},
]


def loaded(folder, rows=ROWS, **options):
    path = write(folder / "rows.jsonl", rows)
    return load("translation", train_file=path, validation_file=path, **options)["train"]


def test_tasks_and_languages_stand_before_the_source(tmp_path):
    assert loaded(tmp_path, source_prefix="now: ")["source"][:] == ["now: a cat", "now: a dog", "now: a long text"]
    rows = loaded(tmp_path, task_column="task", target_lang_column="lang")
    assert rows["source"][:] == ["translate: <2de>a cat", "translate: <2fr>a dog", "sum up: <2de>a long text"]
    assert rows["target"][:] == [row["target"] for row in ROWS]
    assert rows[GROUP][:] == ["translate_de", "translate_fr", "sum up_de"]
    assert loaded(tmp_path, target_lang_column="lang")[GROUP][:] == ["de", "fr", "de"]
    numbered, path = [{**row, "task": number} for number, row in enumerate(ROWS)], str(tmp_path / "rows.parquet")
    for feature, names in ((Value("int64"), "012"), (ClassLabel(names=[*"xyz"]), "xyz")):
        Dataset.from_list(numbered).cast_column("task", feature).to_parquet(path)
        splits = load("translation", train_file=path, validation_file=path, task_column="task")
        assert splits["train"][GROUP][:] == [*names]


def test_rows_of_one_source_in_several_languages_stay_together(tmp_path):
    rows = [
        {"source": f"text {number}", "target": lang, "lang": lang} for number in range(40) for lang in ("de", "fr")
    ]
    path = write(tmp_path / "rows.jsonl", rows)
    splits = load(
        "translation", train_file=path, target_lang_column="lang", validation_fraction=0.2, test_fraction=0.2
    )
    sources = [{text.split(">")[1] for text in part["source"]} for part in splits.values()]
    assert [len(part) for part in splits.values()] == [2 * len(part) for part in sources] == [48, 16, 16]
    assert len(set.union(*sources)) == 40
    assert set(splits["train"].column_names) == {"source", "target", GROUP, PLAIN}


@pytest.mark.parametrize(("column", "value"), [("task", " "), ("task", None), ("source", " "), ("task", ["a"])])
def test_an_empty_source_or_task_or_a_list_is_a_bad_row(column, value, tmp_path):
    rows = [*ROWS, {**ROWS[0], column: value}]
    options = {"task_column": "task", "source_prefix": "p: "}
    empty = f"the (column '{column}'|{column}) is empty"
    message = r"--task_column must .*, not \"\['a'\]\"" if isinstance(value, list) else empty
    refused(f"row 4: {message}", loaded, tmp_path, rows, **options)
    assert len(loaded(tmp_path, rows, **options, bad_rows="skip")) == 3


@pytest.mark.parametrize("temperature", [1.0, 1.5, 3.0, 1e9])
def test_groups_have_the_shares_of_their_temperature(temperature):
    counts = {"large": 1000, "medium": 130, "small": 7}
    groups = np.random.default_rng(0).permutation([name for name, count in counts.items() for _ in range(count)])
    rows = sampled_rows(groups.tolist(), temperature, seed=1)
    assert set(rows.tolist()) == set(range(len(groups))), "each row is read"
    found = {name: int((groups[rows] == name).sum()) for name in counts}
    assert found["large"] == 1000
    for name, count in counts.items():
        assert found[name] == pytest.approx(1000 * (count / 1000) ** (1 / temperature), abs=0.51)
        times = np.unique(rows[groups[rows] == name], return_counts=True)[1]
        assert times.max() - times.min() <= 1
    assert np.array_equal(rows, sampled_rows(groups.tolist(), temperature, seed=1))
    assert temperature in (1, 1e9) or not np.array_equal(rows, sampled_rows(groups.tolist(), temperature, seed=2))
