"""What all exporters share: nothing half-written, nothing overwritten, a clear line for everything that goes wrong."""

import json
import sys
from typing import Any

import pytest
from modeling.toys import KINDS, toy
from transformers import AutoTokenizer

import vanillaformer.modeling as modeling
from vanillaformer import tokenization
from vanillaformer.conversion.exports import (
    EXPORTERS,
    Exporter,
    ExportJob,
    export,
    is_export,
    load_engine,
    read_record,
)
from vanillaformer.conversion.exports.engine import config_of, model_class_of
from vanillaformer.conversion.exports.exporter import Rule
from vanillaformer.hub.engines import EngineInfo, Extra
from vanillaformer.hub.file_names import EXPORT

from .twin import Twin

TEXTS = ["one two three", "four five six", "seven eight"]


class OurselvesExporter(Exporter):
    rules = (Rule("norm", "it has none", lambda config: config.norm == "rms_norm"),)
    quantizations = ("float32", "rounded")
    info = EngineInfo("ourselves", "torch", "decoders", (), writer=Extra("ours", ()), runner=Extra("ours", ()))

    def __init__(self, wrong: bool = False):
        self.wrong = wrong

    def write(self, job):
        job.model.save_pretrained(job.folder)

    def load(self, folder, device="cpu"):
        record = read_record(folder)
        return Twin(model_class_of(record).from_pretrained(folder), scores=False, shift=5 * self.wrong)


@pytest.fixture(scope="module")
def model():
    return toy("decoder")


def test_an_export_is_written_checked_and_found_again(model, tmp_path, monkeypatch):
    monkeypatch.setitem(EXPORTERS, "ourselves", OurselvesExporter())
    report = export(model, tmp_path / "new" / "export", "ourselves")
    assert report == "48 of 48 greedy tokens equal"
    assert is_export(tmp_path / "new" / "export")
    engine = load_engine(tmp_path / "new" / "export")
    assert engine.generate([[5, 6]], max_new_tokens=3) == Twin(model).generate([[5, 6]], max_new_tokens=3)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["export"], "no temporary folder is left"
    (tmp_path / "other").mkdir()
    assert (tmp_path / "new" / "export").stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize("kind", KINDS)
def test_the_record_says_what_the_model_was(kind, tmp_path):
    model = toy(kind, norm_eps=0.25)
    OurselvesExporter().write_record(ExportJob(model, tmp_path, "rounded"))
    record = read_record(tmp_path)
    assert record["quantization"] == "rounded"
    assert record["engine"] == "ourselves"
    assert set(record["versions"]) == {"vanillaformer"}
    assert model_class_of(record) is type(model)
    assert config_of(record).to_dict() == model.config.to_dict()


def test_an_empty_folder_is_taken_and_a_full_one_is_not(model, tmp_path):
    (tmp_path / "empty").mkdir()
    OurselvesExporter().export(ExportJob(model, tmp_path / "empty"))
    assert is_export(tmp_path / "empty")
    before = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "empty").iterdir())
    with pytest.raises(ValueError, match="empty exists already and is not an empty folder"):
        OurselvesExporter().export(ExportJob(model, tmp_path / "empty"))
    assert before == sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "empty").iterdir())
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="file exists already"):
        OurselvesExporter().export(ExportJob(model, tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "mine"


def test_wrong_answers_leave_nothing_behind(model, tmp_path):
    with pytest.raises(ValueError, match="the engine continues"):
        OurselvesExporter(wrong=True).export(ExportJob(model, tmp_path / "export"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_an_interruption_leaves_nothing_behind(model, tmp_path, monkeypatch, error):
    def fail(*args: Any) -> None:
        raise error

    monkeypatch.setattr(OurselvesExporter, "write_record", fail)
    with pytest.raises(type(error)):
        OurselvesExporter().export(ExportJob(model, tmp_path / "export"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ({"norm": "rms_norm"}, {}, "VanillaDecoderForCausalLM cannot be exported to ourselves: norm='rms_norm'"),
        ({}, {"quantization": "int3"}, "quantization='int3': ourselves has 'float32', 'rounded'"),
    ],
)
def test_refusals_come_before_anything_is_written(fields, options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        OurselvesExporter().export(ExportJob(toy("decoder", **fields), tmp_path / "new" / "export", **options))
    assert not list(tmp_path.iterdir())


def test_unknown_engine(model, tmp_path):
    with pytest.raises(ValueError, match=r"engine must be one of ctranslate2, .*, got 'tensorrt'"):
        export(model, tmp_path / "export", "tensorrt")


@pytest.mark.parametrize(
    ("engine", "kind", "model_class"),
    [
        *((name, "decoder", "VanillaDecoderModel") for name in EXPORTERS),
        ("gguf", "encoder_decoder", None),
        ("gguf", "encoder", None),
    ],
)
def test_models_that_an_engine_does_not_run(engine, kind, model_class, tmp_path):
    allowed = " or ".join(each.__name__ for each in EXPORTERS[engine].models)
    with pytest.raises(ValueError, match=f"the model must be a {allowed}"):
        export(toy(kind, getattr(modeling, model_class) if model_class else None), tmp_path / "export", engine)


@pytest.mark.parametrize("name", EXPORTERS)
def test_engines_are_imported_when_they_are_used(name, tmp_path, monkeypatch):
    model = toy("decoder", hidden_size=32, hidden_act="gelu_new", position_embedding_type="learned")  # fits all
    extra = EXPORTERS[name].info.writer
    for package in extra.modules:
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"{extra.name} needs .*: pip install 'vanillaformer\[{extra.name}\]'"):
        EXPORTERS[name].export(ExportJob(model, tmp_path / "export"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "{}", '{"architecture": "Nobody", "config": {}}'])
def test_damaged_records(text, tmp_path):
    with pytest.raises(ValueError, match="holds no exported model"):
        load_engine(tmp_path)
    (tmp_path / EXPORT).write_text(text)
    with pytest.raises(ValueError, match=f"{EXPORT} is damaged"):
        load_engine(tmp_path)


# ----------------------------------------------------------------------------------------------- tokenizers
def tokenizer_of(vocab_size: int):
    made = tokenization.train(TEXTS, algorithm="character", kind="encoder_decoder", vocab_size=vocab_size)
    assert len(made) <= vocab_size
    return made


def test_tokenizers_and_generation_settings_go_along(tmp_path):
    pytest.importorskip("ctranslate2")
    source, target = tokenizer_of(37), tokenization.train(["zwei drei"], algorithm="character", vocab_size=29)
    model = toy("encoder_decoder")
    model.generation_config.num_beams = 3
    export(model, tmp_path / "export", "ctranslate2", tokenizer=source, target_tokenizer=target)
    found = tokenization.load_pair(tmp_path / "export")
    assert [tokenizer.get_vocab() for tokenizer in found] == [source.get_vocab(), target.get_vocab()]
    assert load_engine(tmp_path / "export").generation_config.num_beams == 3
    named = json.loads((tmp_path / "export" / "source_vocabulary.json").read_text())
    assert named == [
        *source.convert_ids_to_tokens(range(len(source))),
        *(f"<unused_{n}>" for n in range(len(source), 37)),
    ]
    config = json.loads((tmp_path / "export" / "config.json").read_text())
    assert (config["decoder_start_token"], config["eos_token"], config["unk_token"]) == ("<s>", "</s>", "<unk>")
    stock = AutoTokenizer.from_pretrained(tmp_path / "export")
    assert stock("one").input_ids == source("one").input_ids
