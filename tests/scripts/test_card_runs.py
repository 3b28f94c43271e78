"""The card that a run leaves: its code runs, with the package and without."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from script_runs import PROGRAMS, SECRET
from without_package import FOLDER

from vanillaformer.data.embedded import LANGUAGES

IMAGES = ("image_classification", "masked_image")
KINDS = (*PROGRAMS, "separate", "decoder_classification")
# Runs each program as if nothing but torch and transformers had been imported: forked, for importing takes seconds.
RUNNER = """
import contextlib, io, json, os, sys, traceback
from without_package import Absent
sys.meta_path.insert(0, Absent())
import transformers.generation.utils, transformers.trainer_utils
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
def folders(trained) -> dict[str, Path]:
    """The folder of a tiny run of each kind."""
    return {name: trained(name) for name in KINDS}


@pytest.fixture(scope="module")
def cards(folders: dict[str, Path]) -> dict[str, str]:
    return {name: (folder / "README.md").read_text(encoding="utf-8") for name, folder in folders.items()}


@pytest.fixture(scope="module")
def ran(folders, cards, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """What the code of each card prints with the package and without, and the names that it leaves behind."""
    blocks = {name: re.findall(r"```python\n(.*?)```", card, re.DOTALL) for name, card in cards.items()}
    assert {name: len(found) for name, found in blocks.items()} == dict.fromkeys(cards, 2)
    home, ran = tmp_path_factory.mktemp("home"), {}
    shutil.copy(folders["image_classification"] / "example.png", home / "image.png")  # a reader's own
    (home / "codes.json").write_text(json.dumps({name: code for name, (_, code) in blocks.items()}))
    command = [sys.executable, "-c", RUNNER, "codes.json", "found.json"]
    env = os.environ | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": FOLDER}
    done = subprocess.run(command, env=env, cwd=home, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr[-3000:]
    without = json.loads((home / "found.json").read_text())
    for name, (code, _) in blocks.items():
        names: dict[str, Any] = {}
        with redirect_stdout(io.StringIO()) as output, chdir(home):
            exec(compile(code, name, "exec"), names)
        ran[name] = output.getvalue(), without[name], names
    return ran


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the programs run in forks")
@pytest.mark.parametrize("name", KINDS)
def test_code_of_the_card_runs(ran, folders, cards, name: str) -> None:
    printed, without, names = ran[name]
    assert "Traceback" not in without, without
    for text in (printed, without):
        assert text.strip()
        if name == "causal":
            assert "def " in text
        elif name == "mlm+nsp":
            assert 0 < float(text.split("probability that it follows:")[1]) < 1
        elif name in ("translation", "masked", "separate"):
            assert text.startswith("[")
    if name == "classification":
        assert {printed.strip(), re.search(r"'label': '(\w+)'", without)[1]} <= {*LANGUAGES}
    if name in ("translation", "separate", "mlm+nsp"):
        assert printed == without
    if name in IMAGES:
        assert names["processor"].size["height"] == names["model"].config.image_size
    else:
        assert names["model"].config.vocab_size == len(names["tokenizer"])
    assert f"--output_dir {folders[name]}" in cards[name]
    assert f"{names['model'].num_parameters():,} parameters" in cards[name]


def test_cards_tell_what_the_run_knows(cards: dict[str, str]) -> None:
    for name, card in cards.items():
        data = ModelCard(card).data
        assert data.eval_results, name
        assert {result.dataset_split for result in data.eval_results} == {"validation", "test"}, name
        for text in ("| CPU |", "| memory |", "| processes | 1, of 1 thread |", "steps | 6 (", "torch "):
            assert text in card, (name, text)
        unit = "patches" if name in IMAGES else "tokens"
        assert re.search(rf"time \| [\d.]+ s, evaluation included; [\d.]+ k? ?{unit} per second", card), name
        assert "![loss curve](loss_curve.png)" in card
        assert SECRET not in card
    assert "translates from English to German" in cards["translation"]
    assert ModelCard(cards["translation"]).data.language == ["en", "de"]
    assert "signature: nrefs:1|case:mixed" in cards["translation"]
    assert "License: House rules." in cards["separate"]
    assert ModelCard(cards["separate"]).data.license == "mit"
    assert "![confusion matrix](confusion_matrix.png)" in cards["classification"]
