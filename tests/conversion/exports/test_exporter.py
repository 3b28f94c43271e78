"""What all exporters share: nothing half-written, nothing overwritten, a clear line for everything that goes wrong."""

import json
import sys

import numpy as np
import pytest
import torch
from layout import PYPROJECT, ROOT
from modeling.toys import KINDS, toy
from refusals import refused
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, GenerationConfig, PreTrainedModel

import vanillaformer.modeling as modeling
from vanillaformer import VanillaDecoderConfig, VanillaEncoderDecoderConfig, VanillaImageEncoderConfig, tokenization
from vanillaformer.acceleration.int8 import to_int8
from vanillaformer.conversion import exports
from vanillaformer.conversion.exports import EXPORTERS, ExportJob, export, load_engine, read_record, targets
from vanillaformer.conversion.exports.checks import NEAR, agreement, check, gaps_to_best, greedy, random_rows, score
from vanillaformer.conversion.exports.engine import config_of, model_class_of
from vanillaformer.conversion.exports.exporter import Rule
from vanillaformer.hub.engines import ENGINES, EngineInfo, Extra
from vanillaformer.hub.file_names import EXPORT

TEXTS = ["one two three", "four five six", "seven eight"]


class Twin(exports.Engine):
    """A model as its own engine, with scores or without; `shift` is added to the tokens of one that is wrong."""

    def __init__(self, model: PreTrainedModel, scores: bool = True, shift: int = 0):
        settings = getattr(model, "generation_config", None) or GenerationConfig()
        super().__init__(type(model).__name__, model.config, settings)
        self.model, self.scores, self.shift = model.eval(), scores, shift

    @torch.no_grad()
    def generate(self, prompts, *, max_new_tokens, **options):
        made = [greedy(self.model, prompt, max_new_tokens, self) for prompt in prompts]
        return [[(token + self.shift) % 30 + 5 for token in row] for row in made] if self.shift else made

    @torch.no_grad()
    def score(self, prompts, continuations):
        if not self.scores:
            raise NotImplementedError
        return [score(self.model, *pair) for pair in zip(prompts, continuations)]

    @torch.no_grad()
    def classify(self, rows, token_type_ids=None):
        made = [self.model(torch.tensor([row])).logits[0] for row in rows]
        return pad_sequence(made, batch_first=True, padding_value=99.0).numpy()


class OurselvesExporter(exports.Exporter):
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
    assert export(model, tmp_path / "new" / "export", "ourselves") == "48 of 48 greedy tokens equal"
    assert (tmp_path / "new" / "export" / EXPORT).is_file()
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
    assert (record["quantization"], record["engine"]) == ("rounded", "ourselves")
    assert set(record["versions"]) == {"vanillaformer"}
    assert model_class_of(record) is type(model)
    assert config_of(record).to_dict() == model.config.to_dict()


def test_an_empty_folder_is_taken_and_a_full_one_is_not(model, tmp_path):
    (tmp_path / "empty").mkdir()
    OurselvesExporter().export(ExportJob(model, tmp_path / "empty"))
    assert (tmp_path / "empty" / EXPORT).is_file()
    before = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "empty").iterdir())
    (tmp_path / "file").write_text("mine")
    for name in ("empty", "file"):
        job = ExportJob(model, tmp_path / name)
        refused(f"{name} exists already and is not an empty folder", OurselvesExporter().export, job)
    assert before == sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "empty").iterdir())
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("engine", ["ctranslate2", "onnx"])
def test_a_model_in_int8_is_refused_by_name(engine, tmp_path, monkeypatch):
    monkeypatch.setattr("vanillaformer.acceleration.int8.MIN_WEIGHTS", 0)
    message = rf"q_proj is in int8, which {engine} cannot read: export the model before to_int8\(\)"
    refused(message, export, to_int8(toy("decoder").eval()), tmp_path / "export", engine)


def test_wrong_answers_and_an_unknown_engine_leave_nothing_behind(model, tmp_path):
    refused("the engine continues", OurselvesExporter(wrong=True).export, ExportJob(model, tmp_path / "export"))
    assert not list(tmp_path.iterdir())
    refused("engine must be one of ctranslate2, .*, got 'tensorrt'", export, model, tmp_path / "export", "tensorrt")


