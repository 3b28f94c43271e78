"""The kinds of correspondence are inverses and linear."""

import pytest
import torch

from vanillaformer import VanillaDecoderConfig
from vanillaformer.conversion.mapping.tensors import (
    SAME,
    BufferRow,
    HeadRow,
    HeadRows,
    Rows,
    Same,
    Transposed,
    TransposedRows,
)

CONFIG = VanillaDecoderConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, vocab_size=5)
KINDS = {
    "same": (SAME, (6, 4)),
    "transposed": (Transposed(), (6, 4)),
    "transposed-bias": (Transposed(), (6,)),
    "rows": (Rows(2), (6, 4)),
    "rows-bias": (Rows(3), (6,)),
    "transposed-rows": (TransposedRows(3), (4, 6)),
    "transposed-rows-bias": (TransposedRows(3), (6,)),
    "head-rows": (HeadRows(), (24, 8)),
    "head-rows-bias": (HeadRows(), (24,)),
    "head-row": (HeadRow("num_attention_heads", 1), (4,)),
    "buffer-row": (BufferRow(), (1, 6)),
}


@pytest.mark.parametrize(("kind", "shape"), KINDS.values(), ids=KINDS)
def test_a_kind_is_inverted_and_linear(kind: Same, shape: tuple[int, ...]):
    one, other = torch.randn(shape), torch.randn(shape)
    assert torch.equal(kind.to_native(kind.to_ours(one, CONFIG), CONFIG), one)
    parts = zip(kind.to_ours(one, CONFIG), kind.to_ours(other, CONFIG), kind.to_ours(one + other, CONFIG))
    for first, second, both in parts:
        assert torch.equal(first + second, both)


def test_heads_are_taken_apart_one_by_one():
    rows = torch.arange(24.0)  # heads 0 and 1, each with 4 rows of queries, keys and values
    query, key, value = HeadRows().to_ours(rows, CONFIG)
    assert query.tolist() == [0, 1, 2, 3, 12, 13, 14, 15]
    assert key.tolist() == [4, 5, 6, 7, 16, 17, 18, 19]
    assert value.tolist() == [8, 9, 10, 11, 20, 21, 22, 23]
