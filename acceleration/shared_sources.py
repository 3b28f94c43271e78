"""Sources that several rows share, or that are of similar length: encoded, attended to and cached together.

Shape letters: B batch, S length of the source, T of the target, D model width.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache

from vanillaformer.modeling.base import CACHE_NAME
from vanillaformer.modeling.encoder_decoder import VanillaEncoderDecoderForConditionalGeneration
from vanillaformer.modeling.parts.attention import CrossAttention

from .plain import is_unchanged

BUCKET_ROWS = 8  # at least, per bucket: fewer leave a processor's matrix units idle
MAX_BUCKETS = 8
WORTHWHILE = 0.75  # buckets are used if at most this share of the computation remains
TENSOR_MASKS = ("eager", "sdpa")  # attention implementations whose masks are tensors (B, 1, T, S)

Bucket = tuple[torch.Tensor, int]  # indices of sources, and the length of the longest


def source_buckets(mask: torch.Tensor | None) -> list[Bucket]:
    """Return the rows of a padding mask (B, S) in buckets of similar length; none if that does not pay off.

    Buckets are for the CPU, as a GPU computes all rows at once; padding has to be on the right.
    """
    if mask is None or mask.ndim != 2 or mask.device.type != "cpu" or len(mask) <= BUCKET_ROWS:
        return []
    lengths = mask.sum(dim=1)
    if not torch.equal(mask.bool(), torch.arange(mask.shape[1]) < lengths[:, None]):
        return []
    rows = lengths.argsort().split(max(BUCKET_ROWS, -(-len(mask) // MAX_BUCKETS)))
    buckets = [(some, max(1, int(lengths[some].max()))) for some in rows]
    computed = sum(len(some) * longest for some, longest in buckets)
    return buckets if computed <= WORTHWHILE * mask.numel() else []


# ------------------------------------------------------------------------------------------------------- the encoder
def encode_in_buckets(
    encode: Callable[..., dict[str, Any]],
    model: Any,
    inputs_tensor: torch.Tensor,
    model_kwargs: dict[str, Any],
    model_input_name: str | None,
    generation_config: Any,
) -> dict[str, Any]:
    """Return `generate`'s arguments with the encoder's output; its states (B, S, D), if in buckets, are 0 on padding.

    `encode` is transformers' method, which adds the output for all rows. The inputs are tokens (B, S) or embeddings
    (B, S, D); other arguments that are tensors (B, S, ...) are divided with the rows.
    """
    options = {"model_input_name": model_input_name, "generation_config": generation_config}
    mask = model_kwargs.get("attention_mask")
    recorded = generation_config.output_attentions or generation_config.output_hidden_states
    ours = isinstance(model, VanillaEncoderDecoderForConditionalGeneration)
    buckets = source_buckets(mask) if ours and not recorded and is_unchanged(model) else []
    if mask is None or not buckets:
        return encode(model, inputs_tensor, model_kwargs, **options)
    padded = {key: x for key, x in model_kwargs.items() if isinstance(x, torch.Tensor) and x.shape[:2] == mask.shape}
    states = torch.empty(0)
    for rows, longest in buckets:
        part = rows, slice(longest)
        values = model_kwargs | {key: x[part] for key, x in padded.items()}
        outputs = encode(model, inputs_tensor[part], values, **options)["encoder_outputs"]
        if not len(states):
            states = outputs[0].new_zeros(*mask.shape, outputs[0].shape[-1])
        states[part] = outputs[0]
    outputs.last_hidden_state = states
    if "source_ids" in outputs:
        outputs.source_ids = inputs_tensor
    return model_kwargs | {"encoder_outputs": outputs}


# ------------------------------------------------------------------------------------------------------- the decoder
class SharedSourceCache(EncoderDecoderCache):
    """A cache for `copies` rows of each source, beams or samples, which share its keys and values.

    Rows of a source are neighbors, and a beam only replaces another one of the same source, so what cross-attention
    has cached never moves. The arguments are the caches of self-attention and cross-attention, the latter empty, and
    the sources in buckets of similar length, or none to compute all together.
    """

    def __init__(self, *caches: Cache, copies: int, buckets: Sequence[Bucket] = ()):
        super().__init__(*caches)
        self.copies = copies
        self.buckets = buckets
        # Per layer and bucket: the indices of its sources, keys, values and mask
        self.parts: dict[int, list[tuple[torch.Tensor, ...]]] = {}
        self.order = torch.cat([rows for rows, _ in buckets] or [torch.empty(0)])  # sources, bucket by bucket
        self.positions = self.order.argsort()  # position of each source in that order

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Replace row i of self-attention by row `beam_idx[i]`."""
        self.self_attention_cache.reorder_cache(beam_idx)  # type: ignore[arg-type]  # any integers

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep only these rows, in this order; each source has one row."""
        super().batch_select_indices(indices)
        if not self.buckets:
            return
        now = torch.full((len(self.positions),), -1).index_copy(0, indices, torch.arange(len(indices)))
        for layer, parts in self.parts.items():
            kept = [(now[rows], *[value[now[rows] >= 0] for value in values]) for rows, *values in parts]
            self.parts[layer] = [(rows[rows >= 0], *values) for rows, *values in kept if (rows >= 0).any()]
        self.order = torch.cat([rows for rows, *_ in self.parts[layer]])
        self.positions = self.order.argsort()

    def merge_beams(self, x: torch.Tensor) -> torch.Tensor:
        """Return states (B·copies, T, D) as (B, copies·T, D): the tokens of one source in one row."""
        return x.reshape(-1, self.copies * x.shape[1], x.shape[2])

    def split_beams(self, x: torch.Tensor) -> torch.Tensor:
        """Return states (B, copies·T, D) as (B·copies, T, D)."""
        return x.reshape(len(x) * self.copies, -1, x.shape[2])


def share_sources(model: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a search, with a cache that rows of a source share, unless the caller sees the cache."""
    config: Any = options["generation_config"]
    cache: Any = options.get(CACHE_NAME)
    mask = options.get("attention_mask")
    seen = config.return_dict_in_generate or config.output_attentions or getattr(cache, "_is_user_defined", False)
    cross = getattr(cache, "cross_attention_cache", None)
    ours = isinstance(model, VanillaEncoderDecoderForConditionalGeneration)
    if not ours or seen or type(cross) is not DynamicCache or cross.offloading or not is_unchanged(model):
        return options
    copies = max(config.num_beams or 1, config.num_return_sequences or 1)
    buckets = source_buckets(None if mask is None else mask[::copies])
    if (copies == 1 and not buckets) or model.config._attn_implementation not in TENSOR_MASKS:
        return options
    shared = SharedSourceCache(cache.self_attention_cache, cross, copies=copies, buckets=buckets)
    return options | {CACHE_NAME: shared}


