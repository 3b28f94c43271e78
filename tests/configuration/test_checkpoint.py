"""A saved config says by which version it was saved."""

import json
from pathlib import Path

import pytest
from transformers import AutoConfig

import vanillaformer
from vanillaformer import VanillaDecoderConfig
from vanillaformer.configuration import package

SMALL = {"vocab_size": 10, "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}


@pytest.fixture
def warnings(monkeypatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(package.logger, "warning_once", said.append)
    return said


def save(folder: Path, **changes) -> Path:
    VanillaDecoderConfig(**SMALL).save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def test_a_newer_version_is_warned_of_and_an_equal_or_older_one_is_not(tmp_path, warnings):
    AutoConfig.from_pretrained(save(tmp_path))
    assert json.loads((tmp_path / "config.json").read_text())["vanillaformer_version"] == vanillaformer.__version__
    AutoConfig.from_pretrained(save(tmp_path, vanillaformer_version="0.0.1"))
    assert warnings == []
    config = AutoConfig.from_pretrained(save(tmp_path, vanillaformer_version="99.0"))
    assert len(warnings) == 1
    assert f"saved by vanillaformer 99.0, which is newer than this one ({vanillaformer.__version__})" in warnings[0]
    config.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["vanillaformer_version"] == vanillaformer.__version__


@pytest.mark.parametrize("version", ["new", 3, [1]])
def test_a_version_that_is_none(version, tmp_path):
    with pytest.raises(ValueError, match=r"vanillaformer_version must be a version such as '0\.1\.0', got"):
        AutoConfig.from_pretrained(save(tmp_path, vanillaformer_version=version))
