"""Perplexity by characters and bytes against counts of the texts themselves."""

import math

import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from transformers import DataCollatorForLanguageModeling, EvalPrediction

from vanillaformer.data.arguments import LanguageModelDataArguments as LmData
from vanillaformer.data.preprocessing.language_model import block_rows
from vanillaformer.tokenization import train
from vanillaformer.training.metrics.compute import TextSizes, language_model_metrics

TEXTS = ["Größe: 5 €", "plain words, and words", "日本語 and 🙂\u2028", "a\tb  c\n\u00a0\u00ad~\x7f"]
WORDS = ["the cat sat on the mat", "a dog and a cat", "the mat"]


def blocks(texts, tokenizer, size):
    rows = block_rows(DatasetDict({"v": Dataset.from_dict({"text": texts})}), tokenizer, LmData(block_size=size))["v"]
    labels = DataCollatorForLanguageModeling(tokenizer, mlm=False)(list(rows))["labels"].numpy()
    counted = labels != -100
    counted[:, 0] = False  # nothing predicts the first token
    return labels, counted


def test_sizes_of_texts_and_of_blocks_cut_through_characters_and_scores_by_them(decoder_tokenizer):
    text = "".join(TEXTS)
    labels, counted = blocks(TEXTS, decoder_tokenizer, 5)
    stream = [b for text in TEXTS for b in (None, *text.encode(), None)]  # a token is a byte; None: <s>, </s>
    told = [b for place, b in enumerate(stream) if place % 5 and b is not None]
    starts = [b for b in told if not 0x80 <= b < 0xC0]
    assert TextSizes(decoder_tokenizer)(labels, counted) == (len(starts), len(told))
    assert len(told) < len(text.encode())
    labels, counted = blocks(TEXTS, decoder_tokenizer, 500)
    assert TextSizes(decoder_tokenizer)(labels, counted) == (len(text), len(text.encode()))
    losses = np.random.default_rng(0).random(labels.shape)
    predicted = np.where(counted, labels, -100)
    evaluated = EvalPrediction(predictions=(predicted, losses), label_ids=labels)
    scores = language_model_metrics(decoder_tokenizer)(evaluated)
    total = losses[counted].sum()  # </s> among them, <s> of later texts too
    assert counted.sum() == len(text.encode()) + 2 * len(TEXTS) - 1
    assert scores["perplexity"] == pytest.approx(math.exp(total / counted.sum()))
    assert scores["perplexity_per_character"] == pytest.approx(math.exp(total / len(text)))
    assert scores["perplexity_per_byte"] == pytest.approx(math.exp(total / len(text.encode())))
    assert scores["bits_per_byte"] == pytest.approx(total / math.log(2) / len(text.encode()))
    assert "bits_per_byte" not in language_model_metrics()(EvalPrediction((predicted, losses), labels))


def test_names_of_special_tokens_are_text_and_what_is_known_is_not_counted():
    texts = ["<s>struck out</s>, <pad> and <unk>", "</s>"]
    for algorithm in ("byte_level_bpe", "bpe", "unigram", "character"):
        tokenizer = train(texts * 3, algorithm=algorithm, kind="decoder", vocab_size=300)
        labels, counted = blocks(texts, tokenizer, 500)
        assert TextSizes(tokenizer)(labels, counted) == (len("".join(texts)),) * 2
    tokenizer = train(WORDS * 3, algorithm="bpe", kind="decoder", vocab_size=300)
    labels = np.array([tokenizer("the cat sat", add_special_tokens=False)["input_ids"]])
    counted = np.ones_like(labels, dtype=bool)
    counted[0, 0] = False
    first = len(tokenizer.decode(labels[0, :1]))
    assert TextSizes(tokenizer)(labels, counted) == (len("the cat sat") - first,) * 2
