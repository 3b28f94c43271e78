"""The code of docs/deploy.md runs exported models by the engines' own APIs, and answers as the models do."""

import re
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from vanillaformer import VanillaDecoderForCausalLM, VanillaEncoderDecoderForConditionalGeneration
from vanillaformer.conversion.exports.folders import export_folder

from .tiny import tiny

PAGE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
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
    (block,) = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if name in block]
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    exec(block, {})
    tokenizer = AutoTokenizer.from_pretrained(folder)
    output = tiny(model_class).generate(
        **tokenizer("the old ship", return_tensors="pt"), do_sample=False, num_beams=1, max_new_tokens=new
    )
    assert capsys.readouterr().out == tokenizer.decode(output[0], skip_special_tokens=True) + "\n"
