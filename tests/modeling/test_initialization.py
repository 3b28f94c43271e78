"""Fresh weights have the spread that their initialization says, for each kind of parameter."""

import copy
import itertools
from typing import get_args

import pytest
import torch
from torch import nn

from vanillaformer.configuration import options
from vanillaformer.modeling.parts.initialization import LAST_MAPS

from .axes import RELATIVE
from .toys import KINDS, toy_config

WIDE = {
    "hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16, "intermediate_size": 256,
    "num_hidden_layers": 3, "vocab_size": 300, "position_embedding_type": "learned", "max_position_embeddings": 300,
    "initializer_range": 0.05,
}  # fmt: skip
every_kind = pytest.mark.parametrize("kind", KINDS)


def fresh(kind: str, initialization: str, **overrides) -> nn.Module:
    fields = WIDE | ({"decoder_vocab_size": 300} if kind == "encoder_decoder" else {})
    if placements := options.INITIALIZATION_CHOICES[initialization].placements:
        fields = fields | {"norm_placement": placements[0]}
    return KINDS[kind][1](toy_config(kind, **(fields | {"initialization": initialization} | overrides)))


def weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """Weights of linear maps and embeddings; a tied head counts as the embedding that it is."""
    kinds = (nn.Linear, nn.Embedding)
    owners = {name for name, module in model.named_modules() if isinstance(module, kinds)}
    return {n: p for n, p in model.named_parameters() if n.removesuffix(".weight") in owners and n.endswith("weight")}


def assert_normal(name: str, parameter: torch.Tensor, std: float) -> None:
    count = parameter.numel()
    error = abs(parameter.std().item() / std - 1)
    assert error < 5 * (2 * count) ** -0.5, f"{name}: std {parameter.std():.4f}, not {std}"
    assert abs(parameter.mean().item()) < 5 * std * count**-0.5, f"{name} is not centred"
    # uniform numbers of this spread would end at 1.73 standard deviations
    assert parameter.abs().max() > 2.3 * std, f"{name} is not normal"


# How many maps end in a residual sum, by stack
SUMS = {"decoder": {"model": 6}, "encoder": {"model": 6}, "encoder_decoder": {"encoder": 6, "decoder": 9}}


@every_kind
@pytest.mark.parametrize("initialization", ["normal", "gpt2"])
def test_normal_weights_differ_and_gpt2_scales_maps_that_end_in_a_residual_sum_by_their_number(kind, initialization):
    drawn, sums = weights(fresh(kind, initialization)), SUMS[kind]
    ends = [name for name in drawn if name.endswith(("o_proj.weight", "down_proj.weight"))]
    assert len(ends) == sum(sums.values())
    for name, parameter in drawn.items():
        count = 1
        if initialization == "gpt2" and name in ends:
            count = next(sums[stack] for stack in reversed(name.split(".")) if stack in sums)
        assert_normal(name, parameter, 0.05 / count**0.5)
    for one, other in itertools.combinations(drawn.values(), 2):
        assert one.shape != other.shape or not torch.equal(one, other)


def assert_uniform(name: str, parameter: torch.Tensor, gain: float = 1.0) -> None:
    """Xavier's bound, times `gain`."""
    bound = gain * (6 / sum(parameter.shape)) ** 0.5
    assert parameter.abs().max() <= bound, name
    assert parameter.abs().max() > 0.97 * bound, name
    assert abs(parameter.std().item() / (bound / 3**0.5) - 1) < 0.05, f"{name} is not uniform"


def is_embedding(model: nn.Module, name: str) -> bool:
    return isinstance(model.get_submodule(name.removesuffix(".weight")), nn.Embedding)


# With 3 blocks in each stack: the gain of values, outputs and feed-forward layers by stack
DEPTH_GAINS = {
    "deepnorm": {"model": 24**-0.25, "encoder": 0.87 * 81 ** (-1 / 16) * 3 ** (-1 / 16), "decoder": 36**-0.25},
    "t_fixup": {"model": 0.67 * 3**-0.25, "encoder": 0.67 * 3**-0.25, "decoder": 27**-0.25},
}


def gain_of(initialization: str, name: str) -> float:
    if initialization == "zero_output" and name.endswith(LAST_MAPS):
        return 0.0
    if initialization == "ds_init" and ".layers." in name:
        return (int(name.split(".layers.")[1].split(".")[0]) + 1) ** -0.5
    scaled_by_depth = ("v_proj.weight", "o_proj.weight", "up_proj.weight", "down_proj.weight")
    if initialization in DEPTH_GAINS and name.endswith(scaled_by_depth):
        stack = next((part for part in ("encoder", "decoder") if part in name.split(".")), "model")
        return DEPTH_GAINS[initialization][stack]
    return 1.0


@every_kind
@pytest.mark.parametrize(
    "initialization", ["xavier", "admin", "dt_fixup", "gradinit", "zero_output", "ds_init", *DEPTH_GAINS]
)
def test_maps_are_xaviers_times_a_gain(kind, initialization):
    model = fresh(kind, initialization, tie_word_embeddings=False)
    of_tables = DEPTH_GAINS["t_fixup"]["decoder" if kind == "encoder_decoder" else "model"]
    for name, parameter in weights(model).items():
        if is_embedding(model, name):
            assert_normal(name, parameter, 96**-0.5 * (of_tables if initialization == "t_fixup" else 1))
        elif gain := gain_of(initialization, name):
            assert_uniform(name, parameter, gain)
        else:
            assert not parameter.any(), name


