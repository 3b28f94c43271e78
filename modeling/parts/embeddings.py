"""From token vectors to the input of the first block."""

import torch
from torch import nn

from vanillaformer.configuration import BlockConfig

from .dropout import build_dropout
from .norms import build_norm
from .positions import NoPositions, build_positions

# Of the hash Σ wᵢ aⁱ mod p: both below 2³¹, so that products fit into 64 bits
HASH_FACTOR, HASH_PRIME = 1_540_483_477, 2**31 - 1


class NoTokenTypes(nn.Module):
    """No token types: (B, T, D) → the same."""

    def forward(self, x: torch.Tensor, token_type_ids: torch.Tensor | None) -> torch.Tensor:
        if token_type_ids is not None:
            raise ValueError("token_type_ids were given, but the config has type_vocab_size=0")
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
    """No n-grams: (B, T, D) → the same."""

    def forward(self, x: torch.Tensor, input_ids: torch.Tensor | None, position_ids: torch.Tensor) -> torch.Tensor:
        return x


class ZeroTable(nn.Embedding):
    """Vectors that start at zero."""

    def initial_values(self) -> dict[str, torch.Tensor]:
        return {"weight": torch.zeros_like(self.weight)}


class NgramEmbeddings(nn.Module):
    """Add the vectors of the n-grams that end in a token to its own: `x_t + Σ_{n=2}^{N} E_n[h(w_{t-n+1} … w_t)]`.

    Over-encoding (Huang et al. 2025, arXiv 2501.16975) with the hashing trick of fastText (Joulin et al. 2017): h has
    `buckets` values, and n-grams of equal value share a vector. Tokens before the first one count as padding.

    Args:
        max_ngram: N, at least 2.
        buckets: Rows of each table E_n.
        width: D.
        padding: Id of the padding token, or `None`.

    Shapes: (B, T, D), ids (B, T), positions (B or 1, T) → (B, T, D).
    """

    def __init__(self, max_ngram: int, buckets: int, width: int, padding: int | None):
        super().__init__()
        self.max_ngram, self.buckets = max_ngram, buckets
        self.padding = -1 if padding is None else padding
        self.embed_ngrams = ZeroTable((max_ngram - 1) * buckets, width)

    def forward(self, x: torch.Tensor, input_ids: torch.Tensor | None, position_ids: torch.Tensor) -> torch.Tensor:
        if input_ids is None:
            raise ValueError(f"max_ngram={self.max_ngram} needs input_ids: inputs_embeds do not identify the tokens")
        return x + self.embed_ngrams(self.hash_ngrams(input_ids, position_ids)).sum(dim=0)

    def hash_ngrams(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """Return the table's row of each n-gram (N - 1, B, T), bigrams first."""
        hashes, rows = input_ids.long(), []
        for shift in range(1, self.max_ngram):
            previous = nn.functional.pad(input_ids, (shift, 0), value=self.padding)[:, : input_ids.shape[1]]
            previous = torch.where(position_ids >= shift, previous, self.padding)  # not of another packed text
            hashes = (hashes * HASH_FACTOR + previous) % HASH_PRIME
            rows.append(hashes % self.buckets + (shift - 1) * self.buckets)
        return torch.stack(rows)


def build_ngrams(config: BlockConfig) -> nn.Module:
    """Return the n-gram embeddings of a config, the identity if it has none."""
    if config.max_ngram == 1:
        return NoNgrams()
    return NgramEmbeddings(config.max_ngram, config.ngram_buckets, config.hidden_size, config.pad_token_id)


class Stem(nn.Module):
    """Base of what makes the input of the first block."""

    positions: NoPositions


class InputEmbeddings(Stem):
    """Embedding sum: `dropout(norm(√D (token + n-grams) + token type + position))`, most terms optional.

    Args:
        config: The stack's config.
        is_causal: Whether a token attends only to itself and the tokens before it.

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
