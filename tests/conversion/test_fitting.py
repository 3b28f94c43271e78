"""Models that one architecture fits with zeros where it has more, and saved image models with their processors."""

import shutil

import pytest
import torch
import transformers
from modeling.axes import CONFIGS, Value, is_allowed, packed
from modeling.toys import assert_close, inputs_of, sharpen, toy_config
from PIL import Image
from refusals import refused

import vanillaformer
from vanillaformer.conversion import ARCHITECTURES, from_native, native_architectures, to_native
from vanillaformer.conversion.folders import convert_folder, random_inputs
from vanillaformer.conversion.mapping.architecture import OUR_CLASSES
from vanillaformer.conversion.mapping.dimensions import WIDTH_AXES, module_of, reordered
from vanillaformer.conversion.mapping.fitting import changed_fields, fit, with_fields
from vanillaformer.conversion.mapping.weights import convert_weights, tensors_of

from .natives import BEIT, IMAGE, IMAGE_CONFIGS, LABELS, PAD, Case, V, batch_for, native_model, poison, real

SMALL = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, "vocab_size": V}
SMALL |= {"dropout": 0.0, "attention_dropout": 0.0, "max_position_embeddings": 20}
NO_BIASES = {"attention_bias": False, "mlp_bias": False, "norm_bias": False}
TWO = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 31}
REORDERED = {"attention_bias", "sinusoidal_layout"}
# Preset, its changes, the native architecture, the fields that are fitted
CASES = {
    "nanogpt": ("nanogpt", {}, "gpt2", {"attention_bias", "mlp_bias", "norm_bias"}),
    "some-biases": ("gpt2", {"attention_bias": ["v_proj"]}, "gpt2", {"attention_bias"}),
    "no-norm-weights": ("gpt2", {"norm_weight": False}, "gpt2", {"norm_weight"}),
    "opt-mlp": ("opt", {"attention_bias": False}, "opt", {"attention_bias"}),
    "opt-attention": ("opt", {"mlp_bias": False}, "opt", {"mlp_bias"}),
    "opt-from-row-0": ("opt", {"position_offset": 0, **NO_BIASES}, "opt", {"position_offset", "norm_bias"}),
    "gpt2-from-row-2": ("gpt2", {"position_offset": 2}, "gpt2", {"position_offset"}),
    "bloom": ("bloom", {**NO_BIASES, "intermediate_size": 96}, "bloom", {"attention_bias", "mlp_bias", "norm_bias"}),
    "llama": ("llama-tiny", {"mlp_bias": True, "attention_bias": ["q_proj"]}, "llama", {"attention_bias"}),
    "qwen2": ("llama-tiny", {"attention_bias": ["k_proj"]}, "qwen2", {"attention_bias"}),
    "roberta": ("roberta", {"pad_token_id": 0}, "roberta", {"position_offset"}),
    "bert-from-row-2": ("roberta", {}, "bert", {"position_offset"}),
    "bert": ("bert-base", {**NO_BIASES, "lm_head_bias": False, "head_bias": False}, "bert",
             {"attention_bias", "mlp_bias", "norm_bias", "lm_head_bias", "head_bias"}),
    "bart-from-row-0": ("bart", {"position_offset": 0}, "bart", {"position_offset"}),
    "bart": ("bart", NO_BIASES, "bart", {"attention_bias", "mlp_bias", "norm_bias"}),
    "marian": ("marian", {"attention_bias": False}, "marian", {"attention_bias"}),
    "paper": ("transformer-base", {}, "marian", REORDERED),
    "paper-two-vocabularies": ("transformer-base", TWO, "marian", REORDERED),
    "paper-untied": ("transformer-big", TWO | {"tie_word_embeddings": False}, "marian", REORDERED),
    "paper-uneven": ("transformer-tiny", {"encoder_layers": 3, "encoder_intermediate_size": 32,
                     "attention_bias": True, "lm_head_bias": True}, "marian", {"sinusoidal_layout"}),
    "paper-pre": ("transformer-base", {"norm_placement": "pre", "mlp_bias": False, "norm_bias": False},
                  "pegasus", REORDERED | {"mlp_bias", "norm_bias"}),
}  # fmt: skip
cases = pytest.mark.parametrize("name", CASES)


