"""Saved image models are converted with their image processor, and pipelines and Auto classes read the new folder."""

import pytest
import torch
from modeling.toys import assert_close
from PIL import Image
from transformers import AutoImageProcessor, AutoModel, ViTImageProcessorPil, pipeline

import vanillaformer
from vanillaformer import VanillaImageEncoderForImageClassification, VanillaImageEncoderModel, preset
from vanillaformer.conversion import ARCHITECTURES, from_native, native_architectures, to_native
from vanillaformer.conversion.folders import convert_folder
from vanillaformer.conversion.mapping.weights import model_links, tensors_of, to_our_values

from .natives import IMAGE, IMAGE_CONFIGS, LABELS, Case, images_for, native_model, poison

SIZE = {"height": 12, "width": 12}
PIXELS = [[(40 * row, 20 * column, 7) for column in range(12)] for row in range(6)]


def picture() -> Image.Image:
    image = Image.new("RGB", (12, 6))
    image.putdata([color for row in PIXELS for color in row])
    return image


@pytest.fixture(scope="module")
def native_folder(tmp_path_factory):
    """A classifier by ViT on three channels, with its processor."""
    folder = tmp_path_factory.mktemp("vit") / "native"
    native_model(Case("vit", IMAGE | LABELS | {"num_channels": 3}, "image")).save_pretrained(folder)
    ViTImageProcessorPil(size=SIZE).save_pretrained(folder)
    return folder


def test_the_image_processor_comes_along_and_pipelines_give_the_same(native_folder, tmp_path):
    done = convert_folder(str(native_folder), tmp_path / "ours", back=True)
    assert done.target == "VanillaImageEncoderForImageClassification"
    assert done.error <= 1e-6
    assert done.carried == ["preprocessor_config.json"]
    again = convert_folder(str(tmp_path / "ours"), tmp_path / "again", to="vit")
    assert (again.target, again.carried) == ("ViTForImageClassification", ["preprocessor_config.json"])
    folders = [native_folder, tmp_path / "ours", tmp_path / "again"]
    values = [AutoImageProcessor.from_pretrained(folder)(picture())["pixel_values"][0] for folder in folders]
    assert all((each == values[0]).all() for each in values)
    scores = [
        {each["label"]: each["score"] for each in pipeline("image-classification", str(folder))(picture())}
        for folder in folders
    ]
    assert scores[1] == pytest.approx(scores[0], rel=1e-5)
    assert scores[2] == scores[0]


@pytest.mark.parametrize("architecture", ["vit", "dinov2", "beit"])
def test_a_folder_of_a_bare_model_whose_tensors_have_old_names(architecture, tmp_path):
    config = native_model(Case(architecture, IMAGE | {"num_channels": 3}, "base")).config
    AutoModel.from_config(config).save_pretrained(tmp_path / "native")
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
    AutoImageProcessor.from_pretrained(native_folder).save_pretrained(tmp_path)
    (states,) = pipeline("image-feature-extraction", str(tmp_path))(picture())
    (pooled,) = pipeline("image-feature-extraction", str(tmp_path), pool=True)(picture())
    inputs = AutoImageProcessor.from_pretrained(tmp_path)(picture(), return_tensors="pt")
    with torch.no_grad():
        expected = ours(**inputs)
    assert isinstance(ours, VanillaImageEncoderModel)
    assert_close(torch.tensor(states), expected.last_hidden_state[0], "states")
    assert_close(torch.tensor(pooled), expected.pooler_output[0], "pooled")


def test_a_linear_map_of_flattened_patches_becomes_a_convolution_and_a_single_stage_is_a_vit():
    native = native_model(Case("vit", IMAGE | LABELS, "image"))
    config = from_native(native).config
    config.patch_embedding = "linear"
    ours = VanillaImageEncoderForImageClassification(config).eval()
    back = to_native(ours, "vit")
    batch = images_for(Case("vit", IMAGE, "image"), native)
    assert_close(back(**batch).logits, ours(**batch).logits, "logits")
    weights = [
        tensors_of(from_native(back))[f"model.embeddings.patch_embeddings.projection.{name}"]
        for name in ("weight", "bias")
    ]
    own = ours.model.embeddings.patch_embeddings.projection
    assert torch.equal(weights[0].flatten(1), own.weight)
    assert torch.equal(weights[1], own.bias)
    assert "vit" in native_architectures(preset("vit-tiny", depths=[12]))


def test_a_model_without_layer_scale_is_a_dinov2_with_factors_of_1():
    fields = {name: value for name, value in IMAGE.items() if name != "encoder_stride"} | LABELS
    fields |= {"intermediate_size": 2 * IMAGE["hidden_size"], "image_pooling": "first_and_mean"}
    ours = VanillaImageEncoderForImageClassification(vanillaformer.VanillaImageEncoderConfig(**fields)).eval()
    poison(ours)
    assert native_architectures(ours.config) == ["dinov2"]
    native = to_native(ours)
    back = from_native(native)
    scales = [tensor for name, tensor in tensors_of(back).items() if "layer_scale" in name]
    assert len(scales) == 2 * ours.config.num_hidden_layers
    assert all((scale == 1).all() for scale in scales)
    batch = images_for(Case("dinov2", {}, "image"), native)
    outputs = native(**batch), ours(**batch)
    assert_close(outputs[1].logits, outputs[0].logits, "logits", 1e-6)
    for output in outputs:
        output.loss.backward()
    links = model_links(ARCHITECTURES["dinov2"], back, native, "image")
    native_gradients = {name: parameter.grad for name, parameter in native.named_parameters()}
    parameters = dict(ours.named_parameters())
    gradients = to_our_values(links, native_gradients, ours.config, set(parameters))
    assert gradients.keys() == parameters.keys()
    for name, expected in gradients.items():
        if not name.endswith("k_proj.bias"):  # nothing but rounding: softmax ignores it
            assert_close(parameters[name].grad, expected, name)


@pytest.mark.parametrize("fields", [{"depths": [2, 1], "window_size": 2}, {"num_hidden_layers": 2, "window_size": 4}])
def test_stages_whose_heads_double_are_a_swin(fields):
    config = preset("swin-tiny", image_size=16, hidden_size=12, num_labels=3, **{"depths": None} | fields)
    ours = VanillaImageEncoderForImageClassification(config).eval()
    poison(ours)
    assert native_architectures(config) == ["swin"]
    native = to_native(ours)
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    assert_close(native(images).logits, ours(images).logits, "logits", 1e-6)
