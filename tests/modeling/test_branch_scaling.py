"""Layer scale and stochastic depth, in every kind of model and with every placement."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from vanillaformer import VanillaEncoderConfig
from vanillaformer.configuration.options import PLACEMENT_CHOICES
from vanillaformer.modeling.parts.dropout import DropPath
from vanillaformer.modeling.parts.residual import LayerScale, build_residual

from .toys import KINDS, assert_close, inputs_of, toy, toy_config


@pytest.mark.parametrize("placement", PLACEMENT_CHOICES)
def test_layer_scale_multiplies_what_a_sublayer_adds(placement):
    plain = build_residual(toy_config("decoder", norm_placement=placement))
    scaled = build_residual(toy_config("decoder", norm_placement=placement, layer_scale_init_value=0.1))
    scaled.load_state_dict(plain.state_dict(), strict=False)
    assert torch.equal(scaled.layer_scale.weight, torch.full((24,), 0.1))
    factors, x, out = torch.randn(24), torch.randn(2, 3, 24), torch.randn(2, 3, 24)
    with torch.no_grad():
        scaled.layer_scale.weight.copy_(factors)
        if hasattr(plain, "alpha") and isinstance(plain.alpha, torch.nn.Parameter):
            plain.alpha.fill_(0.5)
            scaled.alpha.fill_(0.5)
    normed = plain.out_norm if placement == "sandwich" else plain.norm if placement == "inside" else (lambda y: y)
    reference = build_residual(toy_config("decoder", norm_placement=placement))
    reference.load_state_dict(plain.state_dict())
    for name in ("out_norm",) if placement == "sandwich" else ("norm",) if placement == "inside" else ():
        setattr(reference, name, torch.nn.Identity())
    assert_close(scaled.after(x, out), reference.after(x, factors * normed(out)), placement)


@pytest.mark.parametrize("kind", KINDS)
def test_every_sublayer_has_factors_and_a_saved_model_keeps_them(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("VANILLAFORMER_REMOTE_CODE", "0")
    model = toy(kind, layer_scale_init_value=0.1)
    layers = [module for module in model.modules() if hasattr(module, "self_attn")]
    scales = [module for module in model.modules() if isinstance(module, LayerScale)]
    assert len(scales) == sum(layer.sublayers for layer in layers)
    fresh = KINDS[kind][1](toy_config(kind, layer_scale_init_value=0.1))
    assert all((module.weight == 0.1).all() for module in fresh.modules() if isinstance(module, LayerScale))
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert torch.equal(again(**inputs_of(kind)).logits, model(**inputs_of(kind)).logits)


def test_stochastic_depth_leaves_out_rows_and_keeps_the_expectation():
    torch.manual_seed(0)
    drop, out = DropPath(0.25).train(), torch.ones(4000, 3, 2)
    dropped = drop(out)
    rows = dropped.flatten(1)
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


def test_a_row_without_a_sublayer_needs_the_stream():
    with pytest.raises(StrictDataclassError, match=r"drop_path_rate=0.1 .* norm_placement='no_residual'"):
        VanillaEncoderConfig(drop_path_rate=0.1, norm_placement="no_residual")
