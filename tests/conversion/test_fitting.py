"""Models that no architecture fits as they are, and that one fits with zeros where it has more: the same function."""

import pytest
import torch
from modeling.axes import CONFIGS, Value, is_allowed, packed
from modeling.toys import KINDS as TOYS
from modeling.toys import assert_close, inputs_of, sharpen, toy_config
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM, PreTrainedModel

import vanillaformer
from vanillaformer import VanillaDecoderForCausalLM, VanillaEncoderDecoderConfig, VanillaEncoderForMaskedLM, preset
from vanillaformer.conversion import ARCHITECTURES, from_native, native_architectures, to_native
from vanillaformer.conversion.folders import convert_folder
from vanillaformer.conversion.mapping.architecture import OUR_CLASSES
from vanillaformer.conversion.mapping.dimensions import COLUMNS, WIDTH_AXES, module_of, order, reordered
from vanillaformer.conversion.mapping.fitting import adjustments_towards, changed_fields, fit, fit_cost, with_fields
from vanillaformer.conversion.mapping.weights import convert_weights, tensors_of
from vanillaformer.modeling.parts.positions import SinusoidalPositions
from vanillaformer.scripts import demo
from vanillaformer.tokenization import train
from vanillaformer.training.arguments import ModelArguments
from vanillaformer.training.models import build_model, set_generation

from .natives import PAD, V, poison, right_padding, words

SMALL = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, "vocab_size": V}
SMALL |= {"dropout": 0.0, "attention_dropout": 0.0, "max_position_embeddings": 20}
KINDS = {
    "decoder": (VanillaDecoderForCausalLM, AutoModelForCausalLM),
    "encoder": (VanillaEncoderForMaskedLM, AutoModelForMaskedLM),
    "seq2seq": (vanillaformer.VanillaEncoderDecoderForConditionalGeneration, AutoModelForSeq2SeqLM),
}
NO_BIASES = {"attention_bias": False, "mlp_bias": False, "norm_bias": False}
TWO = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 31}
REORDERED = {"attention_bias", "sinusoidal_layout"}
# kind, preset, its changes, the native architecture, the fields that are fitted
CASES = {
    "nanogpt": ("decoder", "nanogpt", {}, "gpt2", {"attention_bias", "mlp_bias", "norm_bias"}),
    "some-biases": ("decoder", "gpt2", {"attention_bias": ["v_proj"]}, "gpt2", {"attention_bias"}),
    "no-norm-weights": ("decoder", "gpt2", {"norm_weight": False}, "gpt2", {"norm_weight"}),
    "opt-mlp": ("decoder", "opt", {"attention_bias": False}, "opt", {"attention_bias"}),
    "opt-attention": ("decoder", "opt", {"mlp_bias": False}, "opt", {"mlp_bias"}),
    "opt-from-row-0": ("decoder", "opt", {"position_offset": 0, **NO_BIASES}, "opt", {"position_offset", "norm_bias"}),
    "gpt2-from-row-2": ("decoder", "gpt2", {"position_offset": 2}, "gpt2", {"position_offset"}),
    "bloom": ("decoder", "bloom", {**NO_BIASES, "intermediate_size": 96}, "bloom",
              {"attention_bias", "mlp_bias", "norm_bias"}),
    "llama": ("decoder", "llama-tiny", {"mlp_bias": True, "attention_bias": ["q_proj"]}, "llama", {"attention_bias"}),
    "qwen2": ("decoder", "llama-tiny", {"attention_bias": ["k_proj"]}, "qwen2", {"attention_bias"}),
    "roberta": ("encoder", "roberta", {"pad_token_id": 0}, "roberta", {"position_offset"}),
    "bert-from-row-2": ("encoder", "roberta", {}, "bert", {"position_offset"}),
    "bert": ("encoder", "bert-base", {**NO_BIASES, "lm_head_bias": False, "head_bias": False}, "bert",
             {"attention_bias", "mlp_bias", "norm_bias", "lm_head_bias", "head_bias"}),
    "bart-from-row-0": ("seq2seq", "bart", {"position_offset": 0}, "bart", {"position_offset"}),
    "bart": ("seq2seq", "bart", NO_BIASES, "bart", {"attention_bias", "mlp_bias", "norm_bias"}),
    "marian": ("seq2seq", "marian", {"attention_bias": False}, "marian", {"attention_bias"}),
    "paper": ("seq2seq", "transformer-base", {}, "marian", REORDERED),
    "paper-two-vocabularies": ("seq2seq", "transformer-base", TWO, "marian", REORDERED),
    "paper-untied": ("seq2seq", "transformer-big", TWO | {"tie_word_embeddings": False}, "marian", REORDERED),
    "paper-uneven": ("seq2seq", "transformer-tiny", {"encoder_layers": 3, "encoder_intermediate_size": 32,
                     "attention_bias": True, "lm_head_bias": True}, "marian", {"sinusoidal_layout"}),
    "paper-pre": ("seq2seq", "transformer-base", {"norm_placement": "pre", "mlp_bias": False, "norm_bias": False},
                  "pegasus", REORDERED | {"mlp_bias", "norm_bias"}),
}  # fmt: skip
cases = pytest.mark.parametrize("name", CASES)


