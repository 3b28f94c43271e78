"""From token vectors to the input of the first block."""

import torch
from torch import nn

from vanillaformer.configuration import BlockConfig

from .dropout import build_dropout
from .ngrams import NgramEmbeddings, NoNgrams
from .norms import build_norm
from .position_schemes import build_positions
from .positions import NoPositions


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

    def __init__(self, config: BlockConfig):
        super().__init__()
        self.embed_token_types = nn.Embedding(config.type_vocab_size, config.hidden_size)

    def forward(self, x: torch.Tensor, token_type_ids: torch.Tensor | None) -> torch.Tensor:
        first_type = self.embed_token_types.weight[0]
        return x + (first_type if token_type_ids is None else self.embed_token_types(token_type_ids))


class Stem(nn.Module):
    """Base of the modules that make the input of the first block."""

    positions: NoPositions


class InputEmbeddings(Stem):
    """Embedding sum: `dropout(norm(√D (token + n-grams) + token type + position))`, most terms optional.

    Shapes: token vectors (B, T, D), positions (B or 1, T), types and ids (B, T) → (B, T, D).
    """

    def __init__(self, config: BlockConfig, is_causal: bool = True):
        super().__init__()
        self.scale = config.hidden_size**0.5 if config.scale_embedding else config.embedding_scale
        self.ngrams = NoNgrams() if config.max_ngram == 1 else NgramEmbeddings(config)
        self.token_types = TokenTypes(config) if config.type_vocab_size else NoTokenTypes()
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
