from functools import partial

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features
from transformers import DataCollatorForSeq2Seq, DataCollatorWithPadding

from vanillaformer.data.caching import IDS
from vanillaformer.data.preprocessing import tokenizing as encoding
from vanillaformer.data.preprocessing.batching import BlockCollator, RowMasking
from vanillaformer.data.preprocessing.language_model import block_rows, cut_blocks, packed_rows
from vanillaformer.data.preprocessing.sentence_pairs import sentence_pairs
from vanillaformer.data.preprocessing.tokenizing import Blocks, classification_rows, token_ids, translation_rows
from vanillaformer.tokenization import passages, train
from vanillaformer.tokenization.control_tokens import text_tokenizer

TEXTS = ["def f():\n", "x", "äöü 漢字", "return 1 + 2\n" * 3]


def splits(**columns):
    rows = Dataset.from_dict(columns)
    return DatasetDict(train=rows, validation=rows.select([0]))


def stream(tokenizer, texts, start=(), end=()):
    """The naive reference: one text after the other, one id after the other."""
    ids = []
    for text in texts:
        ids += [*start, *tokenizer(text, add_special_tokens=False)["input_ids"], *end]
    return ids


def test_translation_rows(translator_tokenizer, capsys):
    dataset, tokenizer = splits(source=["abc", "abcdefgh"], target=["x", "yz"]), translator_tokenizer
    before = tokenizer.backend_tokenizer.to_str()
    rows = translation_rows(dataset, tokenizer, max_source_length=6, max_target_length=6)
    assert tokenizer.backend_tokenizer.to_str() == before
    assert rows["train"].column_names == ["input_ids", "attention_mask", "labels"]
    assert rows["train"][0]["input_ids"] == tokenizer("abc")["input_ids"]
    assert rows["train"][0]["labels"] == [*tokenizer("x", add_special_tokens=False)["input_ids"], 3]
    assert tokenizer.decode(rows["train"][1]["input_ids"]) == "abcde</s>"  # cut, but ended
    assert rows["train"][1]["attention_mask"] == [1] * 6
    out = capsys.readouterr().out
    assert "train data: 1 of 2 sources were cut to 6 tokens." in out
    assert "validation" not in out
    assert "targets" not in out


def test_translation_rows_with_two_tokenizers(translator_tokenizer, decoder_tokenizer):
    dataset = splits(source=["a"], target=["b"])
    rows = translation_rows(dataset, translator_tokenizer, decoder_tokenizer, max_source_length=9, max_target_length=9)
    assert (rows["train"][0]["input_ids"][-1], rows["train"][0]["labels"][0]) == (3, 2)
    assert DataCollatorForSeq2Seq(translator_tokenizer)(list(rows["train"]))["labels"].shape == (1, 2)


@pytest.mark.parametrize("option", ["max_source_length", "max_target_length"])
def test_lengths_leave_room_for_text(translator_tokenizer, option):
    lengths = {"max_source_length": 5, "max_target_length": 5, option: 1}
    with pytest.raises(ValueError, match=f"{option}=1.*1 special"):
        translation_rows(splits(source=["a"], target=["b"]), translator_tokenizer, **lengths)


@pytest.mark.parametrize(("block_size", "num_proc"), [(2, None), (5, 2), (16, None), (1000, None)])
def test_causal_blocks_are_the_stream(decoder_tokenizer, block_size, num_proc):
    rows = block_rows(splits(text=TEXTS), decoder_tokenizer, block_size=block_size, num_proc=num_proc)
    wanted = stream(decoder_tokenizer, TEXTS, start=[2], end=[3])
    blocks = list(rows["train"]["input_ids"])
    assert [len(block) for block in blocks[:-1]] == [block_size] * (len(blocks) - 1)
    assert 2 <= len(blocks[-1]) <= block_size
    found = [token for block in blocks for token in block]
    assert wanted[: len(found)] == found
    assert len(wanted) - len(found) <= 1  # a last token alone predicts nothing
    assert decoder_tokenizer.decode(found, skip_special_tokens=True).startswith("".join(TEXTS)[:-1])


