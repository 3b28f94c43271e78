"""GGUF files: read back by other readers, refused where the format has no place, run by llama.cpp where it is."""

import importlib.util
import json
import re
import sys

import numpy as np
import pytest
from modeling.axes import rope
from modeling.toys import relative_error, tokens, toy, toy_config
from refusals import refused
from tokenizers import Regex, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

import vanillaformer.modeling as modeling
from vanillaformer.conversion import to_native
from vanillaformer.conversion.exports import EXPORTERS, ExportJob, export, load_engine, read_record
from vanillaformer.conversion.exports.gguf.engine import LlamaCppEngine
from vanillaformer.conversion.exports.gguf.exporter import LLAMA3, pre_tokenizer_of, verify_file
from vanillaformer.tokenization import train

gguf = pytest.importorskip("gguf", reason="pip install 'vanillaformer[gguf]'")
needs_llama_cpp = pytest.mark.skipif(
    importlib.util.find_spec("llama_cpp") is None, reason="make test-engines (llama-cpp-python is not installed)"
)

EXPORTER = EXPORTERS["gguf"]
LLAMA = {"norm": "rms_norm", "feed_forward": "gated", "hidden_act": "silu", "norm_placement": "pre"}
GPT2 = {"hidden_act": "gelu_new", "position_embedding_type": "learned", "hidden_size": 32}
FOLDED = {"tie_word_embeddings": False, "scale_embedding": True, "logit_scale": 0.3, "attention_scale": 0.5}
BY_TYPE = {"sliding_window": 8, "layer_types": ["full_attention"]}
LARGER = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
# What both shapes can be
SHAPES = {
    "llama": LLAMA, "llama-without-biases": LLAMA | {"attention_bias": False, "mlp_bias": False},
    "llama-some-biases": LLAMA | {"attention_bias": ["q_proj", "v_proj"], "mlp_bias": False},
    "llama-untied": LLAMA | {"tie_word_embeddings": False},
    "llama-own-head-width": LLAMA | {"head_dim": 10, "num_attention_heads": 6, "num_key_value_heads": 1},
    "llama-all-heads": LLAMA | {"num_key_value_heads": 4, "norm_eps": 0.3},
    "llama-interleaved": LLAMA | {"rope_interleaved": True}, "llama-unit-offset": LLAMA | {"norm_unit_offset": True},
    "llama-no-norm-weight": LLAMA | {"norm_weight": False}, "llama-folded": LLAMA | FOLDED,
    "llama-tied-and-scaled": LLAMA | {"scale_embedding": True, "logit_scale": 2.0},
    "llama-linear": LLAMA | {"rope_parameters": rope("linear")},
    "llama-llama3": LLAMA | {"rope_parameters": rope("llama3")},
    "llama-yarn": LLAMA | {"rope_parameters": rope("yarn")},
    "llama-by-type": LLAMA | {"rope_parameters": {"full_attention": rope("default")}} | BY_TYPE, "gpt2": GPT2,
    "gpt2-all-heads": GPT2 | {"num_key_value_heads": 4},
    "gpt2-without-biases": GPT2 | {"attention_bias": False, "mlp_bias": False, "norm_bias": False},
    "gpt2-offset": GPT2 | {"position_offset": 2, "hidden_act": "gelu_pytorch_tanh"},
    "gpt2-sinusoidal": GPT2 | {"position_embedding_type": "sinusoidal", "num_key_value_heads": 4},
    "gpt2-no-positions": GPT2 | {"position_embedding_type": "none", "num_key_value_heads": 4},
    "gpt2-folded": GPT2 | FOLDED | {"num_key_value_heads": 4, "norm_unit_offset": True},
}  # fmt: skip
shapes = pytest.mark.parametrize("shape", SHAPES)


def written(tmp_path, overrides, **options):
    """A toy and the folder with its file."""
    model = toy("decoder", **overrides)
    tmp_path.mkdir(exist_ok=True)
    EXPORTER.write(ExportJob(model, tmp_path, **options))
    return model, tmp_path


def contents(folder):
    """What a file's fields and tensors are, to GGUF's own reader."""
    reader = gguf.GGUFReader(folder / "model.gguf")
    return {k: f.contents() for k, f in reader.fields.items()}, {t.name: np.array(t.data) for t in reader.tensors}


