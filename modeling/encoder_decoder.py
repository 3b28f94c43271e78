"""The vanilla encoder-decoder, bare and with the language-model head that translates."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.modeling_utils import slice_logits_to_keep
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple

from vanillaformer.configuration import VanillaEncoderDecoderConfig
from vanillaformer.configuration.options import DECODING_CHOICES

from .base import CACHE_NAME
from .decoding import DECODINGS, DecoderInputs
from .generation import VanillaGenerationMixin
from .heads import LMHeadMixin, build_logits_transform
from .parts.pointers import POINTERS
from .seq2seq import VanillaSeq2SeqLM, VanillaSeq2SeqModel, as_base_model_output, lm_output
from .stack import EncoderStack, replace_windowed_cross_cache


@dataclass
class SourceOutput(BaseModelOutput):
    """An encoder's output with the tokens that it read (B, S), which `generate` repeats with the states for beams."""

    source_ids: torch.Tensor | None = None


class SourceEncoderStack(EncoderStack):
    """An encoder whose output contains the tokens that it read, so that they can be copied."""

    @can_return_tuple
    def forward(self, input_ids: torch.Tensor | None = None, *args: Any, **kwargs: Any) -> SourceOutput:
        outputs = super().forward(input_ids, *args, **kwargs, return_dict=True)
        return SourceOutput(**outputs, source_ids=input_ids)


# By `output_distribution`
ENCODERS: dict[str, type[EncoderStack]] = {"softmax": EncoderStack, "pointer_generator": SourceEncoderStack}


class VanillaEncoderDecoderModel(VanillaSeq2SeqModel):
    """Encoder and decoder without a head: source ids (B, S), target ids (B, T) → states (B, T, D)."""

    def __init__(self, config: VanillaEncoderDecoderConfig):
        super().__init__(config)
        self.encoder = ENCODERS[config.output_distribution](config, stack_config=config.encoder_side)
        self.decoder = DECODINGS[config.decoding].decoder_class(config, stack_config=config.decoder_side)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        decoder_position_ids: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Any, ...] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        """Return the decoder's states (B, T, D); `attention_mask` (B, S) is 0 on the source's padding.

        Several pairs may share a row: `position_ids` (B, S) and `decoder_position_ids` (B, T) restart with each.
        Decoder inputs default to the source, shifted right, if the two sides share one vocabulary.
        """
        if decoder_input_ids is None and decoder_inputs_embeds is None and self.decoder.reads_tokens:
            decoder_input_ids = self.source_as_target(input_ids)
        if encoder_outputs is None:
            inputs = {"position_ids": position_ids, "inputs_embeds": inputs_embeds}
            encoded = self.encoder(input_ids, attention_mask, **inputs, **kwargs)
        else:
            encoded = as_base_model_output(encoder_outputs)
        outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoded.last_hidden_state,
            encoder_attention_mask=attention_mask,
            position_ids=decoder_position_ids,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            encoder_position_ids=position_ids,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=outputs.last_hidden_state,
            decoder_hidden_states=outputs.hidden_states,
            decoder_attentions=outputs.attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=encoded.last_hidden_state,
            encoder_hidden_states=encoded.hidden_states,
            encoder_attentions=encoded.attentions,
            **{CACHE_NAME: getattr(outputs, CACHE_NAME)},
        )


