"""The vanilla encoder-decoder: translation and every other text-to-text task."""

from typing import Any

from huggingface_hub.dataclasses import strict

from .block import BlockConfig, positive
from .options import Initialization, NormPlacement, PositionEmbedding


@strict
class VanillaEncoderDecoderConfig(BlockConfig):
    """An encoder stack and a decoder stack with cross-attention; the defaults are "base" of Vaswani et al. 2017.

    Args:
        vocab_size: Number of source tokens.
        decoder_vocab_size: Number of target tokens where it is another than `vocab_size`.
        share_encoder_decoder_embeddings: One embedding table for both sides (needs one vocabulary).
        tie_word_embeddings: Use the decoder's embedding table as the output layer (Press and Wolf 2017).
        encoder_layers: Number of encoder blocks. Default `num_hidden_layers`, the number of decoder blocks.
        use_cache: Keep keys and values while generating.
        pad_token_id: Filler of short rows, source and target.
        bos_token_id: First token of a text.
        eos_token_id: Last token of a text; generation stops there.
        decoder_start_token_id: The token that the decoder starts from: labels are shifted right behind it.

    The fields of `BlockConfig` describe the blocks of both stacks.
    """

    model_type = "vanilla_encoder_decoder"

    vocab_size: int = positive(default=37000)
    decoder_vocab_size: int | None = positive(default=None)
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True
    encoder_layers: int | None = positive(default=None)
    norm_placement: NormPlacement = "post"
    position_embedding_type: PositionEmbedding = "sinusoidal"
    scale_embedding: bool = True
    attention_bias: bool = False
    initialization: Initialization = "xavier"
    use_cache: bool = True
    is_encoder_decoder: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 3
    decoder_start_token_id: int | None = 2

    def __post_init__(self, **kwargs: Any) -> None:
        if self.encoder_layers is None:
            self.encoder_layers = self.num_hidden_layers
        super().__post_init__(**kwargs)

    @property
    def target_vocab_size(self) -> int:
        """Number of target tokens."""
        return self.decoder_vocab_size or self.vocab_size

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, without a `decoder_vocab_size` of `None`, which transformers would take for a size."""
        fields = super().to_dict()
        if self.decoder_vocab_size is None:
            fields.pop("decoder_vocab_size", None)
        return fields

    def validate_block_vocabularies(self) -> None:
        """Shared embeddings need one vocabulary."""
        if self.share_encoder_decoder_embeddings and self.target_vocab_size != self.vocab_size:
            raise ValueError(
                f"share_encoder_decoder_embeddings=True needs one vocabulary, got vocab_size={self.vocab_size} and "
                f"decoder_vocab_size={self.decoder_vocab_size}"
            )

    def validate_block_special_tokens(self) -> None:
        """Special tokens lie in the vocabularies that use them."""
        self.check_token_ids(self.target_vocab_size, "bos_token_id", "eos_token_id", "decoder_start_token_id")
        self.check_token_ids(min(self.vocab_size, self.target_vocab_size), "pad_token_id")