def test_sizes_are_in_the_file(tmp_path):
    _, folder = written(tmp_path / "llama", LLAMA)
    fields, _ = contents(folder)
    expected = {
        "general.architecture": "llama", "llama.context_length": 24, "llama.embedding_length": 24,
        "llama.block_count": 2, "llama.feed_forward_length": 40, "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2, "llama.attention.key_length": 8, "llama.attention.value_length": 8,
        "llama.rope.dimension_count": 8, "llama.rope.freq_base": 10000.0, "llama.vocab_size": 37,
        "tokenizer.ggml.model": "none",
    }  # fmt: skip
    assert fields | expected == fields
    assert fields["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-5)
    _, folder = written(tmp_path / "gpt2", GPT2)
    fields, tensors = contents(folder)
    assert fields["gpt2.attention.layer_norm_epsilon"] == pytest.approx(1e-5)
    assert (fields["gpt2.context_length"], fields["gpt2.attention.head_count_kv"]) == (24, 2)
    assert tensors["blk.0.attn_qkv.weight"].shape == ((4 + 2 + 2) * 8, 32)


# What transformers has no setting for either stands in the weights, and its own model is that of a plainer config
PLAINER = (
    "rope_interleaved", "norm_unit_offset", "norm_weight", "scale_embedding", "logit_scale", "attention_scale",
    "norm_bias", "position_offset", "attention_bias", "mlp_bias", "position_embedding_type", "hidden_act",
)  # fmt: skip
# transformers' GPT-2 shares no heads, its Llama has all biases or none, and to it YaRN's factor is in the config
NOT_READ = ("gpt2", "gpt2-without-biases", "gpt2-offset", "llama-yarn", "llama-some-biases")


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape not in NOT_READ])
def test_transformers_reads_the_same_model(shape, tmp_path):
    """Its reader of GGUF files is another one, with a permutation of its own."""
    overrides = SHAPES[shape]
    base = LLAMA if shape.startswith("llama") else GPT2
    model, folder = written(tmp_path, overrides)
    kept = {name: value for name, value in overrides.items() if name not in PLAINER}
    biases = {name: overrides[name] for name in ("attention_bias", "mlp_bias") if base is LLAMA and name in overrides}
    plain = base | kept | biases
    if shape == "llama-tied-and-scaled":
        plain["tie_word_embeddings"] = False
    native = to_native(toy("decoder", **plain), "llama" if base is LLAMA else "gpt2").config
    read = AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.gguf", config=native)
    ids = tokens(2, 9)
    assert relative_error(read(ids).logits, model(ids).logits) < 1e-5


@pytest.mark.parametrize(("quantization", "error"), [("float16", 1e-3), ("q8_0", 1e-2)])
def test_rounded_weights_are_near(quantization, error, tmp_path):
    model, folder = written(tmp_path, LLAMA | LARGER, quantization=quantization)
    native = to_native(model, "llama").config
    read = AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.gguf", config=native)
    for (path, one), other in zip(read.state_dict().items(), to_native(model, "llama").state_dict().values()):
        assert relative_error(one.float(), other) < error, path
    kinds = {t.name: t.tensor_type.name for t in gguf.GGUFReader(folder / "model.gguf").tensors}
    assert kinds["blk.0.ffn_up.weight"] == {"float16": "F16", "q8_0": "Q8_0"}[quantization]
    assert kinds["output_norm.weight"] == kinds["blk.0.attn_q.bias"] == "F32"


def test_a_wrong_file_is_noticed(tmp_path):
    written(tmp_path, LLAMA)
    fields, tensors = contents(tmp_path)
    fields = {key: value for key, value in fields.items() if not key.startswith("GGUF.")}
    stored = {name: (values, gguf.GGMLQuantizationType.F32) for name, values in tensors.items()}
    path = tmp_path / "model.gguf"
    verify_file(gguf, path, fields, stored)
    refused("field llama.block_count is 2, not 3", verify_file, gguf, path, fields | {"llama.block_count": 3}, stored)
    values, kind = stored["output_norm.weight"]
    for name, other in (("output_norm.weight", (values + 1, 0)), ("more.weight", (values, kind))):
        refused(f"tensor {name}", verify_file, gguf, path, fields, stored | {name: other})


@shapes
def test_the_shapes_have_no_obstacle(shape):
    assert EXPORTER.obstacles(modeling.VanillaDecoderForCausalLM, toy_config("decoder", **SHAPES[shape])) == []