class VanillaEncoderDecoderForConditionalGeneration(LMHeadMixin, VanillaSeq2SeqLM, VanillaGenerationMixin):
    """Translation and other text-to-text tasks (Vaswani et al. 2017): `p(y_t | y_<t, x) = softmax(W h_t)`.

    `config.decoding` selects another decoding (`modeling/decoding`).
    """

    _tp_plan = {"lm_head": "colwise_gather_output"}  # noqa: RUF012
    _fsdp_plan = {"lm_head": "keep_full_weight"}  # noqa: RUF012

    def __init__(self, config: VanillaEncoderDecoderConfig):
        super().__init__(config)
        self.loss_type = "ForMaskedLM"  # the decoder's inputs are shifted already
        self.model = VanillaEncoderDecoderModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.target_vocab_size, bias=config.lm_head_bias)
        self.logits_transform = build_logits_transform(config)
        self.pointer = POINTERS[config.output_distribution](config)
        self.decoding = DECODINGS[config.decoding](config)
        if DECODING_CHOICES[config.decoding].is_parallel:
            self.generation_config = self.decoding.with_options(self.generation_config)
        self.post_init()

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        if DECODING_CHOICES[self.config.decoding].is_parallel:
            return None
        prepared = super()._prepare_cache_for_generation(  # type: ignore[misc]  # of a protocol that our class fulfills
            generation_config, model_kwargs, *args, **kwargs
        )
        if self.config.sliding_window is not None:  # before anything is compiled
            cache, source = model_kwargs.get(CACHE_NAME), model_kwargs["encoder_outputs"][0]
            replace_windowed_cross_cache(cache, self.config, source.shape[1])
        return prepared

    def logits(self, hidden_states: torch.Tensor, *pointers: torch.Tensor) -> torch.Tensor:
        return self.pointer.mix(super().logits(hidden_states), *pointers)

    def _prepare_generation_config(self, *args: Any, **kwargs: Any) -> Any:
        if DECODING_CHOICES[self.config.decoding].is_parallel:
            self.generation_config = self.decoding.with_options(self.generation_config)  # it may be the caller's
        return super()._prepare_generation_config(*args, **kwargs)

    def _validate_generation_mode(self, mode: Any, generation_config: Any, arguments: dict[str, Any]) -> None:
        if DECODING_CHOICES[self.config.decoding].is_parallel:
            self.decoding.check_options(generation_config, arguments)
        super()._validate_generation_mode(mode, generation_config, arguments)

    def _sample(self, input_ids: Any, **kwargs: Any) -> Any:  # type: ignore[override]  # called by keywords
        if DECODING_CHOICES[self.config.decoding].is_parallel:
            return self.decoding.sample(self, input_ids, **kwargs)
        return super()._sample(input_ids, **kwargs)

    def _beam_search(self, input_ids: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        if DECODING_CHOICES[self.config.decoding].is_parallel:
            return self.decoding.sample(self, input_ids, **kwargs)
        return super()._beam_search(input_ids, **kwargs)

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Return the decoder inputs for `labels` (B, T); data collators call this."""
        return self.decoding.first_inputs(labels)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        decoder_position_ids: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Any, ...] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        """Return logits (B, T, V) and, given `labels` (B, T) with -100 on padding, the mean cross-entropy.

        Decoder inputs default to the labels, shifted right after `decoder_start_token_id`; for the other values of
        `config.decoding`, inputs and loss are described in `modeling/decoding`.
        """
        decoder_inputs: DecoderInputs = {
            "decoder_input_ids": decoder_input_ids,
            "decoder_attention_mask": decoder_attention_mask,
            "decoder_inputs_embeds": decoder_inputs_embeds,
        }
        if DECODING_CHOICES[self.config.decoding].is_parallel:
            self.decoding.check_labels(labels)
        if labels is not None:
            use_cache = False if use_cache is None else use_cache
            decoder_inputs = self.decoding.inputs_for(labels, decoder_inputs)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            decoder_position_ids=decoder_position_ids,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **decoder_inputs,
            **kwargs,
        )
        hidden_states = slice_logits_to_keep(outputs.last_hidden_state, logits_to_keep)
        source_ids = getattr(encoder_outputs, "source_ids", None)
        source_ids = input_ids if source_ids is None else source_ids
        pointers = self.pointer(hidden_states, outputs.encoder_last_hidden_state, source_ids, attention_mask)
        source = outputs.encoder_last_hidden_state, attention_mask
        loss, logits = self.decoding.loss_and_logits(
            self, hidden_states, labels, decoder_inputs, source, *pointers, **kwargs
        )
        return lm_output(outputs, loss, logits)