@pytest.mark.parametrize(("fields", "options", "message"), [
    ({"norm": "rms_norm"}, {}, "VanillaDecoderForCausalLM cannot be exported to ourselves: norm='rms_norm'"),
    ({}, {"quantization": "int3"}, "quantization='int3': ourselves has 'float32', 'rounded'"),
])  # fmt: skip
def test_refusals_come_before_anything_is_written(fields, options, message, tmp_path):
    job = ExportJob(toy("decoder", **fields), tmp_path / "new" / "export", **options)
    refused(message, OurselvesExporter().export, job)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("engine", "kind", "model_class"), [
    *((name, "decoder", modeling.VanillaDecoderModel) for name in EXPORTERS),
    ("gguf", "encoder_decoder", None), ("gguf", "encoder", None),
])  # fmt: skip
def test_models_that_an_engine_does_not_run(engine, kind, model_class, tmp_path):
    allowed = " or ".join(each.__name__ for each in EXPORTERS[engine].models)
    refused(f"the model must be a {allowed}", export, toy(kind, model_class), tmp_path / "export", engine)


@pytest.mark.parametrize("name", EXPORTERS)
def test_engines_are_imported_when_they_are_used(name, tmp_path, monkeypatch):
    model = toy("decoder", hidden_size=32, hidden_act="gelu_new", position_embedding_type="learned")  # fits all
    extra = EXPORTERS[name].info.writer
    for package in extra.modules:
        monkeypatch.setitem(sys.modules, package, None)
    job = ExportJob(model, tmp_path / "export", tokenizer=tokenizer_of(37))
    message = rf"{extra.name} needs .*: pip install 'vanillaformer\[{extra.name}\]'"
    refused(message, EXPORTERS[name].export, job, error=ImportError)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", [
    "", "{}", "[]", "[" * 10**5, '{"architecture": "Nobody", "config": {}}',
    '{"architecture": "VanillaDecoderForCausalLM"}',
])  # fmt: skip
def test_damaged_records(text, tmp_path):
    refused("holds no exported model", load_engine, tmp_path)
    (tmp_path / EXPORT).write_text(text)
    refused(f"{EXPORT} is damaged", load_engine, tmp_path)


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
    unused = [f"<unused_{number}>" for number in range(len(source), 37)]
    assert named == [*source.convert_ids_to_tokens(range(len(source))), *unused]
    config = json.loads((tmp_path / "export" / "config.json").read_text())
    assert (config["decoder_start_token"], config["eos_token"], config["unk_token"]) == ("<s>", "</s>", "<unk>")
    assert AutoTokenizer.from_pretrained(tmp_path / "export")("one").input_ids == source("one").input_ids


def changed(kind: str, by: float):
    """A toy with one layer's weights a little off."""
    model = toy(kind)
    with torch.no_grad():
        block = (model.model.decoder if kind == "encoder_decoder" else model.model).layers[1]
        block.mlp.down_proj.weight.add_(by * torch.randn_like(block.mlp.down_proj.weight))
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_model_passes_and_one_that_rounding_may_have_made_and_no_other(kind):
    report = check(toy(kind), Twin(toy(kind)), exact=True)
    assert "48 of 48 greedy tokens equal, log-probabilities 0.0e+00 apart" in report or "error of 0.0e+00" in report
    assert "equal" in check(toy(kind), Twin(changed(kind, 0.01)), exact=False)
    message = r"the engine('s)? (continues|answers|log-probabilities|logits)"
    for by, exact in ((0.01, True), (3.0, False), (np.nan, True)):
        refused(message, check, toy(kind), Twin(changed(kind, by)), exact)


def test_tokens_alone_are_compared_where_the_engine_has_no_scores_and_the_model_as_it_will_be_used():
    assert check(toy("decoder"), Twin(toy("decoder"), scores=False), exact=True) == "48 of 48 greedy tokens equal"
    refused("the engine continues", check, toy("decoder"), Twin(changed("decoder", 1.0), scores=False), exact=True)
    model = toy("decoder", dropout=0.5).train()
    assert "48 of 48" in check(model, Twin(toy("decoder")), exact=True)
    assert model.training