def ours_of(name: str) -> PreTrainedModel:
    kind, preset_name, changes, _, _ = CASES[name]
    sizes = {"num_key_value_heads": 2} if preset_name == "llama-tiny" else {}
    model = KINDS[kind][0](preset(preset_name, **(SMALL | sizes | {"pad_token_id": PAD} | changes)))
    poison(model)
    return model.eval()


def batch_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    mask = right_padding(3, 9)
    pad = model.config.pad_token_id
    batch = {"input_ids": words(3, 9, V).masked_fill(mask == 0, pad), "attention_mask": mask}
    if model.config.is_encoder_decoder:
        batch["decoder_input_ids"] = words(3, 7, model.config.target_vocab_size, seed=3)
    return batch


def assert_same(native: PreTrainedModel, ours: PreTrainedModel) -> None:
    batch = batch_of(ours)
    with torch.no_grad():
        actual, expected = native(**batch).logits, ours(**batch).logits
    keep = ... if ours.config.is_encoder_decoder else batch["attention_mask"] == 1
    assert_close(actual[keep], expected[keep], "logits")


@cases
def test_the_native_model_computes_the_same_and_loads(name, tmp_path):
    kind, _, _, architecture, fitted = CASES[name]
    ours = ours_of(name)
    found = fit(ARCHITECTURES[architecture], ours.config, "lm")
    assert set(changed_fields(ours.config, found.config)) == fitted
    assert found.mismatches == []
    native = to_native(ours, architecture)
    assert_same(native, ours)
    native.save_pretrained(tmp_path)
    loaded, report = KINDS[kind][1].from_pretrained(tmp_path, output_loading_info=True)
    assert [*report["missing_keys"], *report["unexpected_keys"], *report["mismatched_keys"]] == []
    assert_same(loaded.eval(), ours)


@cases
def test_back_again_it_has_what_was_added_and_nothing_was_lost(name):
    ours = ours_of(name)
    before = {key: tensor.clone() for key, tensor in tensors_of(ours).items()}
    back = from_native(to_native(ours, CASES[name][3]))
    assert_same(back, ours)
    old = tensors_of(ours)
    assert all(torch.equal(old[key], tensor) for key, tensor in before.items()), "ours itself was changed"
    layouts = ours.config.sinusoidal_layout, back.config.sinusoidal_layout
    assert (layouts[0] != layouts[1]) == ("sinusoidal_layout" in CASES[name][4])
    for key, tensor in tensors_of(back).items():
        if key not in old:
            neutral = torch.ones_like if key.endswith("weight") else torch.zeros_like
            assert torch.equal(tensor, neutral(tensor)), key
        elif not key.endswith("embed_positions.weight"):
            assert torch.equal(tensor, reordered(key, old[key], *layouts) if len({*layouts}) > 1 else old[key]), key


def test_what_fits_as_it_is_comes_first_and_what_is_reordered_last():
    config = preset("gpt2", **SMALL)
    assert fit(ARCHITECTURES["opt"], config, "lm").mismatches == []  # with other rows, too
    assert native_architectures(config) == ["gpt2"]
    assert native_architectures(preset("nanogpt", **SMALL)) == ["gpt2"]
    assert native_architectures(preset("gpt2", **SMALL, position_offset=3)) == ["gpt2", "opt"]
    with pytest.raises(ValueError, match="gpt2, opt"):
        to_native(VanillaDecoderForCausalLM(preset("gpt2", **SMALL, position_offset=3)))
    config = preset("transformer-base", **SMALL)
    costs = [
        fit_cost(config, with_fields(config, **fields))
        for fields in (
            {}, {"mlp_bias": False}, {"position_offset": 2, "mlp_bias": False},
            {"sinusoidal_layout": "halves", "mlp_bias": False},
        )
    ]  # fmt: skip
    assert costs == [0, 1, 2, 3]


def test_the_demos_model_is_a_marian_of_transformers(tmp_path):
    tokenizer = train(["Monday, March 3, 2031", "am 3. März 2031"] * 20, algorithm="bpe", vocab_size=80)
    options = dict(zip(demo.RECIPE, demo.RECIPE[1:]))
    arguments = ModelArguments(preset=options["--preset"], overrides=[options["--set"]])
    model = build_model("translation", arguments, tokenizer, length=64, seed=1)
    assert native_architectures(model.config) == ["marian"]
    set_generation(model, "translation", length=64)
    model.save_pretrained(tmp_path / "demo")
    tokenizer.save_pretrained(tmp_path / "demo")
    done = convert_folder(str(tmp_path / "demo"), tmp_path / "native")
    assert done.target == "MarianMTModel"
    assert done.error <= 1e-5


