"""Position schemes against their formulas, and what they refuse."""

import copy
import math
from typing import get_args

import pytest
import torch
from refusals import refused
from transformers import LlamaConfig, T5Config
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
from transformers.models.t5.modeling_t5 import T5Attention

from vanillaformer.configuration import options
from vanillaformer.modeling.parts.position_schemes import build_positions
from vanillaformer.modeling.parts.positions import LearnedPositions, NoPositions, RelativePositions

from . import axes
from .axes import ROTARY
from .toys import KINDS, assert_close, inputs_of, shared_toy, sharpen, tokens, toy, toy_config

TABLES = ("sinusoidal", "learned")


def scheme(name: str, is_causal: bool = True, **overrides) -> NoPositions:
    return build_positions(toy_config("decoder", position_embedding_type=name, **overrides), is_causal)


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_the_sinusoidal_table_is_the_papers_formula(layout):
    """Also far out, where the angle computed in float32 would be wrong in the third digit."""
    table = scheme("sinusoidal", sinusoidal_layout=layout, max_position_embeddings=100_001).table
    for position in (0, 1, 7, 23, 100_000):
        for i in range(12):
            angle = position / 10000 ** (2 * i / 24)
            sine, cosine = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, 12 + i)
            assert table[position, sine].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[position, cosine].item() == pytest.approx(math.cos(angle), abs=1e-6)


@pytest.mark.parametrize("name", TABLES)
def test_an_offset_leaves_out_the_first_rows_and_none_at_the_end(name):
    positions, x = scheme(name, position_offset=2), torch.randn(1, 24, 24)
    longer = scheme(name, max_position_embeddings=26)
    table = positions.embed_positions.weight if name == "learned" else longer.table
    assert table.shape == (26, 24)
    order = torch.randperm(24)
    assert torch.equal(positions.embed(x, order[None]), x + table[order + 2])
    refused("max_position_embeddings=24", positions.embed, x, torch.arange(1, 25)[None])


@pytest.mark.parametrize("offset", [0, 2])
def test_the_tensor2tensor_table_is_m2m_100s(offset):
    table = scheme("sinusoidal", sinusoidal_layout="tensor2tensor", position_offset=offset).table
    assert_close(table, M2M100SinusoidalPositionalEmbedding.get_embedding(24 + offset, 24)[offset:], "table", 1e-6)
    assert table[1, 11].item() == pytest.approx(math.sin(1e-4 * (1 + offset)), rel=1e-3)  # wavelength 20000π


def test_layers_of_a_type_can_have_a_base_of_their_own_or_no_rotation():
    windows = {"sliding_window": 5, "layer_types": ["full_attention", "sliding_attention"]}
    ropes = {"full_attention": None, "sliding_attention": {"rope_theta": 7.0}}
    by_type, by_layer = ({"rope_parameters": ropes}, {"rope_theta": 7.0, "rotary_layers": [False, True]})
    models = (shared_toy("decoder", ROTARY | windows | fields) for fields in (by_type, by_layer))
    assert torch.equal(*(model(tokens(1, 9)).logits for model in models))


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 7, 8, 12, 20])
def test_alibi_slopes_are_blooms(heads):
    positions = scheme("alibi", num_attention_heads=heads, num_key_value_heads=heads)
    theirs = build_alibi_tensor(torch.ones(1, 9), heads, torch.float32).view(heads, 9)  # slope times key
    row = torch.arange(9)
    ours = positions.score_bias(torch.zeros(1), row, row, 0)
    assert ours.shape == (1, heads, 9, 9)
    seen, expected = torch.ones(9, 9).tril() == 1, theirs[:, None] - theirs[:, :, None]  # softmax ignores a shift
    assert torch.allclose(ours[0, :, seen], expected[:, seen], atol=1e-6)


def test_alibi_looks_to_both_sides_in_an_encoder():
    row = torch.arange(5)
    bias = scheme("alibi", is_causal=False).score_bias(torch.zeros(1), row, row, 0)
    assert torch.equal(bias, bias.transpose(2, 3))
    assert bias[0, 0, 1].tolist() == [-0.25, 0.0, -0.25, -0.5, -0.75]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (8, 20), (12, 7)])
