"""From token vectors to the input of the first block."""

import torch
from torch import nn

from vanillaformer.configuration import BlockConfig

from .dropout import build_dropout
from .norms import build_norm
from .positions import build_positions

# Σ wᵢ aⁱ mod p: both below 2³¹, so that no product leaves 64 bits
HASH_FACTOR, HASH_PRIME = 1_540_483_477, 2**31 - 1


class NoTokenTypes(nn.Module):
    """A model that does not tell token types apart."""

    def forward(self, x: torch.Tensor, token_type_ids: torch.Tensor | None) -> torch.Tensor:
        if token_type_ids is not None:
            raise ValueError("token_type_ids were given, but the config says type_vocab_size=0")
        return x


class TokenTypes(nn.Module):
    """One trained vector per token type (BERT's segments); tokens without a given type are of type 0.

    Shapes: (B, T, D), types (B, T) → (B, T, D).
    """

    def __init__(self, types: int, width: int):
        super().__init__()
        self.embed_token_types = nn.Embedding(types, width)

    def forward(self, x: torch.Tensor, token_type_ids: torch.Tensor | None) -> torch.Tensor:
        first_type = self.embed_token_types.weight[0]
        return x + (first_type if token_type_ids is None else self.embed_token_types(token_type_ids))


class NoNgrams(nn.Module):
    """A model whose tokens have the same vector beside whatever neighbours."""

    def forward(self, x: torch.Tensor, input_ids: torch.Tensor | None, position_ids: torch.Tensor) -> torch.Tensor:
        return x


class NgramTable(nn.Embedding):
    """Vectors of n-grams; they begin at zero, so that the model begins as one without them."""

    def initial_values(self) -> dict[str, torch.Tensor]:
        return {"weight": torch.zeros_like(self.weight)}


class NgramEmbeddings(nn.Module):
    """Add to a token's vector those of the n-grams that end in it: `x_t + Σ_{n=2}^{N} E_n[h(w_{t-n+1} … w_t)]`.

    The over-encoding of Huang et al. 2025 (arXiv 2501.16975), with the hashing of Joulin et al. 2017 (fastText): h has
    `buckets` values, and n-grams with the same one share a vector. Padding in front of a text and the place before it
    are the same to h.

    Args:
        longest: N, at least 2.
        buckets: Rows of each table E_n.
        width: D.
        padding: Id that stands for no token, maybe `None`.

    Shapes: (B, T, D), ids (B, T), positions (B or 1, T) → (B, T, D).
    """

    def __init__(self, longest: int, buckets: int, width: int, padding: int | None):
        super().__init__()
        self.longest, self.buckets = longest, buckets
        self.padding = -1 if padding is None else padding
        self.embed_ngrams = NgramTable((longest - 1) * buckets, width)

    def forward(self, x: torch.Tensor, input_ids: torch.Tensor | None, position_ids: torch.Tensor) -> torch.Tensor:
        if input_ids is None:
            raise ValueError(f"max_ngram={self.longest} needs input_ids: inputs_embeds do not name the tokens")
        return x + self.embed_ngrams(self.rows(input_ids, position_ids)).sum(dim=0)

    def rows(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of the table (N - 1, B, T), those of pairs first."""
        number, found = input_ids.long(), []  # products of two numbers below 2³¹
        for back in range(1, self.longest):
            before = nn.functional.pad(input_ids, (back, 0), value=self.padding)[:, : input_ids.shape[1]]
            before = torch.where(position_ids >= back, before, self.padding)  # packed texts are strangers
            number = (number * HASH_FACTOR + before) % HASH_PRIME
            found.append(number % self.buckets + (back - 1) * self.buckets)
        return torch.stack(found)


def build_ngrams(config: BlockConfig) -> nn.Module:
    """Return what adds the vectors of n-grams, if the config has any."""
    longest = config.max_ngram
    if longest == 1:
        return NoNgrams()
    return NgramEmbeddings(longest, config.ngram_buckets, config.hidden_size, config.pad_token_id)


class InputEmbeddings(nn.Module):
    """Add n-grams to token vectors, scale them, add token types and positions, normalise and drop out.

    Args:
        config: The stack's config.
        is_causal: Whether a token sees only itself and those before it.

    Shapes: token vectors (B, T, D), positions (B or 1, T), types and ids (B, T) → (B, T, D).
    """

    def __init__(self, config: BlockConfig, is_causal: bool = True):
        super().__init__()
        types = config.type_vocab_size
        self.scale = config.hidden_size**0.5 if config.scale_embedding else 1.0
        self.ngrams = build_ngrams(config)
        self.token_types = TokenTypes(types, config.hidden_size) if types else NoTokenTypes()
        self.positions = build_positions(config, is_causal)
        self.norm = build_norm(config) if config.embedding_norm else nn.Identity()
        self.dropout = build_dropout(config.dropout)

    def forward(
        self,
        inputs_embeds: torch.Tensor,
        position_ids: torch.Tensor,
        token_type_ids: torch.Tensor | None,
        input_ids: torch.Tensor | None,
    ) -> torch.Tensor:
        x = self.ngrams(inputs_embeds, input_ids, position_ids)
        x = self.token_types(x * self.scale, token_type_ids)
        return self.dropout(self.norm(self.positions.embed(x, position_ids)))
