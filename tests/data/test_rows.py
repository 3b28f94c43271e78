"""Rows that cannot be used: the first is named, or all are left out and counted. Names of labels of any form."""

import numpy as np
import pytest
from datasets import Dataset, concatenate_datasets
from refusals import refused

from vanillaformer.data.arguments import DATA_ARGUMENTS
from vanillaformer.data.loading import load_data
from vanillaformer.data.rows import classes_in_words, label_names, select_rows

from .test_loading import load, write


def skipping(task, **options):
    data = load_data(DATA_ARGUMENTS[task](bad_rows="skip", **options), task)
    return data.splits, data.stats


def test_bad_pairs_are_left_out_and_counted(tmp_path, capsys):
    pairs = [("a", "b"), (None, "c"), ("d", " \t"), ("e", "f"), (7, "g"), ("h", ["i"]), ("j", "k")]
    path = write(tmp_path / "a.jsonl", [{"source": one, "target": other} for one, other in pairs])
    good = write(tmp_path / "b.jsonl", [{"source": "x", "target": "y"}])
    dataset, stats = skipping("translation", train_file=path, validation_file=good)
    assert (list(dataset["train"]["source"]), list(dataset["train"]["target"])) == (["a", "e", "j"], ["b", "f", "k"])
    assert dataset["train"].features == dataset["validation"].features
    assert stats["train"]["bad rows left out"] == 4
    out = capsys.readouterr().out
    assert "a.jsonl: 2 of 7 rows are bad and left out, first row 5: the source is not text." in out
    assert "a.jsonl: 1 of 5 rows are bad and left out, first row 2: the source is empty." in out
    assert "a.jsonl: 1 of 4 rows are bad and left out, first row 3: the target is empty." in out  # as numbered there


def labeled(tmp_path, labels, name="a.jsonl"):
    return write(tmp_path / name, [{"text": f"text {n}", "label": label} for n, label in enumerate(labels)])


def test_rows_without_a_known_label_are_left_out(tmp_path, capsys):
    train, validation = labeled(tmp_path, ["b", None, "a", "", "b"]), labeled(tmp_path, ["c", "a", "c"], "b.jsonl")
    dataset, stats = skipping("classification", train_file=train, validation_file=validation)
    assert (label_names(dataset), list(dataset["train"]["label"])) == (["a", "b"], [1, 0, 1])
    assert list(dataset["validation"]["text"]) == ["text 1"]
    assert [stats[split]["bad rows left out"] for split in ("train", "validation")] == [2, 2]
    out = capsys.readouterr().out
    assert "a.jsonl: 2 of 5 rows are bad and left out, first row 2: None is not a label" in out
    assert "b.jsonl: 2 of 3 rows are bad and left out, first row 1: label 'c' does not occur" in out


def test_number_of_a_row_is_that_in_the_file(tmp_path):
    """Whatever was left out before it, and in whichever split of the file it is."""
    rows = [{"text": text, "label": label, "split": "test" if n == 3 else "train"} for n, (text, label) in enumerate(
        [("a", "x"), ("", "y"), ("b", "y"), ("c", "unheard of"), ("d", "x")]
    )]  # fmt: skip
    options = {"train_file": write(tmp_path / "a.jsonl", rows), "split_column": "split"}
    refused("a.jsonl, row 2: the text is empty", load, "classification", **options)
    rows[1]["text"] = "filled in"
    write(tmp_path / "a.jsonl", rows)
    refused("a.jsonl, row 4: label 'unheard of'", load, "classification", **options)


@pytest.mark.parametrize(("task", "rows", "message"), [
    ("translation", [{"source": "", "target": "a"}], "a.jsonl has no rows"),
    ("classification", [{"text": "a", "label": None}] * 2, "there is no label: nothing to classify"),
])  # fmt: skip
def test_nothing_is_left(tmp_path, task, rows, message):
    path = write(tmp_path / "a.jsonl", rows)
    refused(message, load, task, train_file=path, validation_file=path, bad_rows="skip")


def test_a_missing_text_is_not_a_blank_one(tmp_path, capsys):
    path = write(tmp_path / "a.jsonl", [{"text": text} for text in ("a", "", None, "b")])
    message = r"a.jsonl, row 3: the text is empty \(1 such rows\)"
    refused(message, load, "causal", train_file=path, validation_file=path)
    dataset, stats = skipping("causal", train_file=path, validation_file=path)
    assert list(dataset["train"]["text"]) == ["a", "b"]
    assert stats["train"] == {"blank texts left out": 1, "bad rows left out": 1}


