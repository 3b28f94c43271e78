import gzip
import json
from typing import get_args

import pandas as pd
import pytest
from datasets import ClassLabel, Dataset, Features, Value
from refusals import refused

from vanillaformer.data import loading
from vanillaformer.data.arguments import DATA_ARGUMENTS, DataArguments
from vanillaformer.data.loading import load_data
from vanillaformer.data.rows import label_names
from vanillaformer.data.tasks import TASKS, Prediction, TaskName


def write(path, rows):
    """Write rows in the format of the extension."""
    frame = pd.DataFrame(rows)
    if path.suffix in (".csv", ".tsv"):
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    elif path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(row + "\n" for row in rows))
    return str(path)


def load(task, **options):
    return load_data(DATA_ARGUMENTS[task](**options), task).splits


def test_the_other_direction(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"source": "a", "target": "b"}, {"source": "c", "target": "d"}])
    swapped = {"source_column": "target", "target_column": "source"}
    dataset = load("translation", train_file=path, validation_file=path, **swapped)
    assert dataset["train"][:] == {"source": ["b", "d"], "target": ["a", "c"]}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("ending", ["{}", "{}.gz", "v1.{}"])
def test_parallel_texts_named_by_their_languages(tmp_path, ending, streaming):
    paths = {}
    for split, count in {"train": 20, "validation": 3, "test": 2}.items():
        for side, language in {"": "en", "_target": "de"}.items():
            path = tmp_path / f"{split}.{ending.format(language)}"
            text = "".join(f"{split} {language} {n}\n" for n in range(count)).encode()
            path.write_bytes(gzip.compress(text) if ending.endswith("gz") else text)
            paths[f"{split}{side}_file"] = str(path)
    dataset = load("translation", **paths, streaming=streaming)
    assert [len(part) for part in dataset.values()] == [20, 3, 2]
    assert dataset["test"][:] == {"source": ["test en 0", "test en 1"], "target": ["test de 0", "test de 1"]}
    assert dataset["train"][7] == {"source": "train en 7", "target": "train de 7"}
    missing = r"unknown extension .*; parallel text files may have any"
    refused(missing, load, "translation", train_file=paths["train_file"])
    no_column = r"\(a text file\) has no column 'id' \(--order_column\)"
    refused(no_column, load, "translation", **paths, hold_out="end", order_column="id")


@pytest.mark.parametrize(("sample_by", "count"), [("line", 4), ("paragraph", 2), ("document", 1)])
def test_text_file_for_a_language_model(tmp_path, sample_by, count, capsys):
    path = write(tmp_path / "a.txt", ["one", "two", "", "three", "  ", "four"][: 5 if sample_by != "line" else 6])
    dataset = load("causal", train_file=path, validation_file=path, sample_by=sample_by)
    assert len(dataset["train"]) == count
    if sample_by == "line":
        assert list(dataset["train"]["text"]) == ["one", "two", "three", "four"]
        assert "a.txt: 2 of 6 texts are blank" in capsys.readouterr().out


def test_caps_draw_rows_by_the_seed_and_keep_their_order(tmp_path):
    path = write(tmp_path / "a.txt", [f"{n:03}" for n in range(100)])
    options = {"train_file": path, "validation_file": path, "test_file": path, "max_train_samples": 10}
    dataset = load("causal", **options, max_validation_samples=500, max_test_samples=1)
    texts = list(dataset["train"]["text"])
    assert len(texts) == 10
    assert texts == sorted(texts) != [f"{n:03}" for n in range(10)]
    assert [len(dataset[split]) for split in ("validation", "test")] == [100, 1]


def hub(monkeypatch, splits, *, streams=False):
    def load_dataset(name, config, streaming):
        assert (name, config, streaming) == ("some/data", "plain", streams)
        if isinstance(splits, Exception):
            raise splits
        return {split: rows.to_iterable_dataset() if streams else rows for split, rows in splits.items()}

    monkeypatch.setattr(loading, "load_dataset", load_dataset)
    return {"dataset": "some/data", "dataset_config": "plain"}


def classes(labels, names=("bad", "good")):
    features = Features({"text": Value("string"), "label": ClassLabel(names=list(names))})
    return Dataset.from_dict({"text": [f"t{n}" for n in range(len(labels))], "label": labels}, features=features)


