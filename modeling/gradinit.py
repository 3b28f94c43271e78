"""GradInit (Zhu et al. 2021): a scale for each weight with which the first step of training lowers the loss most."""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack

import torch
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from .base import VanillaPreTrainedModel

Batch = Mapping[str, torch.Tensor]


def learn_scales(
    model: VanillaPreTrainedModel,
    batches: Iterable[Batch],
    *,
    step_size: float = 1e-3,
    max_gradient: float = 1e3,
    rate: float = 1e-2,
    min_scale: float = 0.01,
) -> dict[str, float]:
    """Multiply each parameter tensor by a scale m, learned for `min_m L(S'; θ_m - η sign(g))` with `‖g‖₁ ≤ γ`.

    θ_m are the scaled parameters and g is the gradient of L(S; θ_m): the loss is that after the first step of Adam.
    Each batch is one step of algorithm 1: on the norm where it is above γ, else on the loss, each by an Adam of its
    own. S and S' share half of their rows. Call it once, on a new model, before training; for translation, the
    authors' code takes 780 batches and a rate of 0.0025. Returns the scales by the parameters' names.

    η is `step_size`, γ is `max_gradient`, and `rate` the learning rate of the scales, which are at least `min_scale`.
    """
    weights = {name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}
    scales = {name: torch.ones((), device=weight.device, requires_grad=True) for name, weight in weights.items()}
    for_norm, for_loss = (torch.optim.Adam(scales.values(), lr=rate, betas=(0.9, 0.98)) for _ in range(2))
    with ExitStack() as until_the_end:
        until_the_end.callback(model.train, model.training)
        model.eval()
        for batch in batches:
            first, second = overlapping(batch)
            scaled = {name: scales[name].to(weight.dtype) * weight for name, weight in weights.items()}
            loss, leaves = loss_of(model, scaled, first), tuple(scaled.values())
            found = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True, materialize_grads=True)
            gradients = dict(zip(scaled, found))
            norm = torch.stack([gradient.abs().sum() for gradient in gradients.values()]).sum()
            if norm > max_gradient:
                optimizer, objective = for_norm, norm
            else:
                stepped = {name: scaled[name] - step_size * gradients[name].detach().sign() for name in scaled}
                optimizer, objective = for_loss, loss_of(model, stepped, second)
            optimizer.zero_grad()
            objective.backward()
            optimizer.step()
            with torch.no_grad():
                for scale in scales.values():
                    scale.clamp_(min=min_scale)
    with torch.no_grad():
        for name, weight in weights.items():
            weight.mul_(scales[name])
    return {name: scale.item() for name, scale in scales.items()}


def overlapping(batch: Batch) -> tuple[Batch, Batch]:
    """Return two parts of a batch, each two thirds of its rows, which share half of theirs."""
    rows = len(next(iter(batch.values())))
    parts = slice(rows - rows // 3), slice(rows // 3, None)
    first, second = ({name: value[part] for name, value in batch.items()} for part in parts)
    return first, second


def loss_of(model: VanillaPreTrainedModel, parameters: Batch, batch: Batch) -> torch.Tensor:
    """Return the loss with other parameters than the model's, which can be differentiated twice."""
    with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have first derivatives only
        return functional_call(model, dict(parameters), kwargs=dict(batch))["loss"]
