"""The code of docs/ecosystem.md runs, and what it names is what the tests run with."""

import re
from importlib.metadata import version

import datasets
import pytest
from layout import ROOT
from transformers import AutoTokenizer

import vanillaformer
from vanillaformer import VanillaDecoderForCausalLM, VanillaEncoderDecoderForConditionalGeneration
from vanillaformer.conversion.exports import export_folder

from .tiny import tiny

PAGE = (ROOT / "docs" / "ecosystem.md").read_text(encoding="utf-8")
RUNS = {
    "language_model": vanillaformer.VanillaDecoderForCausalLM,
    "classifier": vanillaformer.VanillaEncoderForSequenceClassification,
    "masked_language_model": vanillaformer.VanillaEncoderForMaskedLM,
    "translation": vanillaformer.VanillaEncoderDecoderForConditionalGeneration,
}
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def block_of(language: str) -> str:
    (block,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return block


@pytest.fixture
def runs(saved, tmp_path, monkeypatch):
    """A folder with finished runs and a task, as the page names them."""
    for folder in ("runs", "tasks"):
        (tmp_path / folder).mkdir()
    (tmp_path / "tasks" / "ships.yaml").write_text(block_of("yaml"))
    (tmp_path / "ships.jsonl").write_text(block_of("json"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for name, model_class in RUNS.items():
        (tmp_path / "runs" / name).symlink_to(saved(model_class))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split("\n")[0].removeprefix("from ").split()[0])
def test_every_block_runs(block, runs, capsys):
    exec(block, {})
    assert capsys.readouterr().out.strip()  # each shows or logs what it did


def test_no_block_is_passed_over():
    assert len(BLOCKS) == 8
    assert len(re.findall("```python", PAGE)) == len(BLOCKS) + 2  # the client of a server, and 8 bits


@pytest.mark.parametrize("name", ["transformers", "peft", "trl", "sentence-transformers", "lm_eval"])
def test_versions_are_those_of_the_tests(name):
    (row,) = [line for line in PAGE.splitlines() if line.lower().startswith(f"| {name} {version(name)} |")] or [
        line for line in PAGE.splitlines() if line.startswith("| `pipeline()`") and version(name) in line
    ]
    assert row


@pytest.mark.parametrize("name", ["torchao", "bitsandbytes"])
def test_versions_kept_apart_are_pinned(name):
    pinned = re.search(rf"^{name}==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert f"| {name} {pinned[1]} |" in PAGE


DEPLOY_PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
CASES = {
    "ctranslate2": ("ct2-folder", VanillaEncoderDecoderForConditionalGeneration, 16),
    "onnxruntime": ("onnx-folder", VanillaDecoderForCausalLM, 8),
}


@pytest.mark.parametrize("module", CASES)
def test_an_export_answers_as_its_model(module, saved, tmp_path, monkeypatch, capsys):
    pytest.importorskip(module)
    name, model_class, new = CASES[module]
    folder = saved(model_class)
    export_folder(str(folder), tmp_path / name, {"onnxruntime": "onnx"}.get(module, module))
    (block,) = [block for block in re.findall(r"```python\n(.*?)```", DEPLOY_PAGE, re.DOTALL) if name in block]
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    exec(block, {})
    tokenizer = AutoTokenizer.from_pretrained(folder)
    output = tiny(model_class).generate(
        **tokenizer("the old ship", return_tensors="pt"), do_sample=False, num_beams=1, max_new_tokens=new
    )
    assert capsys.readouterr().out == tokenizer.decode(output[0], skip_special_tokens=True) + "\n"
