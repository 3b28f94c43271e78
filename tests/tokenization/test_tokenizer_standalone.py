"""What is saved loads where this package is not installed; long texts in parts are learned from as whole ones."""

import json
import os
from pathlib import Path
from typing import get_args

import pytest
from without_package import report_of

from vanillaformer.tokenization import ModelKind, TokenizerAlgorithm, train
from vanillaformer.tokenization import passages as module
from vanillaformer.tokenization.passages import StoredTexts, passages

TEXTS = ["The quick brown fox, it's 1987!", " 我爱 PyTorch  (2024) ✈", ""]
PROGRAM = f"""
from without_package import do_jobs

def described(tokenizer):
    encoded = [dict(tokenizer(text)) for text in {TEXTS!r}]
    decoded = [tokenizer.decode(each["input_ids"], skip_special_tokens=True) for each in encoded]
    return [type(tokenizer).__name__, len(tokenizer), tokenizer.model_max_length, encoded, decoded]

def work(folders):
    from transformers import AutoTokenizer
    return {{folder: described(AutoTokenizer.from_pretrained(folder)) for folder in folders}}

do_jobs(work)
"""


@pytest.fixture(scope="module")
def loaded(trained, tmp_path_factory):
    root = tmp_path_factory.mktemp("tokenizers")
    folders = {}
    for algorithm in get_args(TokenizerAlgorithm):
        for kind in get_args(ModelKind):
            folder = folders[algorithm, kind] = root / f"{algorithm}-{kind}"
            trained(algorithm=algorithm, kind=kind).save_pretrained(folder)
            # As beside a model of ours: a model type that is unknown without the package.
            (folder / "config.json").write_text(json.dumps({"model_type": f"vanilla_{kind}"}))
    program = root / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    report = report_of(program, [str(folder) for folder in folders.values()], root, os.environ)
    assert report["ours"] == []
    return {key: report[str(folder)] for key, folder in folders.items()}


@pytest.mark.parametrize("kind", get_args(ModelKind))
@pytest.mark.parametrize("algorithm", get_args(TokenizerAlgorithm))
def test_auto_tokenizer_loads_it_unchanged(trained, loaded, algorithm, kind):
    here = trained(algorithm=algorithm, kind=kind)
    name, size, max_length, encoded, decoded = loaded[algorithm, kind]
    assert name == type(here).__name__ == "TokenizersBackend"
    assert (size, max_length) == (len(here), here.model_max_length)
    assert encoded == [dict(here(text)) for text in TEXTS]
    assert decoded == [here.decode(e["input_ids"], skip_special_tokens=True) for e in encoded]


SOURCE = (Path(module.__file__).parent / "algorithms.py").read_text(encoding="utf-8")
HOSTILE = "a\n\nb\n \nc\r\nd\n\té\n\u0301e\n漢字\n漢\n12\n3 \n4\x85\n5\x1c\n6\n▁7\n'll\n\u03a3\n\u03c3\n<s>\n</s>\n"
LONG_TEXTS = [SOURCE, HOSTILE * 20, "", "x"]


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_parts_are_the_text(size):
    parts = list(passages(LONG_TEXTS, size))
    assert "".join(parts) == "".join(LONG_TEXTS)
    assert len(parts) > len(LONG_TEXTS) or size > len(SOURCE)
    assert list(passages([SOURCE], len(SOURCE))) == [SOURCE]


@pytest.mark.parametrize("options", [{}, {"lowercase": True, "split_digits": True}])
@pytest.mark.parametrize("algorithm", get_args(TokenizerAlgorithm))
def test_the_same_is_learned_from_parts(algorithm, options, monkeypatch):
    whole = train(LONG_TEXTS, algorithm=algorithm, vocab_size=600, **options)
    monkeypatch.setattr(module, "PASSAGE", 1)
    parts = train(LONG_TEXTS, algorithm=algorithm, vocab_size=600, **options)
    assert parts.backend_tokenizer.to_str() == whole.backend_tokenizer.to_str()


def test_stored_texts_are_read_as_often_as_asked(monkeypatch):
    monkeypatch.setattr(module, "IN_MEMORY", 10)
    texts = StoredTexts(iter(LONG_TEXTS))
    assert list(texts) == list(texts) == LONG_TEXTS
