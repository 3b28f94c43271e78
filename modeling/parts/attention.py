"""Multi-head attention: one class, and the variant whose keys and values come from another stack.

Shape letters: B batch, T query length, S key length, D model width, H query heads, G key/value heads, K head width.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from vanillaformer.configuration import BlockConfig, layer_types

from ..acceleration import acceleration
from .norms import NormPerHead, build_norm
from .positions import PositionEmbeddings, Rotate


def repeat_heads(x: torch.Tensor, repeats: int) -> torch.Tensor:
    """Return keys or values (B, G, S, K) as (B, G·repeats, S, K), each head repeated for the queries that share it."""
    return x if repeats == 1 else x.repeat_interleave(repeats, dim=1)


def eager_attention(
    module: "Attention",
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    softcap: float | None = None,
    position_bias: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scaled dot-product attention (Vaswani et al. 2017, equation 1): `softmax(QKᵀ · scaling + bias + mask) V`.

    With a soft cap c (Gemma 2) the scores before bias and mask are `c tanh(QKᵀ · scaling / c)`.

    Shapes: query (B, H, T, K), key and value (B, G, S, K), bias (1, H, T, S), additive mask (B, 1, T, S) → output
    (B, T, H, K) and probabilities (B, H, T, S).
    """
    key = repeat_heads(key, module.num_key_value_groups)
    value = repeat_heads(value, module.num_key_value_groups)
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if position_bias is not None:
        scores = scores + position_bias
    # In float16 the mask's smallest number plus a score would be -inf, and a row of -inf gives NaN
    scores = scores.to(torch.promote_types(query.dtype, torch.float32))
    if attention_mask is not None:
        scores = scores + attention_mask
    probabilities = nn.functional.softmax(scores, dim=-1).to(query.dtype)
    probabilities = nn.functional.dropout(probabilities, p=dropout, training=module.training)
    output = torch.matmul(probabilities, value).transpose(1, 2).contiguous()
    return output, probabilities


def split_heads(x: torch.Tensor, head_dim: int, norm: nn.Module | None = None) -> torch.Tensor:
    """Return (B, T, H·K) as (B, H, T, K)."""
    return x.view(*x.shape[:-1], -1, head_dim).transpose(1, 2)


def split_and_normalize(x: torch.Tensor, head_dim: int, norm: nn.Module) -> torch.Tensor:
    """Return (B, T, H·K) as (B, H, T, K), each head normalized (Qwen 3)."""
    return norm(split_heads(x, head_dim))


def normalize_and_split(x: torch.Tensor, head_dim: int, norm: nn.Module) -> torch.Tensor:
    """Return (B, T, H·K), normalized over all heads, as (B, H, T, K) (OLMo 2)."""
    return split_heads(norm(x), head_dim)


# How queries and keys become heads
QUERY_KEY_NORMS: dict[str, Callable[..., torch.Tensor]] = {
    "none": split_heads,
    "head": split_and_normalize,
    "each_head": split_and_normalize,
    "full": normalize_and_split,
}


def build_query_key_norm(config: BlockConfig, heads: int) -> nn.Module:
    """Return the norm on queries or keys of `heads` heads."""
    if config.qk_norm == "each_head":
        return NormPerHead(config, heads)
    return build_norm(config, config.head_dim if config.qk_norm == "head" else heads * config.head_dim)


def plain_values(value: torch.Tensor, first: list[torch.Tensor] | None) -> torch.Tensor:
    """Return the values of a layer unchanged."""
    return value


class FirstValues(nn.Module):
    """Keeps the values V₁ of the first layer for the others."""

    def forward(self, value: torch.Tensor, first: list[torch.Tensor]) -> torch.Tensor:
        first[:] = [value]
        return value


class ValueResidual(nn.Module):
    """Value residual (ResFormer, Zhou et al. 2024): `(1 - λ) V + λ V₁` for the values of a later layer, λ trained.

    If layer drop skipped the first layer, values stay unchanged.
    """

    START = 0.5

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), self.START))

    def forward(self, value: torch.Tensor, first: list[torch.Tensor]) -> torch.Tensor:
        return torch.lerp(value, first[0], self.weight.to(value.dtype)) if first else value

    def initial_values(self) -> dict[str, torch.Tensor]:
        return {"weight": torch.full((1,), self.START)}


def build_value_residual(config: BlockConfig, layer_idx: int) -> Callable[..., torch.Tensor]:
    """Return the function applied to the values of a layer."""
    if not config.value_residual:
        return plain_values
    return ValueResidual() if layer_idx > 0 else FirstValues()


