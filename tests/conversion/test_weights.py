"""Kinds of correspondence are inverses and linear, tables link two models, and configs mean what they compute."""

from typing import Any

import pytest
import torch
from torch import nn

from vanillaformer import VanillaDecoderConfig, VanillaEncoderConfig, VanillaEncoderDecoderConfig
from vanillaformer.conversion.mapping.canonical import canonical_form, differences
from vanillaformer.conversion.mapping.tensors import (
    SAME,
    BufferRow,
    HeadRow,
    HeadRows,
    Rows,
    Same,
    Transposed,
    TransposedRows,
)
from vanillaformer.conversion.mapping.weights import (
    Link,
    expand_table,
    present_links,
    tensors_of,
    to_native_values,
    to_our_values,
    uncovered,
    write_tensors,
)

CONFIG = VanillaDecoderConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, vocab_size=5)
KINDS = {
    "same": (SAME, (6, 4)),
    "transposed": (Transposed(), (6, 4)),
    "transposed-bias": (Transposed(), (6,)),
    "rows": (Rows(2), (6, 4)),
    "rows-bias": (Rows(3), (6,)),
    "transposed-rows": (TransposedRows(3), (4, 6)),
    "transposed-rows-bias": (TransposedRows(3), (6,)),
    "head-rows": (HeadRows(), (24, 8)),
    "head-rows-bias": (HeadRows(), (24,)),
    "head-row": (HeadRow("num_attention_heads", 1), (4,)),
    "buffer-row": (BufferRow(), (1, 6)),
}


@pytest.mark.parametrize(("kind", "shape"), KINDS.values(), ids=KINDS)
def test_a_kind_is_inverted_and_linear(kind: Same, shape: tuple[int, ...]):
    one, other = torch.randn(shape), torch.randn(shape)
    assert torch.equal(kind.to_native(kind.to_ours(one, CONFIG), CONFIG), one)
    parts = zip(kind.to_ours(one, CONFIG), kind.to_ours(other, CONFIG), kind.to_ours(one + other, CONFIG))
    for first, second, both in parts:
        assert torch.equal(first + second, both)


def test_heads_are_taken_apart_one_by_one():
    rows = torch.arange(24.0)  # heads 0 and 1, each with 4 rows of queries, keys and values
    query, key, value = HeadRows().to_ours(rows, CONFIG)
    assert query.tolist() == [0, 1, 2, 3, 12, 13, 14, 15]
    assert key.tolist() == [4, 5, 6, 7, 16, 17, 18, 19]
    assert value.tolist() == [8, 9, 10, 11, 20, 21, 22, 23]


def test_rows_of_heads_are_put_together_again():
    links = expand_table({"norm.weight": ("norms.{head}.weight", HeadRow("num_attention_heads"))}, config=CONFIG)
    assert [link.native for link in links] == ["norms.0.weight", "norms.1.weight"]
    natives = {"norms.0.weight": torch.tensor([1.0, 2]), "norms.1.weight": torch.tensor([3.0, 4])}
    ours = to_our_values(links, natives, CONFIG, {"norm.weight"})
    assert ours["norm.weight"].tolist() == [[1, 2], [3, 4]]
    back = to_native_values(links, ours, CONFIG)
    assert {name: tensor.tolist() for name, tensor in back.items()} == {
        "norms.0.weight": [1, 2],
        "norms.1.weight": [3, 4],
    }


def test_a_table_is_written_out_for_layers_weights_and_biases():
    links = expand_table({"a.{layer}": ("b.{layer}", Transposed()), "head.bias": "out"}, 2, "model.", "stack.")
    assert [(link.ours, link.native) for link in links] == [
        (("model.a.0.weight",), "stack.b.0.weight"),
        (("model.a.0.bias",), "stack.b.0.bias"),
        (("model.a.1.weight",), "stack.b.1.weight"),
        (("model.a.1.bias",), "stack.b.1.bias"),
        (("model.head.bias",), "stack.out"),
    ]


def test_what_neither_side_has_is_left_out_and_what_one_side_has_is_named():
    links = [Link(("a",), "b"), Link(("c", "d"), "e", Rows(2))]
    assert present_links(links, {"a"}, {"b"}) == links[:1]
    with pytest.raises(ValueError, match=r"c \+ d = e lacks d"):
        present_links(links, {"a", "c"}, {"b", "e"})
    with pytest.raises(ValueError, match="lacks b"):
        present_links(links, {"a"}, set())


def test_a_buffer_of_zeros_may_be_without_a_counterpart():
    link = Link(("lm_head.bias",), "final_logits_bias", BufferRow())
    assert present_links([link], set(), {"final_logits_bias"}) == [link]
    assert to_our_values([link], {"final_logits_bias": torch.zeros(1, 3)}, CONFIG, set()) == {}
    assert to_native_values([link], {}, CONFIG) == {}


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 3, bias=False)
        self.second = nn.Linear(2, 3, bias=False)
        self.second.weight = self.first.weight
        self.other = nn.Linear(2, 3)
        self.made = nn.Buffer(torch.zeros(1), persistent=False)


