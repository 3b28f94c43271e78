"""Decoders that predict all tokens at once.

Shape letters: B batch, S length of the source, T of the target, K frames per source token, D model width.
"""

from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from ..parts.packed_texts import same_text
from ..stack import BIDIRECTIONAL_MASKS, CrossDecoderStack, Masks


class ParallelDecoderStack(CrossDecoderStack):
    """Bidirectional self-attention and cross-attention: a decoder of all tokens at once, without a cache."""

    is_causal = False
    mask_functions = BIDIRECTIONAL_MASKS

    def self_attention_masks(
        self, hidden_states: torch.Tensor, attention_mask: Any, cache: Any, position_ids: torch.Tensor | None
    ) -> Masks:
        texts = same_text(position_ids, attention_mask, hidden_states.shape[0])
        return self.masks(hidden_states, attention_mask, texts=texts)

    def forward(  # type: ignore[override]  # some of the target tokens are hidden, and none follow cached ones
        self, *args: Any, past_key_values: Any = None, use_cache: Any = None, **kwargs: Any
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        return super().forward(*args, use_cache=False, **kwargs)


class UpsamplingDecoderStack(ParallelDecoderStack):
    """The same on frames: `upsample` makes K vectors of each of the encoder's states (Libovický and Helcl 2018).

    The frames of padding come last, wherever the source has its padding.
    """

    reads_tokens = False

    def build_stem(self, config: Any) -> None:
        super().build_stem(config)
        self.upsample = nn.Linear(config.encoder_width, config.ctc_upsampling * config.hidden_size)

    def forward(  # type: ignore[override]  # target tokens are not read
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Return the states (B, K · S, D) of the frames of the encoder's output (B, S, D)."""
        if encoder_hidden_states is None:
            raise ValueError("decoding='ctc' makes the decoder's input from the encoder's output: none was given")
        repeats, states, mask = self.config.ctc_upsampling, encoder_hidden_states, encoder_attention_mask
        if mask is not None:
            order = mask.int().argsort(dim=1, descending=True, stable=True)  # tokens first
            states = states.gather(1, order[..., None].expand_as(states))
            mask = mask.gather(1, order).repeat_interleave(repeats, dim=1)
        frames = self.upsample(states).unflatten(-1, (repeats, -1)).flatten(1, 2)  # (B, K · S, D)
        return super().forward(
            inputs_embeds=frames / self.embeddings.scale,  # which the stem multiplies tokens by
            attention_mask=mask,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            **kwargs,
        )


def source_mask(states: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """Return where the states (B, S, D) of a source are those of tokens, (B, S)."""
    if attention_mask is None:
        return torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
    return attention_mask.bool()
