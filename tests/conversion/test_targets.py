"""Where configs can be deployed, and the tables of docs/deploy.md, which are made of it.

`python tests/conversion/test_targets.py --write` makes the tables anew.
"""

import sys
import tomllib
from pathlib import Path

import pytest

from vanillaformer import PRESETS, VanillaDecoderConfig, VanillaEncoderDecoderConfig, VanillaImageEncoderConfig, preset
from vanillaformer.conversion.exports import EXPORTERS
from vanillaformer.conversion.targets import engines_table, targets, targets_table
from vanillaformer.hub.engines import ENGINES

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "deploy.md"
TABLES = {
    "configs": lambda: targets_table({name: preset(name) for name in PRESETS}),
    "engines": engines_table,
}


def split(text: str, name: str) -> tuple[str, str, str]:
    """The document before a table, the table, and what follows."""
    begin, end = f"<!-- {name}: made by tests/conversion/test_targets.py --write -->\n", f"<!-- end of {name} -->"
    first, last = text.index(begin) + len(begin), text.index(end)
    return text[:first], text[first:last], text[last:]


@pytest.mark.parametrize("name", TABLES)
def test_the_document_has_the_table_that_the_code_makes(name):
    assert split(DOCUMENT.read_text(encoding="utf-8"), name)[1] == TABLES[name](), "run this file with --write"


def test_an_engine_is_an_entry_and_a_folder_and_its_extras_are_in_pyproject():
    folders = {path.parent.name for path in (ROOT / "conversion" / "exports").glob("*/exporter.py")}
    assert folders == set(ENGINES) == set(EXPORTERS)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for name, engine in ENGINES.items():
        assert EXPORTERS[name].info is engine
        assert {engine.writer.name, engine.runner.name} <= extras.keys()


def test_a_cell_without_a_yes_names_the_field_in_the_way():
    found = targets(VanillaDecoderConfig(norm_placement="rezero"))
    assert found["native"] == []
    assert set(found) == {"native", *EXPORTERS}
    for engine in ("ctranslate2", "gguf"):
        assert any("norm_placement='rezero'" in obstacle for obstacle in found[engine]), engine


def test_an_image_model_goes_to_native_architectures_and_to_onnx():
    found = targets(VanillaImageEncoderConfig())
    assert found.pop("native") == ["vit", "vit_msn"]
    assert found.pop("onnx") == []
    assert {each for obstacles in found.values() for each in obstacles} == {
        "the model reads images, but the engine takes tokens"
    }


def test_the_papers_model_goes_to_marian_with_biases_and_to_ctranslate2():
    found = targets(VanillaEncoderDecoderConfig(sinusoidal_layout="halves"))
    assert "marian" in found["native"]
    assert found["ctranslate2"] == []


if __name__ == "__main__" and "--write" in sys.argv:
    for name, make in TABLES.items():
        before, _, after = split(DOCUMENT.read_text(encoding="utf-8"), name)
        DOCUMENT.write_text(before + make() + after, encoding="utf-8")
