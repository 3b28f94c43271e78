"""Admin's profiling pass against the variances measured by hand."""

import pytest
import torch
from torch import nn

from vanillaformer.modeling.admin import profile_admin

from .toys import KINDS, inputs_of, toy, toy_config


def fresh(kind: str, **overrides) -> nn.Module:
    return KINDS[kind][1](toy_config(kind, norm_placement="admin", num_hidden_layers=3, **overrides))


@pytest.mark.parametrize("kind", KINDS)
def test_a_factor_is_the_root_of_the_variances_of_the_sublayers_before(kind):
    model, inputs = fresh(kind), inputs_of(kind)
    model.eval()
    outputs = {}
    for name, module in model.named_modules():
        if name.endswith(("self_attn", "cross_attn", "mlp")):
            module.register_forward_hook(
                lambda module, args, output, name=name: outputs.update(
                    {name: output[0] if isinstance(output, tuple) else output}
                )
            )
    model(**inputs)
    measured = {name: output.detach().clone() for name, output in outputs.items()}
    factors = profile_admin(model, **inputs)
    assert set(factors) == {f"{name}_residual" for name in measured}
    for stack in ("encoder", "decoder") if kind == "encoder_decoder" else ("model",):
        total = 1.0
        for name, output in measured.items():  # in the order of the calls
            if stack in name.split("."):
                omega = model.get_submodule(f"{name}_residual").omega
                assert factors[f"{name}_residual"] == pytest.approx(total**0.5)
                assert torch.allclose(omega, torch.full_like(omega, total**0.5))
                total += output.var(unbiased=False).item()
        assert total > 1.001, "nothing was added"


def test_measuring_twice_gives_the_same_and_leaves_the_mode_and_no_hooks():
    model, inputs = fresh("decoder", dropout=0.5).train(), inputs_of("decoder")
    first = profile_admin(model, **inputs)
    assert profile_admin(model, **inputs) == first
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())


def test_the_factors_are_saved(tmp_path):
    model = fresh("decoder")
    profile_admin(model, **inputs_of("decoder"))
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    omega = "model.layers.2.mlp_residual.omega"
    assert torch.equal(loaded.get_parameter(omega), model.get_parameter(omega))
    assert loaded.get_parameter(omega)[0] > 1


def test_a_model_without_factors_is_refused():
    with pytest.raises(ValueError, match=r"norm_placement='admin', got 'post'"):
        profile_admin(toy("decoder", norm_placement="post"), **inputs_of("decoder"))
