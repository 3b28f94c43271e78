"""Defaults of classifiers, language models and translators by their data and the time."""

from collections.abc import Iterable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vanillaformer.configuration import preset
from vanillaformer.data.tasks import TASKS
from vanillaformer.training.arguments import ModelArguments
from vanillaformer.training.auto_defaults import OPTIONS, set_defaults
from vanillaformer.training.run import parse_arguments
from vanillaformer.training.tasks import language_model, translation
from vanillaformer.training.tasks.base import Default, HardwareFacts
from vanillaformer.training.tasks.classification import TextFacts, classifier_defaults, text_facts
from vanillaformer.training.tasks.language_model import language_model_defaults
from vanillaformer.training.tasks.translation import text_size, translator_defaults

SENTENCES = TextFacts(rows=3_000, classes=2, words=20, mean_characters=110, unknown=0.04, held_out=376)
PAIRS, SIZE = 29_000, 3_600_000
NAMES = OPTIONS | {"overrides"}


def chosen(task: str, defaults: Iterable[Default], *more: str) -> tuple[dict[str, Any], Any]:
    """Return the options that are chosen, and the config that they and more changes make."""
    options = {entry.option: entry.value for entry in defaults}
    changes = ModelArguments(overrides=[*options["overrides"], *more]).config_overrides()
    return options, preset(TASKS[task].preset, **changes)


def classifier(facts: TextFacts, *algorithm: Any) -> tuple[dict[str, Any], Any]:
    return chosen("classification", classifier_defaults(facts, 1024, *algorithm))


def causal(size: float, seconds: float = 600, overlap: bool = True, **machine: bool) -> tuple[dict[str, Any], Any]:
    return chosen("causal", language_model_defaults(int(size), HardwareFacts(seconds, 2, **machine), overlap=overlap))


def translator(pairs: int, seconds: float = 600) -> tuple[dict[str, Any], Any]:
    return chosen("translation", translator_defaults(pairs, SIZE, HardwareFacts(seconds, 2)))


def test_facts_on_texts_and_defaults_that_follow_them() -> None:
    facts = text_facts(["a b c", "A d", "e " * 50, "x y"] * 100, ["a b", "new d"], rows=5_000, classes=3, held_out=2)
    assert (facts.rows, facts.classes, facts.held_out) == (5_000, 3, 2)
    assert facts.words == pytest.approx((3 + 2 + 50 + 2) / 4)
    assert (facts.mean_characters, facts.unknown) == (pytest.approx((5 + 3 + 100 + 3) / 4), 1 / 4)
    options, config = classifier(SENTENCES)
    assert (options["tokenizer_algorithm"], options["metric_for_best_model"]) == ("word", "loss")
    assert (config.max_ngram, config.hidden_size, options["max_epochs"]) == (1, 64, 5)
    names, config = classifier(SENTENCES._replace(unknown=0.6, classes=20, words=2, rows=14_000, held_out=5_000))
    assert (names["tokenizer_algorithm"], names["lowercase"]) == ("character", False)
    assert (config.max_ngram, config.hidden_size) == (4, 128)
    assert "metric_for_best_model" not in names
    reviews, config = classifier(SENTENCES._replace(rows=25_000, words=230))
    assert (reviews["strip_punctuation"], config.max_ngram) == (True, 2)


def test_every_choice_is_an_option() -> None:
    for classes, unknown, rows in product((2, 3, 11, 150), (0.0, 1.0), (10, 1_000, 1_000_000)):
        options, config = classifier(SENTENCES._replace(classes=classes, unknown=unknown, rows=rows))
        assert config.hidden_size == (64 if classes < 11 else 128)
        assert options.keys() <= NAMES
    for pairs, seconds in product((10, 100_000, 10_000_000), (10, 600, 1e6)):
        options, config = translator(pairs, seconds)
        assert config.hidden_size == 32 * config.num_attention_heads
        assert options.keys() <= NAMES
    for size, seconds in product((1e4, 1e6, 1e8), (60, 600, 36_000)):
        options, config = causal(size, seconds)
        assert config.max_position_embeddings == options["block_size"]
        assert config.hidden_size == config.num_attention_heads * config.head_dim
        assert options.keys() <= NAMES


