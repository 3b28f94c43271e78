"""Guided attention (Tachibana et al. 2018): a cost of cross-attention off the diagonal."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from vanillaformer.console.reporting import report, warn
from vanillaformer.modeling.heads import IGNORE_INDEX


def guided_attention_loss(
    attentions: Sequence[torch.Tensor], labels: torch.Tensor, source_mask: torch.Tensor, sigma: float
) -> torch.Tensor:
    """Return `Σ_t mean_s A_ts W_ts` over the real targets t and sources s, the mean over layers and heads.

    `W_ts = 1 - exp(-(t/T - s/S)² / 2σ²)`, with t and s counted from 0 in each sentence of lengths T and S.
    Divided by T, it is the paper's mean for one sentence.

    Args:
        attentions: Probabilities of each layer's cross-attention (B, H, T, S).
        labels: Target tokens (B, T), -100 for none.
        source_mask: 0 on the source's padding (B, S).
        sigma: σ, the width of the diagonal as a part of the sentence.

    Raises:
        ValueError: The decoder's positions are not those of the labels (`decoding="ctc"`).
    """
    attention = torch.stack([layer.mean(dim=1) for layer in attentions]).mean(dim=0)  # (B, T, S)
    if attention.shape[1] != labels.shape[1]:
        raise ValueError(
            f"guided attention needs a target at each position of the decoder, got {attention.shape[1]} positions "
            f"for {labels.shape[1]} targets"
        )
    attention = attention.to(torch.promote_types(attention.dtype, torch.float32))
    targets, sources = (mask.to(attention) for mask in (labels != IGNORE_INDEX, source_mask))
    distance = relative_positions(targets).unsqueeze(2) - relative_positions(sources).unsqueeze(1)
    weights = (1 - torch.exp(-(distance**2) / (2 * sigma**2))) * targets.unsqueeze(2)
    means = sources / sources.sum(dim=1, keepdim=True).clamp(min=1)
    return (attention * weights * means.unsqueeze(1)).sum()


def relative_positions(mask: torch.Tensor) -> torch.Tensor:
    """Return the position of each real token of a mask (B, T) as a part of its sentence's length, from 0."""
    return (mask.cumsum(dim=1) - 1) / mask.sum(dim=1, keepdim=True).clamp(min=1)


def attend_eagerly(model: PreTrainedModel) -> None:
    """Make a model compute its attention probabilities, and print what guided attention costs and where it harms."""
    config: Any = model.config
    before = config._attn_implementation
    warn(
        "--guided_attention expects the target in the order of the source, as in transliteration, pronunciation or "
        "speech: most pairs of languages order their words differently."
    )
    if before != "eager":
        model.set_attn_implementation("eager")
        report(
            f"--guided_attention reads attention probabilities: attention is eager, not {before}, which costs time "
            "and memory for all probabilities of a batch."
        )
