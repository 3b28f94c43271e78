"""Entropy and distance of attention, by attention of which both are known."""

import math

import numpy as np
import pytest
import torch
from modeling.test_pointers import COPYING
from scipy.stats import entropy as scipy_entropy

from exploration.toys import KINDS, recorded
from vanillaformer.exploration.attention import (
    attention_arrays,
    entropy,
    grid_distances,
    head_distances,
    head_entropies,
    mean_distance,
    uniform_entropies,
)
from vanillaformer.exploration.pictures import NotApplicable
from vanillaformer.modeling.parts.grid_positions import Grid

WINDOWS = {
    "use_cls_token": False, "image_pooling": "mean", "position_embedding_type": "window_relative", "window_size": 2,
}  # fmt: skip


def test_entropy_is_scipys():
    probabilities = torch.randn(2, 3, 5, 7, dtype=torch.double).softmax(dim=-1)
    probabilities[0, 0, 0] = torch.eye(7)[3]
    np.testing.assert_allclose(entropy(probabilities), scipy_entropy(probabilities, axis=-1), rtol=1e-5, atol=1e-6)
    assert entropy(torch.full((1, 8), 1 / 8)).item() == pytest.approx(math.log(8))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_the_maps_sum_to_1_and_no_head_is_more_uncertain_than_uniform_attention(kind):
    found = recorded(kind)
    arrays = attention_arrays(found)
    for maps in arrays.values():
        np.testing.assert_allclose(maps.sum(axis=-1), 1, rtol=1e-5)
    for name, values in head_entropies(found).items():
        np.testing.assert_allclose(values, scipy_entropy(arrays[name], axis=-1).mean(axis=-1), rtol=1e-4)
        assert (values < uniform_entropies(found)[name]).all()


def test_uniform_attention_has_the_entropy_of_the_number_of_its_keys():
    text = torch.full((1, 2, 6, 6), 1.0).tril()
    layers = (text / text.sum(dim=-1, keepdim=True),)
    found = recorded("decoder")
    found = type(found)(found.model, found.inputs, {"decoder": layers})
    expected = np.mean([math.log(count) for count in range(1, 7)])
    assert uniform_entropies(found)["decoder"] == pytest.approx(expected)
    np.testing.assert_allclose(head_entropies(found)["decoder"], [[expected] * 2], rtol=1e-6)
    # a token looks back at t tokens, t/2 on average
    np.testing.assert_allclose(head_distances(found)["decoder"], [[np.mean(np.arange(6) / 2)] * 2], rtol=1e-6)


def test_distance_leaves_out_what_has_none():
    distances = torch.tensor([[math.nan, math.nan, math.nan], [math.nan, 0, 5], [math.nan, 5, 0]])
    probabilities = torch.tensor([[1.0, 0, 0], [0.5, 0.25, 0.25], [0, 0.2, 0.8]])
    torch.testing.assert_close(
        mean_distance(probabilities, distances), torch.tensor([math.nan, 2.5, 1.0]), equal_nan=True
    )


def test_patches_are_as_far_apart_as_on_the_grid():
    found = grid_distances(Grid(2, 3, 1))
    assert found[0].isnan().all()
    assert found[:, 0].isnan().all()
    torch.testing.assert_close(found[1, 1:], torch.tensor([0, 1, 2, 1, math.sqrt(2), math.sqrt(5)]))


def test_windows_have_entropy_and_distance_but_no_map():
    found = recorded("image_encoder", **WINDOWS)
    assert head_entropies(found)["encoder"].shape == (2, found.model.config.num_attention_heads)
    assert (head_distances(found)["encoder"] <= math.sqrt(2)).all()
    with pytest.raises(NotApplicable, match="inside of windows"):
        attention_arrays(found)


def test_cross_attention_has_no_distance():
    assert set(head_distances(recorded("encoder_decoder"))) == {"encoder", "decoder"}
    with pytest.raises(NotApplicable, match="no self-attention"):
        head_distances(recorded("recurrent_encoder_decoder"))


def test_what_is_copied_sums_to_1():
    found = recorded("encoder_decoder", **COPYING)
    np.testing.assert_allclose(attention_arrays(found)["copy"].sum(axis=-1), 1, rtol=1e-5)
