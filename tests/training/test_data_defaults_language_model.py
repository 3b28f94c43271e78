"""Defaults of a causal language model by its text and the time."""

import json
from pathlib import Path
from typing import Any

import pytest

from vanillaformer.configuration import preset
from vanillaformer.training.arguments import ModelArguments
from vanillaformer.training.data_defaults_language_model import (
    chosen_defaults,
    language_model_defaults,
    text_size,
    vocabulary_size,
)
from vanillaformer.training.programs import parse_arguments
from vanillaformer.training.tasks import TASKS

MACHINE: dict[str, Any] = {"cores": 2, "accelerator": False, "bfloat16": False, "block": 256, "stream": True}


def values(size: float, seconds: float = 600, **machine: Any) -> dict[str, Any]:
    return {found.option: found.value for found in language_model_defaults(int(size), seconds, **MACHINE | machine)}


def config(options: dict[str, Any]) -> Any:
    return preset(TASKS["causal"].preset, **ModelArguments(overrides=options["overrides"]).config_overrides())


@pytest.mark.parametrize(
    ("size", "width", "dropout", "vocabulary"),
    [
        (1e4, 192, 0.2, 500),
        (1e6, 192, 0.2, 2_000),
        (3e6, 192, 0.1, 4_300),
        (1e7, 192, 0.0, 8_000),
        (1e9, 192, 0, 8_000),
    ],
)
def test_ten_minutes_of_two_cores(size: float, width: int, dropout: float, vocabulary: int) -> None:
    options = values(size)
    assert (config(options).hidden_size, config(options).dropout) == (width, dropout)
    assert options["tokenizer_vocab_size"] == vocabulary


def test_more_time_makes_a_larger_model_unless_the_text_is_small() -> None:
    assert [config(values(1e7, hours * 3_600)).hidden_size for hours in (0.5, 1, 3, 10)] == [192, 256, 384, 384]
    assert config(values(1e5, 36_000)).hidden_size == 192
    assert config(values(1e8, accelerator=True)).hidden_size == 512


def test_every_choice_makes_a_model_with_room_for_a_block() -> None:
    for size in (1e4, 1e6, 1e8):
        for seconds in (60, 600, 36_000):
            options = values(size, seconds)
            made = config(options)
            assert made.max_position_embeddings == options["block_size"]
            assert made.hidden_size == made.num_attention_heads * made.head_dim


def test_overlapping_blocks_are_for_several_passes_over_a_stream() -> None:
    assert values(1e6)["block_stride"] == 64
    assert "block_stride" not in values(1e7)
    assert "block_stride" not in values(1e6, stream=False)
    assert values(1e6, bfloat16=True)["bf16"] is True
    assert "bf16" not in values(1e6)


def test_every_choice_has_a_reason() -> None:
    reasons = {found.option: found.reason for found in language_model_defaults(1_000_000, 600, **MACHINE)}
    assert reasons["overrides"] == "1.0 MB of text, 10 minutes on 2 cores; about 18 passes over the text in the time"
    assert all(reasons.values())


def test_the_vocabulary_grows_with_the_text() -> None:
    sizes = [vocabulary_size(10**power) for power in range(3, 12)]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (500, 8_000)
    assert all(isinstance(size, int) for size in sizes)


def chosen(folder: Path, *options: str) -> dict[str, Any]:
    args = parse_arguments("train-language-model", ["--output_dir", str(folder), *options])
    return {found.option: found.value for found in chosen_defaults(args)}


def test_what_was_given_is_kept(tmp_path: Path) -> None:
    everything = chosen(tmp_path)
    assert {"tokenizer_vocab_size", "overrides", "block_size", "optim", "learning_rate"} <= everything.keys()
    assert everything.keys() - chosen(tmp_path, "--learning_rate", "1e-3").keys() == {
        "optim",
        "learning_rate",
        "weight_decay",
    }
    assert "tokenizer_vocab_size" not in chosen(tmp_path, "--tokenizer_algorithm", "character")
    shorter = chosen(tmp_path, "--block_size", "64", "--set", "dropout=0.3")
    assert "block_size" not in shorter
    assert config(shorter).max_position_embeddings == 64
    wider = chosen(tmp_path, "--set", "hidden_size=256")
    wider["overrides"].append("hidden_size=256")
    assert (config(wider).head_dim, config(wider).norm) == (64, "rms_norm")


@pytest.mark.parametrize(
    "options", [["--preset", "gpt-tiny"], ["--max_steps", "5"], ["--num_train_epochs", "1"], ["--objective", "masked"]]
)
def test_a_model_or_a_length_that_was_given_has_no_such_defaults(options: list[str], tmp_path: Path) -> None:
    assert chosen(tmp_path, *options) == {}


def test_a_run_keeps_its_defaults(tmp_path: Path) -> None:
    defaults = [["optim", "muon", "because"], ["overrides", ["hidden_size=64"], "because"]]
    (tmp_path / "run.json").write_text(json.dumps({"details": {"defaults": defaults}}))
    assert chosen(tmp_path) == {"optim": "muon", "overrides": ["hidden_size=64"]}
    assert len(chosen(tmp_path, "--overwrite_output_dir")) > 2
    (tmp_path / "run.json").write_text(json.dumps({"details": {}}))
    assert chosen(tmp_path) == {}


def test_the_text_is_measured_by_its_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 1_000)
    (tmp_path / "b.txt").write_text("x" * 1_000)
    files = ["--train_file", str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    held_out = ["--validation_fraction", "0.1", "--test_fraction", "0.2"]
    for options, size in ((held_out, 1_400), (["--validation_file", str(tmp_path / "a.txt")], 2_000)):
        assert text_size(parse_arguments("train-language-model", [*files, *options]).data_args) == size


def test_options_of_a_user_come_after_the_defaults(tmp_path: Path) -> None:
    defaults = [("overrides", ["hidden_size=64", "dropout=0.1"], "because"), ("learning_rate", 0.5, "because")]
    command = ["--output_dir", str(tmp_path), "--set", "dropout=0.3"]
    args = parse_arguments("train-language-model", command, None, defaults)
    assert args.model_args.config_overrides() == {"hidden_size": 64, "dropout": 0.3}
    assert args.training_args.learning_rate == 0.5
    assert "learning_rate" not in args.training_args.given
