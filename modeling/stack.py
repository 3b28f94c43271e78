"""A stack of blocks with its stem, and the stacks for tokens: bidirectional, causal, causal with cross-attention.

Shape letters: B batch, T length, S key length or length of the source, D model width, H heads.
"""

import copy
from collections.abc import Callable
from itertools import islice
from typing import Any, cast

import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache, StaticCache
from transformers.distributed.pipeline_parallel import PipelineIdentityLayer
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPast,
    BaseModelOutputWithPastAndCrossAttentions,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from vanillaformer.configuration import BlockConfig, layer_types
from vanillaformer.configuration.options import POSITION_CHOICES

from .acceleration import acceleration
from .base import CACHE_NAME, VanillaPreTrainedModel
from .block import CrossAttentionBlock, LayerDrop, SelfAttentionBlock, build_block
from .parts.attention import Attention
from .parts.dropout import identity
from .parts.embeddings import InputEmbeddings, Stem
from .parts.packed_texts import bidirectional_mask, bidirectional_window_mask, same_pair, same_text, same_text_before
from .parts.residual import build_final_norm

BIDIRECTIONAL_MASKS = {"full_attention": bidirectional_mask, "sliding_attention": bidirectional_window_mask}
CAUSAL_MASKS = {"full_attention": create_causal_mask, "sliding_attention": create_sliding_window_causal_mask}

# Attention functions that index the position bias by the row of the batch
BIAS_PER_ROW = ("flex_attention",)

Masks = dict[str, Any]
"""The attention mask of each type of layer, in the form of the attention function: tensor, block mask or `None`."""


