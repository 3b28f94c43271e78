"""The recurrent encoder-decoder: translation as it was before the Transformer, and beside it."""

import dataclasses
from typing import Any

from huggingface_hub.dataclasses import strict

from .base import VanillaConfig
from .block import BlockFields
from .encoder_decoder import TwoVocabularies
from .fields import Derived, positive, probability
from .options import Cell, CrossAttentionScore, RecurrentInitialization


@strict
class VanillaRecurrentEncoderDecoderConfig(TwoVocabularies, VanillaConfig):
    """A recurrent encoder, and a recurrent decoder that attends to its states (Bahdanau et al. 2015).

    The defaults are a bidirectional encoder of GRUs and Luong's `general` attention without input feeding. No step of
    the decoder then reads the attention of the step before, so training runs the whole target through one fused kernel
    and attends afterwards, for all positions at once. Input feeding gained 1.3 BLEU in Luong et al. 2015 (table 1);
    with it, training goes step by step.

    Args:
        vocab_size: Number of source tokens.
        decoder_vocab_size: Number of target tokens, if it differs from `vocab_size`.
        share_encoder_decoder_embeddings: Use one embedding table for both sides (needs one vocabulary).
        tie_word_embeddings: Use the decoder's embedding table as the output layer (Press and Wolf 2017).
        hidden_size: Width D of the embeddings and of the decoder's states.
        num_hidden_layers: Number of recurrent layers of the decoder.
        encoder_layers: Number of recurrent layers of the encoder. Default `num_hidden_layers`.
        encoder_hidden_size: Width of the encoder's states in one direction. Default: D, divided by the directions.
        cell: `rnn`, `lstm` or `gru`.
        bidirectional_encoder: Read the source in both directions (Schuster and Paliwal 1997).
        cross_attention: Score of the decoder's state and one of the encoder, `additive`, `dot` or `general`; with
            `none`, the encoder's last states are all that the decoder gets (Sutskever et al. 2014).
        input_feeding: Feed the attention's result of a step into the next one (Luong et al. 2015, section 3.3).
        dropout: Dropout on the embeddings, between recurrent layers and before the output layer.
        lm_head_bias: Whether the output layer has a bias.
        recurrent_initialization: Scheme of fresh weights, `orthogonal` or `uniform`.
        use_cache: Keep the decoder's states during generation.
        pad_token_id: Padding token of source and target.
        bos_token_id: First token of a text.
        eos_token_id: Last token of a text; generation stops there.
        decoder_start_token_id: First token of the decoder: labels are shifted right after it.
    """

    model_type = "vanilla_recurrent_encoder_decoder"
    derived_fields = {  # noqa: RUF012 - the form of the base
        "encoder_layers": lambda config: config.num_hidden_layers,
        "encoder_hidden_size": lambda config: config.hidden_size // config.encoder_directions,
    }

    vocab_size: int = positive(default=8000)
    hidden_size: int = positive(default=256)
    num_hidden_layers: int = positive(default=1)
    encoder_layers: Derived[int] = positive(default=None)
    encoder_hidden_size: Derived[int] = positive(default=None)
    cell: Cell = "gru"
    bidirectional_encoder: bool = True
    cross_attention: CrossAttentionScore = "general"
    input_feeding: bool = False
    dropout: float | int = probability(default=0.0)
    lm_head_bias: bool = False
    recurrent_initialization: RecurrentInitialization = "orthogonal"

    @classmethod
    def refuse_unknown(cls, given: dict[str, Any]) -> None:
        for key in given.keys() & {field.name for field in dataclasses.fields(BlockFields)} - cls.keywords():  # type: ignore[arg-type]
            raise ValueError(f"{cls.__name__} has no field {key!r} (value {given[key]!r}): it is one of Transformers")
        super().refuse_unknown(given)

    @property
    def encoder_directions(self) -> int:
        """Number of directions in which the encoder reads."""
        return 2 if self.bidirectional_encoder else 1

    @property
    def encoder_width(self) -> int:
        """Width of the encoder's output: the states of all directions, concatenated."""
        return self.encoder_directions * self.encoder_hidden_size

    def attention_obstacle(self, implementation: str | None) -> str | None:
        if implementation in (None, "eager"):
            return None
        return (
            f"attn_implementation={implementation!r} is for Transformers: recurrent models have one way to attend, "
            "'eager'"
        )

    def validate_cross_attention(self) -> None:
        """Dot products need one width, input feeding something to feed."""
        if self.cross_attention == "dot" and self.encoder_width != self.hidden_size:
            raise ValueError(
                f"cross_attention='dot' needs an encoder as wide as the decoder, got {self.encoder_directions} * "
                f"encoder_hidden_size={self.encoder_hidden_size} and hidden_size={self.hidden_size}"
            )
        if self.cross_attention == "none" and self.input_feeding:
            raise ValueError("input_feeding=True feeds an attention's result: cross_attention must not be 'none'")