def ours_of(name: str) -> transformers.PreTrainedModel:
    preset_name, changes, _, _ = CASES[name]
    sizes = {"num_key_value_heads": 2} if preset_name == "llama-tiny" else {}
    config = vanillaformer.preset(preset_name, **(SMALL | sizes | {"pad_token_id": PAD} | changes))
    model = OUR_CLASSES[type(config)]["lm"](config)
    poison(model)
    return model.eval()


def assert_same(native: transformers.PreTrainedModel, ours: transformers.PreTrainedModel) -> None:
    batch = batch_for(Case("", {}, "base"), native)
    with torch.no_grad():
        actual, expected = native(**batch).logits, ours(**batch).logits
    assert_close(real(actual, batch), real(expected, batch), "logits")


@cases
def test_the_native_model_computes_the_same_and_loads(name, tmp_path):
    _, _, architecture, fitted = CASES[name]
    ours = ours_of(name)
    found = fit(ARCHITECTURES[architecture], ours.config, "lm")
    assert set(changed_fields(ours.config, found.config)) == fitted
    assert found.mismatches == []
    native = to_native(ours, architecture)
    assert_same(native, ours)
    native.save_pretrained(tmp_path)
    loaded, report = type(native).from_pretrained(tmp_path, output_loading_info=True)
    assert [*report["missing_keys"], *report["unexpected_keys"], *report["mismatched_keys"]] == []
    assert_same(loaded.eval(), ours)


@cases
def test_back_again_it_has_what_was_added_and_nothing_was_lost(name):
    ours = ours_of(name)
    before = {key: tensor.clone() for key, tensor in tensors_of(ours).items()}
    back = from_native(to_native(ours, CASES[name][2]))
    assert_same(back, ours)
    old = tensors_of(ours)
    assert all(torch.equal(old[key], tensor) for key, tensor in before.items()), "ours itself was changed"
    layouts = ours.config.sinusoidal_layout, back.config.sinusoidal_layout
    assert (layouts[0] != layouts[1]) == ("sinusoidal_layout" in CASES[name][3])
    for key, tensor in tensors_of(back).items():
        if key not in old:
            neutral = torch.ones_like if key.endswith("weight") else torch.zeros_like
            assert torch.equal(tensor, neutral(tensor)), key
        elif not key.endswith("embed_positions.weight"):
            assert torch.equal(tensor, reordered(key, old[key], *layouts) if len({*layouts}) > 1 else old[key]), key


def test_what_fits_as_it_is_comes_first():
    config = vanillaformer.preset("gpt2", **SMALL)
    assert fit(ARCHITECTURES["opt"], config, "lm").mismatches == []  # with other rows, too
    assert native_architectures(config) == ["gpt2"]
    assert native_architectures(vanillaformer.preset("nanogpt", **SMALL)) == ["gpt2"]
    shifted = vanillaformer.preset("gpt2", **SMALL, position_offset=3)
    assert native_architectures(shifted) == ["gpt2", "opt"]
    refused("gpt2, opt", to_native, vanillaformer.VanillaDecoderForCausalLM(shifted))


SINUSOIDAL = {"position_embedding_type": "sinusoidal"}


def is_sinusoidal(kind: str, fields: Value) -> bool:
    scheme = fields.get("position_embedding_type", "sinusoidal")
    return scheme == "sinusoidal" and "sinusoidal_layout" not in fields and is_allowed(kind, fields | SINUSOIDAL)


WITH_SINUSOIDS = [
    *((kind, "lm", fields) for kind in CONFIGS for fields in packed(kind, is_sinusoidal)),
    *((kind, head, fields) for kind, config_class in CONFIGS.items() for head in OUR_CLASSES[config_class]
      for fields in ({}, {"classifier_act": "tanh", "classifier_norm": True}, {"wide_max_ngram": 2})
      if head not in ("base", "lm") and is_allowed(kind, fields | SINUSOIDAL)),
]  # fmt: skip


