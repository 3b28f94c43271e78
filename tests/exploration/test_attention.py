"""Entropy and distance of attention of which both are known, and positions by the formulas of the papers."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from modeling.axes import PATCHES_ONLY
from modeling.test_pointers import COPYING
from modeling.toys import attending, inputs_of, pixels, shared_toy, toy
from refusals import refused
from scipy.stats import entropy as scipy_entropy
from transformers import GPT2Config, GPT2LMHeadModel

from exploration.test_page import TEXT, loaded
from exploration.toys import KINDS, doubled, example_of, recorded
from vanillaformer.exploration import attention, positions
from vanillaformer.exploration.attention import attention_rollout, head_distances, image_rollout
from vanillaformer.exploration.pictures import NotApplicable
from vanillaformer.exploration.recording import record, stacks
from vanillaformer.modeling.parts.position_schemes import Grid
from vanillaformer.modeling.parts.residual import RESIDUALS, PostNorm

WINDOWS = PATCHES_ONLY | {"position_embedding_type": "window_relative", "window_size": 2}


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


def test_windows_have_entropy_and_distance_and_cross_attention_has_no_distance():
    found = recorded("image_encoder", **WINDOWS)
    assert attention.head_entropies(found)["encoder"].shape == (2, found.model.config.num_attention_heads)
    assert (head_distances(found)["encoder"] <= math.sqrt(2)).all()
    assert set(head_distances(recorded("encoder_decoder"))) == {"encoder", "decoder"}


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


@pytest.mark.parametrize("pooling", [{}, {"num_register_tokens": 2}, PATCHES_ONLY])
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
    own = 0.25 / model.config.num_patches if pooling is PATCHES_ONLY else 0  # of a patch, by both residual connections
    torch.testing.assert_close(found, torch.full_like(found, 0.75 / tokens + own))


def test_the_map_is_that_of_the_attentions_and_of_images_of_other_sizes():
    model = toy("image_encoder")
    images = pixels(1, 16, 12)
    found = image_rollout(model, images, interpolate_pos_encoding=True)
    model.set_attn_implementation("eager")
    attentions = model(images, interpolate_pos_encoding=True, output_attentions=True).attentions
    torch.testing.assert_close(found.flatten(1), attention_rollout(attentions)[:, 0, 1:])
    assert found.shape == (1, 4, 3)


def test_the_picture_of_a_translation_has_its_tokens_by_those_of_the_source(tmp_path: Path, monkeypatch) -> None:
    drawn, draw = [], attention.large_map
    monkeypatch.setattr(attention, "large_map", lambda *parts, **more: drawn.append(parts) or draw(*parts, **more))
    opened = loaded("translation")
    model, tokenizer = opened.model, opened.tokenizer
    path = attention.draw_attention(model, tokenizer, TEXT, tmp_path / "map.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert model.config._attn_implementation == "sdpa"
    ((values, rows, columns, title),) = drawn
    source = tokenizer(TEXT, return_tensors="pt")
    output = model.generate(**source, num_beams=1)
    assert columns == [tokenizer.decode([token]) for token in source["input_ids"][0]]
    assert rows == [tokenizer.decode([token]) for token in output[0, 1:]]
    model.set_attn_implementation("eager")
    layers = model(**source, decoder_input_ids=output[:, :-1], output_attentions=True).cross_attentions
    np.testing.assert_allclose(values, layers[-1][0].mean(dim=0).detach(), rtol=1e-5, atol=1e-7)
    assert title.endswith(f": {TEXT}")


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
    frequencies = 10000.0 ** (-np.arange(0, 8, 2) / 8)  # of the head_dim
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


@pytest.mark.parametrize("fields", [{"position_embedding_type": "grid_relative"}, WINDOWS])
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
    message, model = f"='{scheme}': the model adds no position", toy("image_encoder", position_embedding_type=scheme)
    refused(message, positions.position_similarity, model)


def test_rotation_on_the_grid_depends_on_rows_and_columns_between():
    model = toy("image_encoder", position_embedding_type="rotary_2d")
    found, pairs = positions.grid_rotary_similarity(model), model.config.head_dim // 4
    frequencies = model.config.rope_2d_theta ** -(np.arange(pairs) / pairs)
    expected = (np.cos(1 * frequencies).mean() + np.cos(2 * frequencies).mean()) / 2
    assert (found[0, 0, 1, 2], found[1, 1, 1, 1]) == (pytest.approx(expected, rel=1e-5), pytest.approx(1))


@pytest.mark.parametrize(("kind", "scheme", "count"), [
    *(("encoder_decoder", scheme, 1) for scheme in ("sinusoidal", "rotary")),
    *(("encoder_decoder", scheme, 2) for scheme in ("learned", "alibi", "relative")),
    *(("image_encoder", scheme, 1) for scheme in ("learned", "sinusoidal_2d", "rotary_2d", "grid_relative")),
])  # fmt: skip
def test_each_scheme_is_drawn_once_where_both_stacks_are_alike(kind, scheme, count):
    drawings = positions.positions(example_of(recorded(kind, position_embedding_type=scheme)))
    assert len(drawings) == count  # a decoder's biases are of one side
    assert all(len(row) == len(drawing.header) for drawing in drawings for row in drawing.rows)
    assert all(math.isfinite(float(value)) for drawing in drawings for row in drawing.rows for value in row)


def test_without_positions_there_is_nothing_to_draw():
    example = example_of(recorded("decoder", position_embedding_type="none"))
    refused("position_embedding_type='none': there is nothing", positions.positions, example, error=NotApplicable)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_and_logits_are_those_of_the_model(kind):
    model, inputs = shared_toy(kind, {}), doubled(inputs_of(kind))
    found = record(model, inputs)
    assert model.config._attn_implementation == "sdpa"
    with attending(model, "eager"):
        expected = model(**inputs, output_attentions=True, output_hidden_states=True)
    assert torch.equal(found.logits, expected.logits)
    names = {"encoder_decoder": ["encoder", "decoder", "cross"], "decoder": ["decoder"]}.get(kind, ["encoder"])
    assert list(found.attentions) == names
    for name, layers in found.attentions.items():
        theirs = expected[f"{name}_attentions" if kind == "encoder_decoder" else "attentions"]
        assert len(layers) == len(theirs) == 2
        assert all(map(torch.equal, layers, theirs))
    states = expected["decoder_hidden_states" if kind == "encoder_decoder" else "hidden_states"]
    assert all(map(torch.equal, found.hidden_states[list(stacks(model))[-1]][:-1], states))


@pytest.mark.parametrize(
    ("placement", "layout"), [*((each, "sequential") for each in RESIDUALS), ("sandwich", "parallel")]
)
def test_sublayers_add_up_to_the_stream(placement, layout):
    model = toy("encoder_decoder", norm_placement=placement, block_layout=layout, layer_scale_init_value=0.5).double()
    found = record(model, inputs_of("encoder_decoder"))
    for name, stack in stacks(model).items():
        names = ["self_attn", "cross_attn", "mlp"] if name == "decoder" else ["self_attn", "mlp"]
        sublayers = found.sublayers[name]
        assert [(each.layer, each.name) for each in sublayers] == [(layer, each) for layer in (0, 1) for each in names]
        after = [each.x for each in sublayers[1:]] + [found.hidden_states[name][-1]]
        for each, result in zip(sublayers, after):
            residual = getattr(stack.layers[each.layer], f"{each.name}_residual")
            total = each.kept + each.added
            torch.testing.assert_close(residual.norm(total) if isinstance(residual, PostNorm) else total, result)
            assert "after" not in vars(residual)
            assert "branch" not in vars(residual)
    torch.testing.assert_close(found.sublayers["encoder"][0].x, found.hidden_states["encoder"][0])


def test_other_models_are_refused():
    model = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_embd=8, n_head=2, n_layer=1, bos_token_id=1, eos_token_id=1))
    refused(r"GPT2LMHeadModel is not a model of this package: convert it first .*--from\)", record, model, {})