def test_a_batch_of_bad_rows_only_is_empty():
    one, other = (Dataset.from_dict({name: list("abcde")}) for name in ("text", "name"))
    for rows in (one.select([0, 2, 4]), concatenate_datasets([one, other], axis=1)):
        none = select_rows(rows, np.array([], dtype=np.int64))
        labeled = none.add_column("label", np.array([], dtype=np.int64))
        assert (len(labeled), labeled.column_names) == (0, [*rows.column_names, "label"])


@pytest.mark.parametrize(("labels", "warning"), [
    (["pos", "neg"], ""), (["1", "2", "3"], ""), (["food, drink", "music"], ""), (["0.0", "1.0"], ""),
    (["Pos", "pos", "neg"], "differ only in letter case, white space or the way a number is written"),
    (["not ok", "not  ok"], "are separate classes: 'not  ok' and 'not ok'."),
    (["1", "1.0", "0"], "'1' and '1.0'."),
    (["2.97", "3.41", "3.5", "4"], "are numbers (2.97, 3.41, 3.5, ...), each a separate class: --score_col"),
    ([str(n) for n in range(12)], "12 classes in 30 rows: --label_column may name the wrong column"),
    (["a", "b", "a|b"], "labels like 'a|b' look like several in one: each is a separate class."),
    (["['a', 'b']", "['a']"], "labels like '['a', 'b']', '['a']' look like several in one"),
    (["a, b", "b, c"], "labels like 'a, b', 'b, c' look like several"),
])  # fmt: skip
def test_labels_that_may_be_meant_in_another_way_are_named(labels: list[str], warning: str, tmp_path, capsys) -> None:
    load("classification", train_file=labeled(tmp_path, [labels[n % len(labels)] for n in range(30)], "a.csv"))
    printed = capsys.readouterr().out
    assert printed.count("Warning: ") == bool(warning)
    assert warning in printed.replace('"', "'")


def test_how_many_rows_a_class_has() -> None:
    assert classes_in_words(["neg", "pos"], np.array([300, 1_200])) == "2 classes: neg 300, pos 1,200"
    assert classes_in_words(["a", "b"], np.array([5, 0])) == "1 class: a 5"
    counts = np.arange(20)
    assert classes_in_words([f"c{n}" for n in counts], counts) == "19 classes: c19 19 to c1 1"


@pytest.mark.parametrize(("labels", "names", "ids"), [
    (["pos", "neg", "pos"], ["neg", "pos"], [1, 0, 1]), ([10, 2, 10], ["2", "10"], [1, 0, 1]),
    (["10", "2", "-1"], ["-1", "2", "10"], [2, 1, 0]), ([True, False, True], ["False", "True"], [1, 0, 1]),
    (["7", "--5", "7"], ["--5", "7"], [1, 0, 1]), (["9" * 200, "5", "5"], ["5", "9" * 200], [1, 0, 0]),
    (["pos ", "neg", " pos", "pos"], ["neg", "pos"], [1, 0, 1, 1]),
    ([10, 9, -1], ["-1", "9", "10"], [2, 1, 0]), (["01", "1"], ["01", "1"], [0, 1]),
])  # fmt: skip
@pytest.mark.parametrize("extension", ["csv", "jsonl", "parquet"])
def test_labels_become_classes(tmp_path, labels, names, ids, extension):
    path = labeled(tmp_path, labels, f"a.{extension}")
    dataset = load("classification", train_file=path, validation_file=path)
    assert (label_names(dataset), list(dataset["train"]["label"])) == (names, ids)
    assert dataset["train"].features == dataset["validation"].features


def test_whitespace_around_labels_is_removed_and_reported(tmp_path, capsys):
    path = labeled(tmp_path, ["pos ", "neg", "\tpos", "pos"])
    load("classification", train_file=path, validation_file=path)
    assert "a.jsonl: whitespace around the labels of 2 of 4 rows is removed, as in 'pos '." in capsys.readouterr().out
    blank = labeled(tmp_path, ["pos", "neg", "  "], "b.jsonl")
    refused("b.jsonl, row 3: '  ' is not a label", load, "classification", train_file=blank, validation_file=path)


@pytest.mark.parametrize(("train", "validation", "message"), [
    (["a", "b"], ["a", "c"], r"b.jsonl, row 2: label 'c' does not occur in the training data, which has a, b"),
    ([0.5, 1.5], [0.5], r"row 1: 0.5 is not a label \(a name or an integer\); .* numbers with --score_column"),
    ([["b"]], ["a"], r"row 1: \['b'\] is not a label .* lists of labels with --labels_column"),
    (["a", "a"], ["a"], r"all labels are 'a'"),
])  # fmt: skip
def test_bad_labels(tmp_path, train, validation, message):
    paths = [labeled(tmp_path, labels, name) for labels, name in ((train, "a.jsonl"), (validation, "b.jsonl"))]
    refused(message, load, "classification", train_file=paths[0], validation_file=paths[1])
