"""Pooling against loops over rows and tokens, with padding on either side and in the middle of nothing."""

from typing import get_args

import pytest
import torch

from vanillaformer import VanillaEncoderForSequenceClassification
from vanillaformer.configuration import options
from vanillaformer.modeling.parts.pooling import POOLINGS

from .toys import PAD, assert_close, positions_of, tokens, toy

MASKS = {
    "full": [[1, 1, 1, 1], [1, 1, 1, 1]],
    "right": [[1, 1, 0, 0], [1, 1, 1, 0]],
    "left": [[0, 0, 1, 1], [0, 1, 1, 1]],
    "one token": [[1, 0, 0, 0], [0, 0, 0, 1]],
}


def naive(name: str, rows: torch.Tensor) -> torch.Tensor:
    """Pool the states (T, D) of one row's tokens."""
    pooled = []
    for dimension in range(rows.shape[1]):
        values = [row[dimension].item() for row in rows]
        pooled.append(
            {"first": values[0], "last": values[-1], "mean": sum(values) / len(values), "max": max(values)}[name]
        )
    return torch.tensor(pooled)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("dtype", [torch.long, torch.bool, torch.float])
@pytest.mark.parametrize("name", get_args(options.Pooling))
def test_a_pooling_is_its_loop(name, mask, dtype):
    mask = torch.tensor(mask)
    states = torch.randn(2, 4, 6) - 5  # all negative: a maximum over padding zeros would show
    states[mask == 0] = 100.0  # and so would padding that is counted
    pooled = POOLINGS[name](states, mask.to(dtype))
    for row in range(2):
        assert_close(pooled[row], naive(name, states[row][mask[row] == 1]), f"row {row}", 1e-6)


@pytest.mark.parametrize("name", get_args(options.Pooling))
def test_pooling_keeps_half_precision(name):
    pooled = POOLINGS[name](torch.randn(2, 4, 6).half(), torch.tensor(MASKS["right"]))
    assert pooled.dtype == torch.float16
    assert torch.isfinite(pooled).all()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", get_args(options.Pooling))
def test_a_classifier_does_not_see_its_padding(name, side):
    model = toy("encoder", VanillaEncoderForSequenceClassification, classifier_pooling=name, num_labels=3)
    ids = tokens(1, 5)
    alone = model(ids).logits
    filler = torch.full((1, 3), PAD)
    padded = torch.cat([filler, ids] if side == "left" else [ids, filler], dim=1)
    mask = (padded != PAD).long()
    logits = model(padded, attention_mask=mask, position_ids=positions_of(mask)).logits
    assert_close(logits, alone, f"logits with padding on the {side}")


def test_the_poolings_differ_on_a_model():
    ids = tokens(2, 6)
    logits = []
    for name in get_args(options.Pooling):
        model = toy("encoder", VanillaEncoderForSequenceClassification, classifier_pooling=name, num_labels=3)
        logits.append(model(ids).logits)
    for number, one in enumerate(logits):
        assert not any(torch.allclose(one, other, atol=1e-3) for other in logits[:number])


def test_a_mask_that_is_no_row_per_text_is_refused():
    model = toy("encoder", VanillaEncoderForSequenceClassification)
    with pytest.raises(ValueError, match=r"\(2, 1, 5, 5\)"):
        model(tokens(2, 5), attention_mask=torch.ones(2, 1, 5, 5, dtype=torch.bool))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_mean_of_a_long_text_neither_overflows_nor_loses_count(dtype):
    states = torch.full((2, 4097, 2), 20.0, dtype=dtype)
    mask = torch.ones(2, 4097, dtype=torch.long)
    mask[1, 906:] = 0  # neither this number nor 20 times it is one of bfloat16
    states[1, 906:] = 1000.0
    assert torch.equal(POOLINGS["mean"](states, mask), torch.full((2, 2), 20.0, dtype=dtype))
