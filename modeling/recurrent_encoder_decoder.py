"""The recurrent encoder-decoder with attention, bare and with the language-model head that translates.

Shape letters: B batch, S source length, T target length, D width, L layers of the decoder, V vocabulary.
"""

from typing import Any, cast

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.modeling_utils import slice_logits_to_keep
from transformers.utils import can_return_tuple

from vanillaformer.configuration import VanillaRecurrentEncoderDecoderConfig

from .base import CACHE_NAME
from .generation import VanillaGenerationMixin
from .heads import LMHeadMixin
from .parts.dropout import build_dropout, identity
from .parts.recurrence import (
    RECURRENT_INITIALIZATIONS,
    RecurrentLayer,
    States,
    build_recurrence,
    edge_states,
    padding_mask,
    recurrent_layer,
)
from .parts.recurrent_attention import CROSS_ATTENTIONS, Memory
from .seq2seq import (
    VanillaSeq2SeqLM,
    VanillaSeq2SeqModel,
    VanillaSeq2SeqPreTrainedModel,
    as_base_model_output,
    lm_output,
    shift_right,
)

Unrolled = tuple[torch.Tensor, torch.Tensor | None, States]


class RecurrentEncoder(nn.Module):
    """The recurrent encoder: source ids (B, S) → states (B, S, E), those of both directions concatenated."""

    main_input_name = "input_ids"

    def __init__(self, config: VanillaRecurrentEncoderDecoderConfig):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.dropout = build_dropout(config.dropout)
        sizes = config.hidden_size, config.encoder_hidden_size, config.encoder_layers
        self.rnn = build_recurrence(config.cell, *sizes, config.dropout, config.bidirectional_encoder)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Return the states (B, S, E); `attention_mask` (B, S) is 0 on padding, which no state sees."""
        x = self.dropout(embedded(self.embed_tokens, input_ids, inputs_embeds))
        states, _ = self.rnn.run(x, mask=padding_mask(attention_mask, x.shape[1]))
        states = self.dropout(states)
        return BaseModelOutput(last_hidden_state=states, hidden_states=(x, states) if output_hidden_states else None)


class RecurrentDecoder(nn.Module):
    """A recurrent decoder whose steps do not read the attention of earlier ones: all run at once, then all attend.

    Shapes: target vectors (B, T, D), states (B, L, D) each, memory (B, S, E) → (B, T, D), weights (B, T, S), states.
    """

    fed_width = 0
    """Number of vectors of width D that the cells read in addition to the target."""

    def __init__(self, config: VanillaRecurrentEncoderDecoderConfig):
        super().__init__()
        width, layers = config.hidden_size, config.num_hidden_layers
        self.directions = config.encoder_directions
        self.embed_tokens = nn.Embedding(config.target_vocab_size, width)
        self.dropout = build_dropout(config.dropout)
        self.rnn = build_recurrence(config.cell, (1 + self.fed_width) * width, width, layers, config.dropout)
        self.attention = CROSS_ATTENTIONS[config.cross_attention](config)
        self.bridge = nn.Linear(config.encoder_width, self.rnn.num_states * layers * width)

    def first_states(self, ends: torch.Tensor) -> States:
        """Return the states before the first token, `tanh(W e + b)`, from the encoder's last states (B, E)."""
        states = torch.tanh(self.bridge(ends)).view(len(ends), self.rnn.num_states, self.rnn.num_layers, -1)
        return states.unbind(1)

    def unroll(self, x: torch.Tensor, states: States, memory: Memory, mask: torch.Tensor | None) -> Unrolled:
        """Return output, attention weights and last states of target vectors (B, T, D)."""
        outputs, states = self.rnn.run(x, states, mask)
        return *self.attention(outputs, memory), states

    def forward(
        self,
        encoder_hidden_states: torch.Tensor,
        encoder_attention_mask: torch.Tensor | None,
        layer: RecurrentLayer,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return the target vectors and the output, both (B, T, D), and the attention weights (B, T, S).

        The encoder's states are (B, S, E); `layer` has the states after earlier tokens, and gets those after these.
        The mask of the target (B, T) may be longer.
        """
        x = self.dropout(embedded(self.embed_tokens, input_ids, inputs_embeds))
        states, keys = layer.states, layer.source_keys
        if keys is None:
            states = self.first_states(edge_states(encoder_hidden_states, encoder_attention_mask, self.directions))
            keys = self.attention.keys(encoder_hidden_states)
        memory = Memory(encoder_hidden_states, keys, encoder_attention_mask)
        outputs, weights, states = self.unroll(x, states, memory, padding_mask(attention_mask, x.shape[1]))
        layer.store(states, keys, x.shape[1])
        return x, self.dropout(outputs), weights


class InputFeedingDecoder(RecurrentDecoder):
    """A recurrent decoder that reads the attention's output of the previous step, and therefore runs step by step."""

    fed_width = 1

    def first_states(self, ends: torch.Tensor) -> States:
        return *super().first_states(ends), ends.new_zeros(len(ends), self.rnn.hidden_size)

    def unroll(self, x: torch.Tensor, states: States, memory: Memory, mask: torch.Tensor | None) -> Unrolled:
        outputs, weights = [], []
        for step, vector in enumerate(x.split(1, dim=1)):
            *before, fed = states
            state, after = self.rnn.run(torch.cat([vector, fed[:, None]], dim=-1), tuple(before))
            output, weight = self.attention(state, memory)
            after = (*after, output[:, 0])
            if mask is not None:  # padding does not change the states
                kept = mask[:, step].bool()
                pairs = zip(after, states)
                after = tuple(torch.where(kept.view(-1, *[1] * (new.dim() - 1)), new, old) for new, old in pairs)
            states = after
            outputs.append(output)
            weights.append(weight)
        return torch.cat(outputs, dim=1), torch.cat(weights, dim=1), states


DECODERS = {False: RecurrentDecoder, True: InputFeedingDecoder}
"""The decoder by `input_feeding`."""


def embedded(table: nn.Module, ids: torch.Tensor | None, vectors: torch.Tensor | None) -> torch.Tensor:
    """Return the vectors of tokens (B, T), or the vectors (B, T, D) that are given in their place.

    Raises:
        ValueError: Both are given, or none.
    """
    if (ids is None) == (vectors is None):
        raise ValueError("give either the ids of tokens or their embeddings")
    return table(ids) if vectors is None else vectors


class RecurrentPreTrainedModel(VanillaSeq2SeqPreTrainedModel):
    """Base of the recurrent encoder-decoders: declares to transformers what recurrent states rule out."""

    config: VanillaRecurrentEncoderDecoderConfig  # type: ignore[assignment]  # not of blocks, with the same vocabularies
    supports_gradient_checkpointing = False
    _no_split_modules = ["RecurrentEncoder", "RecurrentDecoder", "InputFeedingDecoder"]  # noqa: RUF012
    _supports_flex_attn = False
    _supports_attention_backend = False
    _can_compile_fullgraph = False
    _is_stateful = True
    lora_targets = ("q_proj", "o_proj")

    def _init_weights(self, module: nn.Module) -> None:
        RECURRENT_INITIALIZATIONS[self.config.recurrent_initialization](module)


class VanillaRecurrentEncoderDecoderModel(RecurrentPreTrainedModel, VanillaSeq2SeqModel):
    """Recurrent encoder and decoder without a head: source ids (B, S), target ids (B, T) → states (B, T, D)."""

    def __init__(self, config: VanillaRecurrentEncoderDecoderConfig):
        super().__init__(config)
        self.encoder = RecurrentEncoder(config)
        self.decoder = DECODERS[config.input_feeding](config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Any, ...] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> Seq2SeqModelOutput:
        """Return the decoder's output (B, T, D); `attention_mask` (B, S) is 0 on the source's padding.

        Decoder inputs default to the source, shifted right, if the two sides share one vocabulary. The hidden states
        of a side are its embeddings and its output; `cross_attentions` are one tensor (B, 1, T, S).
        """
        with_states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self.source_as_target(input_ids)
        if encoder_outputs is None:
            encoded = self.encoder(input_ids, attention_mask, inputs_embeds, with_states)
        else:
            encoded = as_base_model_output(encoder_outputs)
        cache = Cache(layers=[RecurrentLayer()]) if past_key_values is None else past_key_values
        source, target = encoded.last_hidden_state, (decoder_input_ids, decoder_attention_mask, decoder_inputs_embeds)
        x, outputs, weights = self.decoder(source, attention_mask, recurrent_layer(cache), *target)
        keep = self.config.use_cache if use_cache is None else use_cache
        attends = self.config.output_attentions if output_attentions is None else output_attentions
        return Seq2SeqModelOutput(
            last_hidden_state=outputs,
            decoder_hidden_states=(x, outputs) if with_states else None,
            cross_attentions=(weights[:, None],) if attends and weights is not None else None,
            encoder_last_hidden_state=encoded.last_hidden_state,
            encoder_hidden_states=encoded.hidden_states,
            **{CACHE_NAME: cast(Any, cache if keep else None)},  # typed as that of a Transformer
        )


class VanillaRecurrentEncoderDecoderForConditionalGeneration(
    LMHeadMixin, RecurrentPreTrainedModel, VanillaSeq2SeqLM, VanillaGenerationMixin
):
    """Translation by recurrent networks (Bahdanau et al. 2015): `p(y_t | y_<t, x) = softmax(W h_t)`."""

    def __init__(self, config: VanillaRecurrentEncoderDecoderConfig):
        super().__init__(config)
        self.loss_type = "ForMaskedLM"  # the decoder's inputs are shifted already
        self.model = VanillaRecurrentEncoderDecoderModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.target_vocab_size, bias=config.lm_head_bias)
        self.logits_transform = identity
        self.post_init()

    def _prepare_cache_for_generation(  # type: ignore[override]  # it returns nothing, but is annotated otherwise
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        if generation_config.cache_implementation not in (None, "dynamic"):
            raise ValueError(
                f"cache_implementation={generation_config.cache_implementation!r} is for keys and values: a recurrent "
                "model has a state"
            )
        if generation_config.use_cache is not False and model_kwargs.get(CACHE_NAME) is None:
            model_kwargs[CACHE_NAME] = Cache(layers=[RecurrentLayer()])

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Return the decoder inputs for `labels` (B, T); data collators call this."""
        return shift_right(labels, cast(Any, self.config))

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Any, ...] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Return logits (B, T, V) and, given `labels` (B, T) with -100 on padding, the mean cross-entropy.

        Decoder inputs default to the labels, shifted right after `decoder_start_token_id`.
        """
        if labels is not None:
            use_cache = False if use_cache is None else use_cache
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        ids = input_ids, attention_mask, decoder_input_ids, decoder_attention_mask
        others = encoder_outputs, past_key_values, inputs_embeds, decoder_inputs_embeds
        outputs = self.model(*ids, *others, use_cache=use_cache, **kwargs)
        hidden_states = slice_logits_to_keep(outputs.last_hidden_state, logits_to_keep)
        loss, logits = self.loss_and_logits(hidden_states, labels, **kwargs)
        return lm_output(outputs, loss, logits)
