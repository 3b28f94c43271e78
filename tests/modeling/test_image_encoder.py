"""Image models: against native ones with the same weights, and by properties that need no reference."""

from collections.abc import Callable

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import ViTConfig, ViTForImageClassification, ViTForMaskedImageModeling, ViTModel

from vanillaformer import (
    VanillaImageEncoderConfig,
    VanillaImageEncoderForImageClassification,
    VanillaImageEncoderForMaskedImageModeling,
    VanillaImageEncoderModel,
)

from .axes import cover, is_allowed, single_values
from .toys import assert_close, attending, name_of, pixels, sharpen, toy, ways_to_attend

KIND = "image_encoder"
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
IMAGE = {"image_size": 12, "patch_size": 4, "num_channels": 2, "num_labels": 5}
TOLERANCE = 1e-5
# Our names in native ViT's
VIT = {
    "model.embeddings.cls_token.weight": "vit.embeddings.cls_token",
    "model.embeddings.mask_token.weight": "vit.embeddings.mask_token",
    "model.embeddings.positions.embed_positions.weight": "vit.embeddings.position_embeddings",
    "model.embeddings.patch_embeddings": "vit.embeddings.patch_embeddings",
    "model.layers": "vit.layers",
    "self_attn_residual.norm": "layernorm_before",
    "mlp_residual.norm": "layernorm_after",
    "self_attn": "attention",
    "up_proj": "fc1",
    "down_proj": "fc2",
    "model.norm": "vit.layernorm",
    "model.pooler": "vit.pooler",
    "decoder": "decoder.0",
}


def native_name(name: str) -> str:
    for ours, theirs in VIT.items():
        name = name.replace(ours, theirs)
    return name


@torch.no_grad()
def vit_pair(native_class: type, our_class: type, prefix: str = "", **fields) -> tuple[nn.Module, nn.Module]:
    """A native ViT and ours with its weights."""
    theirs = sharpen(native_class(ViTConfig(**SHAPE, **IMAGE, layer_norm_eps=1e-6, encoder_stride=4))).eval()
    ours = our_class(VanillaImageEncoderConfig(**SHAPE, **IMAGE, **fields)).eval()
    source = theirs.state_dict()
    for name, parameter in ours.named_parameters():
        parameter.copy_(source[native_name(prefix + name).removeprefix("vit." if prefix else "")].view_as(parameter))
    assert len(list(ours.parameters())) == len(source)
    return theirs, ours


def assert_gradients(theirs: nn.Module, ours: nn.Module) -> None:
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        if not name.endswith("k_proj.bias"):  # nothing but rounding: softmax ignores it
            assert_close(parameter.grad, expected[native_name(name)].view_as(parameter), name, TOLERANCE)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_vit_logits_loss_and_gradients(attention):
    theirs, ours = vit_pair(ViTForImageClassification, VanillaImageEncoderForImageClassification)
    inputs = {"pixel_values": pixels(3, 12, 12), "labels": torch.tensor([1, 4, 0]), "output_hidden_states": True}
    for model in (theirs, ours):
        model.set_attn_implementation(attention)
    expected, actual = theirs(**inputs), ours(**inputs)
    assert_close(actual.logits, expected.logits, "logits", 1e-6)
    assert_close(actual.loss, expected.loss, "loss", 1e-6)
    for number, (one, other) in enumerate(zip(actual.hidden_states, expected.hidden_states, strict=True)):
        assert_close(one, other, f"hidden state {number}", 1e-6)
    expected.loss.backward()
    actual.loss.backward()
    assert_gradients(theirs, ours)


def test_vit_with_masked_tokens_other_sizes_and_its_pooler():
    theirs, ours = vit_pair(ViTModel, VanillaImageEncoderModel, "model.", pooler_act="tanh")
    mask = torch.ones(2, 10)
    mask[:, 7:] = 0
    for inputs in (
        {"pixel_values": pixels(2, 12, 12), "attention_mask": mask},
        {"pixel_values": pixels(2, 24, 16), "interpolate_pos_encoding": True},
        {"pixel_values": pixels(2, 8, 8), "interpolate_pos_encoding": True},
    ):
        expected, actual = theirs(**inputs), ours(**inputs)
        assert_close(actual.last_hidden_state, expected.last_hidden_state, "states", 1e-6)
        assert_close(actual.pooler_output, expected.pooler_output, "pooled", 1e-6)


def test_simmim_loss_reconstruction_and_gradients():
    theirs, ours = vit_pair(ViTForMaskedImageModeling, VanillaImageEncoderForMaskedImageModeling)
    masked = torch.rand(3, 9, generator=torch.Generator().manual_seed(0)) < 0.6
    expected, actual = (model(pixels(3, 12, 12), bool_masked_pos=masked) for model in (theirs, ours))
    assert_close(actual.reconstruction, expected.reconstruction, "reconstruction", 1e-6)
    assert_close(actual.loss, expected.loss, "loss", 1e-6)
    expected.loss.backward()
    actual.loss.backward()
    assert_gradients(theirs, ours)
    assert ours(pixels(3, 12, 12)).loss is None


