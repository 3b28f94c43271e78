"""Which rows are for training, validation and test: columns, fractions, the end, and what occurs twice."""

from datetime import UTC, date, datetime, timedelta

import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from refusals import refused

from vanillaformer.data.arguments import ClassifierDataArguments
from vanillaformer.data.loading import load_data
from vanillaformer.data.rows import label_names

from .test_loading import hub, load, write


def rows_of(words, **more):
    return [{"split": word, "text": f"text {n}", "label": n % 2, **more} for n, word in enumerate(words)]


@pytest.mark.parametrize("extension", ["csv", "jsonl", "parquet"])
def test_one_file_with_a_column_of_splits(tmp_path, extension):
    words = ["train", "test", " Dev", "train", "TEST", "val", "train", "train"]
    path = write(tmp_path / f"a.{extension}", rows_of(words))
    dataset = load("classification", train_file=path, split_column="split")
    texts = {split: list(rows["text"]) for split, rows in dataset.items()}
    assert texts == {
        "train": ["text 0", "text 3", "text 6", "text 7"],
        "validation": ["text 2", "text 5"],
        "test": ["text 1", "text 4"],
    }
    assert (dataset["train"].column_names, list(dataset["test"]["label"])) == (["text", "label"], [1, 0])


def test_validation_is_held_out_of_the_rows_for_training(tmp_path):
    path = write(tmp_path / "a.parquet", rows_of(["train"] * 20 + ["test"] * 5))
    dataset = load("causal", train_file=path, split_column="split", validation_fraction=0.2)
    assert {split: len(rows) for split, rows in dataset.items()} == {"train": 16, "validation": 4, "test": 5}
    assert list(dataset["test"]["text"]) == [f"text {n}" for n in range(20, 25)]


def test_hub_data_with_a_column_of_splits(monkeypatch, capsys):
    features = Features({"text": Value("string"), "part": ClassLabel(names=["valid", "train"])})
    rows = Dataset.from_dict({"text": ["a", "b", "c"], "part": [1, 0, 1]}, features=features)
    dataset = load("causal", **hub(monkeypatch, DatasetDict(all=rows)), split_column="part")
    assert {split: list(part["text"]) for split, part in dataset.items()} == {"train": ["a", "c"], "validation": ["b"]}
    load("causal", **hub(monkeypatch, DatasetDict(all=rows)), split_column="part", validation_fraction=0.2)
    assert "--validation_fraction 0.2 is not used: there is validation data already" in capsys.readouterr().out
    twice = hub(monkeypatch, DatasetDict(train=rows, test=rows)) | {"split_column": "part"}
    refused(r"--split_column part: --dataset some/data plain has splits already: train", load, "causal", **twice)


@pytest.mark.parametrize(("words", "options", "message"), [
    (["train", "unsupervised"], {}, r"a.jsonl, row 2: 'unsupervised' in .* 'split' names .*known are train, v"),
    (["train", None], {}, r"a.jsonl, row 2: None in --split_column 'split' names no split"),
    (["test", "dev"], {}, r"a.jsonl: no row has 'train' in --split_column 'split'"),
    (["train"], {"split_column": "part"}, r"has no column 'part' \(--split_column\); its columns.* split, text"),
    (["train"], {"test_file": "a.jsonl"}, r"--split_column split finds the splits in --train_file: give no --tes"),
    (["train"], {"train_file": None}, r"--split_column split needs --train_file or a --dataset on the Hub"),
])  # fmt: skip
def test_bad_columns_of_splits(tmp_path, words, options, message):
    path = write(tmp_path / "a.jsonl", rows_of(words))
    chosen = {"train_file": path, "split_column": "split", **options}
    if options.get("test_file"):
        chosen["test_file"] = path
    refused(message, load, "causal", **chosen)


def sources(dataset):
    return {split: set(rows["source"]) for split, rows in dataset.items()}


