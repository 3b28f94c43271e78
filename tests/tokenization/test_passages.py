"""A tokenizer learns the same from a long text in parts as from the whole."""

from pathlib import Path
from typing import get_args

import pytest

from vanillaformer.tokenization import TokenizerAlgorithm, train
from vanillaformer.tokenization import passages as module
from vanillaformer.tokenization.passages import StoredTexts, passages

SOURCE = (Path(module.__file__).parent / "algorithms.py").read_text(encoding="utf-8")
HOSTILE = "a\n\nb\n \nc\r\nd\n\té\n\u0301e\n漢字\n漢\n12\n3 \n4\x85\n5\x1c\n6\n▁7\n'll\n\u03a3\n\u03c3\n<s>\n</s>\n"
TEXTS = [SOURCE, HOSTILE * 20, "", "x"]


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_parts_are_the_text(size):
    parts = list(passages(TEXTS, size))
    assert "".join(parts) == "".join(TEXTS)
    assert len(parts) > len(TEXTS) or size > len(SOURCE)
    assert list(passages([SOURCE], len(SOURCE))) == [SOURCE]


@pytest.mark.parametrize("options", [{}, {"lowercase": True, "split_digits": True}])
@pytest.mark.parametrize("algorithm", get_args(TokenizerAlgorithm))
def test_the_same_is_learned_from_parts(algorithm, options, monkeypatch):
    whole = train(TEXTS, algorithm=algorithm, vocab_size=600, **options)
    monkeypatch.setattr(module, "PASSAGE", 1)
    parts = train(TEXTS, algorithm=algorithm, vocab_size=600, **options)
    assert parts.backend_tokenizer.to_str() == whole.backend_tokenizer.to_str()


def test_stored_texts_are_read_as_often_as_asked(monkeypatch):
    monkeypatch.setattr(module, "IN_MEMORY", 10)
    texts = StoredTexts(iter(TEXTS))
    assert len(texts) == len(TEXTS)
    assert list(texts) == list(texts) == TEXTS
