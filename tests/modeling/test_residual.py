"""Placements of norm and sum; blocks: order of sublayers, what they share, layer scale and stochastic depth."""

from typing import get_args

import pytest
import torch
from torch import nn

from vanillaformer.configuration import options
from vanillaformer.configuration.options import PLACEMENT_CHOICES
from vanillaformer.modeling.parts.dropout import DropPath
from vanillaformer.modeling.parts.residual import LayerScale, Residual, build_final_norm, build_residual

from .toys import KINDS, assert_close, inputs_of, sharpen, toy, toy_config

PLACEMENTS = get_args(options.NormPlacement)


def sublayer(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2 + 1


@pytest.mark.parametrize("layer_scale", [None, 0.1])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_placement_is_its_formula(placement, layer_scale):
    fields = {"norm_placement": placement, "num_hidden_layers": 50, "layer_scale_init_value": layer_scale}
    residual = sharpen(build_residual(toy_config("decoder", **fields)))
    norm, x = getattr(residual, "norm", None), torch.randn(2, 5, 24)
    factors = 1.0 if layer_scale is None else residual.layer_scale.weight
    expected = {
        "post": lambda: norm(x + factors * sublayer(x)), "pre": lambda: x + factors * sublayer(norm(x)),
        "sandwich": lambda: x + factors * residual.out_norm(sublayer(norm(x))),
        "inside": lambda: x + factors * norm(sublayer(x)),
        "rezero": lambda: x + residual.alpha * (factors * sublayer(x)),
        "deepnorm": lambda: norm(100**0.25 * x + factors * sublayer(x)),
        "admin": lambda: norm(residual.omega * x + factors * sublayer(x)),
        "no_norm": lambda: x + factors * sublayer(x), "no_residual": lambda: factors * sublayer(norm(x)),
    }[placement]()  # fmt: skip
    assert torch.equal(residual.after(x, sublayer(residual.before(x))), expected)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_dropout_falls_on_the_sublayers_output_alone(placement):
    residual = build_residual(toy_config("decoder", norm_placement=placement, dropout=0.5)).train()
    x, out = torch.randn(64, 24), torch.ones(64, 24)
    residual.norm = residual.out_norm = nn.Identity()
    if placement == "rezero":
        residual.alpha.data.fill_(1.0)
    assert torch.equal(residual.before(x), x), "dropout on the input"
    kept = residual.after(x, out) - {"no_residual": 0, "deepnorm": 4**0.25}.get(placement, 1) * x
    assert_close(kept.round(), kept, "rescaled output", 1e-5)
    assert set(kept.round().unique().tolist()) == {0.0, 2.0}
    assert 0.4 < kept.round().eq(0).float().mean() < 0.6


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_stack_ends_with_a_norm_where_the_last_block_does_not_or_as_it_is_asked(placement):
    final = build_final_norm(toy_config("decoder", norm_placement=placement))
    normalized, without = ("post", "deepnorm", "admin"), ("rezero", "no_norm")
    assert isinstance(final, nn.Identity) is (placement in normalized + without)
    for given in (True, False):
        final = build_final_norm(toy_config("decoder", norm_placement=placement, final_norm=given))
        assert isinstance(final, nn.Identity) is not given


def test_deepnorm_weighs_the_two_stacks_of_an_encoder_decoder_as_its_table_says():
    model = toy("encoder_decoder", norm_placement="deepnorm", encoder_layers=3).model
    assert model.encoder.layers[0].mlp_residual.alpha == pytest.approx(0.81 * (3**4 * 2) ** (1 / 16))
    for residual in ("self_attn_residual", "cross_attn_residual", "mlp_residual"):
        assert getattr(model.decoder.layers[1], residual).alpha == pytest.approx(6**0.25)


def sublayers(block: nn.Module, source: torch.Tensor) -> list[tuple[Residual, nn.Module]]:
    """Residual connections and sublayers as functions of the stream."""
    listed = [(block.self_attn_residual, lambda x: block.self_attn(x)[0])]
    if hasattr(block, "cross_attn"):
        listed.append((block.cross_attn_residual, lambda x: block.cross_attn(x, key_value_states=source)[0]))
    return [*listed, (block.mlp_residual, block.mlp)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("layout", "placement"), [
    (layout, placement) for placement, choice in PLACEMENT_CHOICES.items() for layout in choice.layouts
])  # fmt: skip
def test_sublayers_read_what_the_one_before_has_made_or_in_parallel_the_blocks_input(kind, layout, placement):
    fields = {"position_embedding_type": "none", "block_layout": layout, "norm_placement": placement}
    model = toy(kind, **fields).base_model
    block = (model.decoder if kind == "encoder_decoder" else model).layers[0]
    x, source = torch.randn(2, 5, 24), torch.randn(2, 6, 24)
    expected = x
    for residual, sublayer in sublayers(block, source):
        if layout == "sequential":
            expected = residual.after(expected, sublayer(residual.before(expected)))
        else:  # the sum of what each adds to the stream
            out = sublayer(block.norm(x) if layout == "parallel_shared_norm" else residual.before(x))
            expected = expected + residual.after(torch.zeros_like(x), out)
    found = block(x, None, source) if kind == "encoder_decoder" else block(x)
    assert torch.equal(found, expected) if layout == "sequential" else torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_norm_can_be_left_out_and_no_other(kind):
    model = toy(kind, norm_placement="pre", skip_first_norm=True).base_model
    for stack in (model.encoder, model.decoder) if kind == "encoder_decoder" else (model,):
        for number, block in enumerate(stack.layers):
            assert hasattr(block.self_attn_residual, "norm") is (number > 0)
            assert hasattr(block.mlp_residual, "norm")


@pytest.mark.parametrize("kind", KINDS)
def test_every_sublayer_has_factors(kind):
    model = toy(kind, layer_scale_init_value=0.1)
    layers = [module for module in model.modules() if hasattr(module, "self_attn")]
    scales = [module for module in model.modules() if isinstance(module, LayerScale)]
    assert len(scales) == sum(layer.sublayers for layer in layers)
    fresh = KINDS[kind][1](toy_config(kind, layer_scale_init_value=0.1))
    assert all((module.weight == 0.1).all() for module in fresh.modules() if isinstance(module, LayerScale))


def test_stochastic_depth_leaves_out_rows_and_keeps_the_expectation():
    torch.manual_seed(0)
    drop, out = DropPath(0.25).train(), torch.ones(4000, 3, 2)
    rows = drop(out).flatten(1)
    assert all((row == row[0]).all() for row in rows[:50])
    assert sorted(set(rows[:, 0].tolist())) == pytest.approx([0.0, 1 / 0.75])
    assert rows[:, 0].mean().item() == pytest.approx(1.0, abs=0.05)
    assert torch.equal(drop.eval()(out), out)


@pytest.mark.parametrize("kind", KINDS)
def test_its_rate_grows_with_the_layer_and_evaluation_is_as_without(kind):
    model = toy(kind, num_hidden_layers=3, drop_path_rate=0.4)
    plain = toy(kind, num_hidden_layers=3)
    plain.load_state_dict(model.state_dict())
    inputs = inputs_of(kind)
    assert torch.equal(model(**inputs).logits, plain(**inputs).logits)
    stacks = [module for module in model.modules() if hasattr(module, "layer_drop")]
    for stack in stacks:
        rates = [getattr(layer.mlp_residual.drop_path, "rate", 0.0) for layer in stack.layers]
        assert rates == pytest.approx([0.4 * idx / (len(rates) - 1) for idx in range(len(rates))])
    torch.manual_seed(0)
    assert not torch.equal(model.train()(**inputs).logits, plain.train()(**inputs).logits)
