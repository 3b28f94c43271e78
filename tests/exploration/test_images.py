"""Attention roll-out and similarity of positions, by the properties that they have for any weights."""

import pytest
import torch
from modeling.toys import pixels, toy

from vanillaformer.exploration.attention import attention_rollout, image_rollout
from vanillaformer.exploration.positions import position_similarity

MEAN = {"use_cls_token": False, "image_pooling": "mean"}
WINDOWS = MEAN | {"position_embedding_type": "window_relative", "window_size": 2}


def test_rows_of_a_rollout_sum_to_1_and_a_layer_that_attends_to_itself_changes_nothing():
    attentions = [torch.randn(2, 3, 7, 7).softmax(dim=-1) for _ in range(4)]
    found = attention_rollout(attentions)
    assert found.shape == (2, 7, 7)
    torch.testing.assert_close(found.sum(dim=-1), torch.ones(2, 7))
    itself = torch.eye(7).expand(2, 3, 7, 7)
    torch.testing.assert_close(attention_rollout([itself, *attentions, itself]), found)


def test_later_layers_read_what_earlier_ones_wrote():
    """Token 1 copies token 0, then token 2 copies token 1: a quarter of token 2 is token 0."""
    first, second = torch.eye(3).repeat(2, 1, 1, 1, 1)
    first[..., 1, :], second[..., 2, :] = torch.eye(3)[0], torch.eye(3)[1]
    torch.testing.assert_close(attention_rollout([first, second])[0, 2], torch.tensor([0.25, 0.25, 0.5]))


@pytest.mark.parametrize("pooling", [{}, {"num_register_tokens": 2}, MEAN])
def test_uniform_attention_gives_all_patches_as_much(pooling):
    model = toy("image_encoder", **pooling)
    for layer in model.model.layers:
        for part in layer.self_attn.q_proj.parameters():
            part.data.zero_()
    found = image_rollout(model.train(), pixels(2))
    assert found.shape == (2, *model.config.grid)
    assert model.training
    assert model.config._attn_implementation == "sdpa"
    tokens = model.config.num_patches + model.config.num_prefix_tokens
    own = 0.25 / model.config.num_patches if pooling is MEAN else 0  # of a patch, through both residual connections
    torch.testing.assert_close(found, torch.full_like(found, 0.75 / tokens + own))


def test_the_map_is_that_of_the_attentions_and_of_images_of_other_sizes():
    model = toy("image_encoder")
    images = pixels(1, 16, 12)
    found = image_rollout(model, images, interpolate_pos_encoding=True)
    model.set_attn_implementation("eager")
    attentions = model(images, interpolate_pos_encoding=True, output_attentions=True).attentions
    torch.testing.assert_close(found.flatten(1), attention_rollout(attentions)[:, 0, 1:])
    assert found.shape == (1, 4, 3)


@pytest.mark.parametrize(("fields", "name"), [(WINDOWS, "window_size=2"), (WINDOWS | {"depths": [1, 1]}, "window_s")])
def test_windows_are_refused(fields, name):
    model = toy("image_encoder", **fields)
    with pytest.raises(ValueError, match=f"{name}.*: roll-out needs layers in which all patches meet"):
        image_rollout(model, pixels(1))


@pytest.mark.parametrize("scheme", ["learned", "sinusoidal", "sinusoidal_2d"])
def test_positions_are_like_themselves_and_symmetric(scheme):
    model = toy("image_encoder", position_embedding_type=scheme)
    (rows, columns), found = model.config.grid, position_similarity(model)
    assert found.shape == (rows, columns, rows, columns)
    square = found.reshape(rows * columns, -1)
    torch.testing.assert_close(square, square.T)
    torch.testing.assert_close(square.diagonal(), torch.ones(rows * columns))
    if scheme == "learned":
        table = model.model.embeddings.positions.embed_positions.weight[1:]
        torch.testing.assert_close(square[0, 1], torch.cosine_similarity(table[0], table[1], dim=0))


@pytest.mark.parametrize("scheme", ["rotary_2d", "none"])
def test_positions_without_vectors_are_refused(scheme):
    with pytest.raises(ValueError, match=f"position_embedding_type='{scheme}': the model adds no position vectors"):
        position_similarity(toy("image_encoder", position_embedding_type=scheme))
