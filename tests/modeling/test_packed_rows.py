"""The texts of a packed row do not see each other: with labels or without, with a cache or a mask of ones.

`tests/data/preprocessing` has losses and gradients with every position scheme.
"""

from typing import Any

import pytest
import torch
from transformers.cache_utils import DynamicCache, StaticCache

from .axes import MIXED, RELATIVE, SOURCE_VOCABULARY, TARGET_VOCABULARY
from .toys import tokens, toy

TEXTS = (4, 5)
SOURCES = (3, 4)
FIELDS = MIXED | RELATIVE
every_way = pytest.mark.parametrize("way", ["eager", "sdpa"])


def places(lengths: tuple[int, ...]) -> torch.Tensor:
    return torch.cat([torch.arange(length) for length in lengths])[None]


def padded(row: torch.Tensor, fill: int = 0) -> torch.Tensor:
    """The row with two more columns."""
    return torch.nn.functional.pad(row, (0, 2), value=fill)


def assert_near(logits: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(logits[:, : expected.shape[1]], expected, rtol=1e-9, atol=1e-9)


@every_way
@torch.no_grad()
def test_a_language_model_reads_each_text_alone(way: str) -> None:
    model = toy("decoder", **FIELDS).double()
    model.set_attn_implementation(way)
    row, positions = tokens(1, sum(TEXTS), SOURCE_VOCABULARY), places(TEXTS)
    alone = torch.cat([model(part).logits for part in row.split(TEXTS, dim=1)], dim=1)
    ones = torch.ones_like(row)
    cached = StaticCache(config=model.config, max_cache_len=16)
    calls: list[dict[str, Any]] = [
        {}, {"use_cache": False}, {"labels": row}, {"attention_mask": ones}, {"past_key_values": DynamicCache()},
        {"attention_mask": ones, "use_cache": False}, {"past_key_values": cached},
    ]  # fmt: skip
    for options in calls:
        assert_near(model(row, position_ids=positions, **options).logits, alone)
        model.train()
        assert_near(model(row, position_ids=positions, **options | {"past_key_values": None}).logits, alone)
        model.eval()
    assert_near(model(padded(row), position_ids=padded(positions), attention_mask=padded(ones)).logits, alone)


@every_way
@torch.no_grad()
def test_a_translator_reads_each_pair_alone(way: str) -> None:
    model = toy("encoder_decoder", **FIELDS).double()
    model.set_attn_implementation(way)
    source, target = tokens(1, sum(SOURCES), SOURCE_VOCABULARY), tokens(1, sum(TEXTS), TARGET_VOCABULARY)
    pairs = zip(source.split(SOURCES, dim=1), target.split(TEXTS, dim=1))
    alone = torch.cat([model(input_ids=x, decoder_input_ids=y).logits for x, y in pairs], dim=1)
    packed = {"input_ids": source, "position_ids": places(SOURCES), "decoder_position_ids": places(TEXTS)}
    ones = {"decoder_attention_mask": torch.ones_like(target)}
    for options in ({}, {"labels": target}, {"use_cache": False}, ones, ones | {"use_cache": False}):
        assert_near(model(**packed, decoder_input_ids=target, **options).logits, alone)


@torch.no_grad()
def test_padding_in_front_is_no_text() -> None:
    model = toy("decoder").double()
    row = tokens(1, 6, SOURCE_VOCABULARY)
    mask = torch.ones_like(row).index_fill(1, torch.arange(2), 0)
    cache = StaticCache(config=model.config, max_cache_len=8)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    logits = model(row, attention_mask=padded(mask), position_ids=positions, past_key_values=cache).logits
    assert_near(logits[:, 2:], model(row[:, 2:]).logits)
