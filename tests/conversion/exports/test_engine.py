"""An engine in the place of a model: padding, defaults, and what it refuses."""

import numpy as np
import pytest
import torch
from modeling.toys import toy_config
from refusals import refused
from transformers import GenerationConfig

from vanillaformer.conversion.exports import Engine, EngineModel
from vanillaformer.conversion.exports.engine import Search


class Parrot(Engine):
    """Says how often it was asked, as often as it may, and remembers how."""

    def __init__(self, kind: str = "decoder", **settings):
        super().__init__("Parrot", toy_config(kind), GenerationConfig(**settings))
        self.asked: list[tuple] = []

    def generate(self, prompts, *, max_new_tokens, **options):
        self.asked.append((prompts, max_new_tokens, options))
        return [[len(self.asked) + 8] * min(max_new_tokens, 1 + number) for number in range(len(prompts))]

    def classify(self, rows, token_type_ids=None):
        self.asked.append((rows, token_type_ids))
        return np.array([[float(len(row)), 0.0] for row in rows], dtype=np.float32)


IDS = torch.tensor([[0, 0, 5, 6], [7, 8, 9, 4]])
MASK = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])


def test_prompts_go_in_without_padding_and_come_out_with_it():
    engine = Parrot()
    out = EngineModel(engine).generate(input_ids=IDS, attention_mask=MASK, max_new_tokens=5)
    assert engine.asked[0][0] == [[5, 6], [7, 8, 9, 4]]
    assert out.tolist() == [[5, 6, 9, 0, 0, 0], [7, 8, 9, 4, 9, 9]]


@pytest.mark.parametrize(("settings", "given", "tokens", "options"), [
    ({}, {}, 20, {}), ({"max_length": 9}, {}, 5, {}), ({"max_length": 3}, {}, 1, {}),
    ({"max_new_tokens": 7, "num_beams": 3, "length_penalty": 0.5}, {}, 7, {"num_beams": 3, "length_penalty": 0.5}),
    ({"max_new_tokens": 7, "num_beams": 3}, {"max_new_tokens": 2, "num_beams": None}, 2, {"num_beams": 3}),
    ({"max_new_tokens": 7}, {"max_length": 9}, 5, {}),
    ({"max_new_tokens": 7, "bad_words_ids": [[0], [5]]}, {}, 7, {"suppress_tokens": [0, 5]}),
    ({"max_new_tokens": 7, "forced_eos_token_id": 3, "eos_token_id": 3}, {}, 6, {}),
    ({"top_k": 9}, {"top_k": 4, "do_sample": True}, 20, {"top_k": 4, "do_sample": True}),
])  # fmt: skip
def test_defaults_are_those_of_the_generation_config(settings, given, tokens, options):
    engine = Parrot(**settings)
    EngineModel(engine).generate(IDS, MASK, **given)
    (_, new_tokens, asked) = engine.asked[0]
    assert new_tokens == tokens
    assert {name: asked[name] for name in options} == options


@pytest.mark.parametrize(("name", "value"), {
    "repetition_penalty": 1.5, "encoder_no_repeat_ngram_size": 2, "encoder_repetition_penalty": 1.2,
    "no_repeat_ngram_size": 3, "min_length": 4, "sequence_bias": [[[5], -9.0]],
    "exponential_decay_length_penalty": (3, 1.1), "stop_strings": ["x"], "num_beam_groups": 2,
    "bad_words_ids": [[5, 6]], "forced_bos_token_id": 4, "return_dict_in_generate": True, "max_time": 1.0,
}.items())  # fmt: skip
def test_what_an_engine_does_not_have_is_refused(name, value):
    given, message = {name: value}, f"{name}=.*: an exported model has only num_beams,"
    refused(f"generation_config.json: {message}", EngineModel(Parrot(**given)).generate, IDS, MASK)
    refused(f"^{message}", EngineModel(Parrot()).generate, IDS, MASK, **given)


@pytest.mark.parametrize("name", ["typical_p", "epsilon_cutoff", "eta_cutoff", "min_p"])
def test_settings_of_sampling_are_refused_only_when_sampling(name):
    engine = Parrot(**{name: 0.01})
    EngineModel(engine).generate(IDS, MASK)
    assert name not in engine.asked[0][2]
    refused(rf"generation_config.json: {name}=0.01", EngineModel(engine).generate, IDS, MASK, do_sample=True)


def test_an_unknown_setting_and_another_end_token_are_refused():
    refused("tempurature=2.0: an exported model has only", EngineModel(Parrot()).generate, IDS, MASK, tempurature=2.0)
    EngineModel(Parrot(eos_token_id=3)).generate(IDS, MASK, eos_token_id=3, use_cache=True)
    refused("eos_token_id=4", EngineModel(Parrot(eos_token_id=3)).generate, IDS, MASK, eos_token_id=4)


def test_settings_that_ask_for_nothing_are_not_refused():
    """Those that transformers itself writes out, and its defaults."""
    nothing = {"repetition_penalty": 1.0, "suppress_tokens": [], "min_length": 0, "num_assistant_tokens": 20}
    engine = Parrot(**nothing, use_cache=True, early_stopping=True)
    EngineModel(engine).generate(IDS, MASK, **nothing)
    assert engine.asked[0][2]["early_stopping"] is True
    assert not nothing.keys() & engine.asked[0][2].keys()


def test_the_seed_is_given_once_and_sampling_is_among_as_many_tokens_as_in_transformers():
    engine = Parrot()
    model = EngineModel(engine, seed=4)
    for _ in range(2):
        model.generate(IDS, MASK)
    assert [options["seed"] for _, _, options in engine.asked] == [4, None]
    assert Search(max_new_tokens=1).top_k == GenerationConfig._get_default_generation_params()["top_k"] == 50


def test_logits():
    engine = Parrot("encoder")
    logits = EngineModel(engine)(input_ids=IDS, attention_mask=MASK, token_type_ids=torch.ones_like(IDS)).logits
    assert logits.tolist() == [[2.0, 0.0], [4.0, 0.0]]
    assert engine.asked == [([[5, 6], [7, 8, 9, 4]], [[1, 1], [1, 1, 1, 1]])]


@pytest.mark.parametrize(("settings", "message"), [
    ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
    ({"num_beams": 0}, "num_beams must be at least 1, got 0"),
    ({"num_beams": 2, "do_sample": True}, "do_sample=True draws one token at a time: it needs num_beams=1, got 2"),
    ({"num_beams": 2, "early_stopping": "soon"}, "early_stopping must be False, True or 'never', got 'soon'"),
    ({"do_sample": True, "temperature": 0.0}, "temperature must be greater than 0, got 0.0"),
])  # fmt: skip
def test_searches_that_make_no_sense(settings, message):
    refused(message, Search, **{"max_new_tokens": 5} | settings)


@pytest.mark.parametrize(("own", "expected"), [(None, [3]), (7, [7]), ([7, 8], [7, 8])])
def test_the_generation_config_decides_the_end_tokens(own, expected):
    assert Parrot(eos_token_id=own).end_tokens() == expected
