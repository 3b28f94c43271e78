"""The two Transformer blocks: what the papers draw as a box."""

import torch
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs

from vanillaformer.configuration import BlockConfig

from .attention import Attention, CrossAttention
from .feed_forward import build_feed_forward
from .positions import POSITIONS, NoPositions
from .residual import build_residual


class SelfAttentionBlock(GradientCheckpointingLayer):
    """Self-attention and feed-forward, each with its residual connection.

    It is the encoder block of Vaswani et al. 2017 and BERT and, with a causal mask, the block of GPT.

    Shapes: (B, T, D) → (B, T, D).
    """

    sublayers = 2

    def __init__(self, config: BlockConfig, layer_idx: int, is_causal: bool):
        super().__init__()
        self.self_attn = Attention(config, layer_idx, is_causal, POSITIONS[config.position_embedding_type].rotate)
        self.self_attn_residual = build_residual(config)
        self.mlp = build_feed_forward(config)
        self.mlp_residual = build_residual(config)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        x = hidden_states
        attended, _ = self.self_attn(self.self_attn_residual.before(x), attention_mask=attention_mask, **kwargs)
        x = self.self_attn_residual.after(x, attended)
        return self.mlp_residual.after(x, self.mlp(self.mlp_residual.before(x)))


class CrossAttentionBlock(SelfAttentionBlock):
    """Causal self-attention, attention to the encoder's output and feed-forward: the paper's decoder block.

    Shapes: (B, T, D) and encoder states (B, S, D) → (B, T, D).
    """

    sublayers = 3

    def __init__(self, config: BlockConfig, layer_idx: int, is_causal: bool):
        super().__init__(config, layer_idx, is_causal)
        self.cross_attn = CrossAttention(config, layer_idx, is_causal=False, rotate=NoPositions.rotate)
        self.cross_attn_residual = build_residual(config)

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> torch.Tensor:
        x = hidden_states
        attended, _ = self.self_attn(self.self_attn_residual.before(x), attention_mask=attention_mask, **kwargs)
        x = self.self_attn_residual.after(x, attended)
        attended, _ = self.cross_attn(
            self.cross_attn_residual.before(x),
            key_value_states=encoder_hidden_states,
            attention_mask=encoder_attention_mask,
            **kwargs,
        )
        x = self.cross_attn_residual.after(x, attended)
        return self.mlp_residual.after(x, self.mlp(self.mlp_residual.before(x)))
