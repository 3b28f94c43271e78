"""ONNX graphs, run by ONNX Runtime: equal to our models in tokens, scores and logits, whatever the batch's shape.

Tracing a graph takes seconds: a few telling configs here, all values of all axes with `TEST_ENGINES=all`
(`make test-engines`).
"""

import json
import os
import re
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from modeling.axes import Value, is_allowed, packed, rope
from modeling.toys import KINDS, name_of, pixels, relative_error, toy, toy_config
from refusals import refused
from transformers import AutoConfig

import vanillaformer.modeling as modeling
from conversion.natives import GPT, Case, native_model
from vanillaformer.configuration.options import Pooling
from vanillaformer.conversion import from_native
from vanillaformer.conversion.exports import EXPORTERS, export, load_engine, read_record
from vanillaformer.conversion.exports.onnx import graphs
from vanillaformer.conversion.exports.onnx.exporter import config_fields

from . import NEW, continuation

onnx = pytest.importorskip("onnx", reason="pip install 'vanillaformer[onnx]'")
pytest.importorskip("onnxruntime", reason="pip install 'vanillaformer[onnx]'")
pytest.importorskip("onnxscript", reason="pip install 'vanillaformer[onnx]'")
all_engines = pytest.mark.skipif(os.environ.get("TEST_ENGINES") != "all", reason="make test-engines (takes minutes)")

EXPORTER = EXPORTERS["onnx"]
PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13]]

# Cached keys that are turned, windows, grouped heads, norms of keys, soft caps, tables that are not shared
DECODER = {
    "norm": "rms_norm", "norm_placement": "sandwich", "feed_forward": "gated", "hidden_act": "silu",
    "qk_norm": "head", "attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0, "sliding_window": 3,
    "layer_types": ["sliding_attention", "full_attention"], "rope_parameters": rope("yarn"),
    "tie_word_embeddings": False,
}  # fmt: skip
# Biases of attention scores in both stacks, different widths and depths
GENERATING = {"decoder": DECODER, "encoder_decoder": {
    "position_embedding_type": "relative", "norm_placement": "post", "encoder_hidden_size": 20, "encoder_layers": 1,
    "hidden_act": "gelu_new", "lm_head_bias": True, "num_key_value_heads": 2,
}}  # fmt: skip
# Two stages, windows that the grid is padded to, and shifted ones; tests/scripts/test_train_images.py has a plain one
SWIN = {
    "image_size": 10, "patch_size": 2, "num_channels": 3, "use_cls_token": False, "image_pooling": "mean",
    "position_embedding_type": "window_relative", "window_size": 3, "depths": [2, 1], "num_hidden_layers": 3,
}  # fmt: skip
CLASSIFIER = {"position_embedding_type": "learned", "type_vocab_size": 2, "classifier_pooling": "mean"}


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    model = toy("encoder", modeling.VanillaEncoderForSequenceClassification, num_labels=3, **CLASSIFIER)
    return exported(model, tmp_path_factory)


def exported(model, factory):
    """A model, the folder of its graphs and what the check said."""
    folder = factory.mktemp("onnx") / "out"
    return model, folder, export(model, folder, "onnx")


@pytest.fixture(scope="module", params=GENERATING)
def generating(request, tmp_path_factory):
    return exported(toy(request.param, **GENERATING[request.param]), tmp_path_factory)


def test_greedy_tokens_and_scores_are_equal(generating):
    _, folder, report = generating
    assert "48 of 48 greedy tokens equal" in report
    assert float(report.split("log-probabilities ")[1].split()[0]) < 1e-5
    assert read_record(folder)["engine"] == "onnx"


def test_prompts_do_not_touch_each_other_samples_are_our_models_and_a_text_ends_at_its_end(generating):
    model, folder, _ = generating
    engine = load_engine(folder)
    together = engine.generate(PROMPTS, max_new_tokens=NEW)
    assert together == [engine.generate([prompt], max_new_tokens=NEW)[0] for prompt in PROMPTS]
    assert together == [continuation(model, prompt) for prompt in PROMPTS]
    options = {"do_sample": True, "temperature": 1.5, "top_p": 0.9, "top_k": 0}
    for seed in range(3):
        before = torch.get_rng_state()
        found = engine.generate(PROMPTS[:1], max_new_tokens=NEW, seed=seed, **options)
        assert torch.equal(before, torch.get_rng_state())
        torch.manual_seed(seed)
        assert found == [continuation(model, PROMPTS[0], **options)]
    ends = {token for row in together for token in row[1:]} - {together[0][0]}
    engine.generation_config.eos_token_id = end = sorted(ends)[0]
    expected = [row[: row.index(end)] if end in row else row for row in together]
    assert engine.generate(PROMPTS, max_new_tokens=NEW) == expected != together


