"""A stack of blocks with its embeddings: bidirectional, causal, and causal with cross-attention.

Shape letters: B batch, T length, S source length, D model width.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache, StaticCache
from transformers.distributed.pipeline_parallel import PipelineIdentityLayer
from transformers.masking_utils import (
    create_bidirectional_mask,
    create_bidirectional_sliding_window_mask,
    create_causal_mask,
    create_sliding_window_causal_mask,
    find_packed_sequence_indices,
    packed_sequence_mask_function,
)
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPast,
    BaseModelOutputWithPastAndCrossAttentions,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from vanillaformer.configuration import BlockConfig, ConfigView, layer_types

from .base import VanillaPreTrainedModel
from .block import CrossAttentionBlock, SelfAttentionBlock, build_block
from .layer_drop import build_layer_drop
from .parts.attention import Attention
from .parts.embeddings import InputEmbeddings
from .parts.residual import build_final_norm

BIDIRECTIONAL_MASKS = {
    "full_attention": create_bidirectional_mask,
    "sliding_attention": create_bidirectional_sliding_window_mask,
}
CAUSAL_MASKS = {
    "full_attention": create_causal_mask,
    "sliding_attention": create_sliding_window_causal_mask,
}

# Attention functions that look the bias up by row
BIAS_PER_ROW = ("flex_attention",)


class Stack(VanillaPreTrainedModel):
    """Embeddings, blocks and final norm; the subclasses say how the blocks are called.

    Args:
        config: The model's config.
        side: What the parts of this stack read instead, in a model of two stacks.
    """

    is_causal = False
    has_cross_attention = False
    mask_functions: dict[str, Callable] = BIDIRECTIONAL_MASKS

    def __init__(self, config: BlockConfig, side: ConfigView | None = None):
        super().__init__(config)
        own = side or config
        self.layer_types = layer_types(own)
        self.embed_tokens = nn.Embedding(own.vocab_size, own.hidden_size)
        self.embeddings = InputEmbeddings(own, self.is_causal)
        self.layers = nn.ModuleList(
            build_block(own, layer_idx, self.is_causal, self.has_cross_attention)
            for layer_idx in range(own.num_hidden_layers)
        )
        self.layer_drop = build_layer_drop(own.layer_drop)
        self.norm = build_final_norm(own)
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
        return self.embeddings(inputs_embeds, position_ids, token_type_ids, input_ids), position_ids

    def masks(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | dict | None, **arguments: Any
    ) -> dict[str, torch.Tensor | None]:
        """Return the mask of each type of layer, made of the padding mask (B, T), unless `generate` has made it."""
        if isinstance(attention_mask, dict):
            return attention_mask
        return {
            layer_type: self.mask_functions[layer_type](self.config, hidden_states, attention_mask, **arguments)
            for layer_type in dict.fromkeys(self.layer_types)
        }

    def layer_inputs(
        self,
        hidden_states: torch.Tensor,
        position_ids: torch.Tensor,
        masks: dict[str, torch.Tensor | None],
        cache: Cache | None = None,
    ) -> list[tuple[torch.Tensor | None, dict[str, Any]]]:
        """Return what may differ between layers, each made once for all that share it: bias, and mask and rotation."""
        rotations = self.embeddings.positions.rotations(hidden_states, position_ids)
        biases = self.position_biases(hidden_states, cache)
        return [
            (bias, {"attention_mask": masks[layer_type], "rotation": rotations.get(layer_type)})
            for bias, layer_type in zip(biases, self.layer_types)
        ]

    def position_biases(self, hidden_states: torch.Tensor, cache: Cache | None) -> list[torch.Tensor | None]:
        """Return what each layer adds to its attention scores (1 or B, H, T, S); layers of one kind share it."""
        positions = self.embeddings.positions
        if not positions.biased:
            return [None] * len(self.layer_types)
        rows = hidden_states.shape[0] if self.config._attn_implementation in BIAS_PER_ROW else 1
        made: dict[tuple[str, int], torch.Tensor] = {}
        keys = [(layer_type, positions.table_of(idx)) for idx, layer_type in enumerate(self.layer_types)]
        for layer_idx, key in enumerate(keys):
            if key not in made:
                queries, seen = places(hidden_states, cache, layer_idx)
                made[key] = positions.bias(hidden_states, queries, seen, key[1]).expand(rows, -1, -1, -1)
        return [made[key] for key in keys]


def places(hidden_states: torch.Tensor, cache: Cache | None, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the places in the row of the tokens (T) and of those that a layer sees, the cached ones included (S)."""
    length, device = hidden_states.shape[1], hidden_states.device
    if cache is None:
        return (torch.arange(length, device=device),) * 2
    offset = cache.get_query_offset(layer_idx)
    seen, seen_offset = cache.get_mask_sizes(length, layer_idx)
    return torch.arange(length, device=device) + offset, torch.arange(seen, device=device) + seen_offset


