"""Attention with dropout on a CPU, where SDPA has no kernel for it: fewer random bits, no scores that are not needed.

Those of later tokens and, with windows, of keys outside: training takes memory for the window of each token. In
bfloat16 it is for training without dropout on short rows, too: SDPA's gradients are products for each head of each
row, which oneDNN takes longer to prepare than to compute.

Shape letters: B batch, T query length, S key length, H query heads, G key/value heads, K head width.
"""

from typing import Any

import torch
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from vanillaformer.modeling.parts.attention import repeat_heads
from vanillaformer.modeling.parts.dropout import Dropout

from .plain import is_marked

DTYPES = (torch.float32, torch.bfloat16)
UNKNOWN = ("position_bias", "cache", "softcap", "output_attentions")
"""Options of `sdpa` that are left to it."""
CHUNK = 128
"""Queries whose scores are computed together: these stay in the processor's cache."""
LONG = 1_024
"""Tokens in a row from which SDPA, which computes all scores and masks them, is slower for windows."""
SHORT = 256
"""Tokens in a row up to which SDPA is slower in bfloat16: twice as slow here, as fast with 512."""


def faster_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return what transformers' `sdpa` gives, (B, T, H, K), with other draws of the same dropout, if there is one.

    Without dropout it is faster for windows, and for gradients in bfloat16.
    """
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else query.dtype
    causal = attention_mask is None and (getattr(module, "is_causal", True) if is_causal is None else is_causal)
    known = dtype in DTYPES and not any(options.get(name) is not None for name in UNKNOWN)
    takes = known and is_marked(module) and is_here(query) and (not causal or query.shape[2] == key.shape[2])
    short = dtype == torch.bfloat16 and torch.is_grad_enabled() and key.shape[2] <= SHORT
    if not (takes and (dropout or short or is_window(attention_mask))):
        options |= {"dropout": dropout, "scaling": scaling, "is_causal": is_causal}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    query = query * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    query, key, value = (x.to(dtype) for x in (query, key, value))
    with torch.autocast("cpu", enabled=False):
        return attention(query, key, value, attention_mask, Dropout(dropout), causal=causal), None


def is_window(mask: torch.Tensor | None) -> bool:
    """Return whether a mask (B, 1, T, S) has long rows, and neither the first nor the last query sees half of them."""
    if mask is None or mask.dtype != torch.bool or min(mask.shape[2:]) < LONG:
        return False
    half = mask.shape[3] // 2
    return not bool(mask[:, :, 0, half:].any() or mask[:, :, -1, :half].any())


def is_here(query: torch.Tensor) -> bool:
    """Return whether it is a plain tensor on a CPU, whose numbers are computed and not recorded."""
    watched = torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._are_functorch_transforms_active()
    return type(query) is torch.Tensor and query.is_cpu and not watched


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: nn.Module,
    *,
    causal: bool,
) -> torch.Tensor:
    """Return `dropout(softmax(QKᵀ + mask)) V`, (B, T, H, K), for scaled queries (B, H, T, K) and G heads of S keys.

    A boolean mask says where to attend to, another is added.
    """
    key, value = (repeat_heads(x, query.shape[1] // x.shape[1]) for x in (key, value))
    outputs = []
    for start in range(0, query.shape[2], CHUNK):
        queries = query[:, :, start : start + CHUNK]
        first, end = 0, start + queries.shape[2] if causal else key.shape[2]
        part = None if mask is None else mask if mask.shape[2] == 1 else mask[:, :, start : start + CHUNK]
        if part is not None and part.dtype == torch.bool:  # of a window, a few keys
            seen = part.flatten(0, 2).any(dim=0).nonzero()
            first, end = (int(seen[0]), int(seen[-1]) + 1) if len(seen) else (0, end)
            part = part[..., first:end]
        scores = queries @ key[:, :, first:end].transpose(2, 3)
        if causal:
            scores = scores + torch.full((end - start, end), -torch.inf, dtype=scores.dtype).triu(start + 1)
        elif part is not None:
            smallest = torch.finfo(scores.dtype).min  # finite: a token of padding may attend to nothing
            scores = (
                scores.masked_fill(~part, smallest) if part.dtype == torch.bool else scores + part.to(scores.dtype)
            )
        outputs.append(dropout(scores.softmax(-1)) @ value[:, :, first:end])
    return torch.cat(outputs, dim=2).transpose(1, 2)
