"""Where configs can be deployed, and the table of docs/deploy.md, which is made of it.

`python tests/conversion/test_targets.py --write` makes the table anew.
"""

import sys
from pathlib import Path

from vanillaformer import PRESETS, VanillaDecoderConfig, VanillaEncoderDecoderConfig, preset
from vanillaformer.conversion.exports import EXPORTERS
from vanillaformer.conversion.targets import table, targets

DOCUMENT = Path(__file__).parents[2] / "docs" / "deploy.md"
BEGIN, END = "<!-- table: made by tests/conversion/test_targets.py --write -->\n", "<!-- end of table -->"


def presets_table() -> str:
    return table({name: preset(name) for name in PRESETS})


def test_the_document_has_the_table_that_the_code_makes():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text[text.index(BEGIN) + len(BEGIN) : text.index(END)] == presets_table(), "run this file with --write"


def test_a_cell_without_a_yes_names_the_field_in_the_way():
    found = targets(VanillaDecoderConfig(norm_placement="rezero"))
    assert found["native"] == []
    assert set(found) == {"native", *EXPORTERS}
    for engine in ("ctranslate2", "gguf"):
        assert any("norm_placement='rezero'" in obstacle for obstacle in found[engine]), engine


def test_the_papers_model_goes_to_marian_with_biases_and_to_ctranslate2():
    found = targets(VanillaEncoderDecoderConfig(sinusoidal_layout="halves"))
    assert "marian" in found["native"]
    assert found["ctranslate2"] == []


if __name__ == "__main__" and "--write" in sys.argv:
    document = DOCUMENT.read_text(encoding="utf-8")
    before, after = document[: document.index(BEGIN) + len(BEGIN)], document[document.index(END) :]
    DOCUMENT.write_text(before + presets_table() + after, encoding="utf-8")
