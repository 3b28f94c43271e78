"""From token states to one vector per text, without padding; `POOLINGS` is the list of choices.

Shapes: token states (B, T, D), mask (B, T) with 1 on tokens and 0 on padding → (B, D).
"""

import torch


def pool_first(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the first token's state, BERT's [CLS]."""
    return states[torch.arange(states.shape[0], device=states.device), mask.int().argmax(dim=1)]


def pool_mean(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the mean over the tokens, computed in float32 or more."""
    weights, dtype = mask.unsqueeze(-1).to(states.dtype), torch.promote_types(states.dtype, torch.float32)
    total, count = ((states * weights).sum(1, dtype=dtype), weights.sum(1, dtype=dtype))
    return (total / count.clamp(min=1)).to(states.dtype)


def pool_max(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the maximum over the tokens, dimension by dimension."""
    return states.masked_fill(~mask.bool().unsqueeze(-1), torch.finfo(states.dtype).min).amax(1)


def pool_last(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the last token's state, with padding on either side."""
    positions = torch.arange(states.shape[1], device=states.device)
    return states[torch.arange(states.shape[0], device=states.device), (positions * mask).argmax(dim=1)]


POOLINGS = {"first": pool_first, "mean": pool_mean, "max": pool_max, "last": pool_last}
