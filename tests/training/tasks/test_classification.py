"""Defaults of a classifier by its texts, its classes and the time."""

from types import SimpleNamespace
from typing import Any

import pytest

from vanillaformer.configuration import preset
from vanillaformer.data.tasks import TASKS
from vanillaformer.training.arguments import ModelArguments
from vanillaformer.training.auto_defaults import OPTIONS, set_defaults
from vanillaformer.training.tasks.base import Default
from vanillaformer.training.tasks.classification import TextFacts, classifier_defaults, text_facts

SENTENCES = TextFacts(rows=3_000, classes=2, words=20, mean_characters=110, unknown=0.04, held_out=376)


def values(facts: TextFacts) -> dict[str, Any]:
    return {found.option: found.value for found in classifier_defaults(facts, 1024)}


def config(options: dict[str, Any]) -> Any:
    return preset(TASKS["classification"].preset, **ModelArguments(overrides=options["overrides"]).config_overrides())


def test_facts_on_texts_and_defaults_that_follow_them() -> None:
    train = ["a b c", "A d", "e " * 50, "x y"] * 100
    facts = text_facts(train, ["a b", "new d"], rows=5_000, classes=3, held_out=2)
    assert (facts.rows, facts.classes, facts.held_out) == (5_000, 3, 2)
    assert facts.words == pytest.approx((3 + 2 + 50 + 2) / 4)
    assert (facts.mean_characters, facts.unknown) == (pytest.approx((5 + 3 + 100 + 3) / 4), 1 / 4)
    options = values(SENTENCES)
    assert (options["tokenizer_algorithm"], options["metric_for_best_model"]) == ("word", "loss")
    assert (config(options).max_ngram, config(options).hidden_size, options["max_epochs"]) == (1, 64, 5)
    names = values(SENTENCES._replace(unknown=0.6, classes=20, words=2, rows=14_000, held_out=5_000))
    assert (names["tokenizer_algorithm"], names["lowercase"]) == ("character", False)
    assert (config(names).max_ngram, config(names).hidden_size) == (4, 128)
    assert "metric_for_best_model" not in names
    reviews = values(SENTENCES._replace(rows=25_000, words=230))
    assert reviews["strip_punctuation"] is True
    assert config(reviews).max_ngram == 2


@pytest.mark.parametrize("classes", [2, 3, 11, 150])
@pytest.mark.parametrize("unknown", [0.0, 1.0])
@pytest.mark.parametrize("rows", [10, 1_000, 1_000_000])
def test_every_choice_is_an_option(classes, unknown, rows) -> None:
    options = values(SENTENCES._replace(classes=classes, unknown=unknown, rows=rows))
    assert config(options).hidden_size == 64 if classes < 11 else 128
    names = {name for group in OPTIONS.values() for name in group} | {"overrides"}
    assert options.keys() <= names


@pytest.mark.parametrize(
    ("algorithm", "unknown", "ngram"),
    [(None, 0.0, 1), ("bpe", 0.0, 1), ("character", 0.0, 4), (None, 1.0, 4), ("bpe", 1.0, 4), ("word", 1.0, 1)],
)
def test_the_tokenizer_that_was_given_decides_what_an_ngram_is(algorithm, unknown, ngram) -> None:
    found = classifier_defaults(SENTENCES._replace(unknown=unknown), 1024, algorithm)
    assert config({entry.option: entry.value for entry in found}).max_ngram == ngram


class Group(SimpleNamespace):
    """Parsed arguments."""

    def config_overrides(self) -> dict[str, str]:
        return dict(entry.split("=") for entry in self.overrides)


def test_what_was_given_is_not_chosen() -> None:
    model = Group(given={"overrides"}, overrides=["hidden_size=32", "dropout=0.5"])
    training = Group(given={"learning_rate"}, learning_rate=1.0, optim="adamw_torch", weight_decay=0.0, warmup_steps=0)
    chosen = [
        Default("overrides", ["hidden_size=64", "num_attention_heads=2", "dropout=0.1", "max_ngram=2"], ""),
        Default("learning_rate", 2.0, ""),
        Default("optim", "muon", "its learning rate is another one"),
        Default("warmup_steps", 5, ""),
        Default("token_dropout", 0.3, "no group has it"),
    ]
    applied = set_defaults([model, training], chosen)
    assert model.overrides == ["num_attention_heads=1", "max_ngram=2", "hidden_size=32", "dropout=0.5"]
    assert (training.learning_rate, training.optim, training.warmup_steps) == (1.0, "adamw_torch", 5)
    assert [entry.option for entry in applied] == ["overrides", "warmup_steps"]


@pytest.mark.parametrize(("given", "expected"), [
    ({"num_hidden_layers": 2}, {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 256}),
    ({"hidden_size": 96}, {"num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 384}),
    ({"hidden_size": 80}, {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 320}),
    ({"num_attention_heads": 3}, {"num_hidden_layers": 1, "hidden_size": 66, "intermediate_size": 256}),
    ({"intermediate_size": 100}, {"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 2}),
])  # fmt: skip
def test_sizes_that_were_not_given_follow_the_data(given: dict[str, int], expected: dict[str, int]) -> None:
    model = Group(given={"overrides"}, overrides=[f"{name}={value}" for name, value in given.items()])
    sizes = ["hidden_size=64", "num_hidden_layers=1", "num_attention_heads=2", "intermediate_size=256"]
    set_defaults([model], [Default("overrides", sizes, "")])
    assert model.config_overrides() == {name: str(value) for name, value in (given | expected).items()}
    preset(TASKS["classification"].preset, **ModelArguments(overrides=model.overrides).config_overrides())
