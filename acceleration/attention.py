"""Attention with dropout on a CPU, for which SDPA has no kernel: fewer random bits, and no scores that are not needed.

Scores of later tokens and of keys outside a window are not computed, so training takes memory only for each token's
window. In bfloat16, if measured to be faster, attention without dropout is computed here too, for short rows or
without gradients: SDPA multiplies each head of each row separately, which takes oneDNN longer to prepare than to
compute.

Shape letters: B batch, T query length, S key length, H query heads, G key/value heads, K head width.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from vanillaformer.modeling.parts.attention import repeat_heads
from vanillaformer.modeling.parts.dropout import build_dropout, identity

from .autotune import is_faster, speedup
from .plain import is_marked

DTYPES = {torch.float32, torch.bfloat16}
UNKNOWN = ("position_bias", "cache", "softcap", "output_attentions")
"""Options that are left to transformers' `sdpa`."""
CHUNK = 128
"""Queries whose scores are computed together, few enough for the processor's cache."""
LONG = 1_024
"""Tokens per row from which SDPA, which computes all scores and masks them, is slower for windows."""
SHORT = 256
"""Tokens per row up to which all probabilities may be kept in memory, for gradients in bfloat16."""
KEYS = 256
"""Keys per batch from which this is faster in bfloat16: it makes more calls."""
SWITCH = "VANILLAFORMER_ATTENTION"
"""Environment variable: 0 for SDPA in bfloat16, 1 for this; otherwise the faster one is measured."""


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
    """Return the output of transformers' `sdpa`, (B, T, H, K); dropout, if there is any, is drawn differently.

    Without dropout it is computed here only for windows and in bfloat16, where that is faster.
    """
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else query.dtype
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = causal and attention_mask is None and query.shape[2] > 1
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._are_functorch_transforms_active()
    known = type(query) is torch.Tensor and query.is_cpu and not traced
    known = known and is_marked(module) and {dtype, query.dtype} <= DTYPES
    known = known and not any(options.get(name) is not None for name in UNKNOWN)
    takes = known and (not causal or query.shape[2] == key.shape[2])
    takes = takes and (attention_mask is None or attention_mask.shape[3:] == key.shape[2:3])  # not broadcast over keys
    short = takes and not dropout and dtype == torch.bfloat16
    short = short and (key.shape[2] <= SHORT or not torch.is_grad_enabled()) and len(key) * key.shape[2] >= KEYS
    short = short and is_faster("attention, bfloat16", SWITCH, speed)
    if not (takes and (dropout or short or is_window(attention_mask))):
        options |= {"dropout": dropout, "scaling": scaling, "is_causal": is_causal}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    query = query * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    query, key, value = (x.to(dtype) for x in (query, key, value))
    with torch.autocast("cpu", enabled=False) if torch.is_autocast_enabled("cpu") else nullcontext():
        return attention(query, key, value, attention_mask, build_dropout(dropout), causal=causal), None


def is_window(mask: torch.Tensor | None) -> bool:
    """Return whether a long mask (B, 1, T, S) hides the second half from the first query, the first from the last."""
    if mask is None or mask.dtype != torch.bool or min(mask.shape[2:]) < LONG:
        return False
    half = mask.shape[3] // 2
    return not bool(mask[:, :, 0, half:].any() or mask[:, :, -1, :half].any())


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: Callable[[torch.Tensor], torch.Tensor],
    *,
    causal: bool,
) -> torch.Tensor:
    """Return `dropout(softmax(QKᵀ + mask)) V`, (B, T, H, K), for scaled queries (B, H, T, K) and G heads of S keys.

    A boolean mask is true where to attend; any other mask is added to the scores.
    """
    key, value = (repeat_heads(x, query.shape[1] // x.shape[1]) for x in (key, value))
    outputs = []
    for start in range(0, query.shape[2], CHUNK):
        queries = query[:, :, start : start + CHUNK]
        first, end = 0, start + queries.shape[2] if causal else key.shape[2]
        part = None if mask is None else mask if mask.shape[2] == 1 else mask[:, :, start : start + CHUNK]
        if part is not None and part.dtype == torch.bool:  # skip keys outside the window
            seen = part.flatten(0, 2).any(dim=0).nonzero()
            first, end = (int(seen[0]), int(seen[-1]) + 1) if len(seen) else (0, end)
            part = part[..., first:end]
        scores = queries @ key[:, :, first:end].transpose(2, 3)
        if causal:
            scores = scores + torch.full((end - start, end), -torch.inf, dtype=scores.dtype).triu(start + 1)
        elif part is not None:
            shown = part if part.dtype == torch.bool else part.to(scores.dtype) > -torch.inf
            scores = scores.masked_fill(~part, -1e38) if shown is part else scores + part.to(scores.dtype).clamp(-1e38)
        output = dropout(scores.softmax(-1)) @ value[:, :, first:end]  # 0 where all keys are masked, as in SDPA
        outputs.append(output if part is None else output.masked_fill(~shown.any(-1, keepdim=True), 0))
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous()


def speed() -> float:
    """Return the speedup over SDPA of attention and its gradients in bfloat16, for short rows."""
    generator = torch.Generator().manual_seed(0)
    draw = partial(torch.randn, 4, 4, SHORT, 64, generator=generator, dtype=torch.bfloat16, device="cpu")
    inputs = [draw(requires_grad=True) for _ in range(3)]

    def gradients(attend: Callable[..., torch.Tensor]) -> Any:
        return torch.autograd.grad(attend(*inputs).sum(), inputs)

    usual = partial(nn.functional.scaled_dot_product_attention, is_causal=True)
    other = partial(attention, mask=None, dropout=identity, causal=True)
    return speedup(partial(gradients, usual), partial(gradients, other), 4)
