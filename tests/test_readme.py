"""The README's Python blocks run, and what it names exists."""

import dataclasses
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from transformers import PreTrainedConfig

from vanillaformer import PRESETS, BlockConfig
from vanillaformer.configuration import options
from vanillaformer.conversion import ARCHITECTURES
from vanillaformer.tokenization.options import TokenizerAlgorithm
from vanillaformer.training.trainer.losses import ScheduledSamplingArguments, TokenDropoutArguments
from vanillaformer.training.training_arguments import RunDefaults

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DEPLOY = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
TRAINING = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
PARTS = (ROOT / "docs" / "parts.md").read_text(encoding="utf-8")


def test_python_blocks_run_one_after_the_other(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks, "the README has lost its example"
    command = [sys.executable, "-c", "\n".join(blocks)]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-2000:]
    assert "rotary" in result.stdout


NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def test_the_chinese_readme_has_the_commands_numbers_and_pictures_of_the_english_one():
    chinese = (ROOT / "README.zh.md").read_text(encoding="utf-8")
    code = re.compile(r'```python\n[\s\S]*?```|`[^`\n]+`|^    \S[^\n]*$|src="[^"]+"', re.MULTILINE)
    commands = [[re.sub(r" +#.*", "", each) for each in code.findall(text)] for text in (README, chinese)]
    assert sorted(commands[0]) == sorted(commands[1])
    numbers = [sorted(NUMBER.findall(code.sub("", text))) for text in (README, chinese)]
    assert numbers[0] == numbers[1]
    assert len(README.splitlines()) <= 140


def test_presets_tokenizer_algorithms_and_architectures_are_named_and_tables_are_the_codes():
    assert not [name for name in (*PRESETS, *TokenizerAlgorithm.__args__) if f"`{name}`" not in PARTS]
    assert not [name for name in ARCHITECTURES if f"`{name}`" not in DEPLOY]
    assert not list(runpy.run_path(str(ROOT / "tools" / "tables.py"))["outdated"]()), "run python tools/tables.py"


def test_values_of_options_fields_of_the_block_and_techniques_are_on_their_pages():
    values = {value for literal in vars(options).values() for value in get_args(literal)}
    assert values
    assert not [value for value in values if f"`{value}`" not in PARTS + README]
    fields, of_transformers = (
        {field.name for field in dataclasses.fields(kind)} for kind in (BlockConfig, PreTrainedConfig)
    )
    fields -= of_transformers | {"hidden_size", "num_hidden_layers", "dropout"}
    assert not [field for field in fields if f"`{field}`" not in PARTS]
    groups = (
        *filter(dataclasses.is_dataclass, RunDefaults.__bases__),
        ScheduledSamplingArguments,
        TokenDropoutArguments,
    )
    techniques = {field.name for group in groups for field in dataclasses.fields(group)}
    assert not [technique for technique in techniques if f"--{technique}" not in TRAINING]


def test_the_pages_on_training_and_parts_have_examples_that_run(capsys):
    (block,) = re.findall(r"```python\n(.*?)```", TRAINING, re.DOTALL)
    exec(block, {})
    assert "cat" in capsys.readouterr().out
    (block,) = re.findall(r"```python\n(.*?)```", PARTS, re.DOTALL)
    exec(block, {})
    assert f"'embeddings': {37000 * 512}" in capsys.readouterr().out


FOLDERS = (
    "acceleration|benchmarks|comparison|configuration|console|conversion|data|docs|exploration|forecasting|hub|inference|modeling"
    "|scripts|tests|tokenization|tools|training"
)


def links_and_files() -> list[str]:
    """Return every link to a file of the repository on a page, and every file that a page names, as `page: path`."""
    pages = [
        *(ROOT / name for name in ("README.md", "README.zh.md", "SECURITY.md", "CONTRIBUTING.md", "tests/README.md")),
        *sorted((ROOT / "docs").glob("*.md")),
    ]  # fmt: skip
    found = set()
    for page in pages:
        text, name = page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix()
        links = re.findall(r"(?:\]\(|src=\")([^)\"#]+)", text)
        found |= {f"{name}: {link}" for link in links if "://" not in link}
        if name != "docs/experiments.md":  # what was measured keeps the names of its day
            found |= {f"{name}: {path}" for path in re.findall(rf"`((?:{FOLDERS})/[\w/]+\.\w+)`", text)}
    return sorted(found)


@pytest.mark.parametrize("link", links_and_files())
def test_linked_and_named_files_exist(link):
    page, path = link.split(": ")
    assert (ROOT / path).exists() or ((ROOT / page).parent / path).exists()
