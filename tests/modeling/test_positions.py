"""Position schemes against their formulas, and what they refuse."""

import math

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from vanillaformer.modeling.positions import NoPositions, build_positions, rotate_half

from .toys import KINDS, assert_close, inputs_of, shared_toy, tokens, toy_config

LENGTHS = {"max_position_embeddings": 24}


def scheme(name: str, **overrides) -> NoPositions:
    return build_positions(toy_config("decoder", position_embedding_type=name, **overrides))


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_the_sinusoidal_table_is_the_papers_formula(layout):
    table = scheme("sinusoidal", sinusoidal_layout=layout).table
    for position in (0, 1, 7, 23):
        for i in range(12):
            angle = position / 10000 ** (2 * i / 24)
            sine, cosine = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, 12 + i)
            assert table[position, sine].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[position, cosine].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_the_sinusoidal_table_is_exact_far_out():
    """In float32 the angle of position 100000 would be wrong in the third digit."""
    table = scheme("sinusoidal", max_position_embeddings=100_001).table
    assert table[100_000, 2].item() == pytest.approx(math.sin(100_000 / 10000 ** (2 / 24)), abs=1e-6)


def test_the_sinusoidal_table_is_no_parameter_and_in_no_checkpoint():
    positions = scheme("sinusoidal")
    assert not list(positions.parameters())
    assert not positions.state_dict()


@pytest.mark.parametrize("name", ["sinusoidal", "learned"])
def test_a_table_is_added_row_by_row(name):
    positions = scheme(name)
    table = positions.table if name == "sinusoidal" else positions.embed_positions.weight
    x, position_ids = torch.randn(2, 3, 24), torch.tensor([[0, 5, 2], [7, 7, 1]])
    assert torch.equal(positions.embed(x, position_ids), x + table[position_ids])


def test_rotary_is_llamas():
    config = LlamaConfig(hidden_size=24, num_attention_heads=3, head_dim=8, rope_parameters=None)
    theirs, ours = LlamaRotaryEmbedding(config), scheme("rotary")
    q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8)
    position_ids = torch.tensor([[0, 1, 2, 3, 4], [9, 3, 500, 4, 4]])
    expected = apply_rotary_pos_emb(q, k, *theirs(q, position_ids))
    for one, other in zip(ours.rotate(q, k, ours.rotation(q, position_ids)), expected):
        assert_close(one, other, "rotated", 1e-6)


def test_a_rotation_keeps_lengths_and_makes_products_depend_on_the_distance():
    positions = scheme("rotary")
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def product(query_position: int, key_position: int) -> float:
        turned_q, _ = positions.rotate(q, q, positions.rotation(q, torch.tensor([[query_position]])))
        _, turned_k = positions.rotate(k, k, positions.rotation(k, torch.tensor([[key_position]])))
        assert turned_q.norm().item() == pytest.approx(q.norm().item(), rel=1e-5)
        return (turned_q * turned_k).sum().item()

    assert product(7, 3) == pytest.approx(product(14, 10), rel=1e-4)
    assert product(7, 3) != pytest.approx(product(7, 4), rel=1e-2)
    assert product(7, 3) != pytest.approx(product(3, 7), rel=1e-2)


def test_rotating_by_a_right_angle_twice_changes_the_sign():
    x = torch.randn(3, 8)
    assert torch.equal(rotate_half(rotate_half(x)), -x)