def same_document(
    position_ids: torch.Tensor | None, attention_mask: torch.Tensor | dict | None, rows: int
) -> Callable | None:
    """Return which tokens may see each other in rows of packed documents, `None` where there are none.

    As in transformers' causal masks: without a padding mask, a document begins where positions (B or 1, T) do not go
    on.
    """
    if position_ids is None or attention_mask is not None:
        return None
    documents = find_packed_sequence_indices(position_ids.expand(rows, -1))
    return None if documents is None else packed_sequence_mask_function(documents)


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
        given_positions = position_ids
        hidden_states, position_ids = self.embed(input_ids, inputs_embeds, position_ids, token_type_ids)
        visible = same_document(given_positions, attention_mask, hidden_states.shape[0])
        masks = self.masks(hidden_states, attention_mask, and_mask_function=visible)
        inputs = self.layer_inputs(hidden_states, position_ids, masks)
        for layer, (position_bias, own) in zip(self.layer_drop(self.layers), inputs):
            # positional: gradient checkpointing saves what it differentiates
            hidden_states = layer(hidden_states, position_bias, position_ids=position_ids, **own, **kwargs)
        return BaseModelOutput(last_hidden_state=self.norm(hidden_states))


class DecoderStack(Stack):
    """Every token sees itself and those before it: GPT."""

    is_causal = True
    mask_functions = CAUSAL_MASKS
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
        masks = self.masks(
            hidden_states, attention_mask, past_key_values=past_key_values, position_ids=given_positions
        )
        inputs = self.layer_inputs(hidden_states, position_ids, masks, past_key_values)
        for layer, (position_bias, own) in zip(self.layer_drop(self.layers), inputs):
            hidden_states = layer(
                hidden_states,
                position_bias,
                position_ids=position_ids,
                past_key_values=past_key_values,
                use_cache=use_cache,
                **own,
                **kwargs,
            )
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden_states), past_key_values=past_key_values)


def keep_whole_source(cache: EncoderDecoderCache, config: BlockConfig, length: int) -> None:
    """Replace the cache of a source of `length` tokens if it has the window of the target's layers.

    transformers makes both caches of one config, but cross-attention sees the whole source.

    Raises:
        ValueError: The cache has forgotten a part of the source already.
    """
    crossed = cache.cross_attention_cache
    if not any(crossed.is_sliding):
        return
    if any(cache.is_updated.values()):
        raise ValueError(
            f"past_key_values has a cross_attention_cache with sliding_window={config.sliding_window}, which has "
            "forgotten a part of the source: make it with DynamicCache()"
        )
    if isinstance(crossed, StaticCache):
        whole = copy.deepcopy(config)
        whole.sliding_window = None
        del whole.layer_types, whole.encoder_layer_types
        cache.cross_attention_cache = StaticCache(config=whole, max_cache_len=length)
    else:
        cache.cross_attention_cache = DynamicCache()


class CrossDecoderStack(Stack):
    """Every token sees itself, those before it and the encoder's output: the decoder of Vaswani et al. 2017."""

    is_causal = True
    has_cross_attention = True
    mask_functions = CAUSAL_MASKS
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
            # of the source everything is kept, whatever window the target's layers have
            past_key_values = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache())
        past_length = past_key_values.get_seq_length() if past_key_values is not None else 0
        given_positions = position_ids
        hidden_states, position_ids = self.embed(input_ids, inputs_embeds, position_ids, past_length=past_length)
        if isinstance(past_key_values, EncoderDecoderCache) and encoder_hidden_states is not None:
            keep_whole_source(past_key_values, self.config, encoder_hidden_states.shape[1])
        self_attention_cache = getattr(past_key_values, "self_attention_cache", past_key_values)
        masks = self.masks(
            hidden_states, attention_mask, past_key_values=self_attention_cache, position_ids=given_positions
        )
        inputs = self.layer_inputs(hidden_states, position_ids, masks, self_attention_cache)
        encoder_attention_mask = create_bidirectional_mask(
            self.config, hidden_states, encoder_attention_mask, encoder_hidden_states
        )
        for layer, (position_bias, own) in zip(self.layer_drop(self.layers), inputs):
            hidden_states = layer(
                hidden_states,
                position_bias,
                encoder_hidden_states,
                encoder_attention_mask=encoder_attention_mask,
                position_ids=position_ids,
                past_key_values=past_key_values,
                use_cache=use_cache,
                **own,
                **kwargs,
            )
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=self.norm(hidden_states), past_key_values=past_key_values
        )