def many_translations(tmp_path):
    return write(tmp_path / "a.jsonl", [{"source": f"s{n % 50}", "target": f"t{n}"} for n in range(200)])


def test_another_seed_holds_out_another_test_part_and_a_validation_file_stays(tmp_path):
    """What is in it, by whichever options, is in `test_split_promises.py`."""
    options = {"train_file": many_translations(tmp_path), "validation_fraction": 0.1}
    first, other = (sources(load("translation", **options, test_fraction=0.2, split_seed=seed)) for seed in (0, 1))
    assert {split: len(texts) for split, texts in first.items()} == {"train": 35, "validation": 5, "test": 10}
    assert other["test"] != first["test"]
    assert "test" not in load("translation", **options)
    options["validation_file"] = write(tmp_path / "b.jsonl", [{"source": "other", "target": "x"}])
    parts = sources(load("translation", **options, test_fraction=0.1))
    assert (parts["validation"], len(parts["test"])) == ({"other"}, 5)


def held_out(tmp_path, rows, **options):
    """Return the labels and the texts of each split."""
    dataset = load("classification", train_file=write(tmp_path / "a.jsonl", rows), **options)
    names = label_names(dataset)
    labels = {split: sorted(names[label] for label in part["label"]) for split, part in dataset.items()}
    return labels, {split: set(part["text"]) for split, part in dataset.items()}


@pytest.mark.parametrize("seed", range(8))
def test_every_class_has_its_share_of_what_is_held_out(tmp_path, seed):
    counts = {"often": 160, "seldom": 40, "pair": 2, "once": 1}
    rows = [{"text": f"{label} {n}", "label": label} for label, count in counts.items() for n in range(count)]
    labels, texts = held_out(tmp_path, rows, validation_fraction=0.1, test_fraction=0.1, split_seed=seed)
    for split in ("validation", "test"):
        assert labels[split].count("often") in (15, 16, 17)
        assert labels[split].count("seldom") in (3, 4, 5)
        assert len(labels[split]) == 20
    assert set(labels["train"]) == set(counts)
    assert not set.intersection(*texts.values())
    again = held_out(tmp_path, rows, validation_fraction=0.3, test_fraction=0.1, split_seed=seed)
    assert again[1]["test"] == texts["test"]


@pytest.mark.parametrize("seed", range(8))
def test_every_class_keeps_a_text_for_training(tmp_path, seed):
    """Also where the texts of a class have other classes too, or are one text many times."""
    shared = [{"text": f"t{n}", "label": label} for n in range(4) for label in ("a", "b")]
    rows = [*shared, *({"text": "same", "label": "c"} for _ in range(5)), {"text": "t0", "label": "d"}]
    labels, texts = held_out(tmp_path, rows, validation_fraction=0.6, split_seed=seed)
    assert set(labels["train"]) == {"a", "b", "c", "d"}
    assert labels["train"].count("c") == 5
    assert len(texts["validation"]) == 3
    assert not texts["train"] & texts["validation"]
    rows = [{"text": f"t{n}", "label": n} for n in range(3)]
    refused("a validation part cannot be split from 3 distinct texts in which no class", held_out, tmp_path, rows)


@pytest.mark.parametrize(("options", "message"), [
    ({"test_fraction": 0.6, "validation_fraction": 0.4}, r"--validation_fraction 0.4 and --test_fraction 0.6"),
    ({"test_fraction": 0.1, "test_file": "same"}, r"--test_fraction 0.1: there is test data already"),
    ({"hold_out": "end", "validation_fraction": 0.996}, r"--hold_out end leaves nothing for train of 200 rows"),
])  # fmt: skip
def test_bad_fractions(tmp_path, options, message):
    path = many_translations(tmp_path)
    options = {name: path if value == "same" else value for name, value in options.items()}
    refused(message, load, "translation", train_file=path, **options)


