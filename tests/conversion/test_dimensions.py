"""A model whose dimensions stand in another order: every table of positions, every part and every head."""

import pytest
import torch
from modeling.axes import CONFIGS, is_allowed, single_values
from modeling.toys import KINDS, assert_close, inputs_of, sharpen, toy_config
from transformers import PreTrainedModel

from vanillaformer import VanillaEncoderDecoderConfig
from vanillaformer.conversion import ARCHITECTURES
from vanillaformer.conversion.mapping.architecture import OUR_CLASSES
from vanillaformer.conversion.mapping.dimensions import COLUMNS, WIDTH_AXES, module_of, order, reordered
from vanillaformer.conversion.mapping.fitting import adjustments_towards, fit, with_fields
from vanillaformer.conversion.mapping.weights import convert_weights, tensors_of
from vanillaformer.modeling.parts.positions import SinusoidalPositions

SINUSOIDAL = {"position_embedding_type": "sinusoidal"}
LAYOUTS = [(old, new) for old in COLUMNS for new in COLUMNS if old != new]
PARTS = [
    pytest.param(kind, fields | SINUSOIDAL, id=f"{kind}-{number}")
    for kind in KINDS
    for number, fields in enumerate(single_values(kind))
    if fields.get("position_embedding_type", "sinusoidal") == "sinusoidal"
    and "sinusoidal_layout" not in fields
    and is_allowed(kind, fields | SINUSOIDAL)
]
HEADS = [
    pytest.param(kind, head, fields, id=f"{kind}-{head}-{number}")
    for kind, config_class in CONFIGS.items()
    for head in OUR_CLASSES[config_class]
    for number, fields in enumerate([{}, {"classifier_act": "tanh", "classifier_norm": True}, {"wide_max_ngram": 2}])
    if head not in ("base", "lm") and is_allowed(kind, fields | SINUSOIDAL)
]


def assert_the_other_layout_computes_the_same(model: PreTrainedModel, kind: str) -> None:
    sharpen(model).eval()
    other = convert_weights(model, with_fields(model.config, sinusoidal_layout="halves")).eval()
    inputs = inputs_of(kind)
    with torch.no_grad():
        actual, expected = other(**inputs), model(**inputs)
    for name in ("logits", "prediction_logits", "seq_relationship_logits"):
        if name in expected:
            assert_close(actual[name], expected[name], name)
    moved = [name for name, tensor in tensors_of(model).items() if not torch.equal(tensor, tensors_of(other)[name])]
    assert any("embed_tokens" in name for name in moved)


@pytest.mark.parametrize(("old", "new"), LAYOUTS)
def test_the_order_turns_one_table_into_the_other(old, new):
    tables = [
        SinusoidalPositions(toy_config("decoder", **SINUSOIDAL, sinusoidal_layout=layout)).table
        for layout in (old, new)
    ]
    assert not torch.equal(*tables)
    assert torch.equal(tables[0][:, order(old, new, tables[0].shape[1])], tables[1])


@pytest.mark.parametrize(("kind", "fields"), PARTS)
def test_every_part_of_a_model_follows(kind, fields):
    assert_the_other_layout_computes_the_same(KINDS[kind][1](toy_config(kind, **fields)), kind)


@pytest.mark.parametrize(("kind", "head", "fields"), HEADS)
def test_every_head_follows(kind, head, fields):
    config = toy_config(kind, **SINUSOIDAL, **fields)
    assert_the_other_layout_computes_the_same(OUR_CLASSES[type(config)][head](config), kind)


def test_what_is_tested_has_everything_that_the_table_names():
    models = [KINDS[kind][1](toy_config(kind, **fields)) for kind, fields in (entry.values for entry in PARTS)]
    for kind, head, fields in (entry.values for entry in HEADS):
        models.append(OUR_CLASSES[CONFIGS[kind]][head](toy_config(kind, **SINUSOIDAL, **fields)))
    assert {module_of(name) for model in models for name in tensors_of(model)} == set(WIDTH_AXES)


def test_a_tensor_of_unknown_axes_is_refused():
    with pytest.raises(ValueError, match=r"model\.layers\.0\.mixer\.kernel .*interleaved.* 'halves'.*embed_tokens"):
        reordered("model.layers.0.mixer.kernel", torch.ones(4), "interleaved", "halves")


def test_other_wavelengths_are_no_other_order():
    config = VanillaEncoderDecoderConfig(sinusoidal_layout="tensor2tensor")
    assert adjustments_towards(config, {"sinusoidal_layout": ("tensor2tensor", "halves")}, "lm") == {}
    obstacles = fit(ARCHITECTURES["marian"], config, "lm").mismatches
    assert obstacles == ["sinusoidal_layout='tensor2tensor', where marian has 'halves'"]


def test_the_bare_stack_gives_its_dimensions_out_and_keeps_their_order():
    config = VanillaEncoderDecoderConfig()
    assert fit(ARCHITECTURES["marian"], config, "lm").mismatches == []
    assert fit(ARCHITECTURES["marian"], config, "base").mismatches == [
        "sinusoidal_layout='interleaved', where marian has 'halves'"
    ]
