"""Models saved by every released version load and compute what they computed then."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import vanillaformer
from vanillaformer.modeling.auto import AUTO_CLASSES

RELEASES = Path(__file__).parent / "releases"
FOLDERS = sorted(path.parent for path in RELEASES.glob("*/*/config.json"))
CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_a_released_model_computes_what_it_did(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    assert config["vanillaformer_version"] == folder.parent.name
    by_name = {model.__name__: model for models in AUTO_CLASSES.values() for model in models}
    model, report = by_name[config["architectures"][0]].from_pretrained(folder, output_loading_info=True)
    assert not any(report.values())
    expected = load_file(folder / "expected.safetensors")
    logits = expected.pop("logits")
    assert (model(**expected).logits - logits).norm() < 1e-5 * logits.norm()
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert torch.equal(again(**expected).logits, model(**expected).logits)
    assert again.config.vanillaformer_version == vanillaformer.__version__


def test_every_release_has_its_models():
    released = set(re.findall(r"^## (\d\S*)", CHANGELOG.read_text(encoding="utf-8"), re.MULTILINE))
    written = {path.name for path in RELEASES.iterdir() if path.is_dir() and path.name[0].isdigit()}
    assert written >= released | {vanillaformer.__version__}
