"""Labels of any form: their names, how many rows each has, and those that may be meant in another way."""

import json

import numpy as np
import pandas as pd
import pytest

from vanillaformer.data.arguments import ClassifierDataArguments
from vanillaformer.data.loading import load_data
from vanillaformer.data.rows import classes_in_words, label_names


def names_of(tmp_path, frame: pd.DataFrame, extension: str = "csv") -> list[str]:
    path = tmp_path / f"a.{extension}"
    if extension == "csv":
        frame.to_csv(path, index=False)
    elif extension == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in frame.to_dict("records")))
    else:
        frame.to_parquet(path)
    return label_names(load_data(ClassifierDataArguments(train_file=[str(path)]), "classification").splits)


@pytest.mark.parametrize("extension", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize(
    ("labels", "names"),
    [([True, False], ["False", "True"]), ([10, 9, -1], ["-1", "9", "10"]), (["01", "1"], ["01", "1"])],
)
def test_every_format_has_the_same_names(labels: list, names: list[str], extension: str, tmp_path) -> None:
    texts = [f"text {n}" for n in range(30)]
    frame = pd.DataFrame({"text": texts, "label": [labels[n % len(labels)] for n in range(30)]})
    assert names_of(tmp_path, frame, extension) == names


@pytest.mark.parametrize(
    ("labels", "warning"),
    [
        (["pos", "neg"], ""),
        (["1", "2", "3"], ""),
        (["food, drink", "music"], ""),
        (["0.0", "1.0"], ""),
        (["Pos", "pos", "neg"], "differ only in letter case, white space or the way a number is written"),
        (["not ok", "not  ok"], "are classes of their own: 'not  ok' and 'not ok'."),
        (["1", "1.0", "0"], "'1' and '1.0'."),
        (
            ["2.97", "3.41", "3.5", "4"],
            "the labels are numbers (2.97, 3.41, 3.5, ...), each a class of its own: regression",
        ),
        ([str(n) for n in range(12)], "12 classes in 30 rows: --label_column may name the wrong column"),
        (["a", "b", "a|b"], "labels like 'a|b' look like several in one: each is a class of its own."),
        (["['a', 'b']", "['a']"], "labels like '['a', 'b']', '['a']' look like several in one"),
        (["a, b", "b, c"], "labels like 'a, b', 'b, c' look like several"),
    ],
)
def test_labels_that_may_be_meant_in_another_way_are_named(labels: list[str], warning: str, tmp_path, capsys) -> None:
    frame = pd.DataFrame(
        {"text": [f"text {n}" for n in range(30)], "label": [labels[n % len(labels)] for n in range(30)]}
    )
    names_of(tmp_path, frame)
    printed = capsys.readouterr().out
    assert printed.count("Warning: ") == bool(warning)
    assert warning in printed.replace('"', "'")


def test_how_many_rows_a_class_has() -> None:
    assert classes_in_words(["neg", "pos"], np.array([300, 1_200])) == "2 classes: neg 300, pos 1,200"
    assert classes_in_words(["a", "b"], np.array([5, 0])) == "1 class: a 5"
    counts = np.arange(20)
    assert classes_in_words([f"c{n}" for n in counts], counts) == "19 classes: c19 19 to c1 1"
    long = [f"a|{end}\n" + "c" * 60 for end in "12"]  # of which neither has a space to be cut at
    assert classes_in_words(long, np.array([2, 1])) == f"2 classes: a|1 {'c' * 32} ... 2, a|2 {'c' * 32} ... 1"