def test_blocks_that_start_with_zero_output_are_the_identity():
    for cross_attention in (False, True):
        model = fresh("encoder_decoder" if cross_attention else "decoder", "zero_output", norm_placement="pre").eval()
        ids = {name: torch.arange(8)[None] for name in ("input_ids", "decoder_input_ids")[: 1 + cross_attention]}
        states = model(**ids, output_hidden_states=True)
        states = states.decoder_hidden_states if cross_attention else states.hidden_states
        assert torch.equal(states[0], states[-2])
        assert not torch.equal(states[-2], states[-1])  # after the final norm


@pytest.mark.parametrize("placement", options.INITIALIZATION_CHOICES["zero_output"].placements)
def test_steps_change_all_parts_of_blocks_that_start_with_zero_output(placement):
    """With `rezero` and `no_residual`, which it is refused with, none of them would ever change."""
    model = fresh("decoder", "zero_output", norm_placement=placement)
    optimizer, before = torch.optim.Adam(model.parameters()), copy.deepcopy(dict(model.named_parameters()))
    for _ in range(4):
        model(input_ids=torch.arange(8)[None]).logits[..., :9].sum().backward()
        optimizer.step()
    same = [name for name, each in model.named_parameters() if torch.equal(each, before[name])]
    assert not [name for name in same if "layers." in name]


@every_kind
@pytest.mark.parametrize("tied", [True, False])
def test_t5(kind, tied):
    model = fresh(kind, "t5", tie_word_embeddings=tied, feed_forward="gated", position_embedding_type="relative")
    for name, parameter in weights(model).items():
        if "relative_attention_bias" in name:
            std = 96**-0.5
        elif name.endswith("q_proj.weight"):
            std = (96 * 16) ** -0.5
        else:
            std = 1.0 if is_embedding(model, name) or "lm_head" in name else parameter.shape[1] ** -0.5
        assert_normal(name, parameter, std)


@every_kind
@pytest.mark.parametrize("key_heads", [6, 3, 1])
def test_mimetic_products_are_close_to_the_identity(kind, key_heads):
    whole = fresh(kind, "mimetic", num_key_value_heads=key_heads)
    for name, parameter in weights(whole).items():
        if ".self_attn." not in name:  # all else is normal
            assert_normal(name, parameter, 0.05)
    model = whole.base_model
    stack = model.encoder if kind == "encoder_decoder" else model
    for block in stack.layers:
        attention = block.self_attn
        queries = attention.q_proj.weight.view(6, 16, 96)
        keys = attention.k_proj.weight.view(key_heads, 16, 96).repeat_interleave(6 // key_heads, dim=0)
        values = attention.v_proj.weight.view(key_heads, 16, 96).repeat_interleave(6 // key_heads, dim=0)
        outputs = attention.o_proj.weight.view(96, 6, 16)
        scores = torch.einsum("hkd,hke->hde", queries, keys)
        # The 16 largest singular values of 0.7 (Z + I): their sum along the diagonal, of 96 dimensions
        assert (scores.diagonal(dim1=1, dim2=2).sum(-1) > 0.7 * 16 * 0.5).all()
        product = torch.einsum("dhk,hke->de", outputs, values)
        assert product.trace() < -0.4 * 16 * key_heads * 0.5
        assert torch.linalg.matrix_rank(product) == 16 * key_heads
    if key_heads == 6:  # the whole width: nothing is cut off, so the product is 0.4 (Z - I) itself
        assert product.trace().item() / 96 == pytest.approx(-0.4, abs=0.02)
        noise = product + 0.4 * torch.eye(96)
        assert_normal("Z", noise, 0.4 * 96**-0.5)


@every_kind
@pytest.mark.parametrize("initialization", get_args(options.Initialization))
@pytest.mark.parametrize("norm", get_args(options.Norm))
@pytest.mark.parametrize("unit_offset", [False, True])
def test_biases_start_at_zero_and_norms_at_the_identity(kind, initialization, norm, unit_offset):
    model = fresh(kind, initialization, norm=norm, norm_unit_offset=unit_offset, embedding_norm=True)
    drawn = weights(model)
    biases = norms = 0
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all(), name
            biases += 1
        elif name not in drawn:  # norms, and Admin's factors before they are measured
            identity = 0.0 if unit_offset and not name.endswith("omega") else 1.0
            assert (parameter == identity).all(), name
            norms += 1
    assert biases > 0
    assert norms > 0


@pytest.mark.parametrize("initialization", ["xavier", "t_fixup", "ds_init", "deepnorm", "t5"])
def test_a_table_is_drawn_for_the_width_of_its_own_stack(initialization):
    sizes = {"encoder_hidden_size": 384, "share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}
    model = fresh("encoder_decoder", initialization, position_embedding_type="learned", **sizes).model
    scale = {"t_fixup": 27**-0.25}.get(initialization, 1.0)
    for stack, width in ((model.encoder, 384), (model.decoder, 96)):
        std = 1.0 if initialization == "t5" else scale * width**-0.5
        assert_normal("tokens", stack.embed_tokens.weight, std)
        assert_normal("positions", stack.embeddings.positions.embed_positions.weight, std)
    relative = RELATIVE | {"relative_attention_num_buckets": 256, "relative_attention_max_distance": 512}
    model = fresh("encoder_decoder", initialization, **relative, **sizes).model
    for stack, width in ((model.encoder, 384), (model.decoder, 96)):
        assert_normal("biases", stack.embeddings.positions.relative_attention_bias[0].weight, scale * width**-0.5)
