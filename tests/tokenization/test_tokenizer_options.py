import re
from pathlib import Path
from typing import get_args

import pytest

import vanillaformer.tokenization as tokenization
from vanillaformer.tokenization.algorithms import ALGORITHMS
from vanillaformer.tokenization.options import SPECIAL_TOKENS, ModelKind, TokenizerAlgorithm, TrainingOptions


def test_every_algorithm_name_has_its_function():
    assert list(ALGORITHMS) == list(get_args(TokenizerAlgorithm))
    assert [function.__name__ for function in ALGORITHMS.values()] == list(ALGORITHMS)


def test_every_model_kind_has_its_special_tokens():
    assert list(SPECIAL_TOKENS) == list(get_args(ModelKind))


def test_folder_needs_no_torch():
    for path in Path(tokenization.__file__).parent.glob("*.py"):
        names = re.findall(r"^\s*(?:import|from) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert "torch" not in names, path


def test_room_is_what_special_tokens_leave():
    options = TrainingOptions(vocab_size=10, special_tokens=("<pad>", "<unk>"), unk_token="<unk>")
    assert (options.room, options.unk_id) == (8, 1)
    options.require_room(8, "eight letters")
    with pytest.raises(ValueError, match=r"vocab_size=10 is too small: 2 special .* nine letters .* 11"):
        options.require_room(9, "nine letters")
