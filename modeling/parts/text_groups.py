"""Attention of packed texts without masks between texts: neighbors of equal length attend as one batch.

Shape letters: R rows, T length, N texts, L their length, H heads, K head width.
"""

from collections.abc import Callable
from itertools import groupby
from typing import Any, NamedTuple

import torch

from .packed_texts import packed

CALL = 2**15
"""Scores of a head that could be computed while attention is called for one group more."""


class Group(NamedTuple):
    """Texts of equal length, one after the other in the rows, and their padding mask (N, 1, 1, L) if one is padded."""

    texts: int
    length: int
    mask: torch.Tensor | None


class TextGroups:
    """What stands for the attention mask of rows whose texts attend to themselves alone, in `Attention`.

    Args:
        groups: All that the rows hold, in their order.
    """

    def __init__(self, groups: list[Group]):
        self.groups = groups

    def attend(
        self, function: Callable[..., Any], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Return what an attention function gives for each group, (R, T, H, K).

        Args:
            function: Takes query, key, value (N, H, L, K) and a mask, and returns a pair whose first is (N, L, H, K).
            query: (R, H, T, K).
            key: (R, G, T, K), with G key/value heads.
            value: The same.
        """
        sizes = [group.texts * group.length for group in self.groups]
        parts = zip(*(x.transpose(1, 2).flatten(0, 1).split(sizes) for x in (query, key, value)))
        outputs = [
            function(*(x.unflatten(0, group[:2]).transpose(1, 2) for x in part), group.mask)[0].flatten(0, 1)
            for group, part in zip(self.groups, parts)
        ]
        return torch.cat(outputs).unflatten(0, (len(query), -1))


def text_groups(position_ids: torch.Tensor | None, attention_mask: Any, rows: int) -> TextGroups | None:
    """Return the groups of packed texts on a CPU, `None` if there are none or masks are computed faster.

    A text begins at position 0; padding behind it is a part of it.

    Args:
        position_ids: Positions (R or 1, T), or `None`.
        attention_mask: Padding mask (R, T), or `None`.
        rows: R.
    """
    if position_ids is None or position_ids.device.type != "cpu" or torch.compiler.is_compiling():
        return None
    if torch.jit.is_tracing() or not packed(position_ids, attention_mask):
        return None
    length = position_ids.shape[1]
    starts = position_ids.expand(rows, -1) == 0
    mask = None if attention_mask is None else attention_mask.bool()
    starts = starts.clone() if mask is None else starts & mask
    starts[:, 0] = True  # padding may be in front, too
    places = starts.flatten().nonzero().flatten()
    lengths = torch.diff(places, append=places.new_tensor([rows * length])).tolist()
    sizes = [(len(list(equal)), size) for size, equal in groupby(lengths)]
    if sum(CALL + texts * size**2 for texts, size in sizes) > CALL + rows * length**2:
        return None
    masks = [None] * len(sizes) if mask is None else mask.flatten().split([texts * size for texts, size in sizes])
    return TextGroups([Group(*size, padding(part, *size)) for size, part in zip(sizes, masks)])


def padding(mask: torch.Tensor | None, texts: int, length: int) -> torch.Tensor | None:
    """Return the mask of texts (N L) as (N, 1, 1, L), `None` if nothing is padded."""
    return None if mask is None or mask.all() else mask.view(texts, 1, 1, length)
