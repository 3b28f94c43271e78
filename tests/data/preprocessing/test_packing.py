"""Packed rows: nothing is lost, little is free, and no text sees another."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from modeling.axes import FIRST_WORD, PAD
from refusals import refused
from torch.nn.utils.rnn import pad_sequence

from modeling import toys
from vanillaformer.data.arguments import LanguageModelDataArguments as LmData
from vanillaformer.data.preprocessing.batching import BlockCollator, RowMasking
from vanillaformer.data.preprocessing.language_model import pack, packed_rows
from vanillaformer.data.preprocessing.packing import check_attention

from .test_packed_batches import assert_packed_as_padded

TEXTS = ["one", "x", "three and more", "", "five", "a text that is longer than a row"]


def splits(texts=TEXTS):
    return DatasetDict(train=Dataset.from_dict({"text": texts}))


def documents(row):
    """The texts of a row, by where positions start anew."""
    starts = [place for place, position in enumerate(row["position_ids"]) if position == 0]
    bounds = [*starts, len(row["position_ids"])]
    assert row["position_ids"] == [place for one, two in pairwise(bounds) for place in range(two - one)]
    return [row["input_ids"][one:two] for one, two in pairwise(bounds)]


@pytest.mark.parametrize("size", [7, 8, 64])
def test_bins_are_as_full_as_those_of_the_naive_best_fit(size):
    lengths = np.random.default_rng(1).integers(1, size + 1, 200)
    naive: list[list[int]] = []
    for item in sorted(range(200), key=lambda i: -lengths[i]):
        rooms = [(size - lengths[items].sum(), items) for items in naive]
        fitting = [room for room, _ in rooms if room >= lengths[item]]
        if fitting:
            next(items for room, items in rooms if room == min(fitting)).append(item)
        else:
            naive.append([item])
    bins = pack(lengths, size)
    assert sorted(item for items in bins for item in items) == list(range(200))
    assert bins == sorted(map(sorted, bins)) == pack(lengths.copy(), size)
    # Of equally full bins either may be chosen: how full they become is the same.
    packed, plain = (sorted(lengths[items].sum() for items in found) for found in (bins, naive))
    assert packed == plain


def test_texts_are_whole(decoder_tokenizer, capsys):
    packed = packed_rows(splits(), decoder_tokenizer, LmData(block_size=16))
    rows = packed["train"]
    assert rows.column_names == ["input_ids", "position_ids"]
    assert max(map(len, rows["input_ids"])) <= 16
    found = [document for row in rows for document in documents(row)]
    wanted = [[2, *decoder_tokenizer(text, add_special_tokens=False)["input_ids"], 3] for text in TEXTS]
    pieces = [text[place : place + 16] for text in wanted for place in range(0, len(text), 16)]
    assert sorted(found) == sorted(pieces)
    assert packed.stats == {"train": {"texts cut": 1}}
    out = capsys.readouterr().out
    assert "train data: 1 of 6 texts were cut into pieces of 16 tokens." in out
    assert f"train data: 6 texts packed into {len(rows)} rows, " in out


def test_masked_texts_are_framed_each(encoder_tokenizer):
    rows = packed_rows(splits(), encoder_tokenizer, LmData(block_size=16), "masked")["train"]
    found = [document for row in rows for document in documents(row)]
    assert all(document[0] == 2 and document[-1] == 3 for document in found)
    text = sorted("".join(encoder_tokenizer.decode(document[1:-1]) for document in found))
    assert text == sorted("".join(TEXTS))


def test_long_texts(decoder_tokenizer):
    rows = packed_rows(splits(), decoder_tokenizer, LmData(block_size=16, long_texts="skip"))["train"]
    assert sum(len(documents(row)) for row in rows) == 5
    message = r"row 6 \('a text that is longer than a row' ...\): the text .* than 1"
    refused(message, packed_rows, splits(), decoder_tokenizer, LmData(block_size=16, long_texts="error"))


def test_masked_batch(encoder_tokenizer):
    rows = list(packed_rows(splits(), encoder_tokenizer, LmData(block_size=16), "masked")["train"])
    batch = RowMasking(encoder_tokenizer, mlm_probability=0.5)(rows)
    assert set(batch) == {"input_ids", "position_ids", "labels"}
    for row, ids, positions, labels in zip(rows, *(batch[name] for name in ("input_ids", "position_ids", "labels"))):
        length = len(row["input_ids"])
        assert positions.tolist() == row["position_ids"] + list(range(16 - length))
        hidden = labels != -100
        assert torch.where(hidden, labels, ids)[:length].tolist() == row["input_ids"]
        assert not hidden[length:].any()
    assert (batch["labels"] != -100).any()


LENGTHS = [[5, 1, 3], [2, 2, 6], [4]]  # of the texts in each row; the others are padded to the longest


def packed_and_apart(tokenizer):
    """Texts as rows of one batch, and each as a row of its own."""
    generator = torch.Generator().manual_seed(5)
    texts = [
        [torch.randint(FIRST_WORD, 20, (length,), generator=generator) for length in lengths] for lengths in LENGTHS
    ]
    rows = [
        {"input_ids": torch.cat(own).tolist(), "position_ids": [place for text in own for place in range(len(text))]}
        for own in texts
    ]
    packed = BlockCollator(tokenizer)(rows)
    labels = [own for row, lengths in zip(packed["labels"], LENGTHS) for own in row[: sum(lengths)].split(lengths)]
    ids = pad_sequence([text for own in texts for text in own], True, PAD)
    return packed, {
        "input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": pad_sequence(labels, True, -100)
    }  # fmt: skip


@pytest.mark.parametrize("window", [{}, {"sliding_window": 3}], ids=["whole", "window"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa", "flex_attention"])
@pytest.mark.parametrize("choices", toys.position_choices(), ids=lambda choices: "-".join(choices.values()))
@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_packed_rows_equal_their_texts(kind, choices, implementation, window, decoder_tokenizer, monkeypatch):
    toys.plain_flex_attention(monkeypatch)
    model = toys.toy(kind, **choices, **window)
    model.set_attn_implementation(implementation)
    check_attention(model)
    batches = packed_and_apart(decoder_tokenizer)
    for batch in batches if kind == "encoder" else ():
        batch["labels"] = torch.where(batch["labels"] % 2 == 0, batch["labels"], -100)
    if implementation != "flex_attention":
        assert_packed_as_padded(model.double(), *batches)
    else:
        with torch.no_grad():  # it has no gradient on a processor
            packed, apart = (model(**batch) for batch in batches)
        toys.assert_close(packed.loss, apart.loss, "loss", 1e-5)


def test_attention_without_masks_is_refused():
    model = toys.toy("decoder")
    model.config._attn_implementation = "flash_attention_2"
    refused("--packing: flash_attention_2 attention does not keep", check_attention, model)
