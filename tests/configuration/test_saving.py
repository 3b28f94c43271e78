"""A saved config says by which version it was saved, and older names in it are understood."""

import json
from pathlib import Path

import pytest
from transformers import AutoConfig

import vanillaformer
from vanillaformer import BlockConfig, VanillaDecoderConfig
from vanillaformer.configuration import migration
from vanillaformer.configuration.migration import Renamed, migrate

SMALL = {"vocab_size": 10, "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}


@pytest.fixture
def warnings(monkeypatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(migration.logger, "warning_once", said.append)
    return said


def save(folder: Path, **changes) -> Path:
    VanillaDecoderConfig(**SMALL).save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def test_the_version_is_recorded(tmp_path):
    save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["vanillaformer_version"] == vanillaformer.__version__


def test_a_newer_version_is_warned_of_and_an_equal_or_older_one_is_not(tmp_path, warnings):
    AutoConfig.from_pretrained(save(tmp_path))
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


@pytest.mark.parametrize("saved", [None, "0.1.0", "0.2.0", "0.3.0"])
def test_renamed_fields_are_read_by_their_old_names(saved, monkeypatch):
    renamed = [Renamed("0.2.0", {"width": "breadth"}), Renamed("0.3.0", {"breadth": "hidden_size"})]
    monkeypatch.setattr(migration, "RENAMED", renamed)
    name = {None: "width", "0.1.0": "width", "0.2.0": "breadth", "0.3.0": "hidden_size"}[saved]
    version = {"vanillaformer_version": saved} if saved else {}
    assert migrate(version | {name: 8}, "0.3.0") == version | {"hidden_size": 8}
    config = VanillaDecoderConfig.from_dict(version | {name: 24, "num_attention_heads": 2})
    assert config.hidden_size == 24


def test_an_old_name_means_nothing_in_a_newer_config(monkeypatch):
    monkeypatch.setattr(migration, "RENAMED", [Renamed("0.2.0", {"width": "hidden_size"})])
    fields = {"vanillaformer_version": "0.2.0", "width": 8}
    assert migrate(fields, "0.2.0") == fields


def test_every_rename_leads_to_a_field_of_today():
    fields = {name for config in BlockConfig.__subclasses__() for name in config.__dataclass_fields__}
    for number, entry in enumerate(migration.RENAMED):
        later = {old for other in migration.RENAMED[number + 1 :] for old in other.fields}
        assert set(entry.fields.values()) <= fields | later
