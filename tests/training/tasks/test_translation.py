"""Defaults of a translator by its pairs and the time."""

from typing import Any

import pytest

from vanillaformer.configuration import preset
from vanillaformer.data.tasks import TASKS
from vanillaformer.training.arguments import ModelArguments
from vanillaformer.training.auto_defaults import OPTIONS
from vanillaformer.training.tasks.base import HardwareFacts
from vanillaformer.training.tasks.translation import PairFacts, pair_facts, translator_defaults

FACTS = PairFacts(pairs=29_000, size=3_600_000)


def values(facts: PairFacts, seconds: float = 600) -> dict[str, Any]:
    return {found.option: found.value for found in translator_defaults(facts, HardwareFacts(seconds, 2))}


def config(options: dict[str, Any]) -> Any:
    changes = ModelArguments(overrides=options["overrides"]).config_overrides()
    return preset(TASKS["translation"].preset, **changes)


def test_size_and_dropout_follow_pairs_and_time() -> None:
    source, target = ["a b c"] * 99 + ["x " * 500], ["ä " * 40] * 100
    facts = pair_facts(source, target, pairs=1_000)
    assert (facts.pairs, facts.size) == (1_000, (99 * 5 + 1_000 + 100 * 120) * 10)
    small, large = values(FACTS), values(FACTS._replace(pairs=2_000_000), seconds=100_000)
    assert (config(small).hidden_size, config(small).dropout, small["tokenizer_vocab_size"]) == (128, 0.3, 5_700)
    assert (config(large).hidden_size, config(large).encoder_layers, config(large).dropout) == (512, 6, 0.1)
    assert config(values(FACTS, seconds=100_000)).hidden_size == 128  # few pairs


@pytest.mark.parametrize("pairs", [10, 100_000, 10_000_000])
@pytest.mark.parametrize("seconds", [10, 600, 1e6])
def test_every_choice_is_an_option(pairs: int, seconds: float) -> None:
    options = values(FACTS._replace(pairs=pairs), seconds)
    assert config(options).hidden_size == 32 * config(options).num_attention_heads
    names = {name for group in OPTIONS.values() for name in group} | {"overrides"}
    assert options.keys() <= names


@pytest.mark.parametrize("decoding", ["mask_predict", "ctc"])
def test_a_way_of_decoding_gets_what_it_takes(decoding: str) -> None:
    found = {entry.option: entry.value for entry in translator_defaults(FACTS, HardwareFacts(600, 2), decoding)}
    changes = ModelArguments(overrides=[*found["overrides"], f"decoding={decoding}"]).config_overrides()
    assert preset(TASKS["translation"].preset, **changes).decoding == decoding
    assert ("label_smoothing_factor" in found) is (decoding == "mask_predict")
