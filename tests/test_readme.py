"""The README's Python blocks run, and what it names exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from vanillaformer import PRESETS
from vanillaformer.tokenization.options import TokenizerAlgorithm

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_python_blocks_run_one_after_the_other(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 3, "the README has lost its examples"
    result = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert "rotary" in result.stdout


def test_every_preset_and_tokenizer_algorithm_is_named():
    missing = [name for name in (*PRESETS, *TokenizerAlgorithm.__args__) if f"`{name}`" not in README]
    assert not missing


@pytest.mark.parametrize("path", sorted(set(re.findall(r"(?:scripts|configuration|modeling)/\w+\.py", README))))
def test_named_files_exist(path):
    assert (ROOT / path).is_file()
