import re
from pathlib import Path
from typing import get_args

import vanillaformer.tokenization as tokenization
from vanillaformer.tokenization.algorithms import ALGORITHMS
from vanillaformer.tokenization.options import SPECIAL_TOKENS, ModelKind, TokenizerAlgorithm


def test_every_algorithm_name_has_its_function_and_every_kind_its_special_tokens():
    assert list(ALGORITHMS) == list(get_args(TokenizerAlgorithm))
    assert [function.__name__ for function in ALGORITHMS.values()] == list(ALGORITHMS)
    assert list(SPECIAL_TOKENS) == list(get_args(ModelKind))


def test_folder_needs_no_torch():
    for path in Path(tokenization.__file__).parent.glob("*.py"):
        names = re.findall(r"^\s*(?:import|from) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert "torch" not in names, path