def test_a_linear_map_of_flattened_patches_is_the_convolution():
    convolution, linear = toy(KIND), toy(KIND, patch_embedding="linear")
    weights = convolution.state_dict()
    name = "model.embeddings.patch_embeddings.projection.weight"
    linear.load_state_dict(weights | {name: weights[name].flatten(1)})
    assert_close(linear(pixels()).logits, convolution(pixels()).logits, "logits", 1e-6)


def test_early_convolutions_are_torchs():
    model = toy(KIND, patch_embedding="early_convolutions", patch_size=4).double()
    stem, images = model.base_model.embeddings.patch_embeddings, pixels(2, 8, 8).double()
    first, second = stem.convolutions
    width = model.config.hidden_size
    x = torch.nn.functional.conv2d(images, first.weight, first.bias, stride=2, padding=1)
    x = torch.nn.functional.layer_norm(
        x.permute(0, 2, 3, 1), [width // 2], stem.norms[0].weight, stem.norms[0].bias, 1e-6
    )
    x = torch.nn.functional.conv2d(x.relu().permute(0, 3, 1, 2), second.weight, second.bias, stride=2, padding=1)
    x = torch.nn.functional.layer_norm(x.permute(0, 2, 3, 1), [width], stem.norms[1].weight, stem.norms[1].bias, 1e-6)
    assert_close(stem(images), stem.projection(x.relu().flatten(1, 2)), "patches", 1e-12)
    assert stem(images).shape == (2, 4, width)


def test_early_convolutions_refuse_what_they_cannot_do():
    early = {"patch_embedding": "early_convolutions"}
    for fields, message in (
        ({"image_size": 12, "patch_size": 6}, "patch_size=6 must be a power of 2"),
        ({"use_mask_token": True}, "which would see those that are masked"),
    ):
        with pytest.raises(StrictDataclassError, match=message):
            VanillaImageEncoderConfig(**IMAGE | early | fields)
    with pytest.raises(ValueError, match="which would see those that are masked"):
        toy(KIND, VanillaImageEncoderForMaskedImageModeling, **early)


@pytest.mark.parametrize("initialization", ["normal", "xavier", "t5"])
def test_both_kinds_of_patches_are_drawn_from_one_distribution(initialization):
    torch.manual_seed(0)
    fields = {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 1, "initialization": initialization}
    deviations = []
    for patch_embedding in ("convolution", "linear"):
        config = VanillaImageEncoderConfig(**fields, **IMAGE, patch_embedding=patch_embedding)
        projection = VanillaImageEncoderModel(config).embeddings.patch_embeddings.projection
        assert not projection.bias.any()
        deviations.append(projection.weight.std().item())
    assert deviations[0] == pytest.approx(deviations[1], rel=0.05)


TOYS = [fields for fields in single_values(KIND) if is_allowed(KIND, fields)]


@pytest.mark.parametrize("overrides", TOYS + cover(KIND)[::4], ids=name_of)
def test_every_choice_attends_alike_and_a_batch_is_its_images(overrides):
    model = toy(KIND, **overrides)
    config = model.config
    images = pixels(3, *(side * config.patch_size for side in config.grid), config.num_channels)
    with torch.no_grad(), attending(model, "eager"):
        batch = model(images, output_hidden_states=True)
        single = torch.cat([model(image.unsqueeze(0)).logits for image in images])
        assert_close(single, batch.logits, "one image at a time")
        assert len(batch.hidden_states) == config.num_hidden_layers + 1
    for implementation in ways_to_attend(model, "sdpa"):
        with torch.no_grad(), attending(model, implementation):
            assert_close(model(images).logits, batch.logits, implementation)


@pytest.mark.parametrize("overrides", TOYS[::5], ids=name_of)
def test_a_saved_model_is_the_same(overrides, tmp_path, monkeypatch):
    monkeypatch.setenv("VANILLAFORMER_REMOTE_CODE", "0")
    model = toy(KIND, **overrides)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    images = pixels(2, *(side * model.config.patch_size for side in model.config.grid), model.config.num_channels)
    assert again.config.to_diff_dict() == model.config.to_diff_dict()
    assert torch.equal(again(images).logits, model(images).logits)


def test_masked_patches_and_tokens_have_no_influence():
    model = toy(KIND, VanillaImageEncoderForMaskedImageModeling, num_register_tokens=2)
    images, changed = pixels(2), pixels(2)
    changed[:, :, :4, 4:8] += 1.0  # patch 1
    masked = torch.zeros(2, 6, dtype=torch.bool)
    masked[:, 1] = True
    one, other = model(images, masked), model(changed, masked)
    assert torch.equal(one.reconstruction, other.reconstruction)
    assert not torch.equal(model(images).reconstruction, model(changed).reconstruction)
    classifier = toy(KIND, image_pooling="first_and_mean", num_register_tokens=2)
    mask = torch.ones(2, 9)
    mask[:, 4] = 0  # class token, two registers, patch 0, patch 1
    assert_close(classifier(images, attention_mask=mask).logits, classifier(changed, attention_mask=mask).logits, "")


def test_pooling_reads_the_tokens_that_it_names():
    model = toy(KIND, VanillaImageEncoderModel, use_distillation_token=True, num_register_tokens=3)
    states = model(pixels()).last_hidden_state
    assert states.shape == (3, 1 + 1 + 3 + 6, 24)
    pooled: dict[str, Callable] = {
        "first": lambda: states[:, 0],
        "mean": lambda: states[:, 5:].mean(1),
        "first_and_mean": lambda: torch.cat((states[:, 0], states[:, 5:].mean(1)), -1),
    }
    for pooling, expected in pooled.items():
        other = toy(
            KIND, VanillaImageEncoderModel, use_distillation_token=True, num_register_tokens=3, image_pooling=pooling
        )
        other.load_state_dict(model.state_dict())
        assert torch.equal(other(pixels()).pooler_output, expected())


def test_register_tokens_have_no_position_and_the_others_do():
    model = toy(KIND, use_distillation_token=True, num_register_tokens=3)
    assert model.model.embeddings.positions.embed_positions.weight.shape == (1 + 1 + 6, 24)
    embedded, grid = model.model.embeddings(pixels(), None, None)
    assert grid == (2, 3)
    assert torch.equal(embedded[0, 2:5], model.model.embeddings.register_tokens.weight)


def test_pixels_are_cast_to_the_weights_dtype_and_states_are_finite():
    model = toy(KIND).to(torch.bfloat16)
    assert model(pixels()).logits.dtype == torch.bfloat16
    assert torch.isfinite(model(pixels()).logits).all()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"pixel_values": pixels(channels=3)}, "3 channels, but num_channels=2"),
        (
            {"pixel_values": pixels(height=12)},
            "12 by 12 pixels, but image_size is 8 by 12: .*interpolate",
        ),
        ({"pixel_values": pixels(height=9), "interpolate_pos_encoding": True}, "9 by 12 .*multiples of patch_size=4"),
        ({"pixel_values": pixels(), "bool_masked_pos": torch.zeros(3, 6)}, "use_mask_token=True"),
    ],
)
def test_images_that_do_not_fit_are_refused(inputs, message):
    with pytest.raises(ValueError, match=message):
        toy(KIND, VanillaImageEncoderModel)(**inputs)


