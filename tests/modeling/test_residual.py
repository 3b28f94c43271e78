"""Placements: where the norm and the sum stand."""

from typing import get_args

import pytest
import torch
from torch import nn

from vanillaformer.configuration import options
from vanillaformer.modeling.parts.residual import RESIDUALS, build_final_norm, build_residual

from .toys import KINDS, assert_close, sharpen, toy, toy_config

PLACEMENTS = get_args(options.NormPlacement)


def sublayer(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2 + 1


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_placement_is_its_formula(placement):
    residual = sharpen(build_residual(toy_config("decoder", norm_placement=placement, num_hidden_layers=50)))
    norm, x = getattr(residual, "norm", None), torch.randn(2, 5, 24)
    expected = {
        "post": lambda: norm(x + sublayer(x)), "pre": lambda: x + sublayer(norm(x)),
        "sandwich": lambda: x + residual.out_norm(sublayer(norm(x))),
        "inside": lambda: x + norm(sublayer(x)), "rezero": lambda: x + residual.alpha * sublayer(x),
        "deepnorm": lambda: norm(100**0.25 * x + sublayer(x)),
        "admin": lambda: norm(residual.omega * x + sublayer(x)),
        "no_norm": lambda: x + sublayer(x), "no_residual": lambda: sublayer(norm(x)),
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
    assert RESIDUALS[placement].needs_final_norm is (placement not in normalized + without)
    for given in (True, False):
        final = build_final_norm(toy_config("decoder", norm_placement=placement, final_norm=given))
        assert isinstance(final, nn.Identity) is not given


def test_a_fresh_rezero_stack_is_the_identity():
    model = KINDS["decoder"][1](toy_config("decoder", norm_placement="rezero")).eval()
    x = torch.randn(2, 5, 24)
    assert torch.equal(model.model(inputs_embeds=x).last_hidden_state, x)


def test_deepnorm_weighs_the_two_stacks_of_an_encoder_decoder_as_its_table_says():
    model = toy("encoder_decoder", norm_placement="deepnorm", encoder_layers=3).model
    assert model.encoder.layers[0].mlp_residual.alpha == pytest.approx(0.81 * (3**4 * 2) ** (1 / 16))
    for residual in ("self_attn_residual", "cross_attn_residual", "mlp_residual"):
        assert getattr(model.decoder.layers[1], residual).alpha == pytest.approx(6**0.25)
