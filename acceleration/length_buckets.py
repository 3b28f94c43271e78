"""Attention of packed texts without masks: neighboring texts of equal length attend as one batch.

Shape letters: R rows, T length, N texts, L their length, H heads, K head width.
"""

from collections.abc import Callable
from itertools import groupby
from typing import Any, NamedTuple

import torch

from vanillaformer.modeling.parts.packed_texts import packed
from vanillaformer.modeling.parts.positions import NoPositions

CALL_OVERHEAD = 2**15
"""Scores per head that could be computed in the time that one more call of attention takes."""


class Bucket(NamedTuple):
    """Consecutive texts of equal length, and their padding mask (N, 1, 1, L) if any is padded."""

    texts: int
    length: int
    mask: torch.Tensor | None


class LengthBuckets:
    """Takes the place of the attention mask of rows in which each text attends only to itself."""

    def __init__(self, buckets: list[Bucket]):
        self.buckets = buckets  # cover the rows, in order

    def attend(
        self, function: Callable[..., Any], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Return the output of an attention function that is called for each bucket, (R, T, H, K).

        The query is (R, H, T, K), key and value are (R, G, T, K) with G heads. The function takes those of a bucket,
        (N, H, L, K), and a mask, and returns a pair that begins with (N, L, H, K).
        """
        sizes = [bucket.texts * bucket.length for bucket in self.buckets]
        parts = zip(*(x.transpose(1, 2).flatten(0, 1).split(sizes) for x in (query, key, value)))
        outputs = [
            function(*(x.unflatten(0, bucket[:2]).transpose(1, 2) for x in part), bucket.mask)[0].flatten(0, 1)
            for bucket, part in zip(self.buckets, parts)
        ]
        return torch.cat(outputs).unflatten(0, (len(query), -1))


def attend(
    function: Callable[..., Any], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any
) -> Any:
    """Return the output of an attention function, and its probabilities or `None`."""
    if isinstance(mask, LengthBuckets):
        return mask.attend(function, query, key, value), None
    return function(query, key, value, mask)


def packed_masks(stack: Any, position_ids: Any, attention_mask: Any, rows: int) -> dict[str, Any] | None:
    """Return buckets in place of an encoder's masks, `None` where masks are needed or faster."""
    buckets = length_buckets(position_ids, attention_mask, rows) if takes_buckets(stack) else None
    return None if buckets is None else dict.fromkeys(stack.layer_types, buckets)


def takes_buckets(stack: Any) -> bool:
    """Return whether attention is SDPA without windows and biases, which need whole rows."""
    everywhere = set(stack.layer_types) == {"full_attention"}
    unbiased = type(stack.embeddings.positions).score_bias is NoPositions.score_bias
    return stack.config._attn_implementation == "sdpa" and everywhere and unbiased


def length_buckets(position_ids: torch.Tensor | None, attention_mask: Any, rows: int) -> LengthBuckets | None:
    """Return the buckets of texts packed into R rows on a CPU, `None` if none are packed or masks are faster.

    A text begins at position 0 of `position_ids` (R or 1, T); padding after it, 0 in the mask (R, T), belongs to it.
    """
    if position_ids is None or position_ids.device.type != "cpu" or torch.compiler.is_compiling():
        return None
    if torch.jit.is_tracing() or not packed(position_ids, attention_mask):
        return None
    length = position_ids.shape[1]
    starts = position_ids.expand(rows, -1) == 0
    mask = None if attention_mask is None else attention_mask.bool()
    starts = starts.clone() if mask is None else starts & mask
    starts[:, 0] = True  # padding may also come first
    first = starts.flatten().nonzero().flatten()
    lengths = torch.diff(first, append=first.new_tensor([rows * length])).tolist()
    sizes = [(len(list(equal)), size) for size, equal in groupby(lengths)]
    if sum(CALL_OVERHEAD + texts * size**2 for texts, size in sizes) > CALL_OVERHEAD + rows * length**2:
        return None
    buckets, end = [], 0
    for texts, size in sizes:
        start, end = end, end + texts * size
        part = None if mask is None else mask.flatten()[start:end].view(texts, 1, 1, size)
        buckets.append(Bucket(texts, size, None if part is None or part.all() else part))
    return LengthBuckets(buckets)
