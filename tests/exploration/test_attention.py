"""Entropy and distance of attention of which both are known, and roll-out by what it is for any weights."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from modeling.test_pointers import COPYING
from modeling.toys import pixels, toy
from scipy.stats import entropy as scipy_entropy

from exploration.toys import KINDS, recorded
from vanillaformer.exploration import attention
from vanillaformer.exploration.attention import attention_rollout, entropy, head_distances, image_rollout
from vanillaformer.exploration.pictures import NotApplicable
from vanillaformer.modeling.parts.grid_positions import Grid

MEAN = {"use_cls_token": False, "image_pooling": "mean"}
WINDOWS = MEAN | {"position_embedding_type": "window_relative", "window_size": 2}


def test_entropy_is_scipys():
    probabilities = torch.randn(2, 3, 5, 7, dtype=torch.double).softmax(dim=-1)
    probabilities[0, 0, 0] = torch.eye(7)[3]
    np.testing.assert_allclose(entropy(probabilities), scipy_entropy(probabilities, axis=-1), rtol=1e-5, atol=1e-6)
    assert entropy(torch.full((1, 8), 1 / 8)).item() == pytest.approx(math.log(8))


@pytest.mark.parametrize(("kind", "fields"), [*((kind, {}) for kind in KINDS), ("encoder_decoder", COPYING)])
def test_rows_of_the_maps_sum_to_1_and_no_head_is_more_uncertain_than_uniform_attention(kind, fields):
    found = recorded(kind, **fields)
    arrays = attention.attention_arrays(found)
    assert ("copy" in arrays) == bool(fields)
    for maps in arrays.values():
        np.testing.assert_allclose(maps.sum(axis=-1), 1, rtol=1e-5)
    for name, values in attention.head_entropies(found).items():
        np.testing.assert_allclose(values, scipy_entropy(arrays[name], axis=-1).mean(axis=-1), rtol=1e-4)
        assert (values < attention.uniform_entropies(found)[name]).all()


def test_uniform_attention_has_the_entropy_of_the_number_of_its_keys():
    text = torch.full((1, 2, 6, 6), 1.0).tril()
    layers = (text / text.sum(dim=-1, keepdim=True),)
    found = recorded("decoder")
    found = type(found)(found.model, found.inputs, {"decoder": layers})
    expected = np.mean([math.log(count) for count in range(1, 7)])
    assert attention.uniform_entropies(found)["decoder"] == pytest.approx(expected)
    np.testing.assert_allclose(attention.head_entropies(found)["decoder"], [[expected] * 2], rtol=1e-6)
    # a token looks back at t tokens, t/2 on average
    np.testing.assert_allclose(head_distances(found)["decoder"], [[np.mean(np.arange(6) / 2)] * 2], rtol=1e-6)


def test_distance_leaves_out_what_has_none_and_patches_are_as_far_apart_as_on_the_grid():
    distances = torch.tensor([[math.nan, math.nan, math.nan], [math.nan, 0, 5], [math.nan, 5, 0]])
    probabilities = torch.tensor([[1.0, 0, 0], [0.5, 0.25, 0.25], [0, 0.2, 0.8]])
    found, expected = attention.mean_distance(probabilities, distances), torch.tensor([math.nan, 2.5, 1.0])
    torch.testing.assert_close(found, expected, equal_nan=True)
    found = attention.grid_distances(Grid(2, 3, 1))
    assert found[0].isnan().all()
    assert found[:, 0].isnan().all()
    torch.testing.assert_close(found[1, 1:], torch.tensor([0, 1, 2, 1, math.sqrt(2), math.sqrt(5)]))


def test_windows_have_entropy_and_distance_but_no_map_and_cross_attention_has_no_distance():
    found = recorded("image_encoder", **WINDOWS)
    assert attention.head_entropies(found)["encoder"].shape == (2, found.model.config.num_attention_heads)
    assert (head_distances(found)["encoder"] <= math.sqrt(2)).all()
    with pytest.raises(NotApplicable, match="inside windows"):
        attention.attention_arrays(found)
    assert set(head_distances(recorded("encoder_decoder"))) == {"encoder", "decoder"}
    with pytest.raises(NotApplicable, match="no self-attention"):
        head_distances(recorded("recurrent_encoder_decoder"))


def test_rows_of_a_rollout_sum_to_1_and_later_layers_read_what_earlier_ones_wrote():
    attentions = [torch.randn(2, 3, 7, 7).softmax(dim=-1) for _ in range(4)]
    found = attention_rollout(attentions)
    assert found.shape == (2, 7, 7)
    torch.testing.assert_close(found.sum(dim=-1), torch.ones(2, 7))
    itself = torch.eye(7).expand(2, 3, 7, 7)
    torch.testing.assert_close(attention_rollout([itself, *attentions, itself]), found)
    # Token 1 copies token 0, then token 2 copies token 1: a quarter of token 2 is token 0.
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


def test_the_picture_of_a_translation_has_its_tokens_by_those_of_the_source(tmp_path: Path, monkeypatch) -> None:
    class Words:
        """A tokenizer of one text."""

        def __call__(self, texts: list[str], return_tensors: str) -> dict[str, torch.Tensor]:
            return {"input_ids": torch.tensor([[5, 9, 7, 8, 6]])}

        def decode(self, tokens: list[torch.Tensor]) -> str:
            return f"word {int(tokens[0])}"

    drawn: list[Any] = []
    large_map = attention.large_map
    monkeypatch.setattr(
        attention, "large_map", lambda *parts, **options: drawn.append(parts) or large_map(*parts, **options)
    )
    model, tokenizer = toy("encoder_decoder").eval(), Words()
    before = model.config._attn_implementation
    path = attention.draw_attention(model, tokenizer, "a text", tmp_path / "map.png")  # type: ignore[arg-type]
    assert path.read_bytes().startswith(b"\x89PNG")
    assert model.config._attn_implementation == before
    ((values, rows, columns, title),) = drawn
    source = tokenizer(["a text"], "pt")
    output = model.generate(**source, num_beams=1)
    assert columns == [f"word {token}" for token in source["input_ids"][0].tolist()]
    assert rows == [f"word {token}" for token in output[0, 1:].tolist()]
    model.set_attn_implementation("eager")
    layers = model(**source, decoder_input_ids=output[:, :-1], output_attentions=True).cross_attentions
    np.testing.assert_allclose(values, layers[-1][0].mean(dim=0).detach(), rtol=1e-5, atol=1e-7)
    assert title.endswith(": a text")
