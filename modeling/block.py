"""The Transformer blocks, with their sublayers one after another or in parallel, and layer drop.

Shape letters: B batch, T query length, S key length or length of the source, D model width, H query heads.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from vanillaformer.configuration import BlockConfig

from .acceleration import acceleration
from .parts.attention import Attention, CrossAttention
from .parts.feed_forward import build_feed_forward
from .parts.norms import build_norm
from .parts.position_schemes import build_rotate
from .parts.positions import no_rotation
from .parts.residual import Residual, build_residual
from .parts.windows import Windows


class SelfAttentionBlock(GradientCheckpointingLayer):
    """Self-attention and feed-forward with residual connections: Vaswani et al. 2017, BERT and, if causal, GPT.

    Shapes: (B, T, D), position bias (1, H, T, S) or `None` → (B, T, D).
    """

    sublayers = 2

    def __init__(self, config: BlockConfig, layer_idx: int, is_causal: bool):
        super().__init__()
        cross_attention = self.sublayers == 3
        self.self_attn = Attention(config, layer_idx, is_causal, build_rotate(config, layer_idx))
        build_first = Residual if config.skip_first_norm and layer_idx == 0 else build_residual
        self.self_attn_residual = build_first(config, cross_attention, layer_idx)
        self.mlp = build_feed_forward(config)
        self.mlp_residual = build_residual(config, cross_attention, layer_idx)

    def self_attend(self, x: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """Return the output of self-attention for the stream `x`."""
        return self.self_attn(self.self_attn_residual.before(x), **kwargs)[0]

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of the feed-forward layer for the stream `x`."""
        return self.mlp(self.mlp_residual.before(x))

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_bias: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        x = hidden_states
        attended = self.self_attend(x, attention_mask=attention_mask, position_bias=position_bias, **kwargs)
        x = self.self_attn_residual.after(x, attended)
        return self.mlp_residual.after(x, self.feed_forward(x))


