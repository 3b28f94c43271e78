"""The same models as people write them with bare torch: what the table of `make bench` measures us against.

Shape letters: B batch, T length, S length of the source, D model width.
"""

from typing import Any

import torch
from torch import nn
from weights import Size

Tokens = dict[str, torch.Tensor]
cross_entropy = nn.functional.cross_entropy


class PlainBlock(nn.Module):
    """A pre-norm GPT-2 block with one product for queries, keys and values, as nanoGPT has it."""

    def __init__(self, size: Size):
        super().__init__()
        width = size.width
        self.heads = size.heads
        self.norm, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class PlainGPT(nn.Module):
    """GPT-2 in the way of nanoGPT, with tied embeddings and the loss on all logits at once."""

    def __init__(self, size: Size):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(size.vocab, size.width), nn.Embedding(size.max_length, size.width)
        self.blocks = nn.Sequential(*(PlainBlock(size) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.width)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1], device=input_ids.device))
        logits = self.norm(self.blocks(x)) @ self.tokens.weight.T
        return cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


class TorchTranslator(nn.Module):
    """`torch.nn.Transformer` between one table of embeddings and its transpose."""

    def __init__(self, size: Size):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(size.vocab, size.width), nn.Embedding(size.max_length, size.width)
        shape: dict[str, Any] = {"num_encoder_layers": size.layers, "num_decoder_layers": size.layers}
        shape |= {"dim_feedforward": 4 * size.width, "dropout": size.dropout, "batch_first": True}
        self.transformer = nn.Transformer(size.width, size.heads, **shape)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        targets = labels.clamp(min=0).roll(1, dims=1)
        padding = attention_mask == 0
        causal = self.transformer.generate_square_subsequent_mask(targets.shape[1])
        masks = {"tgt_mask": causal, "src_key_padding_mask": padding, "memory_key_padding_mask": padding}
        states = self.transformer(self.embed(input_ids), self.embed(targets), tgt_is_causal=True, **masks)
        return cross_entropy((states @ self.tokens.weight.T).flatten(0, 1), labels.flatten())


class TorchClassifier(nn.Module):
    """`torch.nn.TransformerEncoder`, and a layer on the mean of a text's states."""

    def __init__(self, size: Size):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(size.vocab, size.width), nn.Embedding(size.max_length, size.width)
        shape: dict[str, Any] = {"dim_feedforward": 4 * size.width, "dropout": size.dropout, "batch_first": True}
        layer = nn.TransformerEncoderLayer(size.width, size.heads, activation="gelu", **shape)
        self.encoder, self.head = nn.TransformerEncoder(layer, size.layers), nn.Linear(size.width, 4)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.dropout(
            self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1], device=input_ids.device))
        )
        states = self.encoder(x, src_key_padding_mask=attention_mask == 0)
        weights = attention_mask[..., None].to(states.dtype)
        return cross_entropy(self.head((states * weights).sum(1) / weights.sum(1)), labels)
