"""Positions, by the formulas of the papers."""

import math

import numpy as np
import pytest
import torch
from modeling.toys import toy

from exploration.toys import example_of, recorded
from vanillaformer.exploration import positions
from vanillaformer.exploration.pictures import NotApplicable

WINDOWS = {"use_cls_token": False, "image_pooling": "mean", "window_size": 2}


def test_sinusoidal_vectors_are_alike_by_their_distance():
    stack = toy("decoder", position_embedding_type="sinusoidal").model
    found, width = positions.table_similarity(stack), stack.config.hidden_size
    frequencies = 10000.0 ** (-np.arange(width // 2) / (width // 2))
    for distance in (0, 1, 5):
        np.testing.assert_allclose(np.diagonal(found, distance), np.cos(distance * frequencies).mean(), rtol=1e-5)


def test_learned_vectors_are_the_rows_that_positions_use():
    stack = toy("decoder", position_embedding_type="learned", position_offset=2).model
    first, last = stack.embeddings.positions.embed_positions.weight.detach()[[2, -1]]
    found = positions.table_similarity(stack)
    assert len(found) == stack.config.max_position_embeddings
    assert found[0, -1] == pytest.approx(torch.cosine_similarity(first, last, dim=0).item(), rel=1e-5)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotation_over_distance(interleaved):
    stack = toy("decoder", position_embedding_type="rotary", rope_interleaved=interleaved).model
    width = stack.config.head_dim
    frequencies = 10000.0 ** (-np.arange(0, width, 2) / width)
    found = positions.rotary_cosines(stack, 9)
    np.testing.assert_allclose(found["full_attention"], np.cos(np.outer(np.arange(9), frequencies)), atol=1e-6)


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_alibi_falls_by_the_slopes_of_the_paper(kind):
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "hidden_size": 32}
    stack = toy(kind, position_embedding_type="alibi", **heads).model
    distances, found = positions.bias_over_distance(stack, 5)
    assert list(distances) == list(range(-4, 1 if kind == "decoder" else 5))
    slopes = 2.0 ** -np.arange(1, 9)
    np.testing.assert_allclose(found[0], -slopes[:, None] * abs(distances), rtol=1e-6)


def test_relative_bias_is_the_row_of_the_distance():
    stack = toy("decoder", position_embedding_type="relative", relative_attention_per_layer=True).model
    distances, found = positions.bias_over_distance(stack, 4)
    assert len(found) == 2
    for table, values in zip(stack.embeddings.positions.relative_attention_bias, found):
        np.testing.assert_allclose(values, table.weight.detach()[-distances].T)  # small distances have a bucket each


@pytest.mark.parametrize(
    "fields", [{"position_embedding_type": "grid_relative"}, {"position_embedding_type": "window_relative", **WINDOWS}]
)
def test_bias_on_the_grid_is_what_the_scores_get(fields):
    model = toy("image_encoder", **fields)
    table, prefix = model.model.embeddings.positions.relative_attention_bias[0], model.config.num_prefix_tokens
    found, scores = positions.grid_bias(model.model)[0], table(table.grid)[0].detach()
    height, width = table.grid.height, table.grid.width
    for query in range(height * width):
        row, column = divmod(query, width)
        expected = scores[:, prefix + query, prefix:].unflatten(1, (height, width))
        seen = found[:, height - 1 - row : 2 * height - 1 - row, width - 1 - column : 2 * width - 1 - column]
        np.testing.assert_allclose(seen, expected)


@pytest.mark.parametrize("scheme", ["learned", "sinusoidal", "sinusoidal_2d"])
def test_positions_are_like_themselves_and_symmetric(scheme):
    model = toy("image_encoder", position_embedding_type=scheme)
    (rows, columns), found = model.config.grid, positions.position_similarity(model)
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
        positions.position_similarity(toy("image_encoder", position_embedding_type=scheme))


def test_rotation_on_the_grid_depends_on_rows_and_columns_between():
    model = toy("image_encoder", position_embedding_type="rotary_2d")
    found, pairs = positions.grid_rotary_similarity(model), model.config.head_dim // 4
    frequencies = model.config.rope_2d_theta ** -(np.arange(pairs) / pairs)
    expected = (np.cos(1 * frequencies).mean() + np.cos(2 * frequencies).mean()) / 2
    assert (found[0, 0, 1, 2], found[1, 1, 1, 1]) == (pytest.approx(expected, rel=1e-5), pytest.approx(1))


SCHEMES = {
    "encoder_decoder": ("sinusoidal", "learned", "rotary", "alibi", "relative"),
    "image_encoder": ("learned", "sinusoidal_2d", "rotary_2d", "grid_relative"),
}
DRAWN = {"learned": 2, "relative": 2}


@pytest.mark.parametrize(("kind", "scheme"), [(kind, each) for kind, some in SCHEMES.items() for each in some])
def test_each_scheme_is_drawn_once_where_both_stacks_are_alike(kind, scheme):
    drawings = positions.positions(example_of(recorded(kind, position_embedding_type=scheme)))
    expected = DRAWN.get(scheme, 2 if scheme == "alibi" else 1) if kind == "encoder_decoder" else 1
    assert len(drawings) == expected  # a decoder's biases are of one side
    assert all(len(row) == len(drawing.header) for drawing in drawings for row in drawing.rows)
    assert all(math.isfinite(float(value)) for drawing in drawings for row in drawing.rows for value in row)


def test_without_positions_there_is_nothing_to_draw():
    with pytest.raises(NotApplicable, match="position_embedding_type='none': there is nothing to show"):
        positions.positions(example_of(recorded("decoder", position_embedding_type="none")))
    with pytest.raises(NotApplicable, match="one token after the other"):
        positions.positions(example_of(recorded("recurrent_encoder_decoder")))
