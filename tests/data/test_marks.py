"""What is put before sources: a prefix, tasks and languages; and how often rows of each are read."""

import json

import numpy as np
import pytest
from datasets import Dataset

from vanillaformer.data.arguments import TranslationDataArguments
from vanillaformer.data.loading import load_data
from vanillaformer.data.marks import sampled_rows
from vanillaformer.data.rows import GROUP

ROWS = [
    {"source": "a cat", "target": "eine Katze", "task": "translate", "lang": "de"},
    {"source": "a dog", "target": "un chien", "task": "translate", "lang": "fr"},
    {"source": "a long text", "target": "text", "task": "sum up", "lang": "de"},
]


def loaded(folder, rows=ROWS, **options):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = {"train_file": [str(path)], "validation_file": [str(path)]}
    return load_data(TranslationDataArguments(**files, **options), "translation").splits["train"]


def test_marks_stand_before_the_source(tmp_path):
    assert loaded(tmp_path, source_prefix="now: ")["source"][:] == ["now: a cat", "now: a dog", "now: a long text"]
    rows = loaded(tmp_path, task_column="task", target_lang_column="lang")
    assert rows["source"][:] == ["translate: <2de>a cat", "translate: <2fr>a dog", "sum up: <2de>a long text"]
    assert rows["target"][:] == [row["target"] for row in ROWS]
    assert rows[GROUP][:] == ["translate_de", "translate_fr", "sum up_de"]
    assert loaded(tmp_path, target_lang_column="lang")[GROUP][:] == ["de", "fr", "de"]


def test_numbers_are_names(tmp_path):
    path = str(tmp_path / "rows.parquet")
    Dataset.from_list([{**row, "task": number} for number, row in enumerate(ROWS)]).to_parquet(path)
    arguments = TranslationDataArguments(train_file=[path], validation_file=[path], task_column="task")
    assert load_data(arguments, "translation").splits["train"][GROUP][:] == ["0", "1", "2"]


@pytest.mark.parametrize(("column", "value"), [("task", " "), ("task", None), ("source", " ")])
def test_what_is_empty_is_a_bad_row(column, value, tmp_path):
    rows = [*ROWS, {**ROWS[0], column: value}]
    with pytest.raises(ValueError, match=f"row 4: the column '{column}' is empty|row 4: the {column} is empty"):
        loaded(tmp_path, rows, task_column="task", source_prefix="p: ")
    assert len(loaded(tmp_path, rows, task_column="task", source_prefix="p: ", bad_rows="skip")) == 3


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
