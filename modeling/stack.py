"""A stack of blocks with its embeddings: bidirectional, causal, and causal with cross-attention.

Shape letters: B batch, T length, S source length, D model width.
"""

import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.distributed.pipeline_parallel import PipelineIdentityLayer
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPast,
    BaseModelOutputWithPastAndCrossAttentions,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from vanillaformer.configuration import BlockConfig

from .attention import Attention
from .base import VanillaPreTrainedModel
from .block import CrossAttentionBlock, SelfAttentionBlock
from .embeddings import InputEmbeddings
from .residual import build_final_norm


class Stack(VanillaPreTrainedModel):
    """Embeddings, blocks and final norm; the subclasses say how the blocks are called.

    Args:
        config: The model's config.
        vocab_size: Rows of the embedding table. Default `config.vocab_size`.
        num_layers: Number of blocks. Default `config.num_hidden_layers`.
    """

    block_class = SelfAttentionBlock
    is_causal = False

    def __init__(self, config: BlockConfig, vocab_size: int | None = None, num_layers: int | None = None):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(vocab_size or config.vocab_size, config.hidden_size)
        self.embeddings = InputEmbeddings(config)
        self.layers = nn.ModuleList(
            self.block_class(config, layer_idx, self.is_causal)
            for layer_idx in range(num_layers or config.num_hidden_layers)
        )
        self.norm = build_final_norm(config)
        self.gradient_checkpointing = False
        self.post_init()

    def embed(
        self,
        input_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        token_type_ids: torch.Tensor | None = None,
        past_length: int | torch.Tensor = 0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the first block's input (B, T, D) and the positions (B or 1, T) of its tokens."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        if position_ids is None:
            length = inputs_embeds.shape[1]
            if isinstance(past_length, int):
                self.embeddings.positions.check_length(past_length + length)
            position_ids = (torch.arange(length, device=inputs_embeds.device) + past_length).unsqueeze(0)
        if isinstance(self.layers[0], PipelineIdentityLayer):
            return inputs_embeds, position_ids  # a later stage of a pipeline is given states, not embeddings
        return self.embeddings(inputs_embeds, position_ids, token_type_ids), position_ids


class EncoderStack(Stack):
    """Every token sees every other: the encoder of Vaswani et al. 2017 and BERT."""

    _can_record_outputs = {"hidden_states": SelfAttentionBlock, "attentions": Attention}  # noqa: RUF012

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """Return the states (B, T, D) of tokens `input_ids` (B, T); `attention_mask` (B, T) is 0 on padding."""
        hidden_states, position_ids = self.embed(input_ids, inputs_embeds, position_ids, token_type_ids)
        attention_mask = create_bidirectional_mask(self.config, hidden_states, attention_mask)
        rotation = self.embeddings.positions.rotation(hidden_states, position_ids)
        for layer in self.layers:
            hidden_states = layer(
                hidden_states, attention_mask=attention_mask, position_ids=position_ids, rotation=rotation, **kwargs
            )
        return BaseModelOutput(last_hidden_state=self.norm(hidden_states))


class DecoderStack(Stack):
    """Every token sees itself and those before it: GPT."""

    is_causal = True
    _can_record_outputs = {"hidden_states": SelfAttentionBlock, "attentions": Attention}  # noqa: RUF012

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPast:
        """Return the states (B, T, D) of tokens `input_ids` (B, T), which follow those in `past_key_values`."""
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        past_length = past_key_values.get_seq_length() if past_key_values is not None else 0
        given_positions = position_ids  # made positions need no search for packed documents
        hidden_states, position_ids = self.embed(input_ids, inputs_embeds, position_ids, token_type_ids, past_length)
        attention_mask = create_causal_mask(
            self.config, hidden_states, attention_mask, past_key_values, given_positions
        )
        rotation = self.embeddings.positions.rotation(hidden_states, position_ids)
        for layer in self.layers:
            hidden_states = layer(
                hidden_states,
                attention_mask=attention_mask,
                position_ids=position_ids,
                rotation=rotation,
                past_key_values=past_key_values,
                use_cache=use_cache,
                **kwargs,
            )
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden_states), past_key_values=past_key_values)


class CrossDecoderStack(Stack):
    """Every token sees itself, those before it and the encoder's output: the decoder of Vaswani et al. 2017."""

    block_class = CrossAttentionBlock
    is_causal = True
    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": CrossAttentionBlock,
        "attentions": OutputRecorder(Attention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(Attention, index=1, layer_name="cross_attn"),
    }

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Return the states (B, T, D) of target tokens `input_ids` (B, T), given the encoder's output (B, S, D)."""
        if use_cache and past_key_values is None:
            past_key_values = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        past_length = past_key_values.get_seq_length() if past_key_values is not None else 0
        given_positions = position_ids
        hidden_states, position_ids = self.embed(input_ids, inputs_embeds, position_ids, past_length=past_length)
        self_attention_cache = getattr(past_key_values, "self_attention_cache", past_key_values)
        attention_mask = create_causal_mask(
            self.config, hidden_states, attention_mask, self_attention_cache, given_positions
        )
        encoder_attention_mask = create_bidirectional_mask(
            self.config, hidden_states, encoder_attention_mask, encoder_hidden_states
        )
        rotation = self.embeddings.positions.rotation(hidden_states, position_ids)
        for layer in self.layers:
            hidden_states = layer(
                hidden_states,
                encoder_hidden_states,  # positional: gradient checkpointing saves what it differentiates
                attention_mask=attention_mask,
                encoder_attention_mask=encoder_attention_mask,
                position_ids=position_ids,
                rotation=rotation,
                past_key_values=past_key_values,
                use_cache=use_cache,
                **kwargs,
            )
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=self.norm(hidden_states), past_key_values=past_key_values
        )
