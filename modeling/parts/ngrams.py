"""N-grams of tokens by a hash: vectors in front of the stack, and logits beside it.

The hash of an n-gram combines that of its last n - 1 tokens and the token before them: `h_n = (h_{n-1} a + w_{t-n+1})
mod p`, with `h_1 = w_t`.
"""

from typing import cast

import torch
from torch import nn

from vanillaformer.configuration import BlockConfig, VanillaEncoderConfig

# a and p: both below 2³¹, so that products fit into 64 bits
HASH_FACTOR, HASH_PRIME = 1_540_483_477, 2**31 - 1


def ngram_hashes(input_ids: torch.Tensor, position_ids: torch.Tensor, max_ngram: int, padding: int) -> torch.Tensor:
    """Return the hash of each n-gram of tokens (B, T) by its last token (N, B, T), tokens first.

    Tokens before position 0 (B or 1, T) count as padding.
    """
    hashes = [input_ids.long()]
    for shift in range(1, max_ngram):
        previous = nn.functional.pad(input_ids, (shift, 0), value=padding)[:, : input_ids.shape[1]]
        previous = torch.where(position_ids >= shift, previous, padding)  # not of another packed text
        hashes.append((hashes[-1] * HASH_FACTOR + previous) % HASH_PRIME)
    return torch.stack(hashes)


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

    Shapes: (B, T, D), ids (B, T), positions (B or 1, T) → (B, T, D).
    """

    def __init__(self, config: BlockConfig):
        super().__init__()
        self.max_ngram, self.buckets = config.max_ngram, config.ngram_buckets
        self.padding = -1 if config.pad_token_id is None else config.pad_token_id
        self.embed_ngrams = ZeroTable((self.max_ngram - 1) * self.buckets, config.hidden_size)

    def forward(self, x: torch.Tensor, input_ids: torch.Tensor | None, position_ids: torch.Tensor) -> torch.Tensor:
        if input_ids is None:
            raise ValueError(f"max_ngram={self.max_ngram} needs input_ids: inputs_embeds do not identify the tokens")
        return x + self.embed_ngrams(self.hash_ngrams(input_ids, position_ids)).sum(dim=0)

    def hash_ngrams(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """Return the table's row of each n-gram (N - 1, B, T), bigrams first."""
        hashes = ngram_hashes(input_ids, position_ids, self.max_ngram, self.padding)[1:]
        offsets = torch.arange(self.max_ngram - 1, device=input_ids.device) * self.buckets
        return hashes % self.buckets + offsets[:, None, None]


class NoWideLogits(nn.Module):
    """No logits beside the stack: (B, C) → the same."""

    def forward(
        self, logits: torch.Tensor, input_ids: torch.Tensor | None, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        return logits


class WideLogits(nn.Module):
    """Add trained logits of each n-gram of a text: `z + Σ_{g ∈ G} W[h(g)] / √|G|`.

    G is the set of the hashed n-grams, which counts each once: a linear classifier beside the stack (Wide & Deep,
    Cheng et al. 2016, arXiv 1606.07792). It starts at zero, and gets no gradients unless that is asked for
    (`requires_grad_()`): the training program fits it as a separate linear classifier.

    Shapes: logits (B, C), ids (B, T), mask (B, T) or `None` → (B, C).
    """

    def __init__(self, config: VanillaEncoderConfig):
        super().__init__()
        self.max_ngram, self.buckets = config.wide_max_ngram, config.wide_buckets
        self.padding = -1 if config.pad_token_id is None else config.pad_token_id
        self.ngram_logits = ZeroTable(self.buckets, cast(int, config.num_labels)).requires_grad_(False)

    def forward(
        self, logits: torch.Tensor, input_ids: torch.Tensor | None, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        if input_ids is None:
            raise ValueError(
                f"wide_max_ngram={self.max_ngram} needs input_ids: inputs_embeds do not identify the tokens"
            )
        rows, first = self.distinct_ngrams(input_ids, attention_mask)
        weights = first.to(logits.dtype)
        weights = weights / weights.sum(dim=1, keepdim=True).clamp(min=1).sqrt()
        return logits + (self.ngram_logits(rows) * weights.unsqueeze(-1)).sum(dim=1)

    def distinct_ngrams(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the table's row of each n-gram of the texts (B, N T), and whether it is the first of equal ones."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        input_ids = torch.where(mask.bool(), input_ids, self.padding)
        positions = torch.arange(input_ids.shape[1], device=input_ids.device).unsqueeze(0)
        hashes = ngram_hashes(input_ids, positions, self.max_ngram, self.padding) % self.buckets
        hashes = torch.where(mask.bool(), hashes, self.buckets)  # above all others: no n-gram ends in padding
        rows = hashes.transpose(0, 1).flatten(1).sort(dim=1).values
        first = nn.functional.pad(rows[:, 1:] != rows[:, :-1], (1, 0), value=True) & (rows < self.buckets)
        return rows.clamp(max=self.buckets - 1), first