def cross_attend(
    attention: CrossAttention, hidden_states: torch.Tensor, **inputs: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the output of cross-attention for states (B·copies, T, D), once per source if the cache is shared."""
    cache: Any = inputs.get("past_key_values")
    if not isinstance(cache, SharedSourceCache):
        return attention(hidden_states, **inputs)
    x, mask = cache.merge_beams(hidden_states), inputs["attention_mask"]
    source, mask = inputs["key_value_states"][:: cache.copies], None if mask is None else mask[:: cache.copies, :, :1]
    if cache.buckets:
        return cache.split_beams(attend_in_buckets(attention, cache, x, source, mask)), None
    output, _ = attention(x, **inputs | {"key_value_states": source, "attention_mask": mask})
    return cache.split_beams(output), None


def attend_in_buckets(
    attention: CrossAttention, cache: SharedSourceCache, x: torch.Tensor, source: torch.Tensor, mask: Any
) -> torch.Tensor:
    """Return the output for states (B, T, D), computed by buckets of sources of similar length."""
    layer = attention.layer_idx
    if layer not in cache.parts:
        if mask.dtype == torch.bool:  # fused attention would convert it to an additive mask at every call
            mask = torch.zeros_like(mask, dtype=source.dtype).masked_fill_(~mask, float("-inf"))
        cache.parts[layer] = [
            (rows, *attention.source_heads(source[rows, :length]), mask[rows, ..., :length])
            for rows, length in cache.buckets
        ]
    parts = cache.parts[layer]
    query = attention.to_heads(attention.q_proj(x), attention.head_dim, attention.q_norm)
    queries = query.index_select(0, cache.order).split([len(rows) for rows, *_ in parts])
    function = attention.attention_function()
    outputs = [function(some, *part)[0] for some, (_, *part) in zip(queries, parts)]
    return attention.o_proj(torch.cat(outputs)[cache.positions].flatten(2))
