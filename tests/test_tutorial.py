"""The blocks of docs/tutorial.md run one after the other, on fewer rows and for fewer steps."""

import re
import shlex
import sys
from collections.abc import Iterator

from layout import ROOT

import vanillaformer_cli

TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
SMALLER = {
    "size=8_000": "size=400",
    "--num_train_epochs 6": "--max_steps 4 --use_cpu --max_source_length 32 --max_target_length 32",
}


def blocks() -> Iterator[tuple[str, str]]:
    """Yield Python blocks and commands in the order of the page."""
    pattern = r"^```python\n((?:.*\n)*?)```|^    (vanillaformer (?:.*\\\n)*.*)$"
    for python, command in re.findall(pattern, TUTORIAL, re.MULTILINE):
        yield ("python", python) if python else ("command", command.replace("\\\n", " "))


def test_the_tutorial_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["vanillaformer"])
    text_of_all = "".join(text for _, text in blocks())
    assert all(text in text_of_all for text in SMALLER), "the page no longer has what is made smaller here"
    names: dict[str, object] = {}
    for kind, text in blocks():
        for large, small in SMALLER.items():
            text = text.replace(large, small)
        if kind == "python":
            exec(text, names)
        else:
            vanillaformer_cli.main(shlex.split(text)[1:])
    assert (tmp_path / "attention.png").stat().st_size > 10_000
    assert (tmp_path / "ct2-folder" / "model.bin").is_file()
    printed = capsys.readouterr().out
    assert "rotary   loss" in printed
    assert "model.safetensors" in printed
    ours, marian = re.findall(r"^\['.*'\]$", printed, re.M)
    assert ours == marian
