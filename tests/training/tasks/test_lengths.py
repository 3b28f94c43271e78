"""Default lengths by the tokens of the tokenizer in use, and classifiers of images: defaults and baselines."""

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data.test_loading import write
from datasets import ClassLabel, Dataset, Features, Value
from transformers import AutoTokenizer

from vanillaformer.data.preprocessing.images import PatchMasking, image_processor
from vanillaformer.scripts import train_classifier, train_translation
from vanillaformer.tokenization import train as train_tokenizer
from vanillaformer.training.auto_defaults import length_defaults
from vanillaformer.training.report.baselines import BaselineData
from vanillaformer.training.tasks import images as task
from vanillaformer.training.tasks.classification import LENGTHS
from vanillaformer.training.tasks.images import image_defaults

TIME = "--max_time 1s --max_epochs 1 --use_cpu --set hidden_size=16 num_attention_heads=2 dropout=0"


def chosen(counts: list[int], given: dict[str, int] | None = None, limit: int | None = None) -> dict[str, Any]:
    found = length_defaults(LENGTHS, {"max_length": np.array(counts)}, given or {}, limit)
    return {entry.option: entry.value for entry in found}


@pytest.mark.parametrize(
    ("most", "length", "positions"), [(3, 64, 512), (80, 120, 512), (400, 600, 600), (9_000, 1_024, 1_024)]
)
def test_half_as_much_again_as_99_of_100_texts_have(most: int, length: int, positions: int) -> None:
    counts = [most - 1] * 98 + [most, 20_000]
    assert chosen(counts) == {"max_length": length, "overrides": [f"max_position_embeddings={positions}"]}


def test_what_was_given_is_the_limit() -> None:
    assert chosen([100] * 9, {"max_length": 20}) == {"overrides": ["max_position_embeddings=20"]}
    assert chosen([100] * 9, limit=70)["max_length"] == 70


def text(rng: random.Random, letters: str, words: int, longest: int) -> str:
    """Return words of a script joined as it joins them: by spaces, or by nothing."""
    space = " " if letters.isascii() else ""
    return space.join("".join(rng.choices(letters, k=rng.randint(1, longest))) for _ in range(words))


SCRIPTS = {"latin": "abcdefgh", "khmer": "កខគឃងចឆជឈញ"}


