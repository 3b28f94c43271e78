"""Packed batches: loss and gradient are those of the padded batch, and no text sees another."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from modeling.axes import FIRST_WORD, PAD, SOURCE_VOCABULARY, TARGET_VOCABULARY
from modeling.toys import assert_close, assert_same_gradients, gradients, plain_flex_attention, position_choices, toy
from refusals import refused

from vanillaformer import VanillaEncoderForSequenceClassification
from vanillaformer.acceleration import length_buckets
from vanillaformer.acceleration.length_buckets import LengthBuckets
from vanillaformer.data.preprocessing import packing
from vanillaformer.data.preprocessing.packing import PackedPairs, PackedTexts, check_packing, fit_packing
from vanillaformer.training.trainer.losses import with_hidden_tokens

LENGTHS = [(3, 4), (7, 2), (1, 6), (5, 1), (12, 9), (2, 3), (4, 4)]
OFF = SimpleNamespace(guided_attention=0.0, scheduled_sampling="none")


def pairs() -> list[dict[str, list[int]]]:
    generator = torch.Generator().manual_seed(0)

    def words(length: int, vocabulary: int) -> list[int]:
        return torch.randint(FIRST_WORD, vocabulary, (length,), generator=generator).tolist()

    return [{"input_ids": words(s, SOURCE_VOCABULARY), "labels": words(t, TARGET_VOCABULARY)} for s, t in LENGTHS]


def column(rows: list[dict[str, Any]], name: str, fill: int) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row[name]) for row in rows], True, fill)


def padded(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    sources = column(rows, "input_ids", PAD)
    return {"input_ids": sources, "attention_mask": (sources != PAD).long(), "labels": column(rows, "labels", -100)}


@pytest.fixture(autouse=True)
def _short_rows(monkeypatch):
    monkeypatch.setattr(packing, "ROOM", 16)


@pytest.fixture
def groups(monkeypatch) -> list[list[tuple[int, int]]]:
    """Texts of any length are neighbors of similar ones; returns the groups (N, L) that attended as a batch."""
    attended = []
    attend = LengthBuckets.attend

    def recorded(self: LengthBuckets, *args: Any) -> torch.Tensor:
        attended.append([(bucket.texts, bucket.length) for bucket in self.buckets])
        return attend(self, *args)

    monkeypatch.setattr(packing, "LONG", 1)
    monkeypatch.setattr(packing, "SIMILAR", 0.5)
    monkeypatch.setattr(length_buckets, "CALL_OVERHEAD", 0)
    monkeypatch.setattr(LengthBuckets, "attend", recorded)
    return attended


def texts() -> list[dict[str, Any]]:
    rows = [{"input_ids": row["input_ids"], "labels": number % 3} for number, row in enumerate(pairs())]
    return [row | {"token_type_ids": [place % 2 for place in range(len(row["input_ids"]))]} for row in rows]


def padded_texts(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    ids, types = (column(rows, name, PAD) for name in ("input_ids", "token_type_ids"))
    batch = {"input_ids": ids, "attention_mask": (ids != PAD).long(), "token_type_ids": types}
    return batch | {"labels": torch.tensor([row["labels"] for row in rows])}


def classifier(**fields: Any) -> Any:
    return toy("encoder", VanillaEncoderForSequenceClassification, num_labels=3, **fields).double()


def assert_packed_as_padded(model: Any, packed: dict[str, Any], alone: dict[str, Any], **options: Any) -> None:
    """The loss and the gradients of two batches are equal."""
    losses, slopes = [], []
    for batch in (packed, alone):
        losses.append(model(**batch, **options).loss)
        losses[-1].backward()
        slopes.append(gradients(model))
    assert_close(*losses, "loss", 1e-12)
    assert_same_gradients(*slopes, 1e-10, 1e-12)


def test_every_pair_is_packed_once_with_less_padding_and_evaluations_are_padded():
    rows, collator = pairs(), PackedPairs(toy("encoder_decoder"), padded)
    with collator.evaluation():
        assert "position_ids" not in collator(rows)
    batch = collator(rows)
    for ids, positions, side in (("input_ids", "position_ids", 0), ("labels", "decoder_position_ids", 1)):
        assert batch[ids].shape == batch[positions].shape
        assert batch[ids].shape[1] <= 16
        real = batch[ids].ne(PAD if side == 0 else -100)
        found = sorted(batch[ids][real].tolist())
        assert found == sorted(token for row in rows for token in row["input_ids" if side == 0 else "labels"])
        starts = (batch[positions] == 0) & real
        assert starts.sum() == len(rows)
        assert real.float().mean() > 1.5 * sum(pair[side] for pair in LENGTHS) / padded(rows)[ids].numel()


@pytest.mark.parametrize("window", [{}, {"sliding_window": 3}], ids=["whole", "window"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("choices", position_choices(), ids=lambda choices: "-".join(choices.values()))
def test_loss_and_gradients_are_those_of_the_padded_batch(choices, implementation, window):
    translator, of_texts = toy("encoder_decoder", **choices, **window).double(), classifier(**choices, **window)
    for model in (translator, of_texts):
        model.set_attn_implementation(implementation)
        check_packing(model, OFF)
    packed = PackedPairs(translator, padded)(pairs())
    assert_packed_as_padded(translator, packed, padded(pairs()), labeled_only=True, return_logits=False)
    packed = PackedTexts(of_texts, padded_texts)(texts())
    order = packed["labels"].tolist()
    assert sorted(order) == sorted(row["labels"] for row in texts())
    assert len(packed["input_ids"]) < len(order)
    assert_packed_as_padded(of_texts, packed, padded_texts(texts()))


@pytest.mark.parametrize("choices", [choices for choices in position_choices() if "bias" not in str(choices)], ids=str)
def test_texts_in_groups_have_the_loss_and_gradients_of_the_padded_batch(choices, groups):
    model = classifier(**choices)
    grouped = length_buckets.takes_buckets(model.model)
    packed = PackedTexts(model, padded_texts)(texts())
    assert (len(packed["input_ids"]) == 1) == grouped
    assert sorted(packed["labels"].tolist()) == sorted(row["labels"] for row in texts())
    assert_packed_as_padded(model, packed, padded_texts(texts()))
    assert groups == ([[(2, 12), (3, 5), (2, 2)]] * len(model.model.layers) if grouped else [])


WHOLE_ROWS: dict[str, dict[str, Any]] = {
    "windows": {"sliding_window": 3},
    "biases": {"position_embedding_type": "alibi"},
    "rows left out": {"drop_path_rate": 0.1},
}


@pytest.mark.parametrize("case", [*WHOLE_ROWS, "eager attention", "short texts", "compiled"])
def test_other_texts_are_not_in_groups(case, groups, monkeypatch):
    model = classifier(**WHOLE_ROWS.get(case, {}))
    if case == "eager attention":
        model.set_attn_implementation("eager")
    if case == "short texts":
        monkeypatch.setattr(packing, "LONG", 6)
    assert len(PackedTexts(model, padded_texts, compiled=case == "compiled")(texts())["input_ids"]) > 1


@pytest.mark.parametrize("lengths", [[3, 3, 5, -2], [-2, 5, 3, 3], [3, 3, -2, 5], [3, 3, 5]], ids=str)
@pytest.mark.parametrize("rows", [1, 2])
def test_any_packed_rows_can_be_groups(lengths, rows, groups, monkeypatch):
    """With padding (of negative lengths) of any position, from anyone's collator."""
    places = [place for length in lengths for place in (range(length) if length > 0 else [0] * -length)]
    real = [int(length > 0) for length in lengths for _ in range(abs(length))]
    inputs = {
        "input_ids": torch.randint(FIRST_WORD, SOURCE_VOCABULARY, (rows, len(places))),
        "position_ids": torch.tensor([places]).expand(rows, -1),
    }
    if min(lengths) < 0:
        inputs["attention_mask"] = torch.tensor([real]).expand(rows, -1)
    model = classifier().eval()
    with torch.no_grad():
        found = model(**inputs).logits
        assert groups
        monkeypatch.setattr(length_buckets, "CALL_OVERHEAD", 10**6)
        groups.clear()
        expected = model(**inputs).logits
    assert not groups
    assert len(found) == 3 * rows
    assert_close(found, expected, "logits", 1e-12)


