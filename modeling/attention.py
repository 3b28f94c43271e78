"""Multi-head attention: one class, and the variant whose keys and values come from another stack.

Shape letters: B batch, T query length, S key length, D model width, H query heads, G key/value heads, K head width.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs

from vanillaformer.configuration import BlockConfig

Rotation = tuple[torch.Tensor, torch.Tensor]
Rotate = Callable[[torch.Tensor, torch.Tensor, Rotation | None], tuple[torch.Tensor, torch.Tensor]]


def repeat_heads(x: torch.Tensor, repeats: int) -> torch.Tensor:
    """Return keys or values (B, G, S, K) with each head standing `repeats` times in a row, (B, G·repeats, S, K)."""
    return x if repeats == 1 else x.repeat_interleave(repeats, dim=1)


def eager_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    position_bias: torch.Tensor | None = None,
    **kwargs,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scaled dot-product attention as the paper writes it: `softmax(QKᵀ · scaling + bias + mask) V`.

    Shapes: query (B, H, T, K), key and value (B, G, S, K), mask additive (B, 1, T, S) → output (B, T, H, K) and
    probabilities (B, H, T, S).
    """
    key = repeat_heads(key, module.num_key_value_groups)
    value = repeat_heads(value, module.num_key_value_groups)
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if position_bias is not None:
        scores = scores + position_bias
    if attention_mask is not None:
        scores = scores + attention_mask
    probabilities = nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    probabilities = nn.functional.dropout(probabilities, p=dropout, training=module.training)
    output = torch.matmul(probabilities, value).transpose(1, 2).contiguous()
    return output, probabilities


class Attention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2), with shared key/value heads if asked for.

    Each head attends with `softmax(QKᵀ / √K) V`; how it is computed is transformers' choice of
    `attn_implementation`: eager, sdpa, flash or flex attention.

    Args:
        config: The block's config.
        layer_idx: The layer's place in the stack, and in the cache.
        is_causal: Whether a token sees only itself and those before it.
        rotate: Turns queries and keys by position (`modeling/positions.py`).

    Shapes: (B, T, D) → (B, T, D) and probabilities (B, H, T, S), the latter from eager attention only.
    """

    def __init__(self, config: BlockConfig, layer_idx: int, is_causal: bool, rotate: Rotate):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = is_causal
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = config.head_dim**-0.5
        self.dropout = config.attention_dropout
        self.rotate = rotate

        query_width = config.num_attention_heads * config.head_dim
        key_width = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_width, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.hidden_size, key_width, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.hidden_size, key_width, bias=config.attention_bias)
        self.o_proj = nn.Linear(query_width, config.hidden_size, bias=config.attention_bias)

    def split_heads(self, x: torch.Tensor) -> torch.Tensor:
        """Return (B, T, H·K) as (B, H, T, K)."""
        return x.view(*x.shape[:-1], -1, self.head_dim).transpose(1, 2)

    def query_key_value(
        self,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor | None,
        rotation: Rotation | None,
        past_key_values: Cache | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Project, turn by position and append to the cache."""
        query = self.split_heads(self.q_proj(hidden_states))
        key = self.split_heads(self.k_proj(hidden_states))
        value = self.split_heads(self.v_proj(hidden_states))
        query, key = self.rotate(query, key, rotation)
        # an encoder-decoder's cache holds two, any other cache is its own
        cache = getattr(past_key_values, "self_attention_cache", past_key_values)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        return query, key, value

    def forward(
        self,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        rotation: Rotation | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        query, key, value = self.query_key_value(hidden_states, key_value_states, rotation, past_key_values)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        output, probabilities = attend(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.dropout if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        output = output.reshape(*hidden_states.shape[:-1], -1).contiguous()  # (B, T, H·K)
        return self.o_proj(output), probabilities


class CrossAttention(Attention):
    """Attention from the decoder to the encoder's output, whose keys and values are computed once per sentence.

    Source and target positions have no distance between them: nothing is turned.

    Shapes: (B, T, D) and encoder states (B, S, D) → (B, T, D) and probabilities (B, H, T, S).
    """

    def query_key_value(
        self,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor | None,
        rotation: Rotation | None,
        past_key_values: EncoderDecoderCache | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Project the queries, and the keys and values unless the cache holds them already."""
        query = self.split_heads(self.q_proj(hidden_states))
        if past_key_values is not None and past_key_values.is_updated.get(self.layer_idx):
            layer: Any = past_key_values.cross_attention_cache.layers[self.layer_idx]
            return query, layer.keys, layer.values
        key = self.split_heads(self.k_proj(key_value_states))
        value = self.split_heads(self.v_proj(key_value_states))
        if past_key_values is not None:
            key, value = past_key_values.cross_attention_cache.update(key, value, self.layer_idx)
            past_key_values.is_updated[self.layer_idx] = True
        return query, key, value