def test_what_is_tied_to_a_covered_tensor_is_covered():
    assert list(tensors_of(Tied())) == ["first.weight", "second.weight", "other.weight", "other.bias"]
    assert uncovered(Tied(), ["second.weight", "other.bias"]) == ["other.weight"]


def test_writing_copies_and_keeps_ties_and_dtype():
    model, value = Tied().bfloat16(), torch.ones(3, 2)
    write_tensors(model, {"first.weight": value})
    assert model.second.weight is model.first.weight
    assert model.first.weight.dtype == torch.bfloat16
    value.zero_()
    assert torch.equal(model.second.weight, torch.ones(3, 2, dtype=torch.bfloat16))


def test_writing_refuses_another_shape_and_two_values_for_one_tensor():
    with pytest.raises(ValueError, match=r"other\.weight has shape \(3, 2\), but its value has \(2, 3\)"):
        write_tensors(Tied(), {"other.weight": torch.ones(2, 3)})
    with pytest.raises(ValueError, match=r"second\.weight and first\.weight are one tensor"):
        write_tensors(Tied(), {"first.weight": torch.ones(3, 2), "second.weight": torch.zeros(3, 2)})


# --------------------------------------------------------------------------------------------------- what configs mean
SIZES = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
ROPE = {"rope_type": "default", "rope_theta": 500.0}
WINDOW = {"sliding_window": 3, "layer_types": ["full_attention", "sliding_attention"]}
BY_TYPE = {"full_attention": ROPE, "sliding_attention": dict(ROPE)}
NAMES = ["q_proj", "k_proj", "v_proj", "o_proj"]

ALIKE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"attention_scale": 8**-0.5}),
    ({}, {"head_dim": 8, "num_key_value_heads": 4, "intermediate_size": 128}),
    ({}, {"final_norm": True}),
    ({}, {"attention_bias": NAMES}),
    ({"attention_bias": False}, {"attention_bias": []}),
    ({"hidden_act": "silu"}, {"hidden_act": "swish"}),
    ({}, {"dropout": 0.1, "initialization": "xavier", "use_cache": False}),
    ({}, {"sliding_window": 3, "layer_types": ["full_attention"]}),
    ({}, {"rotary_layers": [True]}),
    ({}, {"logit_scale": 1.0}),
    (WINDOW | {"rope_parameters": ROPE}, WINDOW | {"rope_parameters": BY_TYPE}),
    ({"rope_parameters": ROPE}, {"rope_parameters": ROPE | {"partial_rotary_factor": 1.0}}),
    ({"position_embedding_type": "alibi"}, {"position_embedding_type": "alibi", "max_position_embeddings": 9}),
]
DIFFERENT: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"attention_scale": 1.0}, "attention_scale"),
    ({}, {"final_norm": False}, "final_norm"),
    ({}, {"attention_bias": NAMES[:3]}, "attention_bias"),
    ({}, {"hidden_act": "gelu"}, "hidden_act"),
    ({}, WINDOW, "layer_types"),
    (WINDOW, WINDOW | {"sliding_window": 4}, "sliding_window"),
    ({}, {"rotary_layers": [True, False]}, "rotary_layers"),
    ({"rope_parameters": ROPE}, {"rope_parameters": ROPE | {"rope_theta": 501.0}}, "rope_parameters"),
    ({}, {"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters"),
    ({}, {"max_position_embeddings": 9}, "max_position_embeddings"),
    ({}, {"position_embedding_type": "none"}, "position_embedding_type"),
    ({}, {"tie_word_embeddings": False}, "tie_word_embeddings"),
]


@pytest.mark.parametrize(("one", "other"), ALIKE, ids=range(len(ALIKE)))
def test_the_same_said_in_two_ways(one, other):
    forms = [canonical_form(VanillaDecoderConfig(**(SIZES | fields)), "lm") for fields in (one, other)]
    assert differences(*forms) == {}


@pytest.mark.parametrize(("one", "other", "name"), DIFFERENT, ids=range(len(DIFFERENT)))
def test_a_difference_is_named(one, other, name):
    forms = [canonical_form(VanillaDecoderConfig(**(SIZES | fields)), "lm") for fields in (one, other)]
    assert name in differences(*forms)


def test_what_a_head_does_not_read_is_no_difference():
    one, other = (VanillaEncoderConfig(**SIZES, classifier_act=act) for act in ("tanh", "relu"))
    assert differences(canonical_form(one, "lm"), canonical_form(other, "lm")) == {}
    assert "classifier_act" in differences(canonical_form(one, "sequence"), canonical_form(other, "sequence"))


def test_a_target_vocabulary_of_the_sources_size_is_none_of_its_own():
    one, other = (VanillaEncoderDecoderConfig(**SIZES, vocab_size=9, decoder_vocab_size=size) for size in (None, 9))
    assert differences(canonical_form(one, "lm"), canonical_form(other, "lm")) == {}
