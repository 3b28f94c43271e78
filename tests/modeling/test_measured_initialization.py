"""Initializations that read data, Admin, DT-Fixup and GradInit, against what is measured by hand."""

import pytest
import torch
from refusals import refused
from torch import nn

from vanillaformer.modeling.measured import learn_scales, overlapping, profile_admin, scale_by_inputs
from vanillaformer.modeling.parts.initialization import VALUE_MAPS

from .toys import KINDS, inputs_of, labels_of, toy, toy_config

ADMIN = {"norm_placement": "admin", "num_hidden_layers": 3}
FIXUP = {"norm_placement": "no_norm", "initialization": "dt_fixup", "num_hidden_layers": 3}
GRADINIT = {"norm_placement": "post", "initialization": "gradinit"}
STEP = 1e-3


def fresh(kind: str, **fields) -> nn.Module:
    torch.manual_seed(0)
    return KINDS[kind][1](toy_config(kind, **fields))


def batch_of(kind: str) -> dict[str, torch.Tensor]:
    return {**inputs_of(kind), "labels": labels_of(kind)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_factor_of_admin_is_the_root_of_the_variances_of_the_sublayers_before(kind):
    model, inputs = fresh(kind, **ADMIN), inputs_of(kind)
    model.eval()
    outputs, names = {}, {module: name for name, module in model.named_modules()}
    for module, name in names.items():
        if name.endswith(("self_attn", "cross_attn", "mlp")):
            module.register_forward_hook(lambda module, args, output: outputs.update({names[module]: output}))
    model(**inputs)
    measured = {name: each[0] if isinstance(each, tuple) else each for name, each in outputs.items()}
    measured = {name: output.detach().clone() for name, output in measured.items()}
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


@pytest.mark.parametrize("kind", KINDS)
def test_dt_fixup_scales_values_outputs_and_feed_forward_layers_by_depth_and_input(kind):
    model, inputs = fresh(kind, **FIXUP), inputs_of(kind)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    stacks = [model.model.encoder, model.model.decoder] if kind == "encoder_decoder" else [model.model]
    seen: list[torch.Tensor] = []
    for stack in stacks:
        stack.layers[0].register_forward_hook(lambda module, args, output: seen.append(args[0].detach()))
    model.eval()(**inputs)
    longest = max(vector.norm().item() for states in seen for row in states for vector in row)
    factors = scale_by_inputs(model, [{name: value[:1] for name, value in inputs.items()}, inputs])
    for name, parameter in model.named_parameters():
        expected = 1.0
        if name.endswith(VALUE_MAPS):
            # N^-½ / 2μ in the paper's blocks of two sublayers; the decoder's with cross-attention have three
            sublayers = 3 if kind == "encoder_decoder" and "decoder" in name else 2
            expected = (2 * sublayers * 3) ** -0.5 / longest
            assert factors[name] == pytest.approx(expected, rel=1e-5)
        assert torch.allclose(parameter, expected * before[name], rtol=1e-5), name
    assert len(factors) == {"encoder_decoder": 12 + 18}.get(kind, 12)


@pytest.mark.parametrize(("name", "case"), {
    "admin": (lambda model, inputs: profile_admin(model, **inputs), ADMIN, "norm_placement='admin', got 'post'"),
    "dt_fixup": (lambda model, inputs: scale_by_inputs(model, [inputs]), FIXUP, "'dt_fixup', got 'gpt2'"),
}.items())  # fmt: skip
def test_measuring_twice_gives_the_same_and_leaves_the_mode_and_no_hooks(name, case):
    measure, fields, message = case
    model, inputs = fresh("decoder", **fields, dropout=0.5).train(), inputs_of("decoder")
    assert measure(model, inputs) == measure(model, inputs)
    assert model.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    refused(message, measure, toy("decoder", norm_placement="post", initialization="gpt2"), inputs)


def gradients(model: nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(**batch).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_gradient", [0.0, float("inf")], ids=["norm", "loss"])
def test_a_step_of_gradinit_follows_the_derivative_of_its_objective(kind, max_gradient):
    """Adam's first step is the rate times the sign of the derivative, which is found here by differences."""
    model, batch = toy(kind).eval(), batch_of(kind)
    first, second = overlapping(batch)
    drawn = {name: p.detach().clone() for name, p in model.named_parameters()}
    step = gradients(model, first)

    def objective(name: str, scale: float) -> float:
        with torch.no_grad():
            for each, p in model.named_parameters():
                p.copy_(drawn[each] * (scale if each == name else 1.0))
        if max_gradient == 0:
            return sum(g.abs().sum().item() for g in gradients(model, first).values())
        with torch.no_grad():  # the step is that of the weights as they were drawn
            for each, p in model.named_parameters():
                p.sub_(STEP * step[each].sign())
            return model(**second).loss.item()

    names = [name for name in drawn if name.endswith(("v_proj.weight", "norm.weight", "lm_head.weight"))]
    slopes = {name: objective(name, 1 + 1e-4) - objective(name, 1 - 1e-4) for name in names}
    objective("", 1.0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(drawn[name])
    scales = learn_scales(model, [batch], step_size=STEP, max_gradient=max_gradient, rate=0.01)
    assert len(names) >= 3
    for name in names:
        assert scales[name] == pytest.approx(1 - 0.01 if slopes[name] > 0 else 1 + 0.01, abs=1e-5), name
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), drawn[name] * scales[name])


def test_with_gradinit_the_loss_after_a_step_of_adam_is_lower():
    plain, scaled = (fresh("decoder", **GRADINIT).train() for _ in range(2))
    batch = batch_of("decoder")
    states = torch.get_rng_state()
    scales = learn_scales(scaled, [batch] * 30, step_size=1e-2, rate=0.03)
    assert torch.equal(torch.get_rng_state(), states)
    assert scaled.training
    losses = []
    for model in (plain, scaled):
        gradients(model, batch)
        torch.optim.Adam(model.parameters(), lr=1e-2).step()
        losses.append(model(**batch).loss.item())
    assert losses[1] < 0.8 * losses[0]
    assert min(scales.values()) >= 0.01
    assert len({round(scale, 3) for scale in scales.values()}) > 10


def test_gradinit_shrinks_a_gradient_above_its_limit_and_leaves_frozen_weights_and_zeros():
    model, batch = fresh("decoder", **GRADINIT), batch_of("decoder")
    norm = sum(g.abs().sum().item() for g in gradients(model.eval(), batch).values())
    learn_scales(model, [batch] * 15, max_gradient=norm / 2, rate=0.03)
    assert sum(g.abs().sum().item() for g in gradients(model, batch).values()) < 0.8 * norm
    model = fresh("decoder", **GRADINIT | {"norm_placement": "rezero"})
    model.model.embed_tokens.requires_grad_(False)
    table = model.model.embed_tokens.weight.clone()
    scales = learn_scales(model, [batch_of("decoder")] * 3)
    assert torch.equal(model.model.embed_tokens.weight, table)
    assert not any("embed_tokens" in name for name in scales)
    assert all((p == 0).all() for name, p in model.named_parameters() if name.endswith(("alpha", "q_proj.bias")))


def test_parts_of_a_batch_share_half_of_their_rows():
    first, second = overlapping({"input_ids": torch.arange(9)})
    assert first["input_ids"].tolist() == [0, 1, 2, 3, 4, 5]
    assert second["input_ids"].tolist() == [3, 4, 5, 6, 7, 8]
    assert all(len(part["input_ids"]) == 2 for part in overlapping({"input_ids": torch.arange(2)}))