def test_biases_that_the_native_model_has_not_and_rows_of_sines_stand_in_the_way():
    mismatches = fit(ARCHITECTURES["qwen2"], preset("llama-tiny", attention_bias=True), "lm").mismatches
    assert len(mismatches) == 1
    assert mismatches[0].startswith("attention_bias=")
    config = preset("marian", position_offset=2)
    assert any("position_offset=2" in text for text in fit(ARCHITECTURES["marian"], config, "lm").mismatches)


# ----------------------------------------------------------------------------------------- dimensions in another order
SINUSOIDAL = {"position_embedding_type": "sinusoidal"}
LAYOUTS = [(old, new) for old in COLUMNS for new in COLUMNS if old != new]


def is_sinusoidal(kind: str, fields: Value) -> bool:
    scheme = fields.get("position_embedding_type", "sinusoidal")
    return scheme == "sinusoidal" and "sinusoidal_layout" not in fields and is_allowed(kind, fields | SINUSOIDAL)


PARTS = [
    pytest.param(kind, fields | SINUSOIDAL, id=f"{kind}-{number}")
    for kind in TOYS
    for number, fields in enumerate(packed(kind, is_sinusoidal))
]
HEADS = [
    pytest.param(kind, head, fields, id=f"{kind}-{head}-{number}")
    for kind, config_class in CONFIGS.items()
    for head in OUR_CLASSES[config_class]
    for number, fields in enumerate([{}, {"classifier_act": "tanh", "classifier_norm": True}, {"wide_max_ngram": 2}])
    if head not in ("base", "lm") and is_allowed(kind, fields | SINUSOIDAL)
]


def assert_the_other_layout_computes_the_same(model: PreTrainedModel, kind: str) -> None:
    sharpen(model).eval()
    other = convert_weights(model, with_fields(model.config, sinusoidal_layout="halves")).eval()
    inputs = inputs_of(kind)
    if type(model).__name__.endswith("ForMultipleChoice"):  # its texts are choices
        inputs = {name: tensor[None] for name, tensor in inputs.items()}
    with torch.no_grad():
        actual, expected = other(**inputs), model(**inputs)
    for name in ("logits", "prediction_logits", "seq_relationship_logits", "start_logits", "end_logits"):
        if name in expected:
            assert_close(actual[name], expected[name], name)
    moved = [name for name, tensor in tensors_of(model).items() if not torch.equal(tensor, tensors_of(other)[name])]
    assert any("embed_tokens" in name for name in moved)


@pytest.mark.parametrize(("old", "new"), LAYOUTS)
def test_the_order_turns_one_table_into_the_other(old, new):
    tables = [
        SinusoidalPositions(toy_config("decoder", **SINUSOIDAL, sinusoidal_layout=layout)).table
        for layout in (old, new)
    ]
    assert not torch.equal(*tables)
    assert torch.equal(tables[0][:, order(old, new, tables[0].shape[1])], tables[1])


@pytest.mark.parametrize(("kind", "fields"), PARTS)
def test_every_part_of_a_model_follows(kind, fields):
    assert_the_other_layout_computes_the_same(TOYS[kind][1](toy_config(kind, **fields)), kind)


@pytest.mark.parametrize(("kind", "head", "fields"), HEADS)
def test_every_head_follows(kind, head, fields):
    config = toy_config(kind, **SINUSOIDAL, **fields)
    assert_the_other_layout_computes_the_same(OUR_CLASSES[type(config)][head](config), kind)


def test_what_is_tested_has_everything_that_the_table_names():
    models = [TOYS[kind][1](toy_config(kind, **fields)) for kind, fields in (entry.values for entry in PARTS)]
    for kind, head, fields in (entry.values for entry in HEADS):
        models.append(OUR_CLASSES[CONFIGS[kind]][head](toy_config(kind, **SINUSOIDAL, **fields)))
    assert {module_of(name) for model in models for name in tensors_of(model)} == set(WIDTH_AXES)


def test_a_tensor_of_unknown_axes_is_refused():
    with pytest.raises(ValueError, match=r"model\.layers\.0\.mixer\.kernel .*interleaved.* 'halves'.*embed_tokens"):
        reordered("model.layers.0.mixer.kernel", torch.ones(4), "interleaved", "halves")


def test_other_wavelengths_are_no_other_order_and_the_bare_stack_keeps_its_own():
    config = VanillaEncoderDecoderConfig(sinusoidal_layout="tensor2tensor")
    assert adjustments_towards(config, {"sinusoidal_layout": ("tensor2tensor", "halves")}, "lm") == {}
    obstacles = fit(ARCHITECTURES["marian"], config, "lm").mismatches
    assert obstacles == ["sinusoidal_layout='tensor2tensor', where marian has 'halves'"]
    config = VanillaEncoderDecoderConfig()
    assert fit(ARCHITECTURES["marian"], config, "lm").mismatches == []
    (mismatch,) = fit(ARCHITECTURES["marian"], config, "base").mismatches
    assert mismatch == "sinusoidal_layout='interleaved', where marian has 'halves'"