def test_relative_bias_is_t5s(causal, buckets, distance):
    fields = {"relative_attention_num_buckets": buckets, "relative_attention_max_distance": distance}
    ours = sharpen(scheme("relative", is_causal=causal, **fields))
    theirs = T5Attention(T5Config(num_heads=4, is_decoder=causal, **fields), has_relative_attention_bias=True)
    theirs.relative_attention_bias = ours.relative_attention_bias[0]
    keys = torch.arange(300)
    assert torch.equal(ours.score_bias(torch.zeros(1), keys, keys, 0), theirs.compute_bias(300, 300))
    one = ours.score_bias(torch.zeros(1), torch.tensor([250]), keys, 0)
    assert torch.equal(one, theirs.compute_bias(1, 300, past_seen_tokens=250))


def test_relative_tables_are_shared_or_one_per_layer():
    assert [scheme("relative").table_index(layer) for layer in range(2)] == [0, 0]
    positions = sharpen(scheme("relative", relative_attention_per_layer=True))
    assert isinstance(positions, RelativePositions)
    assert [positions.table_index(layer) for layer in range(2)] == [0, 1]
    row = torch.arange(4)
    first, second = (positions.score_bias(torch.zeros(1), row, row, table) for table in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(second[0, :, 2, 2], positions.relative_attention_bias[1].weight[0])


@pytest.mark.parametrize("scheme_name", ["alibi", "relative"])
def test_layers_that_share_a_table_share_one_bias(scheme_name, monkeypatch):
    model, calls = toy("decoder", position_embedding_type=scheme_name, num_hidden_layers=4), []
    positions = model.model.embeddings.positions
    compute = type(positions).score_bias
    monkeypatch.setattr(type(positions), "score_bias", lambda self, *args: calls.append(args) or compute(self, *args))
    model(tokens(1, 5))
    assert len(calls) == 1


def angles(positions: NoPositions, position_ids: torch.Tensor) -> torch.Tensor:
    """Cosines and sines (2, 1, T, K)."""
    return torch.stack(positions.position_embeddings(torch.zeros(1), position_ids)["full_attention"]).squeeze(2)


@pytest.mark.parametrize("name", ["linear", "yarn", "llama3", "dynamic"])
def test_scaled_rotary_positions_are_llamas(name):
    rope = axes.rope(name, 100.0) | {"factor": 3.0}
    rope |= {"original_max_position_embeddings": 8} if "original_max_position_embeddings" in rope else {}
    sizes = {"hidden_size": 24, "num_attention_heads": 4, "head_dim": 8, "max_position_embeddings": 24}
    theirs = LlamaRotaryEmbedding(LlamaConfig(**sizes, rope_parameters=dict(rope)))
    ours = scheme("rotary", rope_parameters=dict(rope))
    x = torch.zeros(1)
    for length in (10, 60, 20):  # `dynamic` grows beyond the length that the model was made for, and shrinks again
        position_ids = torch.arange(length).unsqueeze(0)
        expected = torch.stack(theirs(x, position_ids))
        assert_close(angles(ours, position_ids), expected, f"length {length}", 1e-6)
        scaled = not torch.allclose(angles(scheme("rotary", rope_theta=100.0), position_ids), expected)
        assert scaled is (name != "dynamic" or length == 60), f"length {length}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", get_args(options.PositionEmbedding))
def test_a_layer_tells_the_order_of_its_tokens_only_by_its_positions(kind, name):
    """A causal one that of the tokens before the last; over several layers, its mask tells their order too."""
    model = shared_toy(kind, {"position_embedding_type": name, "num_hidden_layers": 1})
    inputs, order = inputs_of(kind, batch=1), [0, 3, 2, 1, 4, 5, 6]
    one = model(**inputs).logits
    other = model(**inputs | {"input_ids": inputs["input_ids"][:, order]}).logits
    if kind == "decoder":
        one, other = one[:, -1], other[:, -1]
    elif kind == "encoder":
        one = one[:, order]
    assert torch.allclose(one, other, atol=1e-9) is (name == "none")