class Stack(VanillaPreTrainedModel):
    """Stem, blocks and final norm; the subclasses build the stem, make the masks and call `run_layers`.

    In a model of two stacks each has its `stack_config`.
    """

    embeddings: Stem
    is_causal = False
    has_cross_attention = False
    mask_functions: dict[str, Callable]

    def __init__(self, config: BlockConfig, stack_config: BlockConfig | None = None):
        super().__init__(config)
        stack_config = stack_config or config
        self.layer_types = layer_types(stack_config)
        self.build_stem(stack_config)
        block_configs = self.block_configs(stack_config)
        self.layers = nn.ModuleList(
            build_block(block_config, layer_idx, self.is_causal, self.has_cross_attention)
            for layer_idx, block_config in enumerate(block_configs)
        )
        self.layer_drop = LayerDrop(config.layer_drop) if config.layer_drop else identity
        self.norm = build_final_norm(block_configs[-1])
        self.gradient_checkpointing = False
        self.post_init()

    def build_stem(self, config: BlockConfig) -> None:
        """Set `embeddings`, which makes the first block's input, and the tables that it needs."""
        raise NotImplementedError

    def block_configs(self, config: BlockConfig) -> list[BlockConfig]:
        """Return the config of each block."""
        return [config] * config.num_hidden_layers

    def masks(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | Masks | None, **kwargs: Any) -> Masks:
        """Return the mask of each type of layer for a padding mask (B, T); `generate` gives the masks themselves."""
        if isinstance(attention_mask, dict):
            return attention_mask
        return {
            layer_type: self.mask_functions[layer_type](self.config, hidden_states, attention_mask, **kwargs)
            for layer_type in dict.fromkeys(self.layer_types)
        }

    def run_layers(
        self,
        hidden_states: torch.Tensor,
        positions: torch.Tensor,
        masks: Masks,
        *encoder_hidden_states: torch.Tensor | None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Return the states (B, T, D) of tokens at `positions` (B or 1, T) after all blocks and the final norm.

        `kwargs` go to every block.
        """
        biases = self.position_biases(hidden_states, past_key_values)
        position_embeddings = self.embeddings.positions.position_embeddings(hidden_states, positions)
        checkpoints = self.training and self.layers[0].gradient_checkpointing and torch.is_grad_enabled()
        kwargs["past_key_values"] = None if checkpoints else past_key_values  # a second pass would append again
        if self.config.value_residual:
            kwargs["first_values"] = self.list_for_first_values(bool(checkpoints))
        # a causal stack may exit early (`assistant_early_exit`)
        depth = self.config.num_hidden_layers if self.is_causal else len(self.layers)
        layers = zip(self.layer_drop(self.layers), self.layer_types, biases)
        for layer, layer_type, position_bias in islice(layers, depth):
            hidden_states = layer(
                hidden_states,
                position_bias,  # positional, because gradient checkpointing differentiates only these
                *encoder_hidden_states,
                attention_mask=masks[layer_type],
                position_embeddings=position_embeddings.get(layer_type),
                **kwargs,
            )
        return self.norm(hidden_states)

    def list_for_first_values(self, checkpoints: bool) -> list[torch.Tensor]:
        """Return an empty list for the values of the first layer, with which the others mix theirs."""
        layer: Any = self.layers[0]
        if isinstance(layer, PipelineIdentityLayer):
            raise ValueError("value_residual=True: later stages of a pipeline do not get the first layer's values")
        if checkpoints and layer._gradient_checkpointing_func.keywords.get("use_reentrant"):
            raise ValueError("value_residual=True needs gradient checkpointing with use_reentrant=False")
        return []

    def position_biases(self, hidden_states: torch.Tensor, cache: Cache | None) -> list[torch.Tensor | None]:
        """Return each layer's term of the attention scores (1 or B, H, T, S), computed once for equal layers."""
        if not POSITION_CHOICES[self.config.position_embedding_type].is_biased:
            return [None] * len(self.layer_types)
        positions = self.embeddings.positions
        cache = getattr(cache, "self_attention_cache", cache)
        rows = hidden_states.shape[0] if self.config._attn_implementation in BIAS_PER_ROW else 1
        biases: dict[tuple[str, int], torch.Tensor] = {}
        keys = [(layer_type, positions.table_index(idx)) for idx, layer_type in enumerate(self.layer_types)]
        for layer_idx, key in enumerate(keys):
            if key not in biases:
                query_positions, key_positions = query_key_positions(hidden_states, cache, layer_idx)
                bias = positions.score_bias(hidden_states, query_positions, key_positions, key[1])
                biases[key] = bias.expand(rows, -1, -1, -1)
        return [biases[key] for key in keys]


def query_key_positions(
    hidden_states: torch.Tensor, cache: Cache | None, layer_idx: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the columns of the tokens (T) and of the keys that a layer attends to, cached ones included (S)."""
    length, device = hidden_states.shape[1], hidden_states.device
    if cache is None:
        return (torch.arange(length, device=device),) * 2
    key_length, key_offset = cache.get_mask_sizes(length, layer_idx)
    query_positions = torch.arange(length, device=device) + cache.get_query_offset(layer_idx)
    return query_positions, torch.arange(key_length, device=device) + key_offset


class TokenStack(Stack):
    """A stack whose stem looks tokens up in a table."""

    embeddings: InputEmbeddings

    def build_stem(self, config: BlockConfig) -> None:
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.embeddings = InputEmbeddings(config, self.is_causal)

    def embed(
        self,
        input_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        token_type_ids: torch.Tensor | None = None,
        past_length: int | torch.Tensor = 0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the first block's input (B, T, D) and the positions (B or 1, T) of the tokens, by default from 0."""
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
            return inputs_embeds, position_ids  # a later stage of a pipeline gets hidden states
        return self.embeddings(inputs_embeds, position_ids, token_type_ids, input_ids), position_ids

    def self_attention_masks(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | Masks | None,
        cache: Cache | None,
        position_ids: torch.Tensor | None,
    ) -> Masks:
        """Return masks of causal attention, which also keep the texts of a row apart.

        `position_ids` are the given ones, not the defaults, which never separate texts.
        """
        texts = same_text_before(position_ids, attention_mask, cache, hidden_states.shape[0])
        options = {CACHE_NAME: cache, "position_ids": position_ids, "and_mask_function": texts}
        return self.masks(hidden_states, attention_mask, **options)

    def run_layers(
        self, hidden_states: torch.Tensor, positions: torch.Tensor, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        # Flash attention finds packed documents by `position_ids`
        return super().run_layers(hidden_states, positions, *args, position_ids=positions, **kwargs)


class EncoderStack(TokenStack):
    """Bidirectional self-attention: the encoder of Vaswani et al. 2017 and BERT."""

    mask_functions = BIDIRECTIONAL_MASKS
    _can_record_outputs = {"hidden_states": SelfAttentionBlock, "attentions": Attention}  # noqa: RUF012

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """Return the states (B, T, D) of tokens `input_ids` (B, T); `attention_mask` (B, T) is 0 on padding.

        `position_ids` (B, T) that restart at 0 divide a row into texts, which do not attend to each other.
        """
        hidden_states, positions = self.embed(input_ids, inputs_embeds, position_ids, token_type_ids)
        rows = hidden_states.shape[0]
        masks = acceleration.packed_masks(self, position_ids, attention_mask, rows) or self.masks(
            hidden_states, attention_mask, texts=same_text(position_ids, attention_mask, rows)
        )
        return BaseModelOutput(last_hidden_state=self.run_layers(hidden_states, positions, masks, **kwargs))


class DecoderStack(TokenStack):
    """Causal self-attention: GPT (Radford et al. 2018)."""

    is_causal = True
    mask_functions = CAUSAL_MASKS
    _can_record_outputs = {"hidden_states": SelfAttentionBlock, "attentions": Attention}  # noqa: RUF012

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPast:
        """Return the states (B, T, D) of tokens `input_ids` (B, T), which follow those in `past_key_values`."""
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        # a paged cache of many requests has no length: their positions are given
        past_length = past_key_values.get_seq_length() if isinstance(past_key_values, Cache) else 0
        hidden_states, positions = self.embed(input_ids, inputs_embeds, position_ids, token_type_ids, past_length)
        masks = self.self_attention_masks(hidden_states, attention_mask, past_key_values, position_ids)
        hidden_states = self.run_layers(
            hidden_states, positions, masks, past_key_values=past_key_values, use_cache=use_cache, **kwargs
        )
        return BaseModelOutputWithPast(last_hidden_state=hidden_states, **{CACHE_NAME: cast(Any, past_key_values)})


def replace_windowed_cross_cache(cache: Cache | None, config: BlockConfig, length: int) -> None:
    """Replace the cross-attention cache of a source of `length` tokens if it has the window of the decoder's layers.

    transformers makes both caches from one config, but cross-attention needs the whole source.
    """
    if not isinstance(cache, EncoderDecoderCache) or not any(cache.cross_attention_cache.is_sliding):
        return
    if any(cache.is_updated.values()):
        raise ValueError(
            f"past_key_values has a cross_attention_cache with sliding_window={config.sliding_window}, which has "
            "dropped a part of the source: make it with DynamicCache()"
        )
    pair: Any = cache  # its caches are declared as DynamicCache
    if isinstance(pair.cross_attention_cache, StaticCache):
        without_window: Any = copy.deepcopy(config)
        without_window.sliding_window = None
        del without_window.layer_types, without_window.encoder_layer_types
        pair.cross_attention_cache = StaticCache(config=without_window, max_cache_len=length)
    else:
        pair.cross_attention_cache = DynamicCache()


class CrossDecoderStack(TokenStack):
    """Causal self-attention and cross-attention to the encoder's output: the decoder of Vaswani et al. 2017."""

    is_causal = True
    has_cross_attention = True
    reads_tokens = True
    mask_functions: dict[str, Callable] = CAUSAL_MASKS
    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": CrossAttentionBlock,
        "attentions": OutputRecorder(Attention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(Attention, index=1, layer_name="cross_attn"),
    }

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        encoder_position_ids: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Return the states (B, T, D) of target tokens `input_ids` (B, T), given the encoder's output (B, S, D).

        `encoder_position_ids` (B, S) tell the sources of a packed row apart.
        """
        if use_cache and past_key_values is None:
            # cross-attention has no sliding window
            past_key_values = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache())
        past_length = past_key_values.get_seq_length() if past_key_values is not None else 0
        hidden_states, positions = self.embed(input_ids, inputs_embeds, position_ids, past_length=past_length)
        if self.config.sliding_window is not None and encoder_hidden_states is not None:
            replace_windowed_cross_cache(past_key_values, self.config, encoder_hidden_states.shape[1])
        cache = getattr(past_key_values, "self_attention_cache", past_key_values)
        masks = self.self_attention_masks(hidden_states, attention_mask, cache, position_ids)
        pairs = same_pair(position_ids, encoder_position_ids, encoder_attention_mask, hidden_states.shape[0])
        source_mask = bidirectional_mask(
            self.config, hidden_states, encoder_attention_mask, encoder_hidden_states, texts=pairs
        )
        hidden_states = self.run_layers(
            hidden_states,
            positions,
            masks,
            encoder_hidden_states,
            encoder_attention_mask=source_mask,
            past_key_values=past_key_values,
            use_cache=use_cache,
            **kwargs,
        )
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=hidden_states, **{CACHE_NAME: cast(Any, past_key_values)}
        )