def test_a_mask_of_another_shape_is_refused():
    model = toy(KIND, VanillaImageEncoderForMaskedImageModeling)
    with pytest.raises(ValueError, match=r"bool_masked_pos must have the shape .*\(3, 6\), got \(3, 7\)"):
        model(pixels(), torch.zeros(3, 7))


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"image_size": 30, "patch_size": 4}, ["image_size=30", "patch_size=4"]),
        ({"image_size": [32, 30], "patch_size": 4}, ["[32, 30]", "patch_size=4"]),
        ({"image_size": [32]}, ["image_size", "[32]", "list of two"]),
        ({"image_size": 0}, ["image_size", "0"]),
        ({"image_size": 2**40}, ["image_size", "65,536"]),
        ({"use_cls_token": False}, ["image_pooling='first'", "use_cls_token"]),
        ({"use_cls_token": False, "use_distillation_token": True, "image_pooling": "mean"}, ["use_cls_token"]),
        ({"max_position_embeddings": 12}, ["max_position_embeddings=12", "197"]),
        ({"position_offset": 2}, ["position_offset=2", "images"]),
        ({"logit_scale": 0.5}, ["logit_scale=0.5", "images"]),
        ({"image_pooling": "last"}, ["last", "first", "mean", "first_and_mean"]),
        ({"img_size": 32}, ["img_size", "image_size"]),
    ],
)
def test_a_config_error_names_the_field_the_value_and_what_is_allowed(fields, parts):
    with pytest.raises((ValueError, StrictDataclassError)) as info:
        VanillaImageEncoderConfig(**fields)
    for part in parts:
        assert part in str(info.value), f"{part!r} is missing from: {info.value}"


def test_sizes_follow_an_override_and_survive_a_file():
    config = VanillaImageEncoderConfig(image_size=(32, 48), patch_size=8)
    assert (config.grid, config.max_position_embeddings) == ((4, 6), 25)
    again = VanillaImageEncoderConfig.from_dict(config.to_dict())
    assert again.to_dict() == config.to_dict()
    assert VanillaImageEncoderConfig.from_dict(config.to_dict(), image_size=64).max_position_embeddings == 65


def test_a_masked_image_model_becomes_a_classifier(tmp_path):
    toy(KIND, VanillaImageEncoderForMaskedImageModeling).save_pretrained(tmp_path)
    model, info = VanillaImageEncoderForImageClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert set(info["missing_keys"]) == {"classifier.weight", "classifier.bias"}
    assert set(info["unexpected_keys"]) == {"decoder.weight", "decoder.bias"}
    assert torch.isfinite(model.eval()(pixels()).logits).all()
