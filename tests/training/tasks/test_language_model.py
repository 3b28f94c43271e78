"""Defaults of a causal language model by its text and the time."""

from pathlib import Path
from typing import Any

import pytest

from vanillaformer.configuration import preset
from vanillaformer.data.tasks import TASKS
from vanillaformer.training.arguments import ModelArguments
from vanillaformer.training.auto_defaults import set_defaults
from vanillaformer.training.run import parse_arguments
from vanillaformer.training.tasks import translation
from vanillaformer.training.tasks.base import Default, HardwareFacts
from vanillaformer.training.tasks.language_model import language_model_defaults, vocabulary_size


def values(size: float, seconds: float = 600, overlap: bool = True, **machine: bool) -> dict[str, Any]:
    found = language_model_defaults(int(size), HardwareFacts(seconds, 2, **machine), overlap=overlap)
    return {entry.option: entry.value for entry in found}


def config(options: dict[str, Any]) -> Any:
    return preset(TASKS["causal"].preset, **ModelArguments(overrides=options["overrides"]).config_overrides())


@pytest.mark.parametrize(("size", "width", "dropout", "vocabulary"), [
    (1e4, 192, 0.2, 500), (1e6, 192, 0.2, 2_000), (3e6, 192, 0.1, 4_300), (1e7, 192, 0.0, 8_000), (1e9, 192, 0, 8_000),
])  # fmt: skip
def test_ten_minutes_of_two_cores(size: float, width: int, dropout: float, vocabulary: int) -> None:
    options = values(size)
    assert (config(options).hidden_size, config(options).dropout) == (width, dropout)
    assert options["tokenizer_vocab_size"] == vocabulary


def test_more_time_makes_a_larger_model_and_every_choice_has_a_reason() -> None:
    assert [config(values(1e7, hours * 3_600)).hidden_size for hours in (0.5, 1, 3, 10)] == [192, 256, 384, 384]
    assert config(values(1e5, 36_000)).hidden_size == 192
    assert config(values(1e8, accelerator=True)).hidden_size == 512
    reasons = {found.option: found.reason for found in language_model_defaults(1_000_000, HardwareFacts(600, 2))}
    assert reasons["overrides"] == "1.0 MB of text, 10 minutes on 2 cores; about 18 passes over the text in the time"
    assert all(reasons.values())


@pytest.mark.parametrize("size", [1e4, 1e6, 1e8])
def test_every_choice_makes_a_model_with_room_for_a_block(size: float) -> None:
    for seconds in (60, 600, 36_000):
        options = values(size, seconds)
        made = config(options)
        assert made.max_position_embeddings == options["block_size"]
        assert made.hidden_size == made.num_attention_heads * made.head_dim


def test_overlapping_blocks_are_for_several_passes_and_bfloat16_reaches_the_trainer(tmp_path: Path) -> None:
    assert values(1e6)["block_stride"] == 64
    assert "block_stride" not in values(1e7)
    assert "block_stride" not in values(1e6, overlap=False)
    assert values(1e6, bfloat16=True)["bf16"] is True
    assert "bf16" not in values(1e6)
    args = parse_arguments("train-language-model", ["--output_dir", str(tmp_path)])
    set_defaults(args, [Default("bf16", True, "")])
    assert (args.training_args.bf16, args.training_args.mixed_precision) == (True, "bf16")


@pytest.mark.parametrize("vocabulary_size", [vocabulary_size, translation.vocabulary_size])
def test_the_vocabulary_grows_with_the_text(vocabulary_size) -> None:
    sizes = [vocabulary_size(10**power) for power in range(3, 12)]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (500, 8_000)