class Attention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2), with H query and G ≤ H key/value heads.

    Each head computes `softmax(QKᵀ / √K) V`, with transformers' `attn_implementation`: eager, sdpa, flash or flex
    attention. With G < H several query heads share keys and values (Shazeer 2019; Ainslie et al. 2023).

    `rotate` rotates queries and keys by position; keys and values are projected from states of `key_value_width`.

    Shapes: (B, T, D) → (B, T, D) and probabilities (B, H, T, S), the latter from eager attention only.
    """

    WINDOWED: tuple[str, ...] = ("sliding_attention",)  # types of layers with a window

    def __init__(
        self, config: BlockConfig, layer_idx: int, is_causal: bool, rotate: Rotate, key_value_width: int | None = None
    ):
        super().__init__()
        heads, key_heads = config.num_attention_heads, config.num_key_value_heads
        self.num_key_value_groups = heads // key_heads
        # transformers' attention functions read these attributes by name
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = is_causal
        self.head_dim = config.head_dim
        self.scaling = self.head_dim**-0.5 if config.attention_scale is None else config.attention_scale
        self.dropout = config.attention_dropout
        self.rotate = rotate
        self.to_heads = QUERY_KEY_NORMS[config.qk_norm]
        # the attention function's keyword arguments besides tensors
        self.options: dict[str, Any] = {}
        if config.attn_logit_softcapping is not None:
            self.options["softcap"] = config.attn_logit_softcapping
        if config.sliding_window is not None and layer_types(config)[layer_idx] in self.WINDOWED:
            # Flash attention counts the token itself, transformers' mask of an encoder does not
            self.options["sliding_window"] = config.sliding_window + (not is_causal)

        source_width = key_value_width or config.hidden_size
        query_width, key_width = heads * self.head_dim, key_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_width, bias=config.has_attention_bias("q_proj"))
        self.k_proj = nn.Linear(source_width, key_width, bias=config.has_attention_bias("k_proj"))
        self.v_proj = nn.Linear(source_width, key_width, bias=config.has_attention_bias("v_proj"))
        self.o_proj = nn.Linear(query_width, config.hidden_size, bias=config.has_attention_bias("o_proj"))
        self.q_norm = None if config.qk_norm == "none" else build_query_key_norm(config, heads)
        self.k_norm = None if config.qk_norm == "none" else build_query_key_norm(config, key_heads)
        self.mix_values = build_value_residual(config, layer_idx) if key_value_width is None else plain_values

    def query_key_value(
        self,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor | None,
        position_embeddings: PositionEmbeddings | None,
        past_key_values: Cache | None,
        inputs: dict[str, Any],
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Project, rotate by position and append to the cache: (B, T, D) → (B, H, T, K), twice (B, G, S, K)."""
        query = self.to_heads(self.q_proj(hidden_states), self.head_dim, self.q_norm)
        key = self.to_heads(self.k_proj(hidden_states), self.head_dim, self.k_norm)
        value = split_heads(self.v_proj(hidden_states), self.head_dim)
        value = self.mix_values(value, inputs.pop("first_values", None))
        query, key = self.rotate(query, key, position_embeddings)
        # the cache of an encoder-decoder is a pair, any other is the self-attention cache itself
        cache = getattr(past_key_values, "self_attention_cache", past_key_values)
        if cache is not None:
            # a paged one reads its pages in the other inputs
            key, value = cache.update(key, value, self.layer_idx, kwargs=inputs)
        return query, key, value

    def forward(
        self,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_embeddings: PositionEmbeddings | None = None,
        past_key_values: Cache | None = None,
        position_bias: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        query, key, value = self.query_key_value(
            hidden_states, key_value_states, position_embeddings, past_key_values, kwargs
        )
        function = self.attention_function(position_bias=position_bias, **kwargs)
        output, probabilities = acceleration.attend(function, query, key, value, attention_mask)
        output = output.reshape(*hidden_states.shape[:-1], -1).contiguous()  # (B, T, H·K)
        return self.o_proj(output), probabilities

    def attention_function(self, **kwargs: Any) -> Callable[..., tuple[torch.Tensor, torch.Tensor | None]]:
        """Return the function of `attn_implementation`, which takes queries, keys, values and a mask."""
        interface = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        dropout = self.dropout if self.training else 0.0
        return partial(interface, self, dropout=dropout, scaling=self.scaling, **self.options, **kwargs)


class CrossAttention(Attention):
    """Attention from the decoder to the encoder's output, whose keys and values are computed once per sentence.

    Every token attends to the whole source. Source and target positions have no distance between them: there is no
    rotation, no position bias and no window.

    Shapes: (B, T, D) and encoder states (B, S, D') → (B, T, D) and probabilities (B, H, T, S).
    """

    WINDOWED = ()

    def query_key_value(
        self,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor | None,
        position_embeddings: PositionEmbeddings | None,
        past_key_values: Cache | None,
        inputs: dict[str, Any],
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Project the queries, and the keys and values unless the cache already holds them."""
        query = self.to_heads(self.q_proj(hidden_states), self.head_dim, self.q_norm)
        # a cache that is not a pair is the self-attention cache
        cache = past_key_values if isinstance(past_key_values, EncoderDecoderCache) else None
        if cache is not None and cache.is_updated.get(self.layer_idx):
            layer: Any = cache.cross_attention_cache.layers[self.layer_idx]
            return query, layer.keys, layer.values
        key, value = self.source_heads(key_value_states)
        if cache is not None:
            key, value = cache.cross_attention_cache.update(key, value, self.layer_idx)
            cache.is_updated[self.layer_idx] = True
        return query, key, value

    def source_heads(self, states: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values (B, G, S, K) of a source (B, S, D')."""
        key = self.to_heads(self.k_proj(states), self.head_dim, self.k_norm)
        return key, split_heads(self.v_proj(states), self.head_dim)
