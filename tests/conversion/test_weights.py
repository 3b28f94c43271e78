"""What links two models is complete, and configs mean what they compute; `test_round_trip.py` has every link."""

from typing import Any

import pytest
import torch
from refusals import refused
from torch import nn

from vanillaformer import VanillaDecoderConfig, VanillaEncoderConfig, VanillaEncoderDecoderConfig
from vanillaformer.conversion.mapping.canonical import canonical_form, differences
from vanillaformer.conversion.mapping.weights import Link, present_links, write_tensors


def test_what_one_side_lacks_other_shapes_and_two_values_for_one_tensor_are_refused():
    refused("c = d lacks d", present_links, [Link(("a",), "b"), Link(("c",), "d")], {"c"}, {"e"})
    tied = nn.ModuleDict({name: nn.Linear(2, 3, bias=False) for name in ("first", "second")})
    tied["second"].weight = tied["first"].weight
    values = {"first.weight": torch.ones(3, 2), "second.weight": torch.zeros(3, 2)}
    refused(r"second\.weight and first\.weight are one tensor", write_tensors, tied, values)
    refused(r"first\.weight has shape \(3, 2\), but", write_tensors, tied, {"first.weight": torch.ones(2, 3)})


SIZES = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
ROPE = {"rope_type": "default", "rope_theta": 500.0}
WINDOW = {"sliding_window": 3, "layer_types": ["full_attention", "sliding_attention"]}
BY_TYPE = {"full_attention": ROPE, "sliding_attention": dict(ROPE)}
NAMES = ["q_proj", "k_proj", "v_proj", "o_proj"]
ALIBI = {"position_embedding_type": "alibi"}
ALIKE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"attention_scale": 8**-0.5}), ({}, {"final_norm": True}), ({}, {"attention_bias": NAMES}),
    ({}, {"head_dim": 8, "num_key_value_heads": 4, "intermediate_size": 128}),
    ({"attention_bias": False}, {"attention_bias": []}), ({"hidden_act": "silu"}, {"hidden_act": "swish"}),
    ({}, {"dropout": 0.1, "initialization": "xavier", "use_cache": False}), ({}, {"rotary_layers": [True]}),
    ({}, {"sliding_window": 3, "layer_types": ["full_attention"]}), ({}, {"logit_scale": 1.0}),
    (WINDOW | {"rope_parameters": ROPE}, WINDOW | {"rope_parameters": BY_TYPE}),
    ({"rope_parameters": ROPE}, {"rope_parameters": ROPE | {"partial_rotary_factor": 1.0}}),
    (ALIBI, ALIBI | {"max_position_embeddings": 9}),
]  # fmt: skip
DIFFERENT: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"attention_scale": 1.0}, "attention_scale"), ({}, {"final_norm": False}, "final_norm"),
    ({}, {"attention_bias": NAMES[:3]}, "attention_bias"),
    ({}, {"hidden_act": "gelu"}, "hidden_act"), ({}, WINDOW, "layer_types"),
    (WINDOW, WINDOW | {"sliding_window": 4}, "sliding_window"),
    ({}, {"rotary_layers": [True, False]}, "rotary_layers"),
    ({"rope_parameters": ROPE}, {"rope_parameters": ROPE | {"rope_theta": 501.0}}, "rope_parameters"),
    ({}, {"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters"),
    ({}, {"max_position_embeddings": 9}, "max_position_embeddings"),
    ({}, {"position_embedding_type": "none"}, "position_embedding_type"),
    ({}, {"tie_word_embeddings": False}, "tie_word_embeddings"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other", "name"), [*((*pair, None) for pair in ALIKE), *DIFFERENT])
def test_a_difference_is_named_and_the_same_said_in_two_ways_is_none(one, other, name):
    forms = [canonical_form(VanillaDecoderConfig(**(SIZES | fields)), "lm") for fields in (one, other)]
    assert (differences(*forms) == {}) if name is None else (name in differences(*forms))


def test_what_a_head_does_not_read_and_a_target_vocabulary_of_the_sources_size_are_no_difference():
    one, other = (VanillaEncoderConfig(**SIZES, classifier_act=act) for act in ("tanh", "relu"))
    assert differences(canonical_form(one, "lm"), canonical_form(other, "lm")) == {}
    assert "classifier_act" in differences(canonical_form(one, "sequence"), canonical_form(other, "sequence"))
    one, other = (VanillaEncoderDecoderConfig(**SIZES, vocab_size=9, decoder_vocab_size=size) for size in (None, 9))
    assert differences(canonical_form(one, "lm"), canonical_form(other, "lm")) == {}