# Of a Llama and of a GPT-2, by the first field
@pytest.mark.parametrize(("base", "fields"), [
    *((LLAMA, {field: value}) for field, value in {
        "norm_placement": "post", "final_norm": False, "embedding_norm": True, "layer_scale_init_value": 0.1,
        "skip_first_norm": True, "block_layout": "parallel", "qk_norm": "head", "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 3.0, "sliding_window": 3, "lm_head_bias": True, "type_vocab_size": 2,
        "norm_bias": True, "feed_forward": "plain", "hidden_act": "gelu",
        "position_embedding_type": "alibi", "rotary_layers": [True, False],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.5},
    }.items()),
    (LLAMA, {"norm": "layer_norm", "norm_bias": False}),
    (LLAMA, {"rope_parameters": rope("dynamic")}), (LLAMA, {"rope_parameters": rope("longrope")}),
    (LLAMA, {"rope_parameters": {"full_attention": rope("dynamic")}, **BY_TYPE}),
    (LLAMA, {"rope_parameters": {"full_attention": rope("default") | {"partial_rotary_factor": 0.5}}, **BY_TYPE}),
    *((GPT2, {field: value}) for field, value in {
        "hidden_act": "gelu", "head_dim": 4, "position_embedding_type": "relative", "feed_forward": "gated",
        "norm": "rms_norm",
    }.items()),
])  # fmt: skip
def test_what_the_format_has_no_place_for_is_named(base, fields):
    config, field = toy_config("decoder", **base | fields), next(iter(fields))
    (obstacle,) = EXPORTER.obstacles(modeling.VanillaDecoderForCausalLM, config)
    assert obstacle.startswith(f"{field}={getattr(config, field)!r}")


def test_an_adapter_is_not_left_out(tmp_path):
    peft = pytest.importorskip("peft", reason="pip install 'vanillaformer[peft]'")
    model = toy("decoder", **LLAMA)
    model.add_adapter(peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    message = "model.layers.0.self_attn.q_proj has an adapter, which gguf cannot read: merge it"
    refused(message, export, model, tmp_path / "export", "gguf")


def test_every_reason_is_named():
    fields = {"norm_placement": "post", "lm_head_bias": True, "hidden_act": "relu"}
    config = toy_config("decoder", position_embedding_type="learned", **fields)
    reasons = EXPORTER.obstacles(modeling.VanillaDecoderForCausalLM, config)
    assert [each.split("=")[0] for each in reasons] == [*fields, "head_dim"]


TEXTS = ["Hello world, it's 1234 o'clock.", "Something  else\n here: naïve café"] * 20


def trained(**options):
    arguments = {"algorithm": "byte_level_bpe", "kind": "decoder", "vocab_size": 300, "extra_special_tokens": ["<x>"]}
    return train(TEXTS, **(arguments | options))


@pytest.mark.parametrize(("split_digits", "pre"), [(False, "gpt-2"), (True, "starcoder")])
def test_a_byte_level_tokenizer_is_in_the_file(split_digits, pre, tmp_path):
    tokenizer = trained(split_digits=split_digits, extra_special_tokens=["[SEP]"])
    tokenizer.chat_template = "{{ messages }}[SEP]"
    model = toy("decoder", **LLAMA, vocab_size=310)
    model.generation_config.eos_token_id = [3, 1, 4]
    export(model, tmp_path / "out", "gguf", tokenizer=tokenizer)
    fields, _ = contents(tmp_path / "out")
    expected = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False, "tokenizer.ggml.bos_token_id": 2, "tokenizer.ggml.eos_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0, "tokenizer.ggml.unknown_token_id": 1, "tokenizer.ggml.eot_token_id": 4,
        "tokenizer.ggml.eom_token_id": 1, "tokenizer.chat_template": "{{ messages }}[SEP]",
    }  # fmt: skip
    assert fields | expected == fields
    names, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    assert names[: len(tokenizer)] == tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    # a declared token stays in outputs, which those of control do not
    assert kinds == [3] * 4 + [4] + [1] * (len(tokenizer) - 5) + [5] * (310 - len(tokenizer))
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    assert fields["tokenizer.ggml.merges"] == [" ".join(pair) for pair in merges]
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("it's")["input_ids"] == tokenizer("it's")["input_ids"]


def test_a_gguf_tokenizer_splits_the_same(tmp_path):
    """transformers makes a tokenizer of the file's fields."""
    tokenizer = trained()
    written(tmp_path, GPT2 | {"vocab_size": len(tokenizer)}, tokenizer=tokenizer)
    read = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    for text in TEXTS:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert read(text, add_special_tokens=False)["input_ids"] == ids