def test_rotary_reads_its_base():
    slow, fast = scheme("rotary", rope_theta=1e6), scheme("rotary", rope_theta=10.0)
    assert_close(fast.rotary_emb.inv_freq, 10.0 ** (-torch.arange(0, 8, 2) / 8), "frequencies", 1e-6)
    assert (slow.rotary_emb.inv_freq[1:] < fast.rotary_emb.inv_freq[1:]).all()


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 3.0},
        {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 8},
        {
            "rope_type": "llama3", "factor": 3.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8,
        },
        {"rope_type": "dynamic", "factor": 3.0},
    ],
    ids=lambda rope: rope["rope_type"],
)  # fmt: skip
def test_scaled_rotary_positions_are_llamas(rope):
    rope = rope | {"rope_theta": 100.0}
    sizes = {"hidden_size": 24, "num_attention_heads": 4, "head_dim": 8, "max_position_embeddings": 24}
    theirs = LlamaRotaryEmbedding(LlamaConfig(**sizes, rope_parameters=dict(rope)))
    ours = scheme("rotary", rope_parameters=dict(rope))
    x = torch.zeros(1)
    for length in (10, 60, 20):  # `dynamic` grows beyond the length that the model was made for, and shrinks again
        position_ids = torch.arange(length).unsqueeze(0)
        expected = torch.stack(theirs(x, position_ids))
        assert_close(torch.stack(ours.rotation(x, position_ids)).squeeze(2), expected, f"length {length}", 1e-6)
        plain = torch.stack(scheme("rotary", rope_theta=100.0).rotation(x, position_ids)).squeeze(2)
        scaled = not torch.allclose(plain, expected)
        assert scaled is (rope["rope_type"] != "dynamic" or length == 60), f"length {length}"


def test_no_positions_leave_everything_alone():
    positions, x = scheme("none"), torch.randn(2, 3, 24)
    q, k = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 3, 8)
    position_ids = torch.arange(3).unsqueeze(0)
    assert positions.embed(x, position_ids) is x
    assert positions.rotation(x, position_ids) is None
    assert positions.rotate(q, k, None) == (q, k)
    assert not positions.state_dict()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "knows_order"), [("sinusoidal", 1), ("learned", 1), ("rotary", 1), ("none", 0)])
def test_an_encoder_tells_the_order_of_its_tokens_only_by_its_positions(kind, name, knows_order):
    model = shared_toy(kind, {"position_embedding_type": name})
    inputs = inputs_of(kind, batch=1)
    shuffled = inputs | {"input_ids": inputs["input_ids"][:, [0, 3, 2, 1, 4, 5, 6]]}
    one, other = model(**inputs).logits, model(**shuffled).logits
    if kind == "decoder":  # its mask tells the order too, but not that of the tokens before the last
        config = toy_config("decoder", position_embedding_type=name, num_hidden_layers=1)
        torch.manual_seed(0)
        model = KINDS["decoder"][1](config).eval()
        one, other = (model(ids["input_ids"]).logits[:, -1] for ids in (inputs, shuffled))
        same = torch.allclose(one, other, atol=1e-6)
    elif kind == "encoder":
        same = torch.allclose(one[0, [0, 3, 2, 1, 4, 5, 6]], other[0], atol=1e-4)
    else:
        same = torch.allclose(one, other, atol=1e-4)
    assert same is not bool(knows_order)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["sinusoidal", "learned"])
def test_an_input_longer_than_the_table_is_refused_with_its_length(kind, name):
    model = shared_toy(kind, {"position_embedding_type": name})
    with pytest.raises(ValueError, match=r"25 tokens, but max_position_embeddings=24"):
        model(**inputs_of(kind, batch=1, length=25))


@pytest.mark.parametrize("name", ["sinusoidal", "learned"])
def test_a_given_position_beyond_the_table_is_refused(name):
    model = shared_toy("decoder", {"position_embedding_type": name})
    with pytest.raises(ValueError, match="max_position_embeddings=24"):
        model(tokens(1, 2), position_ids=torch.tensor([[23, 24]]))


@pytest.mark.parametrize("name", ["sinusoidal", "learned"])
def test_generation_stops_with_an_error_at_the_end_of_the_table(name):
    model = shared_toy("decoder", {"position_embedding_type": name})
    settings = {"attention_mask": torch.ones(1, 20, dtype=torch.long), "eos_token_id": None, "do_sample": False}
    assert model.generate(tokens(1, 20), max_new_tokens=5, **settings).shape == (1, 25)  # the last one is not read
    with pytest.raises(ValueError, match="max_position_embeddings=24"):
        model.generate(tokens(1, 20), max_new_tokens=6, **settings)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["rotary", "none"])
def test_schemes_without_a_table_take_longer_inputs(kind, name):
    model = shared_toy(kind, {"position_embedding_type": name})
    assert torch.isfinite(model(**inputs_of(kind, batch=1, length=40)).logits).all()
