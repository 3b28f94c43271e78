"""What a model of images looks at: attention roll-out over its patches, and how alike its positions are.

Shape letters: B batch, L layers, H heads, T tokens, N patches, D model width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .recording import eager


def attention_rollout(attentions: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return how much of each token's last state comes from each input token: `Π (A + I) / 2` over the layers.

    A is the mean of a layer's heads, and I stands for the residual connection (Abnar and Zuidema 2020, arXiv
    2005.00928). Every row sums to 1.

    Args:
        attentions: The probabilities of each layer, first to last, L of (B, H, T, T).

    Shapes: L of (B, H, T, T) → (B, T, T).
    """
    rollout = torch.eye(attentions[0].shape[-1], device=attentions[0].device)
    identity = rollout
    for probabilities in attentions:
        rollout = (probabilities.float().mean(dim=1) + identity) / 2 @ rollout
    return rollout


@torch.no_grad()
def image_rollout(model: Any, pixel_values: torch.Tensor, **options: Any) -> torch.Tensor:
    """Return how much of a model's pooled vector comes from each patch, the heat map of attention roll-out.

    It is the class token's row of `attention_rollout`, or the mean of the patches' rows where those are pooled. The
    rest, up to 1, comes from the tokens before the patches.

    Args:
        model: An image model of this package, with a head or without; it attends eagerly meanwhile.
        pixel_values: Images (B, C, height, width).
        **options: Passed on to the model, such as `interpolate_pos_encoding`.

    Shapes: (B, C, height, width) → (B, rows, columns).

    Raises:
        ValueError: The model attends inside of windows, or has several stages: its layers do not have the same tokens.
    """
    config, base = model.config, model.base_model
    for name, one in (("window_size", config.window_size), ("depths", len(config.depths or [0]) > 1)):
        if one:
            raise ValueError(f"{name}={getattr(config, name)}: roll-out needs layers in which all patches meet")
    with eager(base):
        rollout = attention_rollout(base(pixel_values, output_attentions=True, **options).attentions)
    first = config.num_prefix_tokens
    rows = rollout[:, :1] if "first" in config.image_pooling else rollout[:, first:]
    height, width = (side // config.patch_size for side in pixel_values.shape[-2:])
    return rows.mean(dim=1)[:, first:].unflatten(1, (height, width))


@torch.no_grad()
def position_similarity(model: Any) -> torch.Tensor:
    """Return the cosine similarity of every two patches' position vectors (ViT, Dosovitskiy et al. 2021, figure 7).

    Args:
        model: An image model of this package, with a head or without.

    Shapes: → (rows, columns, rows, columns): the first two name a patch, the others those it is compared with.

    Raises:
        ValueError: The model adds no position vectors to its patches.
    """
    config, embeddings = model.config, model.base_model.embeddings
    nothing = torch.zeros(1, config.num_positions, config.hidden_size, device=model.device, dtype=model.dtype)
    vectors = embeddings.add_positions(nothing, config.grid)[0, config.num_placed_tokens :].float()  # (N, D)
    if not vectors.any():
        raise ValueError(
            f"position_embedding_type={config.position_embedding_type!r}: the model adds no position vectors"
        )
    unit = nn.functional.normalize(vectors, dim=-1)
    return (unit @ unit.T).unflatten(1, config.grid).unflatten(0, config.grid)
