"""The cache of generation: cross-attention is kept once per source, for sources of similar length together."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, EncoderDecoderCache

Group = tuple[torch.Tensor, int]


class SentenceCache(EncoderDecoderCache):
    """A cache for `copies` rows, beams or samples, of each source, whose keys and values they share.

    Rows of one source are neighbors, and a beam takes the place of another of its own source only: what
    cross-attention has cached never changes its place.

    Args:
        caches: Those of self-attention and of cross-attention, the latter empty.
        copies: Rows of each source.
        groups: The numbers of the sources in each group of similar length, with its longest; none for all in one.

    Attributes:
        parts: By layer, for each group the numbers of its sources, keys, values and mask.
        order: The numbers of the sources, group by group.
        places: Where each source is in that order.
    """

    def __init__(self, *caches: Cache, copies: int, groups: Sequence[Group] = ()):
        super().__init__(*caches)
        self.copies = copies
        self.groups = groups
        self.parts: dict[int, list[tuple[torch.Tensor, ...]]] = {}
        self.order = torch.cat([rows for rows, _ in groups] or [torch.empty(0)])
        self.places = self.order.argsort()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Put row `beam_idx[i]` of self-attention in the place of row i."""
        self.self_attention_cache.reorder_cache(beam_idx)  # type: ignore[arg-type]  # any integers

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep these rows, in their order, where each source has one row."""
        super().batch_select_indices(indices)
        if not self.groups:
            return
        now = torch.full((len(self.places),), -1).index_copy(0, indices, torch.arange(len(indices)))
        for layer, parts in self.parts.items():
            kept = [(now[rows], *[value[now[rows] >= 0] for value in values]) for rows, *values in parts]
            self.parts[layer] = [(rows[rows >= 0], *values) for rows, *values in kept if (rows >= 0).any()]
        self.order = torch.cat([rows for rows, *_ in self.parts[layer]])
        self.places = self.order.argsort()

    def fold(self, x: torch.Tensor) -> torch.Tensor:
        """Return states (B·copies, T, D) as (B, copies·T, D): the tokens of one source in one row."""
        return x.reshape(-1, self.copies * x.shape[1], x.shape[2])

    def unfold(self, x: torch.Tensor) -> torch.Tensor:
        """Return states or probabilities (B, ..., copies·T, N) as (B·copies, ..., T, N)."""
        x = x.unflatten(-2, (self.copies, -1)).movedim(-3, 1)
        return x.flatten(0, 1)

    def sources(self, x: Any) -> Any:
        """Return one row for each source of states (B·copies, S, D) or of a mask (B·copies, 1, T, S), T then 1."""
        return None if x is None else x[:: self.copies] if x.ndim == 3 else x[:: self.copies, :, :1]