def test_hub_data_and_its_withheld_test_labels(monkeypatch, capsys):
    options = hub(monkeypatch, {"train": classes([1, 0]), "dev": classes([0, 1]), "test": classes([-1, -1])})
    dataset = load("classification", **options)
    assert (list(dataset), label_names(dataset)) == (["train", "validation"], ["bad", "good"])
    assert list(dataset["validation"]["label"]) == [0, 1]
    assert "no labels" in capsys.readouterr().out


@pytest.mark.parametrize(("splits", "message"), [
    ({"test": classes([0, 1])}, r"no split 'train'; its splits are: test"),
    ({"train": classes([0, -1])}, r"split train, row 2: label -1 is not one of the 2 classes"),
    ({"train": classes([0, 1]).rename_column("text", "review")}, r"split train .* 'text' .--text_column"),
    (ConnectionError("no route"), r"--dataset some/data plain cannot be loaded: no route"),
])  # fmt: skip
def test_bad_hub_data(monkeypatch, splits, message):
    refused(message, load, "classification", **hub(monkeypatch, splits))


@pytest.mark.parametrize(("options", "message"), [
    ({"train_file": "gone.csv"}, r"--train_file .*gone.csv.*no such file"),
    ({"train_file": "empty.csv"}, r"empty.csv.*the file is empty"),
    ({"train_file": "header.csv"}, r"header.csv has no rows"),
    ({"train_file": "pairs.csv"}, r"pairs.csv has no column 'source' \(--source_column\); .* en, de"),
    ({"train_file": "hole.jsonl"}, r"hole.jsonl, row 2: the target is empty \(2 such rows\)"),
    ({"train_file": "numbers.jsonl"}, r"numbers.jsonl, row 1: the source is not text \(1 such rows\)"),
    ({"train_file": "broken.parquet"}, r"broken.parquet cannot be read as .parquet"),
    ({"train_file": "a.txt"}, r"give its translation, line by line, as --train_target_file"),
    ({"train_file": "a.txt", "train_target_file": "b.txt"}, r"a.txt has 2 lines and .*b.txt has 3"),
    ({"train_file": "a.txt", "train_target_file": "pairs.csv"}, r"--train_target_file is for .* .txt files"),
    ({"train_target_file": "a.txt"}, r"--train_target_file needs --train_file"),
    ({"validation_file": "a.txt"}, r"--validation_file needs --train_file"),
    ({"train_file": "pairs.csv", "test_target_file": "a.txt"}, r"--test_target_file needs --test_file"),
    ({"train_file": "pairs.csv", "source_column": "de", "target_column": "de"}, r"name the same column"),
    ({"target_locale": "xx"}, r"target locale 'xx'"),
    ({"streaming": True}, "--streaming needs --train_file or a --dataset"),
])  # fmt: skip
def test_bad_translation_data(tmp_path, options, message):
    write(tmp_path / "pairs.csv", [{"en": "house", "de": "Haus"}])
    write(tmp_path / "a.txt", ["a", "b"])
    write(tmp_path / "b.txt", ["a", "b", "c"])
    write(tmp_path / "numbers.jsonl", [{"source": 1, "target": "one"}])
    write(tmp_path / "hole.jsonl", [{"source": "a", "target": t} for t in ("b", None, " \t", "c")])
    (tmp_path / "header.csv").write_text("source,target\n")
    (tmp_path / "broken.parquet").write_text("no parquet")
    (tmp_path / "empty.csv").touch()
    placed = {name: str(tmp_path / value) if name.endswith("_file") else value for name, value in options.items()}
    refused(message, load, "translation", **placed)


@pytest.mark.parametrize(("task", "lines", "options", "message"), [
    ("classification", ["a"], {}, "which has no columns"),
    ("causal", ["a"], {"split_column": "split"}, "a .txt file has no columns"),
    ("causal", ["", " "], {}, "a.txt has no rows"),
    ("causal", ["same", "same"], {}, "1 distinct text: give --validation_file"),
])  # fmt: skip
def test_text_files_that_cannot_be_used(tmp_path, task, lines, options, message):
    refused(message, load, task, train_file=write(tmp_path / "a.txt", lines), **options)


def test_descriptions_of_tasks_name_what_the_types_allow():
    assert list(TASKS) == list(get_args(TaskName))
    assert {predicted for task in TASKS.values() for predicted in task.predicts} == {*get_args(Prediction)}
    refused("task='summary'.*translation", load_data, DataArguments(), "summary")
