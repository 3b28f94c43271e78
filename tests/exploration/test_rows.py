"""Held-out rows: read as a run's own, scored as its own evaluation, and drawn by the program."""

import csv
import json

import pytest
import torch
from modeling.toys import toy
from refusals import refused
from transformers import ViTImageProcessorPil

from vanillaformer.exploration.losses import held_out_loss
from vanillaformer.exploration.rows import held_out_rows
from vanillaformer.scripts import explore

from .test_page import TEXT, TEXTS, folder, loaded  # noqa: F401 - a fixture


def write(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return str(path)


def read(case, file, tmp_path, count=100, **settings):
    found = loaded(case)
    rows = held_out_rows(found.model, (found.tokenizer,) * 2, file, folder=tmp_path, count=count, options=settings)
    return found, rows


def test_pairs_are_read_by_the_columns_of_the_run(tmp_path):
    file = write(tmp_path / "rows.csv", [["de", "en"], *zip(TEXTS, reversed(TEXTS))])
    settings = {"source_column": "de", "target_column": "by the data", "max_source_length": "by the data"}
    defaults = [["max_source_length", 9, "why"], ["target_column", "en", "why"], ["overrides", ["dropout=0.3"], "why"]]
    record = {"settings": {"data": settings | {"max_train_samples": 3}}, "details": {"defaults": defaults}}
    (tmp_path / "run.json").write_text(json.dumps(record))
    found, batches = read("translation", file, tmp_path)
    assert sum(len(batch["labels"]) for batch in batches) == len(TEXTS)
    assert batches[0]["input_ids"].shape[1] <= 9
    encoded = [found.tokenizer(text)["input_ids"] for text in TEXTS]
    assert {tuple(row[row != -100].tolist()) for row in batches[0]["labels"]} == {tuple(ids[:24]) for ids in encoded}
    _, few = read("translation", file, tmp_path, count=3)
    assert [len(batch["labels"]) for batch in few] == [3]
    refused("has no column 'other'", read, "translation", file, tmp_path, source_column="other")
    (tmp_path / "run.json").write_text("{")
    refused(r"run\.json is not valid JSON", read, "translation", file, tmp_path)


@pytest.mark.parametrize("case", ["causal", "masked"])
def test_running_text_is_cut_to_blocks(case, tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))
    found, batches = read(case, str(tmp_path / "text.txt"), tmp_path, block_size=16)
    assert {batch["input_ids"].shape[1] for batch in batches} == {16}
    again = read(case, str(tmp_path / "text.txt"), tmp_path, block_size=16)[1]
    assert all(torch.equal(one["labels"], other["labels"]) for one, other in zip(batches, again))
    assert 0 < held_out_loss(found.model, batches) < 20


def test_labels_are_those_of_the_model(tmp_path):
    file = write(tmp_path / "rows.csv", [["text", "label"], [TEXT, "LABEL_2"], ["a line", "LABEL_0"]])
    _, (batch,) = read("classification", file, tmp_path)
    assert sorted(batch["labels"].tolist()) == [0, 2]
    file = write(tmp_path / "rows.csv", [["text", "label"], [TEXT, "other"], ["a line", "LABEL_0"]])
    refused("label 'other' does not occur .* LABEL_0, LABEL_1, LABEL_2", read, "classification", file, tmp_path)
    refused("label_column=null: it must", read, "classification", file, tmp_path, label_column=None)
    found = loaded("classification", problem_type="multi_label_classification")
    refused("problem_type='multi.*', cannot be scored", held_out_rows, found.model, (), file, folder=tmp_path, count=1)
    file = write(tmp_path / "rows.csv", [["text", "other", "label"], [TEXT, "a line", "LABEL_2"]])
    (tmp_path / "run.json").write_text(json.dumps({"settings": {"data": {"text_pair_column": "other"}}}))
    found, (batch,) = read("classification", file, tmp_path)
    assert batch["input_ids"].tolist() == found.tokenizer([(TEXT, "a line")])["input_ids"]


def test_images_have_the_size_of_the_model(tmp_path):
    image_module = pytest.importorskip("PIL.Image")
    model = toy("image_encoder", image_size=16, patch_size=4, num_channels=3, num_labels=2)
    for label in ("LABEL_0", "LABEL_1"):
        (tmp_path / "images" / label).mkdir(parents=True)
        image_module.new("RGB", (20, 20), "red").save(tmp_path / "images" / label / "red.png")
    processor = ViTImageProcessorPil(size={"height": 16, "width": 16})
    (batch,) = held_out_rows(model, (processor,), str(tmp_path / "images"), folder=tmp_path, count=9)
    assert (batch["pixel_values"].shape, sorted(batch["labels"].tolist())) == ((2, 3, 16, 16), [0, 1])


def test_the_program_draws_figures_of_rows(folder, tmp_path):  # noqa: F811
    file = write(tmp_path / "rows.csv", [["line"], *([text] for text in TEXTS)])
    options = ["--rows", file, "--rows_set", "text_column=line", "block_size=16", "--num_rows", "3"]
    options += ["--replacement", "mean", "--figures", "ablation", "loss"]
    explore.main([str(folder), "--text", TEXT, *options, "--output_dir", str(tmp_path / "look")])
    with (tmp_path / "look/figures/ablation_decoder.csv").open() as table:
        names = [row[0] for row in csv.reader(table)]
    assert names == ["part", *(f"decoder.{layer}.{head}" for layer in (0, 1) for head in range(4))]
    with (tmp_path / "look/figures/loss_by_position.csv").open() as table:
        counts = [int(row[2]) for row in list(csv.reader(table))[1:]]
    assert (len(counts), counts[0]) == (15, 3)
    assert "its mean" in (tmp_path / "look/index.html").read_text()
