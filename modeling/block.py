"""The Transformer blocks: what the papers draw as a box, with its sublayers in a row or side by side."""

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs

from vanillaformer.configuration import BlockConfig

from .parts.attention import Attention, CrossAttention
from .parts.feed_forward import build_feed_forward
from .parts.norms import build_norm
from .parts.positions import build_rotate, leave
from .parts.residual import Residual, build_residual


class SelfAttentionBlock(GradientCheckpointingLayer):
    """Self-attention and feed-forward, each with its residual connection.

    It is the encoder block of Vaswani et al. 2017 and BERT and, with a causal mask, the block of GPT.

    Shapes: (B, T, D), position bias (1, H, T, S) or `None` → (B, T, D).
    """

    sublayers = 2

    def __init__(self, config: BlockConfig, layer_idx: int, is_causal: bool):
        super().__init__()
        cross_attention = self.sublayers == 3
        bare = config.skip_first_norm and layer_idx == 0
        self.self_attn = Attention(config, layer_idx, is_causal, build_rotate(config, layer_idx))
        self.self_attn_residual = Residual(config) if bare else build_residual(config, cross_attention)
        self.mlp = build_feed_forward(config)
        self.mlp_residual = build_residual(config, cross_attention)

    def attend(self, x: torch.Tensor, **kwargs) -> torch.Tensor:
        """Return self-attention's output for the stream `x`."""
        return self.self_attn(self.self_attn_residual.before(x), **kwargs)[0]

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        """Return the feed-forward layer's output for the stream `x`."""
        return self.mlp(self.mlp_residual.before(x))

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_bias: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        x = hidden_states
        attended = self.attend(x, attention_mask=attention_mask, position_bias=position_bias, **kwargs)
        x = self.self_attn_residual.after(x, attended)
        return self.mlp_residual.after(x, self.feed(x))


class CrossAttentionBlock(SelfAttentionBlock):
    """Causal self-attention, attention to the encoder's output and feed-forward: the paper's decoder block.

    Shapes: (B, T, D), position bias (1, H, T, T') or `None`, encoder states (B, S, D') → (B, T, D).
    """

    sublayers = 3

    def __init__(self, config: BlockConfig, layer_idx: int, is_causal: bool):
        super().__init__(config, layer_idx, is_causal)
        self.cross_attn = CrossAttention(
            config, layer_idx, is_causal=False, rotate=leave, key_value_width=config.encoder_width
        )
        self.cross_attn_residual = build_residual(config, cross_attention=True)

    def consult(self, x: torch.Tensor, **kwargs) -> torch.Tensor:
        """Return cross-attention's output for the stream `x`."""
        return self.cross_attn(self.cross_attn_residual.before(x), **kwargs)[0]

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_bias: torch.Tensor | None,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        x, source = hidden_states, encoder_hidden_states
        attended = self.attend(x, attention_mask=attention_mask, position_bias=position_bias, **kwargs)
        x = self.self_attn_residual.after(x, attended)
        consulted = self.consult(x, key_value_states=source, attention_mask=encoder_attention_mask, **kwargs)
        x = self.cross_attn_residual.after(x, consulted)
        return self.mlp_residual.after(x, self.feed(x))


def share_norm(block: SelfAttentionBlock, config: BlockConfig) -> nn.Module:
    """Return the norm before all sublayers of a block: the one they share, or the identity if each has its own."""
    if config.block_layout != "parallel_shared_norm":
        return nn.Identity()
    for name, _ in list(block.named_children()):
        if name.endswith("_residual"):
            setattr(block, name, Residual(config))
    return build_norm(config)


class ParallelSelfAttentionBlock(SelfAttentionBlock):
    """Self-attention and feed-forward side by side (GPT-J, 2021): `x + attention(norm(x)) + feed_forward(norm'(x))`.

    Both read the block's input, through one norm or each through its own.

    Shapes: (B, T, D), position bias (1, H, T, S) or `None` → (B, T, D).
    """

    def __init__(self, config: BlockConfig, layer_idx: int, is_causal: bool):
        super().__init__(config, layer_idx, is_causal)
        self.norm = share_norm(self, config)

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_bias: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        x = self.norm(hidden_states)
        attended = self.attend(x, attention_mask=attention_mask, position_bias=position_bias, **kwargs)
        return self.mlp_residual.after(self.self_attn_residual.after(hidden_states, attended), self.feed(x))


class ParallelCrossAttentionBlock(CrossAttentionBlock):
    """Self-attention, attention to the encoder's output and feed-forward, side by side on the block's input.

    Shapes: (B, T, D), position bias (1, H, T, T') or `None`, encoder states (B, S, D') → (B, T, D).
    """

    def __init__(self, config: BlockConfig, layer_idx: int, is_causal: bool):
        super().__init__(config, layer_idx, is_causal)
        self.norm = share_norm(self, config)

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_bias: torch.Tensor | None,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        x, source = self.norm(hidden_states), encoder_hidden_states
        attended = self.attend(x, attention_mask=attention_mask, position_bias=position_bias, **kwargs)
        consulted = self.consult(x, key_value_states=source, attention_mask=encoder_attention_mask, **kwargs)
        out = self.cross_attn_residual.after(self.self_attn_residual.after(hidden_states, attended), consulted)
        return self.mlp_residual.after(out, self.feed(x))


BLOCKS: dict[str, tuple[type[SelfAttentionBlock], type[CrossAttentionBlock]]] = {
    "sequential": (SelfAttentionBlock, CrossAttentionBlock),
    "parallel": (ParallelSelfAttentionBlock, ParallelCrossAttentionBlock),
    "parallel_shared_norm": (ParallelSelfAttentionBlock, ParallelCrossAttentionBlock),
}


def build_block(config: BlockConfig, layer_idx: int, is_causal: bool, cross_attention: bool) -> SelfAttentionBlock:
    """Return the block that `config` names, with or without attention to another stack's output."""
    return BLOCKS[config.block_layout][int(cross_attention)](config, layer_idx, is_causal)