@pytest.mark.parametrize(
    ("algorithm", "unknown", "ngram"),
    [(None, 0.0, 1), ("bpe", 0.0, 1), ("character", 0.0, 4), (None, 1.0, 4), ("bpe", 1.0, 4), ("word", 1.0, 1)],
)
def test_the_tokenizer_that_was_given_decides_what_an_ngram_is(algorithm, unknown, ngram) -> None:
    assert classifier(SENTENCES._replace(unknown=unknown), algorithm)[1].max_ngram == ngram


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
    chosen("classification", [Default("overrides", model.overrides, "")])  # and they fit each other


@pytest.mark.parametrize(
    ("make", "amounts"), [(causal, (1e4, 1e6, 3e6, 1e7, 1e9)), (translator, (1_000, PAIRS, 300_000, 2_000_000))]
)
def test_more_data_and_time_make_larger_models_with_less_dropout(make: Any, amounts: tuple[float, ...]) -> None:
    for seconds in (60, 600, 1e5):
        configs = [make(amount, seconds)[1] for amount in amounts]
        for name, sign in (("hidden_size", 1), ("num_hidden_layers", 1), ("dropout", -1)):
            values = [sign * getattr(config, name) for config in configs]
            assert values == sorted(values), name
    widths = [make(amounts[-1], hours * 3_600)[1].hidden_size for hours in (0.1, 1, 10, 100)]
    assert widths == sorted(widths)
    assert widths[0] < widths[-1]


def test_an_accelerator_makes_a_larger_model_and_every_choice_has_a_reason() -> None:
    assert causal(1e8, accelerator=True)[1].hidden_size > causal(1e8)[1].hidden_size
    reasons = {found.option: found.reason for found in language_model_defaults(1_000_000, HardwareFacts(600, 2))}
    assert reasons["overrides"] == "1.0 MB of text, 10 minutes on 2 cores; about 18 passes over the text in the time"
    assert all(reasons.values())


def test_overlapping_blocks_are_for_several_passes_and_bfloat16_reaches_the_trainer(tmp_path: Path) -> None:
    assert causal(1e6)[0]["block_stride"] == 64
    assert "block_stride" not in causal(1e7)[0]
    assert "block_stride" not in causal(1e6, overlap=False)[0]
    assert causal(1e6, bfloat16=True)[0]["bf16"] is True
    assert "bf16" not in causal(1e6)[0]
    args = parse_arguments("train-language-model", ["--output_dir", str(tmp_path)])
    set_defaults(args, [Default("bf16", True, "")])
    assert (args.training_args.bf16, args.training_args.mixed_precision) == (True, "bf16")


@pytest.mark.parametrize("task", [language_model, translation])
def test_the_vocabulary_grows_with_the_text(task) -> None:
    sizes = [task.vocabulary_size(10**power) for power in range(3, 12)]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (500, 8_000)


def test_the_size_of_pairs_counts_bytes_and_not_what_is_cut() -> None:
    source, target = ["a b c"] * 99 + ["x " * 500], ["ä " * 40] * 100
    assert text_size(source, target, 1_000) == (99 * 5 + 1_000 + 100 * 120) * 10


@pytest.mark.parametrize("decoding", ["mask_predict", "ctc"])
def test_a_way_of_decoding_gets_what_it_takes(decoding: str) -> None:
    found = translator_defaults(PAIRS, SIZE, HardwareFacts(600, 2), decoding)
    options, config = chosen("translation", found, f"decoding={decoding}")
    assert config.decoding == decoding
    assert ("label_smoothing_factor" in options) is (decoding == "mask_predict")
