from random import Random

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from refusals import refused

from vanillaformer.data.preprocessing.batching import RowMasking
from vanillaformer.data.preprocessing.sentence_pairs import Documents, Pair, draw_pairs, sentence_pairs, sentences

CLS, SEP = 2, 3
# Every line of every document begins and ends with what no other line has.
TEXTS = [
    "".join(f"{letter}{line} is a line {'x' * (line * 7 % 11)} {letter}{line}\n" for line in range(10, 40))
    for letter in "ABCDEFGH"
]


def splits(texts=TEXTS):
    rows = Dataset.from_dict({"text": texts})
    return DatasetDict(train=rows, validation=rows.select(range(len(texts) // 2, len(texts))))


def segments(row: dict) -> tuple[list[int], list[int]]:
    """The two segments of a row, found by the special tokens."""
    ids = row["input_ids"]
    middle = ids.index(SEP)
    assert (ids[0], ids[-1], ids.count(SEP)) == (CLS, SEP, 2)
    return ids[1:middle], ids[middle + 1 : -1]


def test_sentences_are_lines_and_what_ends_with_a_stop():
    text = "One. Two!  Three? four\n\n\n    five.six 7.5\r\nlast 日本。語。"
    assert sentences(text) == ["One.", " Two!", "  Three?", " four\n", "    five.six 7.5\r\n", "last 日本。", "語。"]
    assert sentences(" \n\n") == []
    assert sentences("one") == ["one"]


@pytest.mark.parametrize("block_size", [5, 6, 7, 64])
def test_rows_are_framed_typed_and_full(encoder_tokenizer, block_size):
    rows = sentence_pairs(splits(), encoder_tokenizer, block_size=block_size, seed=0)["train"]
    assert set(rows.column_names) == {"input_ids", "token_type_ids", "next_sentence_label"}
    lengths = [len(ids) for ids in rows["input_ids"]]
    assert max(lengths) == block_size
    # A row is shorter only where a document ends: in the run it comes from, or in the one its second segment is from.
    assert sum(length == block_size for length in lengths) > 0.75 * len(lengths)
    for row in rows:
        first, second = segments(row)
        assert first
        assert second
        assert row["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)


@pytest.mark.parametrize("block_size", [37, 64, 200])
def test_the_label_says_whether_the_second_segment_follows_the_first(encoder_tokenizer, block_size):
    rows = sentence_pairs(splits(), encoder_tokenizer, block_size=block_size, seed=1)["train"]

    def document_with(ids: list[int]) -> str | None:
        text = encoder_tokenizer.decode(ids)
        return next((whole[0] for whole in TEXTS if text in whole), None)

    found = {0: 0, 1: 0}
    for row in rows:
        first, second = segments(row)
        if min(len(first), len(second)) < 5:
            continue  # too short to tell where it is from
        found[row["next_sentence_label"]] += 1
        assert (document_with(first + second) is not None) == (row["next_sentence_label"] == 0)
        assert document_with(first) is not None
        assert document_with(second) is not None
        assert (document_with(first) == document_with(second)) == (row["next_sentence_label"] == 0)
    assert min(found.values()) > 5


def test_half_of_the_pairs_are_random():
    rng, draws = Random(0), 4000
    documents = Documents(np.arange(draws * 10), range(0, draws * 10 + 1, 10), [0, draws // 2, draws])
    pairs = list(draw_pairs(documents, 40, rng))
    share = sum(pair.label for pair in pairs) / len(pairs)
    assert abs(share - 0.5) < 3 * (0.25 / len(pairs)) ** 0.5
    # and nothing but the text tells which: segments are equally long
    for part in (0, 1):
        means = [np.mean([pair[part][1] - pair[part][0] for pair in pairs if pair.label == label]) for label in (0, 1)]
        assert abs(means[0] - means[1]) < 2


def test_segments_begin_and_end_with_sentences_where_they_fit():
    for pair in draw_pairs(Documents(np.arange(100), range(0, 101, 5), [0, 10, 20]), 20, Random(3)):
        (start, middle), (again, end) = pair.first, pair.second
        assert start % 5 == middle % 5 == again % 5 == end % 5 == 0
        assert (middle == again) == (pair.label == 0)
        assert (middle - 1) // 50 == start // 50
        assert pair.label == 0 or again // 50 != start // 50


def test_the_longer_segment_is_cut_at_its_outer_end():
    # sentences of 4, 1, 9 and 9 tokens in each of two documents; room for 18 tokens
    documents = Documents(np.arange(46), [0, 4, 5, 14, 23, 27, 28, 37, 46], [0, 4, 8])
    pairs = [pair for seed in range(60) for pair in draw_pairs(documents, 18, Random(seed))]
    assert {pair for pair in pairs if pair.label == 0 and pair.first[0] < 23} == {
        Pair((0, 4), (4, 18), 0),  # 4 and 19 tokens: the second has lost its end
        Pair((0, 5), (5, 18), 0),
        Pair((5, 14), (14, 23), 0),  # 14 and 9 tokens: the first has lost its start
        Pair((4, 5), (5, 22), 0),  # a run that begins behind a random pair
    }
    for pair in pairs:
        assert (pair.first[1] - pair.first[0]) + (pair.second[1] - pair.second[0]) <= 18


def test_sentences_longer_than_half_a_row_are_several(encoder_tokenizer):
    rows = sentence_pairs(splits(["a" * 100 + "\n" + "b" * 100, "c" * 100]), encoder_tokenizer, block_size=23, seed=0)
    for row in rows["train"]:
        assert len(row["input_ids"]) == 23 or len(segments(row)[1]) <= 20
    assert len(rows["train"]) >= 8


def test_one_document_has_random_pairs_from_other_places():
    pairs = list(draw_pairs(Documents(np.arange(1000), range(0, 1001, 10), [0, 100]), 40, Random(0)))
    random = [pair for pair in pairs if pair.label == 1]
    assert len(random) > 10
    for pair in random:
        assert pair.second[0] != pair.first[1]
        assert pair.second[1] <= pair.first[0] or pair.second[0] >= pair.first[1] + 10
    assert {pair.second[0] < pair.first[0] for pair in random} == {True, False}
    # so short that the pair is all there is: a random segment is any but the one that follows
    shortest = Documents(np.arange(4), [0, 2, 4], [0, 2])
    pairs = {pair for seed in range(30) for pair in draw_pairs(shortest, 4, Random(seed))}
    assert pairs == {Pair((0, 2), (2, 4), 0), Pair((0, 2), (0, 2), 1)}


def test_the_seed_decides_and_neither_the_global_state_nor_the_number_of_workers(encoder_tokenizer):
    made = []
    for seed, noise, workers in ((0, 1, None), (0, 2, 2), (1, 1, None)):
        torch.manual_seed(noise)
        np.random.seed(noise)
        state = torch.get_rng_state()
        options = {"block_size": 48, "seed": seed, "num_proc": workers}
        made.append(sentence_pairs(splits(), encoder_tokenizer, **options)["train"].to_dict())
        assert torch.equal(torch.get_rng_state(), state)
    assert made[0] == made[1] != made[2]


def test_pairs_collate_and_are_masked(encoder_tokenizer):
    rows = sentence_pairs(splits(), encoder_tokenizer, block_size=64, seed=0)["train"]
    batch = RowMasking(encoder_tokenizer, mlm_probability=0.5)(list(rows))
    assert batch.keys() == {"input_ids", "token_type_ids", "attention_mask", "next_sentence_label", "labels"}
    assert batch["input_ids"].shape == batch["token_type_ids"].shape == (len(rows), 64)
    assert batch["next_sentence_label"].tolist() == list(rows["next_sentence_label"])
    wanted = torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])
    for row, ids in zip(wanted.tolist(), rows["input_ids"], strict=True):
        assert row[: len(ids)] == ids


def test_texts_of_one_sentence_are_counted_and_all_of_them_refused(encoder_tokenizer, capsys):
    sentence_pairs(splits(["one\n", "two\ntwo\n", "three\nthree\n"]), encoder_tokenizer, block_size=40, seed=0)
    assert "train data: 1 of 3 texts are one sentence, which nothing follows." in capsys.readouterr().out
    message = "train data: none of 2 texts has a second sentence.*--sample_by"
    refused(message, sentence_pairs, splits(["one", "two"]), encoder_tokenizer, block_size=40, seed=0)