class CrossAttentionBlock(SelfAttentionBlock):
    """Causal self-attention, cross-attention to the encoder's output and feed-forward (Vaswani et al. 2017).

    Shapes: (B, T, D), position bias (1, H, T, T') or `None`, encoder states (B, S, D') → (B, T, D).
    """

    sublayers = 3

    def __init__(self, config: BlockConfig, layer_idx: int, is_causal: bool):
        super().__init__(config, layer_idx, is_causal)
        self.cross_attn = CrossAttention(
            config, layer_idx, is_causal=False, rotate=no_rotation, key_value_width=config.encoder_width
        )
        self.cross_attn_residual = build_residual(config, cross_attention=True, layer_idx=layer_idx)

    def cross_attend(self, x: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """Return the output of cross-attention for the stream `x`."""
        kwargs.pop("first_values", None)  # only for self-attention
        return acceleration.cross_attend(self.cross_attn, self.cross_attn_residual.before(x), **kwargs)[0]

    def forward(  # type: ignore[override]  # a third argument is required
        self,
        hidden_states: torch.Tensor,
        position_bias: torch.Tensor | None,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        x, source = hidden_states, encoder_hidden_states
        attended = self.self_attend(x, attention_mask=attention_mask, position_bias=position_bias, **kwargs)
        x = self.self_attn_residual.after(x, attended)
        cross_attended = self.cross_attend(x, key_value_states=source, attention_mask=encoder_attention_mask, **kwargs)
        x = self.cross_attn_residual.after(x, cross_attended)
        return self.mlp_residual.after(x, self.feed_forward(x))


def share_norm(block: SelfAttentionBlock, config: BlockConfig, layer_idx: int) -> nn.Module:
    """Return the norm that all sublayers of a block share, or the identity if each has its own.

    The residual connections of a block with a shared norm lose theirs.
    """
    if config.block_layout != "parallel_shared_norm":
        return nn.Identity()
    for name, _ in list(block.named_children()):
        if name.endswith("_residual"):
            setattr(block, name, Residual(config, layer_idx=layer_idx))
    return build_norm(config)


class ParallelSelfAttentionBlock(SelfAttentionBlock):
    """Self-attention and feed-forward in parallel (GPT-J, 2021): `x + attention(norm(x)) + feed_forward(norm'(x))`.

    Both read the block's input, through a shared norm or each through its own.
    """

    def __init__(self, config: BlockConfig, layer_idx: int, is_causal: bool):
        super().__init__(config, layer_idx, is_causal)
        self.norm = share_norm(self, config, layer_idx)

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_bias: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        x = self.norm(hidden_states)
        attended = self.self_attend(x, attention_mask=attention_mask, position_bias=position_bias, **kwargs)
        return self.mlp_residual.after(self.self_attn_residual.after(hidden_states, attended), self.feed_forward(x))


class ParallelCrossAttentionBlock(CrossAttentionBlock):
    """Self-attention, cross-attention to the encoder's output and feed-forward, in parallel on the block's input."""

    def __init__(self, config: BlockConfig, layer_idx: int, is_causal: bool):
        super().__init__(config, layer_idx, is_causal)
        self.norm = share_norm(self, config, layer_idx)

    def forward(  # type: ignore[override]  # a third argument is required
        self,
        hidden_states: torch.Tensor,
        position_bias: torch.Tensor | None,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        x, source = self.norm(hidden_states), encoder_hidden_states
        attended = self.self_attend(x, attention_mask=attention_mask, position_bias=position_bias, **kwargs)
        cross_attended = self.cross_attend(x, key_value_states=source, attention_mask=encoder_attention_mask, **kwargs)
        out = self.cross_attn_residual.after(self.self_attn_residual.after(hidden_states, attended), cross_attended)
        return self.mlp_residual.after(out, self.feed_forward(x))


BLOCKS: dict[str, type[SelfAttentionBlock]] = {
    "sequential": SelfAttentionBlock,
    "parallel": ParallelSelfAttentionBlock,
    "parallel_shared_norm": ParallelSelfAttentionBlock,
}
CROSS_BLOCKS: dict[str, type[CrossAttentionBlock]] = {
    "sequential": CrossAttentionBlock,
    "parallel": ParallelCrossAttentionBlock,
    "parallel_shared_norm": ParallelCrossAttentionBlock,
}


class WindowMixin:
    """Mixin of blocks whose self-attention runs inside windows of patches (Swin, Liu et al. 2021)."""

    self_attn: Attention
    self_attn_residual: Residual

    def self_attend(self, x: torch.Tensor, windows: Windows, **kwargs: Any) -> torch.Tensor:
        """Return the output of self-attention for the stream `x` (B, N, D), with masks and biases of windows."""
        return windows.join(self.self_attn(windows.split(self.self_attn_residual.before(x)), **kwargs)[0])


class WindowBlock(WindowMixin, SelfAttentionBlock):
    """A block with attention inside windows: (B, N, D), position bias (1, H, S, S) or `None` → (B, N, D)."""


class ParallelWindowBlock(WindowMixin, ParallelSelfAttentionBlock):
    """The same with both sublayers in parallel."""


WINDOW_BLOCKS: dict[str, type[SelfAttentionBlock]] = {
    "sequential": WindowBlock,
    "parallel": ParallelWindowBlock,
    "parallel_shared_norm": ParallelWindowBlock,
}


def build_block(config: BlockConfig, layer_idx: int, is_causal: bool, cross_attention: bool) -> SelfAttentionBlock:
    """Return the block that `config` selects, with or without cross-attention."""
    if config.window_size is not None:
        return WINDOW_BLOCKS[config.block_layout](config, layer_idx, is_causal)
    if config.is_encoder_decoder and cross_attention:
        return CROSS_BLOCKS[config.block_layout](config, layer_idx, is_causal)
    return BLOCKS[config.block_layout](config, layer_idx, is_causal)


class SkippedBlock(CrossAttentionBlock):
    """Replaces a dropped block: (B, T, D) → the same.

    It is a subclass of both kinds of block, so that the hooks that record hidden states find it, and has no parts.
    """

    def __init__(self) -> None:
        nn.Module.__init__(self)

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return hidden_states


class LayerDrop(nn.Module):
    """LayerDrop (Fan et al. 2020): skips each layer with the same probability while training, none in evaluation.

    It draws on the CPU, whose random state is part of a checkpoint. Unlike dropout it scales nothing: without some of
    its layers a sum of residual connections is a shallower network.
    """

    def __init__(self, rate: float):
        super().__init__()
        self.rate, self.skipped = rate, SkippedBlock()

    def forward(self, layers: Iterable[nn.Module]) -> Iterable[nn.Module]:
        """Return the layers, dropped ones replaced by a `SkippedBlock`."""
        if not self.training:
            return layers
        layers = list(layers)
        draws = torch.rand(len(layers), device="cpu").tolist()
        return [self.skipped if draw < self.rate else layer for layer, draw in zip(layers, draws)]
