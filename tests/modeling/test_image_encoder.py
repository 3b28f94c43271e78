"""Image models by properties that need no reference; conversion/test_parity.py has native ones, same weights."""

import itertools

import pytest
import torch
from refusals import refused

from vanillaformer import (
    VanillaImageEncoderConfig,
    VanillaImageEncoderForImageClassification,
    VanillaImageEncoderForMaskedImageModeling,
    VanillaImageEncoderModel,
)
from vanillaformer.modeling.parts.position_schemes import Grid, axial_angles, relative_index
from vanillaformer.modeling.parts.windows import Windows, stage_windows

from . import toys
from .axes import PATCHES_ONLY, mixture, single_values

KIND = "image_encoder"
EARLY = {"patch_embedding": "early_convolutions"}


def test_early_convolutions_are_torchs_and_refuse_what_they_cannot_do():
    model = toys.toy(KIND, **EARLY).double()
    stem, images = model.base_model.embeddings.patch_embeddings, toys.pixels(2, 8, 8).double()
    first, second = stem.convolutions
    width = model.config.hidden_size
    x = torch.nn.functional.conv2d(images, first.weight, first.bias, stride=2, padding=1)
    norm, x = stem.norms[0], x.permute(0, 2, 3, 1)
    x = torch.nn.functional.layer_norm(x, [width // 2], norm.weight, norm.bias, 1e-6)
    x = torch.nn.functional.conv2d(x.relu().permute(0, 3, 1, 2), second.weight, second.bias, stride=2, padding=1)
    x = torch.nn.functional.layer_norm(x.permute(0, 2, 3, 1), [width], stem.norms[1].weight, stem.norms[1].bias, 1e-6)
    toys.assert_close(stem(images), stem.projection(x.relu().flatten(1, 2)), "patches", 1e-12)
    assert stem(images).shape == (2, 4, width)
    message = "so that masked ones would be seen"
    refused(message, toys.toy, KIND, VanillaImageEncoderForMaskedImageModeling, **EARLY)


@pytest.mark.parametrize("initialization", ["normal", "xavier", "t5"])
def test_both_kinds_of_patches_are_drawn_from_one_distribution(initialization):
    torch.manual_seed(0)
    fields = {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 1, "initialization": initialization}
    deviations = []
    for patch_embedding in ("convolution", "linear"):
        config = toys.toy_config(KIND, **fields, patch_embedding=patch_embedding)
        projection = VanillaImageEncoderModel(config).embeddings.patch_embeddings.projection
        assert not projection.bias.any()
        deviations.append(projection.weight.std().item())
    assert deviations[0] == pytest.approx(deviations[1], rel=0.05)


@pytest.mark.parametrize("overrides", [*single_values(KIND), *range(40)])
def test_every_choice_attends_alike_and_a_batch_is_its_images(overrides):
    model = toys.toy(KIND, **(mixture(KIND, overrides) if isinstance(overrides, int) else overrides))
    config = model.config
    images = toys.pixels(3, *(side * config.patch_size for side in config.grid), config.num_channels)
    with torch.no_grad(), toys.attending(model, "eager"):
        batch = model(images, output_hidden_states=True)
        single = torch.cat([model(image.unsqueeze(0)).logits for image in images])
        toys.assert_close(single, batch.logits, "one image at a time")
        assert len(batch.hidden_states) == config.num_hidden_layers + 1
    for implementation in toys.ways_to_attend(model, "sdpa"):
        with torch.no_grad(), toys.attending(model, implementation):
            toys.assert_close(model(images).logits, batch.logits, implementation)


def test_masked_patches_and_tokens_have_no_influence():
    model = toys.toy(KIND, VanillaImageEncoderForMaskedImageModeling, num_register_tokens=2)
    images, changed = toys.pixels(2), toys.pixels(2)
    changed[:, :, :4, 4:8] += 1.0  # patch 1
    masked = torch.zeros(2, 6, dtype=torch.bool)
    masked[:, 1] = True
    one, other = model(images, masked), model(changed, masked)
    assert torch.equal(one.reconstruction, other.reconstruction)
    assert not torch.equal(model(images).reconstruction, model(changed).reconstruction)
    classifier = toys.toy(KIND, image_pooling="first_and_mean", num_register_tokens=2)
    mask = torch.ones(2, 9)
    mask[:, 4] = 0  # class token, two registers, patch 0, patch 1
    logits = [classifier(pixels, attention_mask=mask).logits for pixels in (images, changed)]
    toys.assert_close(*logits, "logits")


def test_pixels_are_cast_to_the_weights_dtype_and_states_are_finite():
    model = toys.toy(KIND).to(torch.bfloat16)
    assert model(toys.pixels()).logits.dtype == torch.bfloat16
    assert torch.isfinite(model(toys.pixels()).logits).all()


@pytest.mark.parametrize(("inputs", "message"), [
    ({"pixel_values": toys.pixels(channels=3)}, "3 channels, but num_channels=2"),
    ({"pixel_values": toys.pixels(height=12)}, "12 by 12 pixels, but image_size is 8 by 12: .*interpolate"),
    ({"pixel_values": toys.pixels(height=9), "interpolate_pos_encoding": True}, "9 by 12 .*multiples of patch_size=4"),
    ({"pixel_values": toys.pixels(), "bool_masked_pos": torch.zeros(3, 6)}, "use_mask_token=True"),
])  # fmt: skip
def test_images_that_do_not_fit_are_refused(inputs, message):
    refused(message, toys.toy(KIND, VanillaImageEncoderModel), **inputs)


def test_sizes_follow_an_override_and_survive_a_file():
    config = VanillaImageEncoderConfig(image_size=(32, 48), patch_size=8)
    assert (config.grid, config.max_position_embeddings) == ((4, 6), 25)
    assert VanillaImageEncoderConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()
    assert VanillaImageEncoderConfig.from_dict(config.to_dict(), image_size=64).max_position_embeddings == 65


def test_a_masked_image_model_becomes_a_classifier_and_refuses_a_mask_of_another_shape(tmp_path):
    toys.toy(KIND, VanillaImageEncoderForMaskedImageModeling).save_pretrained(tmp_path)
    model, info = VanillaImageEncoderForImageClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert set(info["missing_keys"]) == {"classifier.weight", "classifier.bias"}
    assert set(info["unexpected_keys"]) == {"decoder.weight", "decoder.bias"}
    assert torch.isfinite(model.eval()(toys.pixels()).logits).all()
    model = toys.toy(KIND, VanillaImageEncoderForMaskedImageModeling)
    refused(r"bool_masked_pos must have the shape .*\(3, 6\), got \(3, 7\)", model, toys.pixels(), torch.zeros(3, 7))


def test_parallel_plans_name_what_a_model_has():
    vit, swin = (toys.toy(KIND, **toys.IMAGE_SHAPES[shape]).model for shape in ("vit", "swin"))
    assert vit.fsdp_plan.keys() == {"layers.*", "norm"}
    assert swin.fsdp_plan.keys() == {"layers.*", "merges.*", "norm"}
    feed_forward = {"layers.*.mlp.up_proj", "layers.*.mlp.down_proj"}
    assert vit.tp_plan.keys() == feed_forward | {f"layers.*.self_attn.{name}_proj" for name in "qkvo"}
    assert swin.tp_plan.keys() == feed_forward  # a bias per head keeps attention whole


SWIN = {**PATCHES_ONLY, "window_size": 2, "position_embedding_type": "window_relative"}


@pytest.mark.parametrize(("grid", "size"), [
    ((4, 6), (2, 2)), ((5, 7), (3, 2)), ((3, 3), (3, 3)), ((2, 5), (2, 4)),
])  # fmt: skip
def test_windows_are_undone_and_see_neighbors_of_the_image_only(grid, size):
    patches = torch.arange(2 * grid[0] * grid[1] * 3.0).view(2, -1, 3)
    for windows in stage_windows(grid, size):
        split = windows.split(patches)
        assert split.shape == (2 * windows.count, size[0] * size[1], 3)
        assert torch.equal(windows.join(split), patches)
        places = windows.split(1.0 + torch.arange(grid[0] * grid[1]).view(1, -1, 1)).squeeze(-1)
        regions = windows.regions(patches[:1], None)
        for row, window in enumerate(places.int() - 1):
            for (one, a), (other, b) in itertools.product(enumerate(window.tolist()), repeat=2):
                near = abs(a // grid[1] - b // grid[1]) < size[0] and abs(a % grid[1] - b % grid[1]) < size[1]
                see = regions is None or regions[row, one] == regions[row, other]
                assert see == (a == b if min(a, b) < 0 else near)


def test_windows_are_no_larger_than_the_grid_and_alone_are_not_shifted():
    fields = SWIN | {"window_size": 3, "depths": [1, 1, 1], "num_hidden_layers": 3}
    config = toys.toy_config(KIND, image_size=[16, 32], **fields)
    assert [stage.grid for stage in config.stages] == [(4, 8), (2, 4), (1, 2)]
    assert [stage.window for stage in config.stages] == [(3, 3), (2, 3), (1, 2)]
    assert stage_windows((2, 4), (2, 3))[1] == Windows((2, 4), (2, 3), (0, 1))


@pytest.mark.parametrize("fields", [{"depths": [1, 1]}, {"depths": [2], "block_layout": "parallel"}])
def test_padding_of_windows_has_no_influence_and_all_attention_agrees(fields, monkeypatch):
    """A grid of 5 by 7 patches, which windows of 3 by 3 do not divide."""
    toys.plain_flex_attention(monkeypatch)
    model = toys.toy(KIND, image_size=[20, 28], **SWIN | {"window_size": 3}, **fields)
    images, results = toys.pixels(2, 20, 28), []
    for implementation in ("eager", "sdpa", "flex_attention"):
        with torch.no_grad(), toys.attending(model, implementation):
            results.append(model(images).logits)
    toys.assert_close(results[1], results[0], "sdpa")
    toys.assert_close(results[2], results[0], "flex")
    original = Windows.split

    def noisy(self, x):
        padded = original(self, x)
        real = original(self, torch.ones(1, x.shape[1], 1)).bool().repeat(x.shape[0], 1, 1)
        return torch.where(real, padded, torch.full_like(padded, 7.0)) if x.is_floating_point() else padded

    monkeypatch.setattr(Windows, "split", noisy)
    with torch.no_grad(), toys.attending(model, "eager"):
        toys.assert_close(model(images).logits, results[0], "with other padding")


def test_a_mask_reaches_windows_and_merged_patches():
    model = toys.toy(KIND, image_size=[16, 16], depths=[1, 1], **SWIN)
    images, changed = toys.pixels(2, 16, 16), toys.pixels(2, 16, 16)
    changed[:, :, :8, :8] += 1.0
    mask = torch.ones(2, 16)
    mask[:, [0, 1, 4, 5]] = 0  # what becomes one patch
    one, other = model(images, attention_mask=mask).logits, model(changed, attention_mask=mask).logits
    toys.assert_close(one, other, "logits")
    assert not torch.allclose(model(images).logits, model(changed).logits)


def test_sinusoids_of_rows_and_columns():
    """A few lines from the paper's code: half of the columns for the row, half for the column."""
    fields = {"position_embedding_type": "sinusoidal_2d", "use_distillation_token": True}
    model = toys.toy(KIND, VanillaImageEncoderModel, **fields)
    added = model.embeddings.positions.embed(torch.zeros(1, 8, 24), Grid(2, 3, 2))[0]
    assert not added[:2].any()
    for patch in range(6):
        for half, place in enumerate((patch // 3, patch % 3)):
            omega = 1.0 / 10000 ** (torch.arange(6, dtype=torch.float64) / 6)
            expected = torch.cat(((place * omega).sin(), (place * omega).cos()))
            found = added[2 + patch, 12 * half : 12 * half + 12].double()
            torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_rotary_scores_depend_on_the_distance_in_rows_and_columns():
    model = toys.toy(KIND, VanillaImageEncoderModel, position_embedding_type="rotary_2d")
    scheme, rotate = model.embeddings.positions, model.layers[0].self_attn.rotate
    q, k = torch.randn(1, 1, 1, 8).expand(1, 1, 13, 8), torch.randn(1, 1, 1, 8).expand(1, 1, 13, 8)
    turned_q, turned_k = rotate(q, k, scheme.position_embeddings(q, Grid(3, 4, 1))["full_attention"])
    scores = (turned_q @ turned_k.mT)[0, 0]
    assert torch.equal(turned_q[0, 0, 0], q[0, 0, 0])
    index = relative_index(Grid(3, 4, 0))
    by_distance = {int(i): score for i, score in zip(index.flatten(), scores[1:, 1:].flatten())}
    toys.assert_close(torch.stack([by_distance[int(i)] for i in index.flatten()]), scores[1:, 1:].flatten(), "scores")
    assert len({round(float(score), 4) for score in by_distance.values()}) > 30
    assert axial_angles(Grid(3, 4, 1), 2, 100.0, None)[1 + 1 * 4 + 2].tolist() == pytest.approx([1, 0.1, 2, 0.2])


@pytest.mark.parametrize(("fields", "parts"), [
    ({"image_size": 30, "patch_size": 4}, ["image_size=30", "patch_size=4"]),
    ({"image_size": [32, 30], "patch_size": 4}, ["[32, 30]", "patch_size=4"]),
    ({"image_size": [32]}, ["image_size", "[32]", "list of two"]),
    ({"image_size": 0}, ["image_size", "0"]), ({"image_size": 2**40}, ["image_size", "65,536"]),
    ({"use_cls_token": False}, ["image_pooling='first'", "use_cls_token"]),
    ({"use_cls_token": False, "use_distillation_token": True, "image_pooling": "mean"}, ["use_cls_token"]),
    ({"max_position_embeddings": 12}, ["max_position_embeddings=12", "197"]),
    ({"position_offset": 2}, ["position_offset=2", "images"]), ({"logit_scale": 0.5}, ["logit_scale=0.5", "images"]),
    ({"image_pooling": "last"}, ["last", "first", "mean", "first_and_mean"]),
    ({"img_size": 32}, ["img_size", "image_size"]),
    (EARLY | {"image_size": 12, "patch_size": 6}, ["patch_size=6 must be a power of 2"]),
    (EARLY | {"use_mask_token": True}, ["so that masked ones would be seen"]),
    ({"window_size": 2}, ["window_size=2", "use_cls_token", "num_register_tokens"]),
    ({"depths": [1, 1]}, ["depths=[1, 1]", "use_cls_token"]),
    ({"position_embedding_type": "window_relative"}, ["window_relative", "window_size"]),
    (SWIN | {"position_embedding_type": "grid_relative"}, ["grid_relative", "window_size=2"]),
    (SWIN | {"position_embedding_type": "alibi", "depths": [1, 1]}, ["alibi", "window_relative", "learned"]),
    (SWIN | {"depths": [2, 2], "num_hidden_layers": 3}, ["num_hidden_layers=3", "[2, 2]"]),
    (SWIN | {"depths": []}, ["depths", "[]"]), (SWIN | {"depths": [0, 1]}, ["depths", "[0, 1]"]),
    (SWIN | {"depths": [1, 1], "stage_heads": [8]}, ["stage_heads=[8]", "[1, 1]"]),
    (SWIN | {"depths": [1, 1], "stage_heads": [8, 7]}, ["stage_heads=[8, 7]"]),
    (SWIN | {"attn_implementation": "flash_attention_2"}, ["flash_attention_2", "window_size=2", "sdpa"]),
    ({"position_embedding_type": "rotary_2d", "head_dim": 6}, ["rotary_2d", "head_dim", "6"]),
    ({"position_embedding_type": "sinusoidal_2d", "hidden_size": 6, "head_dim": 4}, ["sinusoidal_2d", "6"]),
    ({"rope_2d_theta": 5.0}, ["rope_2d_theta=5.0", "rotary_2d"]),
])  # fmt: skip
def test_a_config_error_names_the_field_the_value_and_what_is_allowed(fields, parts):
    toys.assert_refused(parts, VanillaImageEncoderConfig, **fields)
