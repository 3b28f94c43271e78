"""From token states to one vector: `POOLINGS` is the list of choices for texts, `IMAGE_POOLINGS` that for images.

Shapes: token states (B, T, D), mask (B, T) with 1 on tokens and 0 on padding → (B, D), with 2D for two vectors.
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


def pool_class_token(states: torch.Tensor, prefix: int, mask: torch.Tensor | None) -> torch.Tensor:
    """Return the state of the class token, the first of an image."""
    return states[:, 0]


def pool_patches(states: torch.Tensor, prefix: int, mask: torch.Tensor | None) -> torch.Tensor:
    """Return the mean over the patches, which follow `prefix` other tokens."""
    patches = states[:, prefix:]
    return patches.mean(1) if mask is None else pool_mean(patches, mask[:, prefix:])


def pool_class_and_patches(states: torch.Tensor, prefix: int, mask: torch.Tensor | None) -> torch.Tensor:
    """Return the class token's state and the mean over the patches, concatenated (DINOv2)."""
    return torch.cat((states[:, 0], pool_patches(states, prefix, mask)), dim=-1)


IMAGE_POOLINGS = {"first": pool_class_token, "mean": pool_patches, "first_and_mean": pool_class_and_patches}
