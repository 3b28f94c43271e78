"""Windows, stages and two-dimensional positions: against native Swin, BEiT and DINOv2, and by properties."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import (
    BeitConfig,
    BeitModel,
    Dinov2Config,
    Dinov2ForImageClassification,
    SwinConfig,
    SwinForImageClassification,
)

from vanillaformer import (
    VanillaImageEncoderConfig,
    VanillaImageEncoderForImageClassification,
    VanillaImageEncoderForMaskedImageModeling,
    VanillaImageEncoderModel,
)
from vanillaformer.modeling.parts.grid_positions import Grid, axial_angles, relative_index
from vanillaformer.modeling.parts.windows import Windows, stage_windows

from .toys import assert_close, attending, pixels, plain_flex_attention, sharpen, toy

KIND = "image_encoder"
PATCHES_ONLY = {"use_cls_token": False, "image_pooling": "mean"}
SWIN = {**PATCHES_ONLY, "window_size": 2, "position_embedding_type": "window_relative"}


@torch.no_grad()
def copied(theirs: nn.Module, ours: nn.Module, names: dict[str, str]) -> dict[str, str]:
    """Copy their weights into our model; return their name of each of our parameters."""
    source, found = theirs.state_dict(), {}
    for name, parameter in ours.named_parameters():
        native = name
        for one, other in names.items():
            native = native.replace(one, other)
        found[name] = native
        parameter.copy_(source[native].view_as(parameter))
    assert len(found) == len(list(theirs.parameters()))
    return found


def assert_same(theirs: nn.Module, ours: nn.Module, found: dict[str, str], images: torch.Tensor) -> None:
    """Equal logits and gradients."""
    labels = torch.tensor([1, 4, 0])
    expected, actual = theirs(images, labels=labels), ours(images, labels=labels)
    assert_close(actual.logits, expected.logits, "logits", 1e-6)
    expected.loss.backward()
    actual.loss.backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        if not name.endswith("k_proj.bias"):  # nothing but rounding: softmax ignores it
            assert_close(parameter.grad, gradients[found[name]].view_as(parameter), name, 1e-5)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(("size", "window"), [(32, 4), (16, 2), (32, 8)])
def test_swin_logits_and_gradients(size, window, attention):
    depths = [2, 2] if window == 4 else [3, 1, 2]
    if window == 8:
        depths = [2]
    native = SwinConfig(
        image_size=size, patch_size=2 if window < 8 else 4, num_channels=2, embed_dim=16, depths=depths,
        num_heads=[2, 4, 8][: len(depths)], window_size=window, num_labels=5, mlp_ratio=2.0,
    )  # fmt: skip
    theirs = sharpen(SwinForImageClassification(native)).eval()
    fields = SWIN | {"window_size": window, "depths": depths, "patch_norm": True, "norm_eps": 1e-5, "num_labels": 5}
    config = VanillaImageEncoderConfig(
        image_size=size, patch_size=native.patch_size, num_channels=2, hidden_size=16, num_attention_heads=2,
        intermediate_size=32, **fields,
    )  # fmt: skip
    ours = VanillaImageEncoderForImageClassification(config).eval()
    stage_of = [(number, block) for number, depth in enumerate(depths) for block in range(depth)]
    names: dict[str, str] = {}
    for idx in reversed(range(len(stage_of))):
        number, block = stage_of[idx]
        layer = f"swin.encoder.layers.{number}.blocks.{block}"
        names[f"model.embeddings.positions.relative_attention_bias.{idx}.weight"] = (
            f"{layer}.attention.relative_position_bias.relative_position_bias_table"
        )
        names[f"model.layers.{idx}."] = f"{layer}."
    for number in range(len(depths) - 1):
        names[f"model.merges.{number}."] = f"swin.encoder.layers.{number}.downsample."
    names |= {
        "model.embeddings.patch_norm": "swin.embeddings.norm", "model.embeddings": "swin.embeddings",
        "self_attn_residual.norm": "layernorm_before", "mlp_residual.norm": "layernorm_after",
        "self_attn": "attention", "up_proj": "fc1", "down_proj": "fc2", "model.norm": "swin.layernorm",
    }  # fmt: skip
    found = copied(theirs, ours, names)
    for model in (theirs, ours):
        model.set_attn_implementation(attention)
    assert_same(theirs, ours, found, pixels(3, size, size))


def test_dinov2_logits_and_gradients():
    native = Dinov2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, mlp_ratio=2, image_size=12, patch_size=4,
        num_channels=2, num_labels=5, layerscale_value=0.3, use_swiglu_ffn=True, use_mask_token=False,
    )  # fmt: skip
    theirs = sharpen(Dinov2ForImageClassification(native)).eval()
    ours = VanillaImageEncoderForImageClassification(
        VanillaImageEncoderConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=12,
            patch_size=4, num_channels=2, num_labels=5, layer_scale_init_value=0.3, image_pooling="first_and_mean",
            feed_forward="gated", hidden_act="silu",
        )
    ).eval()  # fmt: skip
    names = {
        "model.embeddings.cls_token.weight": "dinov2.embeddings.cls_token",
        "model.embeddings.positions.embed_positions.weight": "dinov2.embeddings.position_embeddings",
        "model.embeddings": "dinov2.embeddings", "model.layers": "dinov2.encoder.layer",
        "self_attn_residual.norm": "norm1", "mlp_residual.norm": "norm2",
        "self_attn_residual.layer_scale.weight": "layer_scale1.lambda1",
        "mlp_residual.layer_scale.weight": "layer_scale2.lambda1",
        "self_attn": "attention", "model.norm": "dinov2.layernorm",
    }  # fmt: skip
    assert_same(theirs, ours, copied(theirs, ours, names), pixels(3, 12, 12))


@pytest.mark.parametrize("shared", [False, True])
def test_beit_states_and_gradients_at_two_sizes(shared):
    native = BeitConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=12, patch_size=4,
        num_channels=2, use_relative_position_bias=not shared, use_shared_relative_position_bias=shared,
        layer_scale_init_value=0.1, layer_norm_eps=1e-6, use_mask_token=False,
    )  # fmt: skip
    theirs = sharpen(BeitModel(native)).eval()
    ours = VanillaImageEncoderModel(
        VanillaImageEncoderConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=12,
            patch_size=4, num_channels=2, position_embedding_type="grid_relative", layer_scale_init_value=0.1,
            relative_attention_per_layer=not shared, attention_bias=["q_proj", "v_proj", "o_proj"], final_norm=False,
            image_pooling="mean", pooler_norm=True,
        )
    ).eval()  # fmt: skip
    bias = "shared_position_bias" if shared else "layers.{}.relative_position_bias"
    names = {
        f"embeddings.positions.relative_attention_bias.{idx}.weight": bias.format(idx)
        + ".relative_position_bias_table"
        for idx in range(2)
    }
    names |= {
        "embeddings.cls_token.weight": "embeddings.cls_token", "pooler.norm": "pooler.layernorm",
        "self_attn_residual.norm": "layernorm_before", "mlp_residual.norm": "layernorm_after",
        "self_attn_residual.layer_scale.weight": "lambda_1", "mlp_residual.layer_scale.weight": "lambda_2",
        "self_attn": "attention", "up_proj": "fc1", "down_proj": "fc2",
    }  # fmt: skip
    found = copied(theirs, ours, names)
    for images in (pixels(2, 12, 12), pixels(2, 20, 16)):
        expected, actual = theirs(images), ours(images, interpolate_pos_encoding=True)
        assert_close(actual.last_hidden_state, expected.last_hidden_state, "states", 1e-6)
        assert_close(actual.pooler_output, expected.pooler_output, "pooled", 1e-6)
        for model, outputs in ((theirs, expected), (ours, actual)):
            model.zero_grad()
            outputs.pooler_output.pow(2).sum().backward()
        gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
        for name, parameter in ours.named_parameters():
            assert_close(parameter.grad, gradients[found[name]].view_as(parameter), name)


GRIDS = [((4, 6), (2, 2)), ((5, 7), (3, 2)), ((3, 3), (3, 3)), ((2, 5), (2, 4))]


@pytest.mark.parametrize(("grid", "size"), GRIDS)
def test_windows_are_undone_and_see_neighbors_of_the_image_only(grid, size):
    patches = torch.arange(2 * grid[0] * grid[1] * 3.0).view(2, -1, 3)
    for windows in stage_windows(grid, size):
        split = windows.split(patches)
        assert split.shape == (2 * windows.count, size[0] * size[1], 3)
        assert torch.equal(windows.join(split), patches)
        places = windows.split(1.0 + torch.arange(grid[0] * grid[1]).view(1, -1, 1)).squeeze(-1)
        regions = windows.regions(patches[:1], None)
        for row, window in enumerate(places):
            for one in range(len(window)):
                for other in range(len(window)):
                    see = regions is None or regions[row, one] == regions[row, other]
                    a, b = int(window[one]) - 1, int(window[other]) - 1
                    if a < 0 or b < 0:
                        assert see == (a == b)
                        continue
                    far = (abs(a // grid[1] - b // grid[1]), abs(a % grid[1] - b % grid[1]))
                    assert see == (far[0] < size[0] and far[1] < size[1])


def test_windows_are_no_larger_than_the_grid_and_alone_are_not_shifted():
    config = VanillaImageEncoderConfig(
        image_size=[16, 32],
        patch_size=4,
        hidden_size=16,
        num_attention_heads=2,
        depths=[1, 1, 1],
        **SWIN | {"window_size": 3},
    )
    assert [stage.grid for stage in config.stages] == [(4, 8), (2, 4), (1, 2)]
    assert [stage.window for stage in config.stages] == [(3, 3), (2, 3), (1, 2)]
    assert stage_windows((2, 4), (2, 3))[1] == Windows((2, 4), (2, 3), (0, 1))


@pytest.mark.parametrize("fields", [{"depths": [1, 1]}, {"depths": [2], "block_layout": "parallel"}])
def test_padding_of_windows_has_no_influence_and_all_attention_agrees(fields, monkeypatch):
    """A grid of 5 by 7 patches, which windows of 3 by 3 do not divide."""
    plain_flex_attention(monkeypatch)
    model = toy(KIND, image_size=[20, 28], **SWIN | {"window_size": 3}, **fields)
    images, results = pixels(2, 20, 28), []
    for implementation in ("eager", "sdpa", "flex_attention"):
        with torch.no_grad(), attending(model, implementation):
            results.append(model(images).logits)
    assert_close(results[1], results[0], "sdpa")
    assert_close(results[2], results[0], "flex")
    original = Windows.split

    def noisy(self, x):
        padded = original(self, x)
        real = original(self, torch.ones(1, x.shape[1], 1)).bool().repeat(x.shape[0], 1, 1)
        return torch.where(real, padded, torch.full_like(padded, 7.0)) if x.is_floating_point() else padded

    monkeypatch.setattr(Windows, "split", noisy)
    with torch.no_grad(), attending(model, "eager"):
        assert_close(model(images).logits, results[0], "with other padding")


def test_a_mask_reaches_windows_and_merged_patches():
    model = toy(KIND, image_size=[16, 16], depths=[1, 1], **SWIN)
    images, changed = pixels(2, 16, 16), pixels(2, 16, 16)
    changed[:, :, :8, :8] += 1.0
    mask = torch.ones(2, 16)
    mask[:, [0, 1, 4, 5]] = 0  # what becomes one patch
    one, other = model(images, attention_mask=mask).logits, model(changed, attention_mask=mask).logits
    assert_close(one, other, "logits")
    assert not torch.allclose(model(images).logits, model(changed).logits)


def test_a_masked_image_model_with_stages_returns_an_image():
    model = toy(KIND, VanillaImageEncoderForMaskedImageModeling, image_size=[20, 28], depths=[1, 1], **SWIN)
    masked = torch.zeros(2, 35, dtype=torch.bool)
    masked[:, ::2] = True
    outputs = model(pixels(2, 20, 28), masked, output_hidden_states=True)
    assert outputs.reconstruction.shape == (2, 2, 20, 28)
    assert torch.isfinite(outputs.loss)
    assert [tuple(state.shape) for state in outputs.hidden_states] == [(2, 35, 24), (2, 35, 24), (2, 12, 48)]


def test_sinusoids_of_rows_and_columns():
    """A few lines from the paper's code: half of the columns for the row, half for the column."""
    model = toy(KIND, VanillaImageEncoderModel, position_embedding_type="sinusoidal_2d", use_distillation_token=True)
    added = model.embeddings.positions.embed(torch.zeros(1, 8, 24), Grid(2, 3, 2))[0]
    assert not added[:2].any()
    for patch in range(6):
        for half, place in enumerate((patch // 3, patch % 3)):
            omega = 1.0 / 10000 ** (torch.arange(6, dtype=torch.float64) / 6)
            expected = torch.cat(((place * omega).sin(), (place * omega).cos()))
            torch.testing.assert_close(
                added[2 + patch, 12 * half : 12 * half + 12].double(), expected, atol=1e-6, rtol=0
            )


def test_rotary_scores_depend_on_the_distance_in_rows_and_columns():
    model = toy(KIND, VanillaImageEncoderModel, position_embedding_type="rotary_2d")
    scheme, rotate = model.embeddings.positions, model.layers[0].self_attn.rotate
    q, k = torch.randn(1, 1, 1, 8).expand(1, 1, 13, 8), torch.randn(1, 1, 1, 8).expand(1, 1, 13, 8)
    turned_q, turned_k = rotate(q, k, scheme.position_embeddings(q, Grid(3, 4, 1))["full_attention"])
    scores = (turned_q @ turned_k.mT)[0, 0]
    assert torch.equal(turned_q[0, 0, 0], q[0, 0, 0])
    index = relative_index(Grid(3, 4, 0))
    by_distance = {int(i): score for i, score in zip(index.flatten(), scores[1:, 1:].flatten())}
    assert_close(torch.stack([by_distance[int(i)] for i in index.flatten()]), scores[1:, 1:].flatten(), "scores")
    assert len({round(float(score), 4) for score in by_distance.values()}) > 30
    assert axial_angles(Grid(3, 4, 1), 2, 100.0, None)[1 + 1 * 4 + 2].tolist() == pytest.approx([1, 0.1, 2, 0.2])


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"window_size": 2}, ["window_size=2", "use_cls_token", "num_register_tokens"]),
        ({"depths": [1, 1]}, ["depths=[1, 1]", "use_cls_token"]),
        ({"position_embedding_type": "window_relative"}, ["window_relative", "window_size"]),
        (SWIN | {"position_embedding_type": "grid_relative"}, ["grid_relative", "window_size=2"]),
        (SWIN | {"position_embedding_type": "alibi", "depths": [1, 1]}, ["alibi", "window_relative", "learned"]),
        (SWIN | {"depths": [2, 2], "num_hidden_layers": 3}, ["num_hidden_layers=3", "[2, 2]"]),
        (SWIN | {"depths": []}, ["depths", "[]"]),
        (SWIN | {"depths": [0, 1]}, ["depths", "[0, 1]"]),
        (SWIN | {"depths": [1, 1], "stage_heads": [8]}, ["stage_heads=[8]", "[1, 1]"]),
        (SWIN | {"depths": [1, 1], "stage_heads": [8, 7]}, ["stage_heads=[8, 7]"]),
        (SWIN | {"attn_implementation": "flash_attention_2"}, ["flash_attention_2", "window_size=2", "sdpa"]),
        ({"position_embedding_type": "rotary_2d", "head_dim": 6}, ["rotary_2d", "head_dim", "6"]),
        ({"position_embedding_type": "sinusoidal_2d", "hidden_size": 6, "head_dim": 4}, ["sinusoidal_2d", "6"]),
        ({"rope_2d_theta": 5.0}, ["rope_2d_theta=5.0", "rotary_2d"]),
    ],
)
def test_a_config_error_names_the_field_the_value_and_what_is_allowed(fields, parts):
    with pytest.raises((ValueError, StrictDataclassError)) as info:
        VanillaImageEncoderConfig(**fields)
    for part in parts:
        assert part in str(info.value), f"{part!r} is missing from: {info.value}"


def test_two_dimensional_positions_are_for_images():
    from vanillaformer import VanillaEncoderConfig

    with pytest.raises(StrictDataclassError, match="rotary_2d"):
        VanillaEncoderConfig(position_embedding_type="rotary_2d")
