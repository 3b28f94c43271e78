"""GPT-style decoder: causal language models and classifiers on top of them."""

from huggingface_hub.dataclasses import strict

from .base import BlockConfig
from .fields import activation, non_negative, positive
from .options import PositionEmbedding


@strict
class VanillaDecoderConfig(BlockConfig):
    """A stack of causal self-attention blocks; by default those of GPT-2 with rotary positions.

    Args:
        vocab_size: Number of tokens V.
        type_vocab_size: Number of token types (such as speakers of a dialogue); 0 for none.
        tie_word_embeddings: Use the embedding table as the output layer (Press and Wolf 2017).
        use_cache: Cache keys and values during generation.
        pad_token_id: Padding token; needed to classify in batches.
        bos_token_id: First token of a text.
        eos_token_id: Last token of a text; generation stops there.

    The fields of `BlockConfig` describe the blocks.
    """

    model_type = "vanilla_decoder"
    generates = True
    default_initialization = "gpt2"
    base_model_pp_plan = {  # noqa: RUF012 - the form transformers reads
        "embed_tokens": (["input_ids"], ["inputs_embeds"]),
        "layers": (["hidden_states", "attention_mask"], ["hidden_states"]),
        "norm": (["hidden_states"], ["hidden_states"]),
    }

    vocab_size: int = positive(default=50257)
    hidden_act: str = activation(default="gelu_new")
    position_embedding_type: PositionEmbedding = "rotary"
    type_vocab_size: int = non_negative(default=0)
    tie_word_embeddings: bool = True
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def validate_block_special_tokens(self) -> None:
        """Special tokens are in the vocabulary."""
        self.check_token_ids(self.vocab_size, "pad_token_id", "bos_token_id", "eos_token_id")
