"""Rows of token ids, and what is said about the data, against counts by hand."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features
from modeling.toys import toy
from refusals import refused
from transformers import DataCollatorWithPadding

from vanillaformer import VanillaEncoderForSequenceClassification
from vanillaformer.data.arguments import ClassifierDataArguments as ClassData
from vanillaformer.data.arguments import LanguageModelDataArguments as LmData
from vanillaformer.data.arguments import TranslationDataArguments as PairData
from vanillaformer.data.caching import IDS
from vanillaformer.data.preprocessing import tokenizing as encoding
from vanillaformer.data.preprocessing.batching import RandomEpochs
from vanillaformer.data.preprocessing.language_model import block_rows, cut_blocks, packed_rows
from vanillaformer.data.preprocessing.packing import PackedPairs, PackedTexts
from vanillaformer.data.preprocessing.sentence_pairs import sentence_pairs
from vanillaformer.data.preprocessing.statistics import describe_data, padding_share
from vanillaformer.data.preprocessing.tokenizing import Blocks, classification_rows, token_ids, translation_rows
from vanillaformer.tokenization import passages, train
from vanillaformer.tokenization.passages import text_tokenizer

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
    rows = translation_rows(dataset, (tokenizer,) * 2, PairData(max_source_length=6, max_target_length=6))
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


@pytest.mark.parametrize("option", ["max_source_length", "max_target_length"])
def test_lengths_leave_room_for_text(translator_tokenizer, option):
    lengths = {"max_source_length": 5, "max_target_length": 5, option: 1}
    rows = splits(source=["a"], target=["b"])
    refused(f"{option}=1.*1 special", translation_rows, rows, (translator_tokenizer,) * 2, PairData(**lengths))


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


def rows_of(rows, objective):
    return lambda texts, tokenizer, **options: rows(texts, tokenizer, LmData(**options), objective)


PAIRS = partial(sentence_pairs, seed=0)
CAUSAL_BLOCKS, CAUSAL_PACKED = (rows_of(rows, "causal") for rows in (block_rows, packed_rows))
BLOCKS, PACKED = (rows_of(rows, "masked") for rows in (block_rows, packed_rows))


@pytest.mark.parametrize(("rows", "kind", "options", "message"), [
    (CAUSAL_BLOCKS, "decoder", {"block_size": 1}, "block_size=1: a block needs "),
    (CAUSAL_PACKED, "decoder", {"block_size": 1}, "block_size=1: a row needs "),
    (BLOCKS, "encoder", {"block_size": 2}, "block_size=2: a block needs "),
    (PACKED, "encoder", {"block_size": 2}, "block_size=2: a row needs "),
    (PAIRS, "encoder", {"block_size": 4}, "block_size=4: a pair needs "),
    (CAUSAL_BLOCKS, "decoder", {"block_size": 10, "block_stride": 0}, "block_stride=0: it must be from 1 to 10"),
    (BLOCKS, "encoder", {"block_size": 12, "block_stride": 11}, "block_stride=11: it must be from 1 to 10"),
])  # fmt: skip
def test_sizes_that_cannot_be(rows, kind, options, message, request):
    refused(message, rows, splits(text=TEXTS), request.getfixturevalue(f"{kind}_tokenizer"), **options)


@pytest.mark.parametrize("rows", [CAUSAL_BLOCKS, CAUSAL_PACKED, BLOCKS, PACKED, PAIRS])
def test_tokenizers_need_what_frames_a_text(rows, decoder_tokenizer):
    missing = "eos_token" if rows in (CAUSAL_BLOCKS, CAUSAL_PACKED) else "cls_token, sep_token, mask_token"
    decoder_tokenizer.eos_token = None
    refused(f"the tokenizer has no {missing}", rows, splits(text=TEXTS), decoder_tokenizer, block_size=40)


@pytest.mark.parametrize("block_size", [3, 8, 1000])
def test_masked_blocks_are_the_stream_in_frames(encoder_tokenizer, block_size):
    rows = block_rows(splits(text=TEXTS), encoder_tokenizer, LmData(block_size=block_size), "masked")
    blocks = list(rows["train"]["input_ids"])
    assert all(block[0] == 2 and block[-1] == 3 for block in blocks)
    assert [len(block) for block in blocks[:-1]] == [block_size] * (len(blocks) - 1)
    assert [token for block in blocks for token in block[1:-1]] == stream(encoder_tokenizer, TEXTS, end=[3])
    assert rows["train"].features["input_ids"].feature.dtype == "int32"


@pytest.mark.parametrize(
    ("size", "stride"),
    [(2, None), (5, None), (16, None), (1000, None), (2, 1), (5, 2), (16, 15), (16, 16), (7, 3), (1000, 10)],
)
def test_causal_blocks_are_the_stream_and_may_overlap_in_training(decoder_tokenizer, size, stride):
    rows = block_rows(splits(text=TEXTS), decoder_tokenizer, LmData(block_size=size, block_stride=stride))
    wanted, step = stream(decoder_tokenizer, TEXTS, start=[2], end=[3]), stride or size
    blocks = list(rows["train"]["input_ids"])
    assert blocks == [wanted[place * step :][:size] for place in range(len(blocks))]
    reached = (len(blocks) - 1) * step + size
    assert len(wanted) <= reached + (step == size)  # a last token alone predicts nothing
    assert len(blocks[-1]) > 1
    assert len(blocks) == 1 or reached - step < len(wanted)  # no block is the end of another
    plain = block_rows(splits(text=TEXTS), decoder_tokenizer, LmData(block_size=size))
    assert list(rows["validation"]) == list(plain["validation"])
    assert rows["train"].features["input_ids"].feature.dtype == "int32"
    decoder_tokenizer.bos_token = decoder_tokenizer.eos_token  # one token that starts and ends a text is not doubled
    rows = block_rows(splits(text=["a", "b"]), decoder_tokenizer, LmData(block_size=10))
    assert rows["train"][0]["input_ids"] == stream(decoder_tokenizer, ["a", "b"], end=[3])


def classes(texts):
    rows = Dataset.from_dict({"text": texts, "label": [n % 2 for n in range(len(texts))]})
    return DatasetDict(train=rows.cast_column("label", ClassLabel(names=["a", "b"])))


def test_classification_rows(encoder_tokenizer, capsys):
    rows = classification_rows(classes(["good", "very very bad"]), encoder_tokenizer, ClassData(max_length=8))
    assert rows["train"].features["labels"].names == ["a", "b"]
    assert rows["train"][0]["input_ids"] == encoder_tokenizer("good")["input_ids"]
    assert encoder_tokenizer.decode(rows["train"][1]["input_ids"]) == "[CLS]very v[SEP]"
    assert "train data: 1 of 2 texts were cut to 8 tokens." in capsys.readouterr().out
    batch = DataCollatorWithPadding(encoder_tokenizer)(list(rows["train"]))
    assert (batch["labels"].tolist(), batch["input_ids"].shape) == ([0, 1], (2, 8))


def test_token_ids_are_those_of_a_call(decoder_tokenizer):
    texts = ["one", "", "ä <s>two</s>", "long " * 999]
    text = text_tokenizer(decoder_tokenizer)
    for tokenizer in (decoder_tokenizer, text):
        wanted = tokenizer(texts, add_special_tokens=False)["input_ids"]
        tokenizer(texts, truncation=True, max_length=2, padding=True)  # leaves settings behind
        assert token_ids(tokenizer, texts) == wanted
    assert decoder_tokenizer.bos_token_id in token_ids(decoder_tokenizer, texts)[2]
    assert decoder_tokenizer.bos_token_id not in token_ids(text, texts)[2]


def settings(**changes):
    defaults = {
        "train_batch_size": 2, "gradient_accumulation_steps": 1, "data_processes": 1, "data_process": 0, "seed": 0,
        "data_seed": None, "tokens_per_batch": None, "train_sampling_strategy": "random",
    }  # fmt: skip
    return SimpleNamespace(**defaults | changes)


def test_translation(translator_tokenizer, decoder_tokenizer, capsys):
    texts = DatasetDict(
        train=Dataset.from_dict({"source": ["aab", "abbbb"], "target": ["x", "yxyxyxy"]}),
        test=Dataset.from_dict({"source": ["q"], "target": ["q"]}),
    )
    lengths = {"max_source_length": 5, "max_target_length": 4}
    rows = translation_rows(texts, (translator_tokenizer, decoder_tokenizer), PairData(**lengths))
    capsys.readouterr()
    stats = describe_data(rows, (translator_tokenizer, decoder_tokenizer), settings(), {"test": {"also in train": 0}})
    size = len(translator_tokenizer)
    # Of the source vocabulary a, b and </s> are used, of that of the target <s>, x and y
    assert stats["train"] == {
        "rows": 2, "sources cut": 1, "targets cut": 1, "source mean length": 4.5, "source longest": 5,
        "source unknown tokens": 0.0, "target mean length": 3.0, "target longest": 4, "target unknown tokens": 0.0,
        "source vocabulary": size, "source vocabulary used": 3, "target vocabulary": size, "target vocabulary used": 3,
        "padding": pytest.approx(1 - (4 + 5 + 2 + 4) / (5 + 5 + 4 + 4)),
    }  # fmt: skip
    assert (stats["test"]["also in train"], stats["test"]["source mean length"]) == (0, 2)
    out = capsys.readouterr().out.splitlines()
    assert out[2] == f"Vocabulary: 3 of {size} source tokens occur in the training data."
    assert out[-1] == "Padding: 16.7% of a training batch."
    joint = translation_rows(texts, (translator_tokenizer,) * 2, PairData(**lengths))  # of a joint vocabulary
    assert describe_data(joint, (translator_tokenizer,) * 2, settings())["train"]["vocabulary used"] == 5


def test_classifier_and_its_unknown_tokens(encoder_tokenizer, capsys):
    encoder_tokenizer.unk_token = "Q"  # a byte's token: what is unknown is easy to write
    rows = classification_rows(classes(["aQ", "Qb"]), encoder_tokenizer, ClassData(max_length=9))
    stats = describe_data(rows, (encoder_tokenizer,) * 2, settings())
    assert (stats["train"]["unknown tokens"], stats["train"]["vocabulary used"]) == (2 / 8, 5)
    assert stats["train"]["padding"] == 0
    assert "25.00% unknown" in capsys.readouterr().out


def test_padding_of_random_batches_and_of_batches_by_length():
    lengths, order = [7 * n % 40 + 1 for n in range(300)], list(RandomEpochs(300, 0))
    rows = Dataset.from_dict({"input_ids": [[1] * length for length in lengths]})
    batches = [[lengths[row] for row in order[start : start + 8]] for start in range(0, 300, 8)]
    wanted = 1 - sum(lengths) / sum(max(batch) * len(batch) for batch in batches)
    assert padding_share(rows, settings(train_batch_size=8)) == pytest.approx(wanted)
    for changes in ({"train_sampling_strategy": "group_by_length"}, {"tokens_per_batch": 400}):
        assert 0.0 < padding_share(rows, settings(train_batch_size=8, **changes)) < 0.12


def test_padding_of_packed_batches():
    lengths = np.random.default_rng(0).integers(2, 60, (64, 2)).tolist()
    rows = Dataset.from_list([{"input_ids": [1] * source, "labels": [1] * target} for source, target in lengths])
    collator = PackedPairs(toy("encoder_decoder"), None)
    order = list(RandomEpochs(64, 0))
    batches = [collator([rows[row] for row in order[start : start + 16]]) for start in range(0, 64, 16)]
    computed = sum(batch["input_ids"].numel() + batch["labels"].numel() for batch in batches)
    real = sum(map(sum, lengths))
    arguments = settings(train_batch_size=16)
    shares = [padding_share(rows, arguments, packed=packed) for packed in (collator.computed, None)]
    assert shares[0] == pytest.approx(1 - real / computed)
    assert shares[0] < shares[1] / 2


@pytest.mark.parametrize("longest", [60, 300])
def test_padding_of_packed_texts(longest):
    lengths = np.random.default_rng(0).integers(2, longest, (64, 1))
    rows = [{"input_ids": [1] * length, "labels": 0} for (length,) in lengths.tolist()]
    collator = PackedTexts(toy("encoder", VanillaEncoderForSequenceClassification, max_position_embeddings=300), None)
    batch = collator(rows)
    assert (len(batch["input_ids"]) == 1) == (longest == 300)
    assert batch["input_ids"].numel() == collator.computed(lengths)


def test_long_texts_are_left_out_or_an_error(encoder_tokenizer, translator_tokenizer, capsys):
    texts = classes(["short", "much too long", "tiny", "again too long"])
    rows = classification_rows(texts, encoder_tokenizer, ClassData(max_length=8, long_texts="skip"))
    kept = [encoder_tokenizer.decode(ids) for ids in rows["train"]["input_ids"]]
    assert kept == ["[CLS]short[SEP]", "[CLS]tiny[SEP]"]
    assert list(rows["train"]["labels"]) == [0, 0]
    assert rows.stats == {"train": {"texts left out as too long": 2}}
    assert "train data: 2 of 4 texts were left out, having more than 8 tokens." in capsys.readouterr().out
    none_left = "train data: --long_texts skip leaves no row"
    refused(none_left, classification_rows, texts, encoder_tokenizer, ClassData(max_length=3, long_texts="skip"))
    texts = DatasetDict(train=Dataset.from_dict({"source": ["a", "b"], "target": ["c", "much too long"]}))
    options = {"max_source_length": 8, "max_target_length": 8, "long_texts": "error"}
    message = r"train data, row 2 \('much too long' ...\): the target has more than 8 tok"
    refused(message, translation_rows, texts, (translator_tokenizer,) * 2, PairData(**options))
    options["max_target_length"] = 14
    assert len(translation_rows(texts, (translator_tokenizer,) * 2, PairData(**options))["train"]) == 2