@torch.no_grad()
def test_equally_good_tokens_may_change_places_and_each_is_judged_after_those_that_the_engine_made():
    model = toy("decoder", tie_word_embeddings=False)
    best = greedy(model, [5, 6], 1, Twin(model))[0]
    model.lm_head.weight[best - 1] = model.lm_head.weight[best]  # now two are best
    assert gaps_to_best(model, [5, 6], [best], 1, Twin(model)) == [0.0]
    assert gaps_to_best(model, [5, 6], [best - 1], 1, Twin(model)) == pytest.approx([0.0], abs=1e-5)
    assert gaps_to_best(model, [5, 6], [(best + 5) % 37], 1, Twin(model))[0] > 0.1
    # One other token does not make all that follow it wrong.
    model = toy("decoder", eos_token_id=3)
    first = greedy(model, [5, 6], 1, Twin(model))[0]
    other = first + 1 if first + 1 != 3 else first + 2
    made = [other, *greedy(model, [5, 6, other], 3, Twin(model))]
    losses = gaps_to_best(model, [5, 6], made, 4, Twin(model))
    assert losses[0] > 1e-3
    assert losses[1:] == [0.0] * 3
    ended = gaps_to_best(model, [5, 6], made[:2], 4, Twin(model))  # an engine that ends there has chosen the end
    row = model(torch.tensor([[5, 6, *made[:2]]])).logits[0, -1].log_softmax(-1)
    assert ended[:2] == pytest.approx(losses[:2], abs=1e-5)
    assert ended[2] == pytest.approx((row.max() - row[3]).item(), abs=1e-5)


def test_the_share_of_equal_tokens_is_at_least_nine_tenths_whatever_the_scores_are():
    assert agreement([0.0] * 9 + [3.0], "tokens", exact=False).startswith("9 of 10 tokens equal (or within 0.25 of")
    assert agreement([NEAR] * 9 + [3.0], "tokens", exact=False)
    message = r"8 of 10 tokens equal \(or within 0.25 .*\); at least 90% must be"
    refused(message, agreement, [0.0] * 8 + [0.3] * 2, "tokens", exact=False)
    message = r"not our model's: \d+ of 48 greedy tokens equal .* at least 90% must be"
    refused(message, check, toy("decoder"), Twin(toy("decoder"), shift=5), exact=False)
    refused("1 of 2 tokens equal; at least 100% must be", agreement, [0.0, float("nan")], "tokens", exact=True)


def test_random_rows_leave_out_special_tokens_and_leave_room():
    rows = random_rows(toy("decoder", max_position_embeddings=10).config, new_tokens=5)
    assert [len(row) for row in rows] == [5, 1, 5, 2]
    assert not {0, 2, 3} & {token for row in rows for token in row}
    assert len(np.unique([token for row in rows for token in row])) > 4


def test_an_engine_is_an_entry_and_a_folder_and_its_extras_are_in_pyproject():
    folders = {path.parent.name for path in (ROOT / "conversion" / "exports").glob("*/exporter.py")}
    assert folders == set(ENGINES) == set(EXPORTERS)
    extras = PYPROJECT["project"]["optional-dependencies"]
    for name, engine in ENGINES.items():
        assert EXPORTERS[name].info is engine
        assert {engine.writer.name, engine.runner.name} <= extras.keys()


def test_targets_of_texts_and_images_and_the_field_in_the_way():
    found = targets(VanillaDecoderConfig(norm_placement="rezero"))
    assert found["native"] == []
    assert set(found) == {"native", *EXPORTERS}
    for engine in ("ctranslate2", "gguf"):
        assert any("norm_placement='rezero'" in obstacle for obstacle in found[engine]), engine
    found = targets(VanillaImageEncoderConfig())
    assert (found.pop("native"), found.pop("onnx")) == (["vit", "vit_msn"], [])
    found_obstacles = {each for obstacles in found.values() for each in obstacles}
    assert found_obstacles == {"the model reads images, but the engine takes tokens"}
    found = targets(VanillaEncoderDecoderConfig(sinusoidal_layout="halves"))
    assert "marian" in found["native"]
    assert found["ctranslate2"] == []