def model_of(kind: str, head: str, fields: Value) -> transformers.PreTrainedModel:
    config = toy_config(kind, **fields | SINUSOIDAL)
    return OUR_CLASSES[type(config)][head](config)


@pytest.mark.parametrize(("kind", "head", "fields"), WITH_SINUSOIDS)
def test_with_the_other_layout_every_part_and_head_computes_the_same(kind, head, fields):
    model = sharpen(model_of(kind, head, fields)).eval()
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


def test_these_models_have_every_tensor_of_the_table_and_others_are_refused():
    assert {module_of(name) for case in WITH_SINUSOIDS for name in tensors_of(model_of(*case))} == set(WIDTH_AXES)
    name, layouts = "model.layers.0.mixer.kernel", ("interleaved", "halves")
    refused(r"0\.mixer\.kernel .*interleaved.* 'halves'.*embed_tokens", reordered, name, torch.ones(4), *layouts)


def test_the_bare_stack_keeps_its_own_order():
    config = vanillaformer.VanillaEncoderDecoderConfig()
    assert fit(ARCHITECTURES["marian"], config, "lm").mismatches == []
    (mismatch,) = fit(ARCHITECTURES["marian"], config, "base").mismatches
    assert mismatch == "sinusoidal_layout='interleaved', where marian has 'halves'"


def picture() -> Image.Image:
    image = Image.new("RGB", (12, 6))
    image.putdata([(40 * row, 20 * column, 7) for row in range(6) for column in range(12)])
    return image


@pytest.fixture(scope="module")
def native_folder(tmp_path_factory):
    """A classifier by ViT on three channels, with its processor."""
    folder = tmp_path_factory.mktemp("vit") / "native"
    native_model(Case("vit", IMAGE | LABELS | {"num_channels": 3}, "image")).save_pretrained(folder)
    transformers.ViTImageProcessorPil(size={"height": 12, "width": 12}).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("has_type", [True, False])
def test_the_image_processor_comes_along_and_pipelines_give_the_same(has_type, native_folder, tmp_path):
    native_folder = shutil.copytree(native_folder, tmp_path / "native")
    path = native_folder / "preprocessor_config.json"
    if not has_type:  # it follows from the model's
        path.write_text(path.read_text().replace("image_processor_type", "unknown"))
    done = convert_folder(str(native_folder), tmp_path / "ours", back=True)
    assert done.target == "VanillaImageEncoderForImageClassification"
    assert done.error <= 1e-6
    assert done.carried == ["preprocessor_config.json"]
    again = convert_folder(str(tmp_path / "ours"), tmp_path / "again", to="vit")
    assert (again.target, again.carried) == ("ViTForImageClassification", ["preprocessor_config.json"])
    folders = [native_folder, tmp_path / "ours", tmp_path / "again"]
    processors = [transformers.AutoImageProcessor.from_pretrained(folder) for folder in folders]
    values = [processor(picture())["pixel_values"][0] for processor in processors]
    assert all((each == values[0]).all() for each in values)
    answers = [transformers.pipeline("image-classification", str(folder))(picture()) for folder in folders]
    scores = [{each["label"]: each["score"] for each in answer} for answer in answers]
    assert scores[1] == pytest.approx(scores[0], rel=1e-5)
    assert scores[2] == scores[0]


@pytest.mark.parametrize("architecture", ["vit", "dinov2", "beit"])
def test_a_folder_of_a_bare_model_whose_tensors_have_old_names(architecture, tmp_path):
    config = native_model(Case(architecture, IMAGE | {"num_channels": 3}, "base")).config
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path / "native")
    done = convert_folder(str(tmp_path / "native"), tmp_path / "ours", back=True)
    assert done.target == "VanillaImageEncoderModel"
    assert done.error <= 1e-6