@pytest.mark.parametrize(("test_fraction", "sizes"), [(0.0, [90, 10]), (0.2, [70, 10, 20])])
def test_the_end_is_held_out(tmp_path, test_fraction, sizes):
    path = write(tmp_path / "a.txt", [f"{n:03}" for n in range(100)])
    options = {"hold_out": "end", "validation_fraction": 0.1, "test_fraction": test_fraction}
    dataset = load("causal", train_file=path, **options)
    assert [text for rows in dataset.values() for text in rows["text"]] == [f"{n:03}" for n in range(100)]
    assert [len(rows) for rows in dataset.values()] == sizes


def test_the_end_of_a_single_text(tmp_path, capsys):
    text = "".join(chr(97 + n % 26) for n in range(1003)) + "\n"
    (tmp_path / "a.txt").write_text(text)
    options = {"train_file": str(tmp_path / "a.txt"), "sample_by": "document", "hold_out": "end"}
    dataset = load("causal", **options, validation_fraction=0.1)
    count = int(len(text) * 0.9)
    assert [list(rows["text"]) for rows in dataset.values()] == [[text[:count]], [text[count:]]]
    three = load("causal", **options, validation_fraction=0.1, test_fraction=0.3)
    assert "".join(rows["text"][0] for rows in three.values()) == text
    assert len(three["test"]["text"][0]) == 302
    capsys.readouterr()
    at_random = load("causal", **options | {"hold_out": "random"}, validation_fraction=0.1)
    assert [list(rows["text"]) for rows in at_random.values()] == [[text[:count]], [text[count:]]]
    assert "The data is a single text: its last characters are held out (validation).\n" in capsys.readouterr().out


def test_many_documents_stay_whole(tmp_path, capsys):
    paths = [tmp_path / f"{number}.txt" for number in range(100)]
    for number, path in enumerate(paths):
        path.write_text(f"{number:03}|")
    splits = load("causal", train_file=list(map(str, paths)), sample_by="document", validation_fraction=0.1)
    assert len(splits["validation"]) == 10
    assert sorted(text for rows in splits.values() for text in rows["text"]) == [f"{n:03}|" for n in range(100)]
    assert "The data is" not in capsys.readouterr().out


def in_order(tmp_path, cells, extension="csv", **options):
    """Return the places in the file of the rows of each split."""
    rows = [{"text": f"row {n}", "label": n % 2, "when": cell} for n, cell in enumerate(cells)]
    path = write(tmp_path / f"a.{extension}", rows)
    options = {"train_file": path, "hold_out": "end", "order_column": "when", **options}
    parts = load("classification", **options)
    return {split: [int(text.split()[1]) for text in part["text"]] for split, part in parts.items()}


def test_values_that_are_too_few_to_split(tmp_path):
    message = "--order_column 'when': {}: too few for train, validation"
    refused(message.format("1 distinct value"), in_order, tmp_path, ["3"] * 40)
    refused(message.format("2 distinct values"), in_order, tmp_path, [3, 4] * 20, test_fraction=0.2)


@pytest.mark.parametrize(
    "form", ["%Y-%m-%d", "%Y%m%d", "%Y-%m-%d 23:59", "%Y-%m-%dT12:00:00.5", "%Y-%m-%d 12:00+01:00"]
)
def test_iso_dates_are_in_order(tmp_path, form, capsys):
    days = [date(2019, 1, 1) + timedelta(n) for n in range(730)]
    parts = in_order(tmp_path, [day.strftime(form) for day in reversed(days)])
    assert parts == {"train": list(range(729, 36, -1)), "validation": list(range(36, -1, -1))}
    if form != "%Y%m%d":
        clocks = {"23:59": "23:59:00", ".5": "12:00:00.500000", "+01": "11:00:00"}  # in UTC
        clock = next((f" {clock}" for sign, clock in clocks.items() if sign in form), "")
        words = f"train 2019-01-01{clock} to 2020-11-23{clock} (693 rows), validation 2020-11-24"
        assert words in capsys.readouterr().out