@pytest.mark.parametrize("algorithm", ["bpe", "unigram", "wordpiece", "word", "character", "chinese_character"])
def test_other_tokenizers_are_refused(algorithm, tmp_path):
    refused_export("only byte-level byte-pair encoding can be written", tmp_path, 300, algorithm=algorithm)


def refused_export(message, folder, vocab_size, **options):
    model, tokenizer = toy("decoder", **LLAMA, vocab_size=vocab_size), trained(**options)
    refused(message, export, model, folder / "out", "gguf", tokenizer=tokenizer)
    assert not list(folder.iterdir())


def test_lower_casing_and_too_many_tokens_are_refused(tmp_path):
    refused_export("does not normalize texts.*Lowercase", tmp_path, 300, lowercase=True)
    refused_export("tokens, the model vocab_size=37", tmp_path, 37)


def test_pre_tokenizers_have_their_names():
    def name(step):
        return pre_tokenizer_of({"pre_tokenizer": json.loads(step.__getstate__())})

    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Split(Regex(LLAMA3), "isolated")
    assert name(pre_tokenizers.Sequence([split, by_bytes])) == "llama-bpe"
    assert name(by_bytes) is None
    assert name(pre_tokenizers.ByteLevel(add_prefix_space=True)) is None
    assert name(pre_tokenizers.Whitespace()) is None


def test_without_llama_cpp_the_report_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    report = export(toy("decoder", **LLAMA), tmp_path / "out", "gguf")
    assert "not run, since llama-cpp-python is not installed" in report
    assert read_record(tmp_path / "out")["engine"] == "gguf"
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    refused(r"pip install 'vanillaformer\[llama-cpp\]'", load_engine, tmp_path / "out", error=ImportError)


@needs_llama_cpp
@shapes
def test_llama_cpp_generates_the_same_tokens(shape, tmp_path):
    report = export(toy("decoder", **SHAPES[shape]), tmp_path / "out", "gguf")
    equal, total = re.match(r"(\d+) of (\d+) greedy tokens equal", report).groups()
    assert equal == total
    error = float(report.split("log-probabilities ")[1].split()[0])
    assert error < (1e-5 if shape.startswith("llama") else 1e-3), report


@needs_llama_cpp
@pytest.mark.parametrize("quantization", ["float16", "q8_0"])
def test_llama_cpp_runs_rounded_weights(quantization, tmp_path):
    report = export(toy("decoder", **LLAMA, **LARGER), tmp_path / "out", "gguf", quantization=quantization)
    assert "log-probabilities" in report


@needs_llama_cpp
def test_llama_cpp_samples(tmp_path):
    export(toy("decoder", **LLAMA), tmp_path / "out", "gguf")
    engine = load_engine(tmp_path / "out")
    prompts = [[5, 6, 7], [8], [9, 10, 11, 12]]
    options = {"max_new_tokens": 6, "do_sample": True, "temperature": 2.0, "top_k": 20, "seed": 3}
    made = engine.generate(prompts, **options)
    assert made == engine.generate(prompts, **options)
    assert made != engine.generate(prompts, **(options | {"seed": 4}))
    greedy = engine.generate(prompts, max_new_tokens=6)
    assert engine.generate(prompts, **(options | {"top_k": 1})) == greedy


@needs_llama_cpp
@pytest.mark.parametrize("split_digits", [False, True])
def test_llama_cpp_splits_texts_alike(split_digits, tmp_path):
    import llama_cpp

    tokenizer = trained(split_digits=split_digits)
    export(toy("decoder", **LLAMA, vocab_size=310), tmp_path / "out", "gguf", tokenizer=tokenizer)
    llama = llama_cpp.Llama(str(tmp_path / "out" / "model.gguf"), vocab_only=True, verbose=False)
    for text in [*TEXTS[:2], "it's 42, isn't  it?\t\n", "übergroß 漢字 ½ ①", " leading", "<x> special"]:
        assert llama.tokenize(text.encode(), add_bos=True, special=True) == tokenizer(text)["input_ids"], text


def test_the_engine_checks_what_it_is_given_before_it_runs(tmp_path):
    """Without the library: what is asked wrong is refused first."""
    model, folder = written(tmp_path, GPT2)
    EXPORTER.write_record(ExportJob(model, folder))
    engine = LlamaCppEngine(None, folder)
    refused("no beam search", engine.generate, [[5]], max_new_tokens=1, num_beams=3)
    refused("row 1 has no tokens", engine.generate, [[5], []], max_new_tokens=1)
    refused("max_position_embeddings=24", engine.generate, [[5] * 24], max_new_tokens=1)
