"""Where configs can be deployed."""

from layout import PYPROJECT, ROOT

from vanillaformer import VanillaDecoderConfig, VanillaEncoderDecoderConfig, VanillaImageEncoderConfig
from vanillaformer.conversion.exports import EXPORTERS
from vanillaformer.conversion.targets import targets
from vanillaformer.hub.engines import ENGINES


def test_an_engine_is_an_entry_and_a_folder_and_its_extras_are_in_pyproject():
    folders = {path.parent.name for path in (ROOT / "conversion" / "exports").glob("*/exporter.py")}
    assert folders == set(ENGINES) == set(EXPORTERS)
    extras = PYPROJECT["project"]["optional-dependencies"]
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