@pytest.mark.parametrize(("beams", "penalty"), [(2, 1.0), (4, 0.2)])
def test_beam_search_is_transformers_own(generating, beams, penalty):
    model, folder, _ = generating
    found = load_engine(folder).generate(PROMPTS, max_new_tokens=NEW, num_beams=beams, length_penalty=penalty)
    assert found == [continuation(model, prompt, num_beams=beams, length_penalty=penalty) for prompt in PROMPTS]


def test_names_and_axes_are_those_that_other_tools_know(generating):
    """transformers.js makes the first, empty cache of `batch_size` and numbers; every other axis has 0."""
    model, folder, _ = generating
    pair, config = model.config.is_encoder_decoder, model.config
    graph = onnx.load(folder / "onnx" / ("decoder_model_merged.onnx" if pair else "model.onnx")).graph
    axes = {
        value.name: [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    row, past, source = ["batch_size", "sequence_length"], "past_sequence_length", "encoder_sequence_length"
    read = f"{past} + sequence_length"
    stacks = {"": (past, read)}
    expected = {"input_ids": row, "logits": [*row, model.lm_head.out_features]}
    if pair:
        stacks = {".decoder": (past, read), ".encoder": (f"past_{source}", source)}
        expected |= {"encoder_hidden_states": ["batch_size", source, 20]}
        expected |= {"encoder_attention_mask": ["batch_size", source]}
    else:
        expected |= {"attention_mask": ["batch_size", read], "position_ids": row}
    for stack, lengths in stacks.items():
        for name, length in zip(("past_key_values", "present"), lengths):
            shape = ["batch_size", config.num_key_value_heads, length, config.head_dim]
            expected |= {f"{name}.{layer}{stack}.{part}": shape for layer in range(2) for part in ("key", "value")}
    ordered = {name: [" + ".join(sorted(str(size).split(" + "))) for size in sizes] for name, sizes in axes.items()}
    assert ordered == {name: [str(size) for size in sizes] for name, sizes in expected.items()}


def test_the_config_is_that_of_the_native_model_or_ours_and_weights_are_stored_once(generating):
    model, folder, _ = generating
    assert "auto_map" not in json.loads((folder / "config.json").read_text())
    config = AutoConfig.from_pretrained(folder)
    assert (config.architectures, config.hidden_size) == ([type(model).__name__], model.config.hidden_size)
    native = native_model(Case("gpt2", GPT))
    fields = config_fields(from_native(native))
    assert (fields["model_type"], fields["architectures"]) == ("gpt2", ["GPT2LMHeadModel"])
    assert fields["n_layer"] == native.config.n_layer
    files = list((folder / "onnx").iterdir())
    stored = sum(len(tensor.raw_data) for path in files for tensor in onnx.load(path).graph.initializer)
    size = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert size <= stored < 1.2 * size
    assert not any(str(Path.cwd()).encode() in path.read_bytes() for path in files)


def test_large_weights_are_beside_their_graph_and_an_older_layout_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(graphs, "LARGEST", 10_000)
    model = toy("decoder")
    export(model, tmp_path / "out", "onnx")
    assert {path.name for path in (tmp_path / "out" / "onnx").iterdir()} == {"model.onnx", "model.onnx_data"}
    settings = json.loads((tmp_path / "out" / "config.json").read_text())["transformers.js_config"]
    assert settings == {"dtype": "fp32", "use_external_data_format": {"model.onnx": 1}}
    assert load_engine(tmp_path / "out").generate(PROMPTS, max_new_tokens=NEW)[1] == continuation(model, PROMPTS[1])
    (tmp_path / "out" / "onnx").rename(tmp_path / "out" / "other")
    refused("onnx/model.onnx is missing: if an earlier .* export the model again", load_engine, tmp_path / "out")


def test_half_precision(tmp_path):
    model = toy("decoder")
    report = export(model, tmp_path / "out", "onnx", quantization="float16")
    assert 1e-6 < float(report.split("log-probabilities ")[1].split()[0]) < 1e-2
    assert [path.name for path in (tmp_path / "out" / "onnx").iterdir()] == ["model_fp16.onnx"]
    found = load_engine(tmp_path / "out").generate(PROMPTS, max_new_tokens=NEW, num_beams=2)
    assert found == [continuation(model, prompt, num_beams=2) for prompt in PROMPTS]


def test_logits_are_equal(classifier):
    model, folder, report = classifier
    assert "logits of 4 rows equal" in report
    rows, types = [[5, 6, 7, 8], [9, 10]], [[0, 0, 1, 1], [1, 0]]
    engine = load_engine(folder)
    for given in (None, types):
        found = torch.from_numpy(engine.classify(rows, given))
        assert found.shape == (2, 3)
        for number, row in enumerate(rows):
            segments = {} if given is None else {"token_type_ids": torch.tensor([given[number]])}
            assert relative_error(found[number], model(torch.tensor([row]), **segments).logits[0]) < 1e-5
    assert not np.allclose(engine.classify(rows), engine.classify(rows, types))


def test_weights_of_8_bits_take_less_room_and_answer_alike(tmp_path):
    model = toy("encoder", modeling.VanillaEncoderForTokenClassification, hidden_size=64, intermediate_size=96)
    report = export(model, tmp_path / "out", "onnx", quantization="int8")
    assert 1e-4 < float(report.split("relative error of ")[1]) < 0.3
    graph = onnx.load(tmp_path / "out" / "onnx" / "model_quantized.onnx").graph
    kinds = {tensor.data_type for tensor in graph.initializer if len(tensor.dims) == 2 and max(tensor.dims) > 37}
    assert onnx.TensorProto.UINT8 in kinds
    assert read_record(tmp_path / "out")["quantization"] == "int8"
    words = "quantization='int4': onnx has 'float32', 'float16', 'int8'"
    refused(words, export, model, tmp_path / "other", "onnx", quantization="int4")


def test_a_classifier_neither_generates_nor_reads_images(classifier):
    engine = load_engine(classifier[1])
    refused("does not generate text", engine.generate, PROMPTS, max_new_tokens=1)
    refused("25 tokens are more than max_position_embeddings=24", engine.classify, [[5] * 25])
    refused("reads no images", engine.classify_images, pixels())


def test_logits_of_images_are_equal(tmp_path):
    model = toy("image_encoder", **SWIN)
    assert "logits of 8 images equal" in export(model, tmp_path / "out", "onnx")
    engine = load_engine(tmp_path / "out")
    for batch in (1, 3):
        images = pixels(batch, 10, 10, 3)
        assert relative_error(torch.from_numpy(engine.classify_images(images)), model(images).logits) < 1e-5
    refused(r"shape \(1, 3, 4, 4\): it must be batch and \(3, 10, 10\)", engine.classify_images, pixels(1, 4, 4, 3))
    refused("classifies images, not tokens", engine.classify, PROMPTS)


@pytest.mark.parametrize(("kind", "field", "overrides"), [
    ("decoder", "rope_parameters", {"rope_parameters": rope("dynamic")}),
    ("encoder", "rope_parameters", {"rope_parameters": rope("longrope"), "position_embedding_type": "rotary"}),
    ("encoder", "max_position_embeddings", {"max_position_embeddings": 7}),
    ("encoder_decoder", "decoder_start_token_id", {"decoder_start_token_id": None}),
    ("encoder_decoder", "output_distribution", {"output_distribution": "pointer_generator",
     "share_encoder_decoder_embeddings": True, "decoder_vocab_size": 37}),
])  # fmt: skip
def test_obstacles_are_named(kind, field, overrides, tmp_path):
    refused(rf"cannot be exported to onnx: {field}=.*, but ", export, toy(kind, **overrides), tmp_path / "out", "onnx")
    assert not list(tmp_path.iterdir())


def test_a_classifying_decoder_needs_padding():
    config = toy_config("decoder", pad_token_id=None)
    assert "pad_token_id=None" in EXPORTER.obstacles(modeling.VanillaDecoderForSequenceClassification, config)[0]
    assert EXPORTER.obstacles(modeling.VanillaDecoderForCausalLM, config) == []


def test_running_needs_less_than_writing(monkeypatch, classifier):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    refused("device='npu'", load_engine, classifier[1], "npu")
    load_engine(classifier[1])
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    refused(r"onnx needs onnxruntime: pip install 'vanillaformer\[onnx", load_engine, classifier[1], error=ImportError)


def has_no_obstacle(kind: str, fields: Value) -> bool:
    return is_allowed(kind, fields) and not EXPORTER.obstacles(KINDS[kind][1], toy_config(kind, **fields))


TESTED = KINDS if "TEST_ENGINES" in os.environ else ()
PACKED = [(kind, json.dumps(row)) for kind in TESTED for row in packed(kind, has_no_obstacle)]


@all_engines
@pytest.mark.parametrize(("kind", "row"), PACKED, ids=[name_of(json.loads(row)) for _, row in PACKED])
def test_every_value_of_every_axis(kind, row, tmp_path: Path):
    report = export(toy(kind, **json.loads(row)), tmp_path / "out", "onnx")
    assert re.match(r"(\d+) of \1 greedy tokens equal|logits of 4 rows equal", report)


@all_engines
@pytest.mark.parametrize(("model_class", "pooling"), [
    (cls, pooling) for cls in EXPORTER.models
    for pooling in get_args(Pooling)[: None if cls is modeling.VanillaEncoderForSequenceClassification else 1]
    if cls not in [model for _, model in KINDS.values()] and "Image" not in cls.__name__
])  # fmt: skip
def test_every_classifier(model_class, pooling, tmp_path):
    is_decoder = "Decoder" in model_class.__name__
    kind, options = ("decoder", {}) if is_decoder else ("encoder", {"classifier_pooling": pooling})
    report = export(toy(kind, model_class, num_labels=3, **options), tmp_path / "out", "onnx")
    assert "logits of 4 rows equal" in report