def assert_reasons_hold(folder: Path, texts: dict[str, list[str]]) -> None:
    """Check the reasons of lengths against the tokens of the texts, and that few were cut."""
    details = json.loads((folder / "run.json").read_text())["details"]
    reasons = {option: (value, reason) for option, value, reason in details["defaults"]}
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for option, column in texts.items():
        value, reason = reasons[option]
        most = int(re.fullmatch(r"99 % of the \w+ have at most (\d+) tokens", reason)[1])
        counts = np.array([len(tokenizer(each)["input_ids"]) for each in column])
        assert np.mean(counts <= most) >= 0.99
        assert np.mean(counts < most) < 0.99  # it is no more than these need
        assert value == max(64, most * 3 // 2)
    for split, stats in details["data"].items():
        cut = {name: count for name, count in stats.items() if name.endswith("cut")}
        assert all(count <= 0.01 * stats["rows"] for count in cut.values()), split


@pytest.mark.parametrize("script", list(SCRIPTS))
def test_lengths_of_a_translator_in_every_script(script: str, tmp_path: Path) -> None:
    rng = random.Random(0)
    pairs = [(text(rng, SCRIPTS[script], rng.randint(20, 40), 3), text(rng, "xyz", 3, 3)) for _ in range(120)]
    file = write(tmp_path / "pairs.csv", [dict(zip(("source", "target"), pair)) for pair in pairs])
    options = f"--train_file {file} --validation_file {file} --output_dir {tmp_path / 'run'} --bleu_tokenize none"
    train_translation.train([*TIME.split(), *options.split()])
    sources, targets = map(list, zip(*pairs))
    assert_reasons_hold(tmp_path / "run", {"max_source_length": sources, "max_target_length": targets})


def test_lengths_of_a_classifier_by_the_tokenizer_in_use(tmp_path: Path) -> None:
    rng = random.Random(0)
    texts = [text(rng, "abcd", rng.randint(15, 25), 8) for _ in range(120)]
    texts.sort(key=len)
    file = write(tmp_path / "a.csv", [{"text": each, "label": "ab"[i % 2]} for i, each in enumerate(texts)])
    train_tokenizer(["ab"], kind="encoder", vocab_size=261).save_pretrained(tmp_path / "bytes")  # one token for each
    use = f"--tokenizer_name_or_path {tmp_path / 'bytes'}"
    options = f"--train_file {file} --validation_file {file} --output_dir {tmp_path / 'run'} {use}"
    train_classifier.train([*TIME.split(), *options.split()])
    assert_reasons_hold(tmp_path / "run", {"max_length": texts})
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["max_position_embeddings"] == 512  # longer texts can be read


SIZE = 8


def chosen_for_images(rows: int, size: int) -> dict:
    return {entry.option: entry.value for entry in image_defaults(rows, size)}


def test_few_images_are_seen_more_often_and_a_shift_is_small_or_none() -> None:
    epochs = [chosen_for_images(rows, 28)["max_epochs"] for rows in (100, 1_400, 60_000)]
    assert epochs[0] == task.MOST_EPOCHS > epochs[1] > epochs[2] == task.FEWEST_EPOCHS
    assert [chosen_for_images(1_000, size).get("shift") for size in (8, 28, 32, 64)] == [None, 2, 2, 5]


def images(count: int, seed: int) -> Dataset:
    """Dark and bright images, with noise."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    pixels = rng.integers(0, 100, (count, SIZE, SIZE, 3)) + 100 * labels[:, None, None, None]
    pixels[:, 0] = 0  # equal in all images
    features = Features({"image": Value("large_binary"), "label": ClassLabel(names=["dark", "bright"])})
    cells = [image.astype(np.uint8).tobytes() for image in pixels]
    return Dataset.from_dict({"image": cells, "label": labels}, features=features)


def rows_of(data: Dataset) -> Dataset:
    return data.rename_columns({"image": "pixel_values", "label": "labels"})


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("baseline", [task.NEAREST_MEAN, task.PIXELS])
def test_baselines_tell_dark_from_bright(baseline):
    score = baseline.fit(BaselineData(images(40, 0)))
    assert score(rows_of(images(20, 1)))["accuracy"] == 1
    assert score(images(20, 1))["accuracy"] == 1, "raw rows, of a finished run"
    wrong = images(20, 1).map(lambda row: {"label": 1 - row["label"]})
    assert score(rows_of(wrong))["accuracy"] == 0


def test_the_mean_image_is_scored_on_hidden_pixels_only():
    data = images(40, 0)
    collator = PatchMasking(image_processor(SIZE, [0.5] * 3, [0.25] * 3), patch_size=4, ratio=0.5)
    held_out = images(6, 1)
    loss = task.mean_image(BaselineData(data, collator=collator))(rows_of(held_out))["loss"]
    pixels = np.stack([np.frombuffer(cell, np.uint8) for cell in data["image"]]).reshape(-1, SIZE, SIZE, 3)
    mean = (pixels / 255).mean(axis=0)
    with collator.evaluation():
        masks = collator(rows_of(held_out).to_list())["bool_masked_pos"]
    found = []
    for cell, mask in zip(held_out["image"], masks):
        image = np.frombuffer(cell, np.uint8).reshape(SIZE, SIZE, 3) / 255
        hidden = np.kron(mask.numpy().reshape(2, 2), np.ones((4, 4))).astype(bool)
        found.append(np.abs(image - mean)[hidden].mean() / 0.25)
    assert loss == pytest.approx(np.mean(found), abs=0.01)