class AddsOne(torch.nn.Module):
    """Adds 1 where there are no groups."""

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return positions + int(length_buckets.length_buckets(positions, None, 1) is None)


def test_short_texts_and_what_is_exported_have_masks():
    model = AddsOne()
    positions, short = torch.tensor([[*range(300), *range(300)]]), torch.tensor([[*range(20), *range(10)]])
    assert torch.equal(model(positions), positions)
    assert torch.equal(model(short), short + 1)
    assert torch.equal(torch.export.export(model, (positions,)).module()(positions), positions + 1)
    assert torch.equal(torch.jit.trace(model, positions, check_trace=False)(positions), positions + 1)


@pytest.mark.parametrize("fields", [{"max_ngram": 3, "ngram_buckets": 50}, {"wide_max_ngram": 2, "wide_buckets": 50}])
@pytest.mark.parametrize("pooling", ["first", "mean", "max", "last"])
def test_texts_have_the_logits_of_each_alone_with_hidden_tokens(pooling, fields):
    """Also with n-grams, which read across the hidden ones."""
    model, numbered = classifier(classifier_pooling=pooling, **fields), list(enumerate(texts()))
    order = PackedTexts(model, padded_texts)([row | {"labels": number} for number, row in numbered])["labels"]
    rows = [texts()[number] for number in order.tolist()]
    for name, value in model.named_parameters():
        if "ngram" in name:
            torch.nn.init.normal_(value)
    packed = PackedTexts(model, padded_texts)(rows)
    alone = padded_texts(rows)
    hidden = with_hidden_tokens(packed, 0.4)
    gone = (hidden["attention_mask"] != packed["attention_mask"]).nonzero().tolist()
    assert gone
    starts = (packed["position_ids"] == 0) & packed["attention_mask"].bool()
    texts_before = starts.flatten().cumsum(0).view_as(starts) - 1
    for row, column in gone:
        alone["attention_mask"][texts_before[row, column], packed["position_ids"][row, column]] = 0
    del hidden["labels"], alone["labels"]
    with torch.no_grad():
        found, expected = model(**hidden).logits, model(**alone).logits
    assert_close(found, expected, "logits", 1e-12)
    assert expected.std(dim=0).min() > 1e-3