@pytest.mark.parametrize(("name", "fields"), {
    "rotary": {},
    "scaled rotary": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}},
    "growing rotary": {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
    "alibi": {"position_embedding_type": "alibi", "num_attention_heads": 6},
    "sinusoidal": {"position_embedding_type": "sinusoidal"},
}.items())  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_cast_or_loaded_in_another_type_has_rounded_weights_and_exact_positions(
    kind, name, fields, dtype, tmp_path
):
    """Frequencies or slopes rounded to bfloat16 are quite other ones a few hundred positions on."""
    model = toy(kind, **{"max_position_embeddings": 40, "position_embedding_type": "rotary"} | fields)
    inputs = inputs_of(kind, batch=1, length=40)
    rounded = copy.deepcopy(model)
    for parameter in rounded.parameters():
        parameter.data = parameter.data.to(dtype).float()
    model.save_pretrained(tmp_path)
    for there in (copy.deepcopy(model).to(dtype), type(model).from_pretrained(tmp_path, dtype=dtype)):
        tables, exact = ([x for x in each.buffers() if x.is_floating_point()] for each in (there, model))
        assert {table.dtype for table in tables} == {torch.float32}
        assert len(tables) == len(exact)
        assert all(map(torch.equal, tables, exact))
        assert {parameter.dtype for parameter in there.parameters()} == {dtype}
        assert torch.equal(there.float().eval()(**inputs).logits, rounded(**inputs).logits)
    moved = copy.deepcopy(model).to(dtype).to("meta")
    assert all(value.device.type == "meta" for value in moved.buffers())


@pytest.mark.parametrize("name", [*TABLES, "rotary"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_made_longer_reads_longer_texts_and_short_ones_as_before(kind, name, tmp_path):
    model = toy(kind, position_embedding_type=name, max_position_embeddings=12)
    short, long = inputs_of(kind, length=12), inputs_of(kind, length=20)
    before = model(**short)[0]
    if name in TABLES:
        refused("max_position_embeddings=12", model, **long)
    model.resize_position_embeddings(20)
    assert model.config.max_position_embeddings == 20
    assert torch.equal(model(**short)[0], before)
    after = model(**long)[0]
    model.save_pretrained(tmp_path)
    assert torch.equal(type(model).from_pretrained(tmp_path).eval()(**long)[0], after)
    model.resize_position_embeddings(12)
    assert torch.equal(model(**short)[0], before)


def test_new_rows_of_a_learned_table_are_drawn_as_at_the_start_and_a_frozen_one_stays_frozen():
    model = toy("decoder", position_embedding_type="learned", max_position_embeddings=12, initializer_range=0.5)
    (table,) = (module for module in model.modules() if isinstance(module, LearnedPositions))
    kept = table.rows().detach().clone()
    model.resize_position_embeddings(4000)
    assert torch.equal(table.rows()[: len(kept)], kept)
    assert table.rows()[len(kept) :].std().item() == pytest.approx(0.5, rel=0.02)
    assert table.rows().requires_grad
    model = toy("decoder", position_embedding_type="learned").requires_grad_(False)
    model.resize_position_embeddings(40)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    refused("has no positions", toy("recurrent_encoder_decoder").resize_position_embeddings, 40)


@pytest.mark.parametrize("length", [20, 12])
@pytest.mark.parametrize("scaling", ["dynamic", "longrope"])
def test_scaled_frequencies_of_another_length_are_those_of_the_saved_model(scaling, length, tmp_path):
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 8}
    rope = {"rope_theta": 10000.0, "rope_type": scaling} | ({"factor": 2.0} if scaling == "dynamic" else factors)
    sizes = {"position_embedding_type": "rotary", "rope_parameters": rope, "head_dim": 8}
    model, inputs = toy("decoder", max_position_embeddings=16, **sizes), inputs_of("decoder", length=16)
    model.resize_position_embeddings(length)
    model.save_pretrained(tmp_path)
    assert torch.equal(model(**inputs)[0], type(model).from_pretrained(tmp_path).eval()(**inputs)[0])