def test_months_are_dates(tmp_path, capsys):
    parts = in_order(tmp_path, [f"{year}-{month:02}" for year in (2020, 2019) for month in range(12, 0, -1)])
    assert parts["validation"] == [1, 0]
    assert "train 2019-01-01 to 2020-10-01 (22 rows), validation 2020-11-01 to" in capsys.readouterr().out


def test_dates_and_numbers_of_parquet_files(tmp_path):
    days = [datetime(2019, 1, 1, 12) + timedelta(hours=7 * n) for n in range(100)]
    assert in_order(tmp_path, days[::-1], "parquet")["validation"] == [4, 3, 2, 1, 0]
    nanoseconds = [f"2019-01-01 00:00:00.{n:09}" for n in range(100)]
    for other in ([day.replace(tzinfo=UTC) for day in days], list(range(100)), nanoseconds):
        assert in_order(tmp_path, other[::-1], "parquet")["validation"] == [4, 3, 2, 1, 0]


def test_classes_are_ordered_by_their_names(tmp_path):
    features = Features({"text": Value("string"), "label": Value("int64"), "when": ClassLabel(names=["2020", "2019"])})
    rows = [{"text": f"row {n}", "label": n // 2 % 2, "when": n % 2} for n in range(20)]
    Dataset.from_list(rows, features).to_parquet(tmp_path / "a.parquet")
    options = {"train_file": str(tmp_path / "a.parquet"), "hold_out": "end", "order_column": "when"}
    held_out = load("classification", **options, validation_fraction=0.5)["validation"]
    assert list(held_out["text"]) == [f"row {n}" for n in range(0, 20, 2)]  # those of 2020


DAYS = [f"2019-03-{n}" for n in range(10, 29)]


@pytest.mark.parametrize(("cells", "message"), [
    (["nan", *map(str, range(40))], r"row 1: --order_column 'when' holds 'nan', which is not a number"),
    ([*range(40), ""], r"a.jsonl, row 41: --order_column 'when' is empty .1 such rows.; --bad_rows skip"),
    ([*DAYS, "29.03.2019"], r"row 20: .* holds '29.03.2019', which is not a date such as 2019-01-31"),
    ([*DAYS, "2019-02-29"], r"row 20: .* holds '2019-02-29', which is not a date such as 2019-01-31"),
    ([*DAYS, "soon"], r"row 20: --order_column 'when' holds 'soon'"),
    (["2019-03-01 10:00", "2019-03-02 10:00", "2019-03-03 10:00+01:00"], r"row 3: .*10:00.01:00', which is not"),
    (["01/02/2019", "11/12/2019"], r"'01/02/2019', which is not a number or an ISO date: write .* 2019-01-31"),
    (["Jan 5, 2019", "Mar 6, 2020"], r"holds 'Jan 5, 2019', which is not a number or an ISO date"),
    (["31/01/19", "30/01/19"], r"holds '31/01/19', which is not a number or an ISO date"),
    (["03.2019", "12.2018"], r"holds '03.2019', a decimal number or a month: write months as in 2019-01"),
    (["Q1 2019", "Q2 2018"], r"holds 'Q1 2019', which is not a number or an ISO date: write integers"),
    (["9,5", "10,5"], r"'when' holds '9,5', which is not a number"),
])  # fmt: skip
def test_values_that_cannot_be_ordered(tmp_path, cells, message):
    refused(message, in_order, tmp_path, [str(cell) for cell in cells], "jsonl")


def test_values_that_cannot_be_ordered_can_be_skipped(tmp_path, capsys):
    parts = in_order(tmp_path, [*DAYS, "soon", None], "jsonl", bad_rows="skip")
    assert parts == {"train": list(range(18)), "validation": [18]}
    said = "2 of 21 rows are bad and left out, first row 20: --order_column 'when' holds 'soon'"
    assert said in capsys.readouterr().out


def test_names_are_grouped(tmp_path, capsys):
    parts = in_order(tmp_path, [f"{'Alien' * (n % 7)} (19{n % 7}0)" if n % 7 else "Alien 3 (1992)" for n in range(70)])
    assert len(parts["validation"]) == 10
    assert {n % 7 for n in parts["validation"]} == {6}
    assert "--order_column 'when' holds neither numbers nor dates: it is ordered as text." in capsys.readouterr().out


def test_bad_order_columns(tmp_path):
    rows = [{"text": "a", "label": 0, "when": 1}, {"text": "b", "label": 1, "when": 2}]
    options = {"train_file": write(tmp_path / "a.jsonl", rows), "hold_out": "end"}
    refused(r"no column 'day' \(--order_column\)", load, "classification", **options, order_column="day")
    at_random = options | {"hold_out": "random", "order_column": "when"}
    refused("--order_column when is for --hold_out end, not random", load, "classification", **at_random)
    refused("--order_column when needs --train_file", load, "classification", hold_out="end", order_column="when")


def leaking(tmp_path):
    files = {"train": ["a", "b", "b", "c", "d"], "validation": ["b", "x", "b"], "test": ["y", "d"]}
    paths = {}
    for split, texts in files.items():
        rows = [{"text": text, "label": n % 2} for n, text in enumerate(texts)]
        paths[f"{split}_file"] = write(tmp_path / f"{split}.jsonl", rows)
    return paths


def test_what_also_occurs_in_the_training_data_is_reported(tmp_path, capsys):
    data = load_data(ClassifierDataArguments(**leaking(tmp_path)), "classification")
    dataset, stats = data.splits, data.stats
    assert len(dataset["train"]) == 5
    out = capsys.readouterr().out
    assert "validation data: the text of 2 of 3 rows also occurs in the training data (--drop_leaked_rows" in out
    assert "test data: the text of 1 of 2 rows also occurs" in out
    assert (stats["validation"]["also in train"], stats["test"]["also in train"]) == (2, 1)
    capped = load_data(ClassifierDataArguments(**leaking(tmp_path), max_train_samples=2), "classification")
    known = set(capped.splits["train"]["text"])
    assert known < set("abcd")
    fewer = []
    for split in ("validation", "test"):  # compared with what is trained on
        shared = sum(text in known for text in capped.splits[split]["text"])
        assert capped.stats[split]["also in train"] == shared
        fewer.append(shared < stats[split]["also in train"])
    assert any(fewer)


def test_test_data_that_chose_the_checkpoint_and_what_occurs_twice_can_be_left_out(tmp_path, capsys):
    paths = leaking(tmp_path)
    paths["test_file"] = write(tmp_path / "t.jsonl", [{"text": text, "label": 0} for text in ("X.", "y", "x")])
    data = load_data(ClassifierDataArguments(**paths), "classification")
    assert data.stats["test"] == {"also in train": 0, "also in validation": 2}
    words = "test data: the text of 2 of 3 rows also occurs in the validation data (--drop_leaked_rows leaves them out"
    assert words in capsys.readouterr().out
    data = load_data(ClassifierDataArguments(**paths, drop_leaked_rows=True), "classification")
    assert {split: list(part["text"]) for split, part in data.splits.items()} == {
        "train": ["a", "c", "d"], "validation": ["b", "b"], "test": ["X.", "y", "x"],
    }  # fmt: skip
    assert {split: stats["leaked rows left out"] for split, stats in data.stats.items() if stats} == {
        "train": 2, "validation": 1,
    }  # fmt: skip
    assert "train data: 2 of 5 rows occur in the other splits: left out." in capsys.readouterr().out
    twice = paths | {"test_file": paths["validation_file"], "drop_leaked_rows": True}
    refused("--drop_leaked_rows: every text of the validation data also occurs", load, "classification", **twice)
    twice = paths | {"train_file": paths["validation_file"], "drop_leaked_rows": True}
    refused("--drop_leaked_rows: every text of the training data", load, "classification", **twice)