@pytest.mark.parametrize(
    "architecture", ["vit", "deit", "vit_msn", "ijepa", "dinov2", "dinov2_with_registers", "beit"]
)
@torch.no_grad()
def test_images_of_another_size(architecture):
    native = native_model(Case(architecture, IMAGE_CONFIGS[architecture][0], "base"))
    ours = from_native(native)
    again = to_native(ours, architecture)
    options = {} if "dinov2" in architecture or architecture == "beit" else {"interpolate_pos_encoding": True}
    for size in (24, 8, 20):
        images = torch.randn(2, 2, size, size, generator=torch.Generator().manual_seed(size))
        expected = native(images, **options).last_hidden_state
        for states in (ours(images, interpolate_pos_encoding=True), again(images, **options)):
            assert_close(states.last_hidden_state, expected, f"{size} pixels")


def test_features_of_a_converted_bare_model(native_folder, tmp_path):
    ours = from_native(native_model(Case("vit", IMAGE | {"num_channels": 3}, "base", 1)))
    ours.save_pretrained(tmp_path)
    transformers.AutoImageProcessor.from_pretrained(native_folder).save_pretrained(tmp_path)
    (states,) = transformers.pipeline("image-feature-extraction", str(tmp_path))(picture())
    (pooled,) = transformers.pipeline("image-feature-extraction", str(tmp_path), pool=True)(picture())
    inputs = transformers.AutoImageProcessor.from_pretrained(tmp_path)(picture(), return_tensors="pt")
    with torch.no_grad():
        expected = ours(**inputs)
    assert isinstance(ours, vanillaformer.VanillaImageEncoderModel)
    assert_close(torch.tensor(states), expected.last_hidden_state[0], "states")
    assert_close(torch.tensor(pooled), expected.pooler_output[0], "pooled")


def test_a_linear_map_of_flattened_patches_becomes_a_convolution_and_a_single_stage_is_a_vit():
    native = native_model(Case("vit", IMAGE | LABELS, "image"))
    config = from_native(native).config
    config.patch_embedding = "linear"
    ours = vanillaformer.VanillaImageEncoderForImageClassification(config).eval()
    back = to_native(ours, "vit")
    batch = batch_for(Case("vit", IMAGE, "image"), native)
    assert_close(back(**batch).logits, ours(**batch).logits, "logits")
    own, again = (model.model.embeddings.patch_embeddings.projection for model in (ours, from_native(back)))
    assert torch.equal(again.weight.flatten(1), own.weight)
    assert torch.equal(again.bias, own.bias)
    assert "vit" in native_architectures(vanillaformer.preset("vit-tiny", depths=[12]))


DINO = {**BEIT, **LABELS, "intermediate_size": 2 * BEIT["hidden_size"], "image_pooling": "first_and_mean"}
SWIN = {"image_size": 16, "hidden_size": 12, "num_labels": 3}


@pytest.mark.parametrize(("config", "architecture", "added"), [
    (vanillaformer.VanillaImageEncoderConfig(**DINO), "dinov2", 4),
    (vanillaformer.preset("swin-tiny", **SWIN, depths=[2, 1], window_size=2), "swin", 0),
    (vanillaformer.preset("swin-tiny", **SWIN, depths=None, num_hidden_layers=2, window_size=4), "swin", 0),
], ids=["without layer scale", "stages whose heads double", "one stage"])  # fmt: skip
def test_an_image_model_that_fits_has_factors_of_1_where_the_native_one_has_more(config, architecture, added):
    ours = vanillaformer.VanillaImageEncoderForImageClassification(config).eval()
    poison(ours)
    assert native_architectures(config) == [architecture]
    native = to_native(ours)
    images = random_inputs(native)["pixel_values"]
    assert_close(native(images).logits, ours(images).logits, "logits", 1e-6)
    old, back = tensors_of(ours), tensors_of(from_native(native))
    factors = [tensor for name, tensor in back.items() if name not in old]
    assert len(factors) == added
    assert all((factor == 1).all() for factor in factors)
