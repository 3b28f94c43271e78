"""What is said about the data, against counts by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict
from modeling.toys import toy

from vanillaformer import VanillaEncoderForSequenceClassification
from vanillaformer.data.preprocessing.batching import RandomEpochs
from vanillaformer.data.preprocessing.language_model import block_rows
from vanillaformer.data.preprocessing.packing import PackedPairs, PackedTexts
from vanillaformer.data.preprocessing.statistics import describe_data, padding_share
from vanillaformer.data.preprocessing.tokenizing import classification_rows, translation_rows


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
    rows = translation_rows(texts, translator_tokenizer, decoder_tokenizer, **lengths)
    capsys.readouterr()
    known = {"test": {"also in train": 0}}
    stats = describe_data(rows, (translator_tokenizer, decoder_tokenizer), settings(), known)
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
    assert out[0] == (
        "Train data: 2 rows; source 4.5 tokens on average, 5 at most; target 3.0 tokens on average, 4 at most; "
        "50.0% of the sources cut; 50.0% of the targets cut."
    )
    assert out[2] == f"Vocabulary: 3 of {size} source tokens occur in the training data."
    assert out[-1] == "Padding: 16.7% of a training batch."


def test_joint_vocabulary_counts_both_sides(translator_tokenizer):
    texts = DatasetDict(train=Dataset.from_dict({"source": ["ab"], "target": ["cd"]}))
    rows = translation_rows(texts, translator_tokenizer, **{"max_source_length": 9, "max_target_length": 9})
    assert describe_data(rows, (translator_tokenizer,) * 2, settings())["train"]["vocabulary used"] == 5


def test_classifier_and_its_unknown_tokens(encoder_tokenizer, capsys):
    encoder_tokenizer.unk_token = "Q"  # a byte's token: what is unknown is easy to write
    rows = Dataset.from_dict({"text": ["aQ", "Qb"], "label": [0, 1]}).cast_column(
        "label", ClassLabel(names=["a", "b"])
    )
    rows = classification_rows(DatasetDict(train=rows), encoder_tokenizer, max_length=9)
    stats = describe_data(rows, (encoder_tokenizer,) * 2, settings())
    assert (stats["train"]["unknown tokens"], stats["train"]["vocabulary used"]) == (2 / 8, 5)
    assert stats["train"]["padding"] == 0
    assert "25.00% unknown" in capsys.readouterr().out


def test_blocks(decoder_tokenizer):
    texts = DatasetDict(train=Dataset.from_dict({"text": ["abcdefgh", "ijk"]}))
    rows = block_rows(texts, decoder_tokenizer, block_size=8)
    stats = describe_data(rows, (decoder_tokenizer,) * 2, settings(train_sampling_strategy="sequential"))
    assert (stats["train"]["rows"], stats["train"]["longest"]) == (2, 8)
    assert stats["train"]["padding"] == pytest.approx(1 / 16)


def many_rows():
    return Dataset.from_dict({"input_ids": [[1] * (7 * n % 40 + 1) for n in range(300)]})


def test_padding_of_random_batches():
    rows, lengths = many_rows(), [7 * n % 40 + 1 for n in range(300)]
    order = list(RandomEpochs(300, 0))
    batches = [[lengths[row] for row in order[start : start + 8]] for start in range(0, 300, 8)]
    wanted = 1 - sum(lengths) / sum(max(batch) * len(batch) for batch in batches)
    assert padding_share(rows, settings(train_batch_size=8)) == pytest.approx(wanted)


@pytest.mark.parametrize(
    "changes", [{"train_sampling_strategy": "group_by_length"}, {"tokens_per_batch": 400}, {"data_seed": 3}]
)
def test_padding_by_kind_of_batch(changes):
    share = padding_share(many_rows(), settings(train_batch_size=8, **changes))
    assert (0.0 < share < 0.12) if "data_seed" not in changes else share > 0.3


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


# ------------------------------------------------------------------------------------------------- long texts
def classes(texts):
    rows = Dataset.from_dict({"text": texts, "label": [n % 2 for n in range(len(texts))]})
    return DatasetDict(train=rows.cast_column("label", ClassLabel(names=["a", "b"])))


def test_long_texts_are_left_out(encoder_tokenizer, capsys):
    texts = classes(["short", "much too long", "tiny", "again too long"])
    rows = classification_rows(texts, encoder_tokenizer, max_length=8, long_texts="skip")
    assert [encoder_tokenizer.decode(ids) for ids in rows["train"]["input_ids"]] == [
        "[CLS]short[SEP]",
        "[CLS]tiny[SEP]",
    ]
    assert list(rows["train"]["labels"]) == [0, 0]
    assert rows.stats == {"train": {"texts left out as too long": 2}}
    assert "train data: 2 of 4 texts were left out, having more than 8 tokens." in capsys.readouterr().out
    with pytest.raises(ValueError, match="train data: --long_texts skip leaves no row"):
        classification_rows(texts, encoder_tokenizer, max_length=3, long_texts="skip")


def test_long_texts_are_an_error(translator_tokenizer):
    texts = DatasetDict(train=Dataset.from_dict({"source": ["a", "b"], "target": ["c", "much too long"]}))
    lengths = {"max_source_length": 8, "max_target_length": 8}
    with pytest.raises(ValueError, match=r"train data, row 2 \('much too long' ...\): the target has more than 8 tok"):
        translation_rows(texts, translator_tokenizer, **lengths, long_texts="error")
    lengths["max_target_length"] = 14
    assert len(translation_rows(texts, translator_tokenizer, **lengths, long_texts="error")["train"]) == 2