def test_every_text_has_at_least_its_first_token():
    batch = PackedTexts(classifier(), padded_texts)(texts())
    first = (batch["position_ids"] == 0) & batch["attention_mask"].bool()
    assert first.sum() == len(LENGTHS)
    assert torch.equal(with_hidden_tokens(batch, 1.0)["attention_mask"].bool(), first)


def test_flex_attention_computes_the_same_loss(monkeypatch):
    plain_flex_attention(monkeypatch)
    model = toy("encoder_decoder")
    batches = PackedPairs(model, padded)(pairs()), padded(pairs())
    model.set_attn_implementation("flex_attention")
    with torch.no_grad():
        packed, alone = (model(**batch).loss for batch in batches)
    assert_close(packed, alone, "loss", 1e-5)


def test_packing_is_chosen_where_it_pays(capsys):
    args = SimpleNamespace(**vars(OFF), train_batch_size=4, gradient_accumulation_steps=1, data_processes=1)
    args.train_sampling_strategy, args.tokens_per_batch, args.seed, args.data_seed = "sequential", None, 0, None
    args.torch_compile = True
    even, uneven = (
        Dataset.from_list([{"input_ids": [FIRST_WORD] * length, "labels": 0} for length in lengths])
        for lengths in ([8] * 8, [2, 2, 2, 8] * 2)
    )
    model = classifier()
    chosen = [
        fit_packing(model, packing, rows, args, padded_texts) is not padded_texts
        for packing in (None, True, False)
        for rows in (even, uneven)
    ]
    assert chosen == [False, True, True, True, False, False]
    assert fit_packing(model, True, even, args, padded_texts).compiled
    assert "Packing: 56% of a batch would be padding (--packing false" in capsys.readouterr().out
    args.train_batch_size, args.data_processes = 1, 4  # the same step in four parts: none of them has padding
    assert fit_packing(model, None, uneven, args, padded_texts) is not padded_texts
    args.scheduled_sampling = "linear"  # what packing does not serve is trained without it, unless it was asked for
    assert fit_packing(model, None, uneven, args, padded_texts) is padded_texts
    message = "--packing cannot be used with --scheduled_sampling linear"
    refused(message, fit_packing, model, True, uneven, args, padded_texts)


@pytest.mark.parametrize(("kind", "fields", "options", "message"), [
    ("recurrent_encoder_decoder", {}, {}, "vanilla_recurrent_encoder_decoder"),
    ("encoder_decoder", {"decoding": "ctc"}, {}, "decoding='autoregressive', not 'ctc'"),
    ("decoder", {}, {}, "not for model_type='vanilla_decoder'"),
    ("encoder_decoder", {}, {"guided_attention": 1.0}, "--guided_attention 1.0"),
    ("encoder_decoder", {}, {"scheduled_sampling": "linear"}, "--scheduled_sampling linear"),
])  # fmt: skip
def test_what_packing_would_change_is_refused(kind, fields, options, message):
    refused(message, check_packing, toy(kind, **fields), SimpleNamespace(**vars(OFF) | options))
