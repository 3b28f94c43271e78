"""GradInit against finite differences of its two objectives, and what it is for: the loss after the first step."""

import pytest
import torch
from torch import nn

from vanillaformer.modeling.gradinit import learn_scales, overlapping

from .toys import KINDS, inputs_of, labels_of, toy, toy_config

STEP = 1e-3


def batch_of(kind: str) -> dict[str, torch.Tensor]:
    return {**inputs_of(kind), "labels": labels_of(kind)}


def fresh(kind: str = "decoder", **fields) -> nn.Module:
    torch.manual_seed(0)
    return KINDS[kind][1](toy_config(kind, initialization="gradinit", **fields))


def gradients(model: nn.Module, batch: dict[str, torch.Tensor]) -> tuple[float, dict[str, torch.Tensor]]:
    model.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return loss.item(), found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_gradient", [0.0, float("inf")], ids=["norm", "loss"])
def test_a_step_follows_the_derivative_of_its_objective(kind, max_gradient):
    """Adam's first step is the rate times the sign of the derivative, which is found here by differences."""
    model, batch = toy(kind).eval(), batch_of(kind)
    first, second = overlapping(batch)
    drawn = {name: p.detach().clone() for name, p in model.named_parameters()}
    _, step = gradients(model, first)

    def objective(name: str, scale: float) -> float:
        with torch.no_grad():
            for each, p in model.named_parameters():
                p.copy_(drawn[each] * (scale if each == name else 1.0))
        if max_gradient == 0:
            return sum(g.abs().sum().item() for g in gradients(model, first)[1].values())
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


def test_the_loss_after_a_step_of_adam_is_lower():
    plain, scaled = (fresh(norm_placement="post").train() for _ in range(2))
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


def test_a_gradient_above_the_limit_shrinks():
    model, batch = fresh(), batch_of("decoder")
    norm = sum(g.abs().sum().item() for g in gradients(model.eval(), batch)[1].values())
    learn_scales(model, [batch] * 15, max_gradient=norm / 2, rate=0.03)
    assert sum(g.abs().sum().item() for g in gradients(model, batch)[1].values()) < 0.8 * norm


def test_parts_of_a_batch_share_half_of_their_rows():
    first, second = overlapping({"input_ids": torch.arange(9)})
    assert first["input_ids"].tolist() == [0, 1, 2, 3, 4, 5]
    assert second["input_ids"].tolist() == [3, 4, 5, 6, 7, 8]
    assert all(len(part["input_ids"]) == 2 for part in overlapping({"input_ids": torch.arange(2)}))


def test_frozen_weights_and_zeros_stay():
    model = fresh(norm_placement="rezero")
    model.model.embed_tokens.requires_grad_(False)
    table = model.model.embed_tokens.weight.clone()
    scales = learn_scales(model, [batch_of("decoder")] * 3)
    assert torch.equal(model.model.embed_tokens.weight, table)
    assert not any("embed_tokens" in name for name in scales)
    assert all((p == 0).all() for name, p in model.named_parameters() if name.endswith(("alpha", "q_proj.bias")))
