"""Configs of the Transformer encoder-decoder, and of the recurrent one that came before it."""

import dataclasses
from typing import Any, cast

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from .base import BlockConfig, ConfigView, VanillaConfig
from .block import BlockFields
from .fields import Derived, positive, probability, projections
from .options import (
    DECODING_CHOICES,
    POSITION_CHOICES,
    Cell,
    CrossAttentionScore,
    Decoding,
    NormPlacement,
    OutputDistribution,
    PositionEmbedding,
    RecurrentInitialization,
)


class TwoVocabularies(PreTrainedConfig):
    """Fields for the vocabularies of source and target, which may be one, and for their special tokens."""

    vocab_size: int = positive(default=37000)
    decoder_vocab_size: int | None = positive(default=None)
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True
    use_cache: bool = True
    is_encoder_decoder: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 3
    decoder_start_token_id: int | None = 2

    @property
    def target_vocab_size(self) -> int:
        """Number of target tokens."""
        return self.decoder_vocab_size or self.vocab_size

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, without sizes of one side that are `None`, which transformers would read as a size."""
        sizes = ("decoder_vocab_size", "encoder_hidden_size", "encoder_intermediate_size")
        unset = {name for name in sizes if getattr(self, name, None) is None}
        return {name: value for name, value in super().to_dict().items() if name not in unset}

    def validate_block_vocabularies(self) -> None:
        """Shared embeddings need one vocabulary, and special tokens are in the vocabularies that use them."""
        if self.share_encoder_decoder_embeddings and self.target_vocab_size != self.vocab_size:
            raise ValueError(
                f"share_encoder_decoder_embeddings=True needs one vocabulary, got vocab_size={self.vocab_size} and "
                f"decoder_vocab_size={self.decoder_vocab_size}"
            )
        config: Any = self
        config.check_token_ids(self.target_vocab_size, "bos_token_id", "eos_token_id", "decoder_start_token_id")
        config.check_token_ids(min(self.vocab_size, self.target_vocab_size), "pad_token_id")


@strict
class VanillaEncoderDecoderConfig(TwoVocabularies, BlockConfig):
    """An encoder stack and a decoder stack with cross-attention; the defaults are "base" of Vaswani et al. 2017.

    Args:
        vocab_size: Number of source tokens.
        decoder_vocab_size: Number of target tokens, if it differs from `vocab_size`.
        share_encoder_decoder_embeddings: Use one embedding table for both sides (needs one vocabulary).
        tie_word_embeddings: Use the decoder's embedding table as the output layer (Press and Wolf 2017).
        encoder_layers: Number of encoder blocks. Default `num_hidden_layers`, the number of decoder blocks.
        encoder_hidden_size: Width of the encoder, from whose output cross-attention computes keys and values. Default
            `hidden_size`; another width needs separate embeddings. Heads have the same `head_dim` in both.
        encoder_intermediate_size: Inner width of the encoder's feed-forward layer. Default `intermediate_size`.
        encoder_layer_types: Like `layer_types`, for the encoder. Default: the pattern of `layer_types`.
        scale_decoder_outputs: Divide the decoder's output by √D before a tied output layer (T5).
        output_distribution: `softmax`, or `pointer_generator`, which can also copy source tokens.
        decoding: `autoregressive`, or in parallel: `mask_predict` or `ctc`.
        max_length_difference: Largest difference between target and source lengths that `mask_predict` predicts.
        ctc_upsampling: Decoder positions per source token with `ctc`, which limit the target's length.
        use_cache: Cache keys and values during generation.
        pad_token_id: Padding token of source and target.
        bos_token_id: First token of a text.
        eos_token_id: Last token of a text; generation stops there.
        decoder_start_token_id: First token of the decoder: labels are shifted right after it. For `mask_predict` it
            is the token that stands for hidden ones.

    The fields of `BlockConfig` describe the blocks of both stacks.
    """

    model_type = "vanilla_encoder_decoder"
    generates = True
    default_initialization = "xavier"
    derived_fields = BlockConfig.derived_fields | {"encoder_layers": lambda config: config.num_hidden_layers}
    own_keywords = ("encoder_layer_types",)

    encoder_layers: Derived[int] = positive(default=None)
    encoder_hidden_size: int | None = positive(default=None)
    encoder_intermediate_size: int | None = positive(default=None)
    scale_decoder_outputs: bool = False
    output_distribution: OutputDistribution = "softmax"
    decoding: Decoding = "autoregressive"
    max_length_difference: int = positive(default=128)
    ctc_upsampling: int = positive(default=3)
    norm_placement: NormPlacement = "post"
    position_embedding_type: PositionEmbedding = "sinusoidal"
    scale_embedding: bool = True
    attention_bias: bool | list[str] = projections(default=False)

    def _fill_derived(self) -> None:
        super()._fill_derived()
        # An encoder as wide as the decoder follows later changes of the decoder's width
        if self.encoder_hidden_size and self.encoder_hidden_size == self.hidden_size:
            self.encoder_hidden_size = None
        if self.encoder_intermediate_size and self.encoder_intermediate_size == self.intermediate_size:
            self.encoder_intermediate_size = None

    def _take_layer_types(self, kwargs: dict[str, Any]) -> None:
        kwargs.setdefault("encoder_layer_types", kwargs.get("layer_types"))
        super()._take_layer_types(kwargs)
        self._take_pattern(kwargs, "encoder_layer_types", self.encoder_layers)

    @property
    def encoder_side(self) -> BlockConfig:
        """The config of the encoder's parts, with the encoder's sizes and layers."""
        fields = {
            "hidden_size": self.encoder_width,
            "intermediate_size": self.encoder_inner_width,
            "num_hidden_layers": self.encoder_layers,
        }
        view = ConfigView(self, **fields, layer_types=getattr(self, "encoder_layer_types", None))
        return cast(BlockConfig, view)

    @property
    def decoder_side(self) -> BlockConfig:
        """The config of the decoder's parts, with the target vocabulary and the decoder's positions."""
        positions = self.max_position_embeddings
        if DECODING_CHOICES[self.decoding].upsamples:
            positions *= self.ctc_upsampling
        view = ConfigView(self, vocab_size=self.target_vocab_size, max_position_embeddings=positions)
        return cast(BlockConfig, view)

    def deepnorm_scales(self, cross_attention: bool) -> tuple[float, float]:
        """Return DeepNorm's α and β (Wang et al. 2022, table 1), which differ between the two stacks."""
        encoder, decoder = self.encoder_layers, self.num_hidden_layers
        if cross_attention:
            return (3 * decoder) ** 0.25, (12 * decoder) ** -0.25
        depth = (encoder**4 * decoder) ** (1 / 16)
        return 0.81 * depth, 0.87 / depth

    @property
    def encoder_width(self) -> int:
        """Width of the encoder, from whose output cross-attention computes keys and values."""
        return self.encoder_hidden_size or self.hidden_size

    @property
    def encoder_inner_width(self) -> int:
        """Inner width of the encoder's feed-forward layers."""
        return self.encoder_intermediate_size or int(self.intermediate_size)

    def validate_block_output_distribution(self) -> None:
        """Copied source tokens have the same meaning in the target."""
        if self.output_distribution == "pointer_generator" and not self.share_encoder_decoder_embeddings:
            raise ValueError(
                "output_distribution='pointer_generator' copies source tokens into the target and needs one "
                "vocabulary: share_encoder_decoder_embeddings=True"
            )

    def validate_block_encoder_width(self) -> None:
        """Stacks of different widths cannot share an embedding table."""
        differs = self.encoder_width != self.hidden_size
        if self.encoder_hidden_size and differs and self.share_encoder_decoder_embeddings:
            raise ValueError(
                f"share_encoder_decoder_embeddings=True needs one width, got encoder_hidden_size={self.encoder_width} "
                f"and hidden_size={self.hidden_size}"
            )

    def validate_block_decoding(self) -> None:
        """Parallel decoding needs special tokens, positions by which hidden tokens differ, and trained embeddings."""
        if not DECODING_CHOICES[self.decoding].is_parallel:
            return
        for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id"):
            if getattr(self, name) is None:
                raise ValueError(f"decoding={self.decoding!r} needs a {name}, got None")
        ends = self.eos_token_id if isinstance(self.eos_token_id, list) else [self.eos_token_id]
        if DECODING_CHOICES[self.decoding].upsamples and self.pad_token_id in ends:
            raise ValueError(
                f"decoding={self.decoding!r} has the padding token as its blank, which must not end a text: got "
                f"pad_token_id={self.pad_token_id} and eos_token_id={self.eos_token_id}"
            )
        if DECODING_CHOICES[self.decoding].needs_table and not self.has_position_table:
            allowed = [name for name, position in POSITION_CHOICES.items() if position.has_table]
            raise ValueError(
                f"decoding={self.decoding!r} starts from hidden tokens, which differ only by the positions "
                f"added to them: position_embedding_type must be {' or '.join(map(repr, allowed))}, got "
                f"{self.position_embedding_type!r}"
            )
        tied = self.share_encoder_decoder_embeddings or self.tie_word_embeddings
        if DECODING_CHOICES[self.decoding].upsamples and not tied:
            raise ValueError(
                f"decoding={self.decoding!r} reads no target tokens, so nothing would train their embeddings: "
                "share_encoder_decoder_embeddings or tie_word_embeddings must be True"
            )


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
        cross_attention: Score of a decoder and an encoder state, `additive`, `dot` or `general`; with `none`, the
            decoder only gets the encoder's last states (Sutskever et al. 2014).
        input_feeding: Feed the attention's output of each step into the next one (Luong et al. 2015, section 3.3).
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
            raise ValueError(f"{cls.__name__} has no field {key!r} (value {given[key]!r}): Transformers have it")
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
        return f"attn_implementation={implementation!r} is for Transformers: recurrent models only have 'eager'"

    def validate_cross_attention(self) -> None:
        """Dot products need equal widths, and input feeding needs cross-attention."""
        if self.cross_attention == "dot" and self.encoder_width != self.hidden_size:
            raise ValueError(
                f"cross_attention='dot' needs an encoder as wide as the decoder, got {self.encoder_directions} * "
                f"encoder_hidden_size={self.encoder_hidden_size} and hidden_size={self.hidden_size}"
            )
        if self.cross_attention == "none" and self.input_feeding:
            raise ValueError("input_feeding=True feeds the output of an attention: cross_attention must not be 'none'")
