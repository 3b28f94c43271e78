"""Default lengths by the tokens of the tokenizer in use: of rows by hand, and of runs on texts of all kinds."""

import csv
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from vanillaformer.scripts import train_classifier, train_translation
from vanillaformer.tokenization import train as train_tokenizer
from vanillaformer.training.auto_defaults import length_defaults
from vanillaformer.training.tasks.classification import LENGTHS

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


SCRIPTS = {"latin": "abcdefgh", "chinese": "的一是不了人我在有他这中大来上", "khmer": "កខគឃងចឆជឈញ"}


def write(path: Path, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return str(path)


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_text())["details"]


def assert_reasons_hold(folder: Path, texts: dict[str, list[str]]) -> None:
    """Check the reasons of lengths against the tokens of the texts, and that few were cut."""
    details = record(folder)
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
    file = write(tmp_path / "pairs.csv", ("source", "target"), pairs)
    options = f"--train_file {file} --validation_file {file} --output_dir {tmp_path / 'run'} --bleu_tokenize none"
    train_translation.train([*TIME.split(), *options.split()])
    sources, targets = map(list, zip(*pairs))
    assert_reasons_hold(tmp_path / "run", {"max_source_length": sources, "max_target_length": targets})


@pytest.mark.parametrize("tokenizer", ["character", "given"])
def test_lengths_of_a_classifier_by_the_tokenizer_in_use(tokenizer: str, tmp_path: Path) -> None:
    rng = random.Random(0)
    texts = [text(rng, "abcd", rng.randint(15, 25), 8) for _ in range(120)]
    texts.sort(key=len)
    file = write(tmp_path / "a.csv", ("text", "label"), [(each, "ab"[i % 2]) for i, each in enumerate(texts)])
    use = "--tokenizer_algorithm character"
    if tokenizer == "given":  # one token for each byte
        train_tokenizer(["ab"], kind="encoder", vocab_size=261).save_pretrained(tmp_path / "bytes")
        use = f"--tokenizer_name_or_path {tmp_path / 'bytes'}"
    options = f"--train_file {file} --validation_file {file} --output_dir {tmp_path / 'run'} {use}"
    train_classifier.train([*TIME.split(), *options.split()])
    assert_reasons_hold(tmp_path / "run", {"max_length": texts})
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["max_position_embeddings"] == 512  # longer texts can be read
