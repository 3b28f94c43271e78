"""The card that a run leaves: its code runs, with the package and without, and a person's edits stay."""

import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from script_runs import train

from vanillaformer.data.embedded import LANGUAGES

SECRET = "hf_NobodyMayReadThis"
RUNS = ("translation", "causal", "masked", "mlm+nsp", "two_vocabularies", "classification")
# With options that the common runs do not have
OPTIONS = {
    "two_vocabularies": ("translation", "--joint_vocabulary", "False", "--label_smoothing_factor", "0.1"),
    "classification": ("classification", "--license", "mit", "--data_license", "House rules", "--hub_token", SECRET),
}
SHORT = ("--max_steps", "2", "--eval_steps", "2")
# Runs each program as if nothing but torch and transformers had been imported: forked, for importing takes seconds.
RUNNER = """
import contextlib, io, importlib.abc, json, os, sys, traceback

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "vanillaformer":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import torch, transformers.generation.utils, transformers.trainer_utils
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline
assert "vanillaformer" not in sys.modules
found = {}
for name, code in json.load(open(sys.argv[1])).items():
    reader, writer = os.pipe()
    if os.fork() == 0:
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(code, name, "exec"), {})
            os.write(writer, printed.getvalue().encode())
        except BaseException:
            os.write(writer, traceback.format_exc()[-3000:].encode())
        os._exit(0)
    os.close(writer)
    found[name] = os.fdopen(reader, "rb").read().decode()
    os.wait()
json.dump(found, open(sys.argv[2], "w"))
"""


@pytest.fixture(scope="module")
def cards(trained, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The card of a tiny run of each job."""
    folders = {name: tmp_path_factory.mktemp(name) if name in OPTIONS else trained(name) for name in RUNS}
    for name, (job, *options) in OPTIONS.items():
        train(job, folders[name], *options)
    return {name: (folder / "README.md").read_text() for name, folder in folders.items()}


@pytest.fixture(scope="module")
def printed(cards: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What the blocks of code of each card print."""
    blocks = {name: re.findall(r"```python\n(.*?)```", card, re.DOTALL) for name, card in cards.items()}
    assert {name: len(found) for name, found in blocks.items()} == dict.fromkeys(RUNS, 2)
    home, printed = tmp_path_factory.mktemp("home"), {}
    codes, found = home / "codes.json", home / "found.json"
    codes.write_text(json.dumps({name: code for name, (_, code) in blocks.items()}))
    command = [sys.executable, "-c", RUNNER, codes, found]
    env = os.environ | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr[-3000:]
    for name, (code, _) in blocks.items():
        with redirect_stdout(io.StringIO()) as output:
            exec(compile(code, name, "exec"), {})
        printed[name] = output.getvalue()
    return {"with": printed, "without": json.loads(found.read_text())}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the programs run in forks")
@pytest.mark.parametrize("kind", ["with", "without"])
@pytest.mark.parametrize("name", RUNS)
def test_code_of_the_card_runs(printed: dict[str, dict[str, str]], kind: str, name: str) -> None:
    text = printed[kind][name]
    assert "Traceback" not in text, text
    if name == "classification":
        found = text.strip() if kind == "with" else re.search(r"'label': '(\w+)'", text)[1]
        assert found in LANGUAGES
    elif name == "causal":
        assert "def " in text
    elif name == "mlm+nsp":
        assert 0 < float(text.split("probability that it follows:")[1]) < 1
    else:
        assert text.startswith("[")


def test_both_ways_of_loading_translate_the_same(printed: dict[str, dict[str, str]]) -> None:
    for name in ("translation", "two_vocabularies", "mlm+nsp"):
        assert printed["with"][name] == printed["without"][name]


def test_cards_tell_what_the_run_knows(cards: dict[str, str]) -> None:
    for name, card in cards.items():
        data = ModelCard(card).data
        assert data.eval_results, name
        assert {result.dataset_split for result in data.eval_results} == {"validation", "test"}, name
        for text in ("| CPU |", "| memory |", "| processes | 1, of 1 thread |", "steps | 6 (", "torch "):
            assert text in card, (name, text)
        assert re.search(r"time \| [\d.]+ s, evaluation included; [\d.]+ k? ?tokens per second", card), name
        assert "![loss curve](loss_curve.png)" in card
        assert SECRET not in card
    assert "translates from English to German" in cards["translation"]
    assert ModelCard(cards["translation"]).data.language == ["en", "de"]
    assert "label smoothing 0.1" in cards["two_vocabularies"]
    assert "@inproceedings{szegedy2016rethinking" in cards["two_vocabularies"]
    assert "szegedy2016rethinking" not in cards["translation"]
    for size in ("vocab_size", "decoder_vocab_size"):
        assert f"| `{size}` | 300 |" in cards["two_vocabularies"]
    assert "signature: nrefs:1|case:mixed" in cards["translation"]
    assert "License: House rules." in cards["classification"]
    assert ModelCard(cards["classification"]).data.license == "mit"
    assert "![confusion matrix](confusion_matrix.png)" in cards["classification"]
    assert "one of 20 classes" not in cards["causal"]


def test_words_and_a_card_that_is_no_text_stay_when_a_run_is_made_longer(tmp_path: Path) -> None:
    train("classification", tmp_path, *SHORT)
    path = tmp_path / "README.md"
    path.write_text(
        path.read_text().replace("---\n\n#", "---\n\nFrom Ann.\n\n#", 1).replace("steps | 2 (", "steps | 3 (")
    )
    train("classification", tmp_path, "--max_steps", "4", "--eval_steps", "2")
    assert "steps | 4 (" in path.read_text()
    assert "From Ann.\n\n# " in path.read_text()
    assert "steps | 3 (" in (tmp_path / "README.edited.md").read_text()
    words = "caf\u00e9".encode("latin-1")
    path.write_bytes(words)
    train("classification", tmp_path, "--max_steps", "6", "--eval_steps", "2")
    assert (tmp_path / "README.edited2.md").read_bytes() == words
    assert "# How to use it" in path.read_text()


def test_edited_card_is_kept_when_a_run_starts_anew(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    train("classification", tmp_path, *SHORT)
    anew = (*SHORT, "--overwrite_output_dir", "--seed", "7")
    train("classification", tmp_path, *anew)
    assert not list(tmp_path.glob("README.edited*"))  # nobody wrote anything
    for name in ("README.edited.md", "README.edited2.md"):
        path = tmp_path / "README.md"
        path.write_text(path.read_text().replace("\n# ", "\nFrom Ann.\n\n# ", 1))
        capsys.readouterr()
        train("classification", tmp_path, *anew)
        assert f"it is {name} now" in capsys.readouterr().out
        assert "From Ann." in (tmp_path / name).read_text()
        assert "From Ann." not in path.read_text()


def test_no_code_without_the_saved_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VANILLAFORMER_REMOTE_CODE", "off")
    train("classification", tmp_path, *SHORT)
    assert "trust_remote_code" not in (tmp_path / "README.md").read_text()
    assert not list(tmp_path.glob("*.py"))
