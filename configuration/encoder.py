"""BERT-style encoder: masked language models and classifiers of texts and tokens."""

from huggingface_hub.dataclasses import strict

from .base import BlockConfig
from .fields import Derived, activation, non_negative, positive, probability
from .options import NormPlacement, Pooling


@strict
class VanillaEncoderConfig(BlockConfig):
    """A stack of bidirectional self-attention blocks; by default those of BERT (Devlin et al. 2019).

    Args:
        vocab_size: Number of tokens V.
        type_vocab_size: Number of token types (first and second sentence); 0 for none.
        max_ngram: Largest N of the N-grams that add a vector to the embedding of their last token (Huang et al. 2025);
            1 for none.
        ngram_buckets: Number of vectors for the N-grams of each length, assigned by a hash.
        classifier_pooling: `first` (the [CLS] token), `mean`, `max` or `last` token, without padding.
        classifier_act: Activation of the layer between pooling and classifier; `None` leaves that layer out.
        classifier_norm: Normalize after that activation (ModernBERT).
        wide_max_ngram: Largest N of the N-grams whose presence adds to a text classifier's logits, beside the stack
            (Wide & Deep, Cheng et al. 2016); 0 for none.
        wide_buckets: Number of rows of their table, assigned by a hash.
        head_act: Activation of the layer before the output layer of the masked language model. Default
            `hidden_act`.
        head_bias: Whether the layer before the classifier or the output layer has a bias.
        classifier_dropout: Dropout before the classifier; default `dropout`.
        tie_word_embeddings: Use the embedding table as the output layer of the masked language model.
        pad_token_id: Padding token.

    The fields of `BlockConfig` describe the blocks.
    """

    model_type = "vanilla_encoder"
    derived_fields = BlockConfig.derived_fields | {"classifier_dropout": lambda config: config.dropout}

    vocab_size: int = positive(default=30522)
    hidden_act: str = activation(default="gelu")
    norm_eps: float | int = non_negative(default=1e-12)
    norm_placement: NormPlacement = "post"
    embedding_norm: bool = True
    lm_head_bias: bool = True
    max_position_embeddings: int = positive(default=512)
    type_vocab_size: int = non_negative(default=2)
    max_ngram: int = positive(default=1)
    ngram_buckets: int = positive(default=65536)
    classifier_pooling: Pooling = "first"
    classifier_act: str | None = activation(default="tanh")
    classifier_norm: bool = False
    wide_max_ngram: int = non_negative(default=0)
    wide_buckets: int = positive(default=2**18)
    head_act: str | None = activation(default=None)
    head_bias: bool = True
    classifier_dropout: Derived[float | int] = probability(default=None)
    tie_word_embeddings: bool = True
    pad_token_id: int | None = 0

    def validate_block_classifier(self) -> None:
        """The classifier's norm needs the layer whose output it normalizes."""
        if self.classifier_norm and self.classifier_act is None:
            raise ValueError("classifier_norm=True normalizes the output of a layer that classifier_act=None omits")

    def validate_block_special_tokens(self) -> None:
        """Special tokens are in the vocabulary."""
        self.check_token_ids(self.vocab_size, "pad_token_id")
