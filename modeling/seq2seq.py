"""The base of all encoder-decoders: the vocabularies of source and target, which may share a table."""

import copy
from functools import wraps
from typing import Any, cast

import torch
from torch import nn
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from vanillaformer.configuration import VanillaEncoderDecoderConfig

from .base import VanillaPreTrainedModel
from .heads import IGNORE_INDEX


def shift_right(labels: torch.Tensor, config: VanillaEncoderDecoderConfig) -> torch.Tensor:
    """Return the decoder inputs for `labels` (B, T): the start token and all labels but the last, padding for -100."""
    start_id, pad_id = config.decoder_start_token_id, config.pad_token_id
    if start_id is None or pad_id is None:
        name = "decoder_start_token_id" if start_id is None else "pad_token_id"
        raise ValueError(f"decoder inputs are made from labels with {name}, which is None in the config")
    shifted = torch.cat([labels.new_full((labels.shape[0], 1), start_id), labels[:, :-1]], dim=1)
    return shifted.masked_fill(shifted == IGNORE_INDEX, pad_id)


def as_base_model_output(outputs: dict[str, Any] | tuple[Any, ...]) -> BaseModelOutput:
    """Return the output of an encoder, which may be any output class of transformers or a tuple."""
    if isinstance(outputs, dict):
        outputs = tuple(map(outputs.get, ("last_hidden_state", "hidden_states", "attentions")))
    return BaseModelOutput(*outputs)


def lm_output(outputs: Any, loss: torch.Tensor | None, logits: torch.Tensor | None) -> Seq2SeqLMOutput:
    """Return the output of a model with a head, given that of the model without one."""
    others = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
    return Seq2SeqLMOutput(loss=loss, logits=logits, **others)


class VanillaSeq2SeqPreTrainedModel(VanillaPreTrainedModel):
    """Base of the encoder-decoders with and without a head: two vocabularies, which may share a table."""

    config: VanillaEncoderDecoderConfig

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        # transformers reads only `tie_word_embeddings`, but source and target can share a table without a tied head,
        # and the other way round.
        if all_submodels:
            return super().get_expanded_tied_weights_keys(all_submodels=True)
        return self.tied_weights()

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Resize the vocabulary of the source, and that of the target if they share a table."""
        if self.config.share_encoder_decoder_embeddings:
            self.config.decoder_vocab_size = None
            return super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        source = cast(nn.Embedding, self.get_input_embeddings())
        resized = self._get_resized_embeddings(source, new_num_tokens, pad_to_multiple_of, mean_resizing)
        self.set_input_embeddings(resized)
        self.config.decoder_vocab_size = self.config.target_vocab_size  # its default is `vocab_size`
        self.config.vocab_size = resized.num_embeddings
        return resized

    def resize_decoder_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Resize the vocabulary of the target, with the output layer; it must not share a table with the source."""
        if self.config.share_encoder_decoder_embeddings:
            raise ValueError("share_encoder_decoder_embeddings=True: call resize_token_embeddings instead")
        decoder: Any = self.base_model.decoder
        decoder.embed_tokens = self._get_resized_embeddings(
            decoder.embed_tokens, new_num_tokens, pad_to_multiple_of, mean_resizing
        )
        self.config.decoder_vocab_size = decoder.embed_tokens.num_embeddings
        head = self.get_output_embeddings()
        if head is not None:  # a tied head already has the new rows, but not the new `out_features`
            self.set_output_embeddings(
                self._get_resized_lm_head(head, self.config.decoder_vocab_size, mean_resizing=mean_resizing)
            )
        self.tie_weights()
        return decoder.embed_tokens

    def tied_weights(self) -> dict[str, str]:
        """Return the names of tied parameters, each with the name of its source."""
        raise NotImplementedError


class VanillaSeq2SeqModel(VanillaSeq2SeqPreTrainedModel):
    """Base of the encoder-decoders without a head."""

    _tied_weights_keys = {"decoder.embed_tokens.weight": "encoder.embed_tokens.weight"}  # noqa: RUF012
    encoder: Any
    decoder: Any

    def tied_weights(self) -> dict[str, str]:
        return dict(self._tied_weights_keys) if self.config.share_encoder_decoder_embeddings else {}

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.embed_tokens = cast(nn.Embedding, value)
        if self.config.share_encoder_decoder_embeddings:
            self.decoder.embed_tokens = self.encoder.embed_tokens

    def source_as_target(self, input_ids: torch.Tensor | None) -> torch.Tensor:
        """Return the source as decoder inputs, as in denoising (BART)."""
        if input_ids is None or not self.config.share_encoder_decoder_embeddings:
            raise ValueError("give decoder_input_ids, decoder_inputs_embeds or labels")
        return shift_right(input_ids, self.config)


class VanillaSeq2SeqLM(VanillaSeq2SeqPreTrainedModel):
    """Base of the encoder-decoders with the language-model head."""

    _tied_weights_keys = {"lm_head.weight": "model.decoder.embed_tokens.weight"}  # noqa: RUF012
    model: VanillaSeq2SeqModel

    def tied_weights(self) -> dict[str, str]:
        shared = {f"model.{key}": f"model.{value}" for key, value in self.model.tied_weights().items()}
        source = shared.get("model.decoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
        return shared | ({"lm_head.weight": source} if self.config.tie_word_embeddings else {})

    def _get_logits_processor(self, generation_config: Any, *args: Any, **kwargs: Any) -> Any:
        source, target = self.config.vocab_size, self.config.target_vocab_size
        neutral = {"encoder_repetition_penalty": (None, 1), "encoder_no_repeat_ngram_size": (None, 0)}
        given = [name for name, values in neutral.items() if getattr(generation_config, name) not in values]
        if given and source != target:
            sizes = f"vocab_size={source} and decoder_vocab_size={target}"
            raise ValueError(f"{', '.join(given)}: needs one vocabulary for source and target, not {sizes}")
        return GenerationMixin._get_logits_processor(self.for_target(), generation_config, *args, **kwargs)

    def _get_candidate_generator(self, *args: Any, **kwargs: Any) -> Any:
        return GenerationMixin._get_candidate_generator(self.for_target(), *args, **kwargs)

    @wraps(GenerationMixin.compute_transition_scores)
    def compute_transition_scores(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return GenerationMixin.compute_transition_scores(self.for_target(), *args, **kwargs)

    def for_target(self) -> Any:
        """Return this model with the target's vocabulary as `vocab_size`, from which `generate` takes its size."""
        model = object.__new__(type(self))  # copy.copy would call `__init__` where the class is one of FSDP's
        model.__dict__ = self.__dict__ | {"config": copy.copy(self.config)}
        model.config.vocab_size = self.config.target_vocab_size
        return model