@pytest.mark.parametrize("options", [{}, {"lowercase": True}, {"algorithm": "bpe"}, {"algorithm": "wordpiece"}])
def test_ids_of_long_texts_are_those_of_the_whole(options, monkeypatch):
    texts = ["", *("def f(x):\n    return x\n\n\n  # <s> é\r\ny = 1\nz\n" * n + "end" for n in (1, 20, 300))]
    tokenizer = text_tokenizer(train(texts, kind="decoder", vocab_size=300, **options))
    wanted = tokenizer(texts, add_special_tokens=False)["input_ids"]
    monkeypatch.setattr(encoding, "PASSAGE", 1)
    monkeypatch.setattr(passages, "PASSAGE", 1)
    assert token_ids(tokenizer, texts) == wanted
    tokenizer.backend_tokenizer.pre_tokenizer = None  # with which a token may reach across lines
    assert token_ids(tokenizer, texts) == tokenizer(texts, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("seed", range(20))
def test_blocks_of_pieces_are_those_of_the_whole(seed):
    """Blocks are cut as the stream comes, and are slices of all of it."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(1_000, size=rng.integers(1, 400)).astype(np.int32)
    size = int(rng.integers(2, 50))
    stride, smallest = int(rng.integers(1, size + 1)), int(rng.integers(1, 3))
    pieces = np.split(ids, np.sort(rng.integers(len(ids) + 1, size=rng.integers(6))))
    blocks = Blocks(size, stride, smallest, start=(-1,), end=(-2,))
    starts = [start for start in range(0, len(ids), stride) if not start or len(ids) - start > size - stride]
    wanted = [[-1, *ids[start : start + size].tolist(), -2] for start in starts]
    if len(wanted) > 1 and len(wanted[-1]) - 2 < smallest:
        wanted.pop()
    assert [block for part in blocks.cut(pieces) for block in part.tolist()] == wanted
    parts = [{"input_ids": piece.tolist()} for piece in pieces]
    rows = Dataset.from_list(parts, features=Features({"input_ids": IDS}))
    for kept in (rows, rows.select(range(len(rows))), rows.select(list(range(len(rows))))):
        assert cut_blocks(kept, blocks)["input_ids"][:] == wanted


def test_causal_blocks_collate(decoder_tokenizer):
    rows = block_rows(splits(text=["abcdefg"]), decoder_tokenizer, block_size=6)
    batch = BlockCollator(decoder_tokenizer)(list(rows["train"]))
    assert (batch["input_ids"].shape, batch["attention_mask"].sum().item()) == ((2, 6), 9)
    assert (batch["labels"] == -100).sum().item() == 3


def test_one_token_that_starts_and_ends_a_text_is_not_doubled(decoder_tokenizer):
    decoder_tokenizer.bos_token = decoder_tokenizer.eos_token
    rows = block_rows(splits(text=["a", "b"]), decoder_tokenizer, block_size=10)
    assert rows["train"][0]["input_ids"] == stream(decoder_tokenizer, ["a", "b"], end=[3])


PAIRS = partial(sentence_pairs, seed=0)
BLOCKS, PACKED = (partial(rows, objective="masked") for rows in (block_rows, packed_rows))


@pytest.mark.parametrize(("rows", "kind", "size"), [
    *((rows, "decoder", 1) for rows in (block_rows, packed_rows)),
    *((rows, "encoder", size) for rows, size in ((BLOCKS, 2), (PACKED, 2), (PAIRS, 4))),
])  # fmt: skip
def test_rows_without_room_are_refused(rows, kind, size, request):
    with pytest.raises(ValueError, match=f"block_size={size}: a (block|row|pair) needs "):
        rows(splits(text=TEXTS), request.getfixturevalue(f"{kind}_tokenizer"), block_size=size)


@pytest.mark.parametrize("rows", [block_rows, packed_rows, BLOCKS, PACKED, PAIRS])
def test_tokenizers_need_what_frames_a_text(rows, decoder_tokenizer):
    missing = "eos_token" if rows in (block_rows, packed_rows) else "cls_token, sep_token, mask_token"
    decoder_tokenizer.eos_token = None
    with pytest.raises(ValueError, match=f"the tokenizer has no {missing}"):
        rows(splits(text=TEXTS), decoder_tokenizer, block_size=40)


@pytest.mark.parametrize("block_size", [3, 8, 1000])
def test_masked_blocks_are_the_stream_in_frames(encoder_tokenizer, block_size):
    rows = block_rows(splits(text=TEXTS), encoder_tokenizer, block_size=block_size, objective="masked")
    blocks = list(rows["train"]["input_ids"])
    assert all(block[0] == 2 and block[-1] == 3 for block in blocks)
    assert [len(block) for block in blocks[:-1]] == [block_size] * (len(blocks) - 1)
    assert [token for block in blocks for token in block[1:-1]] == stream(encoder_tokenizer, TEXTS, end=[3])


def test_masked_blocks_collate(encoder_tokenizer):
    rows = block_rows(splits(text=TEXTS), encoder_tokenizer, block_size=16, objective="masked")
    batch = RowMasking(encoder_tokenizer, mlm_probability=1.0)(list(rows["train"]))
    special = (batch["labels"] == -100) & (batch["attention_mask"] == 1)
    assert special.any()
    assert set(batch["input_ids"][special].tolist()) <= {2, 3}


@pytest.mark.parametrize(("size", "stride"), [(2, 1), (5, 2), (16, 15), (16, 16), (7, 3), (1000, 10)])
def test_training_blocks_may_overlap(decoder_tokenizer, size, stride):
    dataset = DatasetDict(train=Dataset.from_dict({"text": TEXTS}), validation=Dataset.from_dict({"text": TEXTS}))
    rows = block_rows(dataset, decoder_tokenizer, block_size=size, block_stride=stride)
    wanted = stream(decoder_tokenizer, TEXTS, start=[2], end=[3])
    blocks = [list(block) for block in rows["train"]["input_ids"]]
    assert blocks == [wanted[place * stride :][:size] for place in range(len(blocks))]
    reached = (len(blocks) - 1) * stride + size
    assert len(wanted) <= reached + (stride == size)  # a last token alone predicts nothing
    assert len(blocks) == 1 or reached - stride < len(wanted)  # no block is the end of another
    plain = block_rows(dataset, decoder_tokenizer, block_size=size)
    assert list(rows["validation"]) == list(plain["validation"])


@pytest.mark.parametrize("stride", [0, -1, 11])
@pytest.mark.parametrize("masked", [False, True])
def test_blocks_leave_no_token_out(decoder_tokenizer, encoder_tokenizer, stride, masked):
    tokenizer = encoder_tokenizer if masked else decoder_tokenizer
    size = 12 if masked else 10
    with pytest.raises(ValueError, match=f"block_stride={stride}: from 1 to the 10 tokens of a block"):
        block_rows(
            splits(text=TEXTS), tokenizer, block_size=size, block_stride=stride,
            objective="masked" if masked else "causal",
        )  # fmt: skip


def test_classification_rows(encoder_tokenizer, capsys):
    dataset = splits(text=["good", "very very bad"], label=[1, 0])
    dataset = dataset.cast_column("label", ClassLabel(names=["bad", "good"]))
    rows = classification_rows(dataset, encoder_tokenizer, max_length=8)
    assert rows["train"].features["labels"].names == ["bad", "good"]
    assert rows["train"][0]["input_ids"] == encoder_tokenizer("good")["input_ids"]
    assert encoder_tokenizer.decode(rows["train"][1]["input_ids"]) == "[CLS]very v[SEP]"
    assert "train data: 1 of 2 texts were cut to 8 tokens." in capsys.readouterr().out
    batch = DataCollatorWithPadding(encoder_tokenizer)(list(rows["train"]))
    assert (batch["labels"].tolist(), batch["input_ids"].shape) == ([1, 0], (2, 8))


def test_token_ids_are_those_of_a_call(decoder_tokenizer):
    texts = ["one", "", "ä <s>two</s>", "long " * 999]
    text = text_tokenizer(decoder_tokenizer)
    for tokenizer in (decoder_tokenizer, text):
        wanted = tokenizer(texts, add_special_tokens=False)["input_ids"]
        tokenizer(texts, truncation=True, max_length=2, padding=True)  # leaves settings behind
        assert token_ids(tokenizer, texts) == wanted
    assert decoder_tokenizer.bos_token_id in token_ids(decoder_tokenizer, texts)[2]
    assert decoder_tokenizer.bos_token_id not in token_ids(text, texts)[2]


def test_blocks_take_four_bytes_for_a_token(decoder_tokenizer, encoder_tokenizer):
    dataset = DatasetDict(train=Dataset.from_dict({"text": ["some text", "more of it"]}))
    for rows in (
        block_rows(dataset, decoder_tokenizer, block_size=8),
        block_rows(dataset, encoder_tokenizer, block_size=8, objective="masked"),
    ):
        assert rows["train"].features["input_ids"].feature.dtype == "int32"
