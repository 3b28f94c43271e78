"""Packed pairs: a batch's loss and gradient are those of the padded one, and no pair sees another."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from modeling.axes import FIRST_WORD, PAD, SOURCE_VOCABULARY, TARGET_VOCABULARY
from modeling.toys import assert_close, plain_flex_attention, position_choices, toy

from vanillaformer.training.preprocessing import packing
from vanillaformer.training.preprocessing.packed_pairs import PackedPairs, check_packing

LENGTHS = [(3, 4), (7, 2), (1, 6), (5, 1), (12, 9), (2, 3), (4, 4)]
OFF = SimpleNamespace(guided_attention=0.0, scheduled_sampling="none")


def pairs() -> list[dict[str, list[int]]]:
    generator = torch.Generator().manual_seed(0)

    def words(length: int, vocabulary: int) -> list[int]:
        return torch.randint(FIRST_WORD, vocabulary, (length,), generator=generator).tolist()

    return [{"input_ids": words(s, SOURCE_VOCABULARY), "labels": words(t, TARGET_VOCABULARY)} for s, t in LENGTHS]


def padded(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    sources, labels = (
        torch.nn.utils.rnn.pad_sequence([torch.tensor(row[name]) for row in rows], True, fill)
        for name, fill in (("input_ids", PAD), ("labels", -100))
    )
    return {"input_ids": sources, "attention_mask": (sources != PAD).long(), "labels": labels}


@pytest.fixture(autouse=True)
def _short_rows(monkeypatch):
    monkeypatch.setattr(packing, "ROOM", 16)


def gradients(model: Any, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    loss = model(**batch, labeled_only=True, return_logits=False).loss
    loss.backward()
    return loss.detach(), {name: value.grad.clone() for name, value in model.named_parameters()}


def test_every_pair_is_packed_once_with_less_padding():
    rows = pairs()
    batch = PackedPairs(toy("encoder_decoder"), padded)(rows)
    for ids, positions, side in (
        ("input_ids", "position_ids", 0),
        ("labels", "decoder_position_ids", 1),
    ):
        assert batch[ids].shape == batch[positions].shape
        assert batch[ids].shape[1] <= 16
        real = batch[ids].ne(PAD if side == 0 else -100)
        found = sorted(batch[ids][real].tolist())
        assert found == sorted(token for row in rows for token in row["input_ids" if side == 0 else "labels"])
        starts = (batch[positions] == 0) & real
        assert starts.sum() == len(rows)
        assert real.float().mean() > 1.5 * sum(pair[side] for pair in LENGTHS) / padded(rows)[ids].numel()


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("choices", position_choices(), ids=lambda choices: "-".join(choices.values()))
def test_loss_and_gradients_are_those_of_the_padded_batch(choices, implementation, window):
    model = toy("encoder_decoder", **choices, **({"sliding_window": window} if window else {})).double()
    model.set_attn_implementation(implementation)
    check_packing(model, OFF)
    loss, found = gradients(model, PackedPairs(model, padded)(pairs()))
    expected_loss, expected = gradients(model, padded(pairs()))
    assert_close(loss, expected_loss, "loss", 1e-12)
    scale = max(value.norm() for value in expected.values())
    for name, value in expected.items():  # a bias on all keys has none but rounding
        assert (found[name] - value).norm() <= 1e-10 * value.norm() + 1e-12 * scale, name


def test_flex_attention_computes_the_same_loss(monkeypatch):
    plain_flex_attention(monkeypatch)
    model = toy("encoder_decoder")
    batches = PackedPairs(model, padded)(pairs()), padded(pairs())
    model.set_attn_implementation("flex_attention")
    with torch.no_grad():
        packed, alone = (model(**batch).loss for batch in batches)
    assert_close(packed, alone, "loss", 1e-5)


@pytest.mark.parametrize("side", ["input_ids", "labels"])
def test_a_pair_that_changes_changes_no_other(side):
    """The same with other eyes: the check above could pass with pairs that attend to nothing."""
    model, rows = toy("encoder_decoder", position_embedding_type="rotary").double(), pairs()[:2]
    packed = PackedPairs(model, padded)
    before = packed(rows)
    rows[0][side][0] = rows[0][side][0] % 10 + FIRST_WORD + 1
    after = packed(rows)
    logits = []
    for batch in (before, after):
        del batch["labels"]
        logits.append(model(**batch, use_cache=False).logits)  # a cache is for one text in a row
    moved = (logits[0] - logits[1]).abs().amax(-1)[0] > 1e-9
    length = LENGTHS[0][1]
    assert moved[int(side == "labels") : length].all()  # decoder inputs begin with the start token
    assert not moved[length : length + LENGTHS[1][1]].any()


def test_evaluations_are_padded():
    collator = PackedPairs(toy("encoder_decoder"), padded)
    with collator.evaluation():
        assert "attention_mask" in collator(pairs())
    assert "attention_mask" not in collator(pairs())


@pytest.mark.parametrize(
    ("kind", "fields", "options", "message"),
    [
        ("recurrent_encoder_decoder", {}, {}, "vanilla_recurrent_encoder_decoder"),
        ("encoder_decoder", {"decoding": "ctc"}, {}, "decoding='autoregressive', not 'ctc'"),
        ("encoder_decoder", {}, {"guided_attention": 1.0}, "--guided_attention 1.0"),
        ("encoder_decoder", {}, {"scheduled_sampling": "linear"}, "--scheduled_sampling linear"),
    ],
)
def test_what_packing_would_change_is_refused(kind, fields, options, message):
    with pytest.raises(ValueError, match=message):
        check_packing(toy(kind, **fields), SimpleNamespace(**vars(OFF) | options))
