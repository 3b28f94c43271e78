"""Fields of the block: what is allowed, what is derived, and what the errors say."""

import copy
import json
from typing import Any, get_args

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig

from vanillaformer import VanillaDecoderConfig, VanillaEncoderConfig, VanillaEncoderDecoderConfig
from vanillaformer.configuration import options
from vanillaformer.configuration.names import FOREIGN_NAMES

CONFIGS = [VanillaEncoderDecoderConfig, VanillaDecoderConfig, VanillaEncoderConfig]
CHOICES = {
    "norm": options.Norm,
    "norm_placement": options.NormPlacement,
    "feed_forward": options.FeedForward,
    "position_embedding_type": options.PositionEmbedding,
    "sinusoidal_layout": options.SinusoidalLayout,
    "initialization": options.Initialization,
}
every_config = pytest.mark.parametrize("config_class", CONFIGS)


def error_of(config_class: type, **fields: Any) -> str:
    with pytest.raises((ValueError, StrictDataclassError)) as info:
        config_class(**fields)
    return str(info.value)


@every_config
@pytest.mark.parametrize("field", CHOICES)
def test_a_choice_takes_its_names_and_an_error_lists_them(config_class, field):
    for value in get_args(CHOICES[field]):
        assert getattr(config_class(**{field: value}), field) == value
    message = error_of(config_class, **{field: "nonsense"})
    for part in (field, "nonsense", *get_args(CHOICES[field])):
        assert part in message


@every_config
@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("hidden_size", 0, "at least 1"),
        ("hidden_size", -8, "at least 1"),
        ("hidden_size", 64.0, "int"),
        ("hidden_size", "64", "int"),
        ("hidden_size", True, "int"),
        ("num_hidden_layers", 0, "at least 1"),
        ("num_attention_heads", 0, "at least 1"),
        ("num_key_value_heads", 0, "at least 1"),
        ("head_dim", 0, "at least 1"),
        ("intermediate_size", 0, "at least 1"),
        ("intermediate_size", 12.5, "int"),
        ("max_position_embeddings", 0, "at least 1"),
        ("vocab_size", 0, "at least 1"),
        ("dropout", 1.0, "less than 1"),
        ("dropout", -0.1, "at least 0"),
        ("dropout", float("nan"), "at least 0"),
        ("attention_dropout", 1, "less than 1"),
        ("activation_dropout", 1.5, "less than 1"),
        ("norm_eps", -1e-5, "at least 0"),
        ("norm_eps", float("inf"), "finite"),
        ("norm_eps", float("nan"), "finite"),
        ("initializer_range", -0.02, "at least 0"),
        ("initializer_range", "small", "float"),
        ("hidden_act", "gelo", "gelu"),
        ("scale_embedding", "yes", "bool"),
        ("embedding_norm", 1, "bool"),
        ("attention_bias", None, "bool"),
        ("mlp_bias", "no", "bool"),
    ],
)
def test_an_error_names_the_field_the_value_and_what_is_allowed(config_class, field, value, allowed):
    message = error_of(config_class, **{field: value})
    for part in (field, str(value), allowed):
        assert part in message, f"{part!r} is missing from: {message}"


@every_config
@pytest.mark.parametrize("field", ["dropout", "attention_dropout", "activation_dropout", "initializer_range"])
def test_the_integer_zero_is_a_rate(config_class, field):
    assert getattr(config_class(**{field: 0}), field) == 0


@every_config
@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"hidden_size": 100, "num_attention_heads": 8}, ["hidden_size=100", "num_attention_heads=8", "head_dim"]),
        ({"num_attention_heads": 8, "num_key_value_heads": 3}, ["num_attention_heads=8", "num_key_value_heads=3"]),
        ({"position_embedding_type": "rotary", "head_dim": 7}, ["rotary", "even", "head_dim=7"]),
        (
            {"position_embedding_type": "sinusoidal", "hidden_size": 63, "head_dim": 8},
            ["sinusoidal", "even", "hidden_size=63"],
        ),
        ({"position_embedding_type": "learned", "rope_theta": 100.0}, ["rope_theta=100.0", "rotary", "learned"]),
        (
            {"position_embedding_type": "none", "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}},
            ["rope_parameters", "rotary", "none"],
        ),
        (
            {
                "position_embedding_type": "rotary",
                "rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.5},
            },
            ["partial_rotary_factor", "0.5"],
        ),
        (
            {
                "position_embedding_type": "rotary",
                "rope_parameters": {"rope_theta": 1e4, "rope_type": "spiral", "factor": 2.0},
            },
            ["rope_type", "spiral", "default", "yarn"],
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_fields_that_do_not_fit_together(config_class, fields, parts):
    message = error_of(config_class, **fields)
    for part in parts:
        assert part in message, f"{part!r} is missing from: {message}"


@every_config
@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("norm_placment", "norm_placement"),
        ("hiden_size", "hidden_size"),
        ("num_attention_head", "num_attention_heads"),
        ("initialisation", "initialization"),
        ("feedforward", "feed_forward"),
        ("rope_paramaters", "rope_parameters"),
        *FOREIGN_NAMES.items(),
    ],
)
def test_a_misspelled_or_foreign_name_is_answered_with_ours(config_class, wrong, meant):
    message = error_of(config_class, **{wrong: 123})
    for part in (wrong, meant, "123", config_class.__name__):
        assert part in message


def test_foreign_names_lead_to_fields_that_exist():
    for meant in FOREIGN_NAMES.values():
        assert hasattr(VanillaDecoderConfig(), meant)


@every_config
def test_names_of_transformers_pass(config_class):
    config = config_class(num_labels=7, attn_implementation="eager", name_or_path="x", problem_type="regression")
    assert config.num_labels == 7
    assert config._attn_implementation == "eager"
    assert (config.name_or_path, config.problem_type) == ("x", "regression")


@every_config
@pytest.mark.parametrize("name", ["layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps"])
def test_other_names_of_epsilon_are_the_same_field(config_class, name):
    config = config_class(**{name: 0.25})
    assert config.norm_eps == getattr(config, name) == 0.25


@every_config
def test_derived_fields(config_class):
    config = config_class(hidden_size=48, num_attention_heads=6)
    assert (config.num_key_value_heads, config.head_dim, config.intermediate_size) == (6, 8, 192)
    given = config_class(
        hidden_size=48, num_attention_heads=6, num_key_value_heads=2, head_dim=10, intermediate_size=50
    )
    assert (given.num_key_value_heads, given.head_dim, given.intermediate_size) == (2, 10, 50)


@every_config
def test_rope_parameters_are_there_with_rotary_positions_alone(config_class):
    assert config_class(position_embedding_type="rotary").rope_parameters["rope_theta"] == 10000.0
    assert config_class(position_embedding_type="rotary", rope_theta=77.0).rope_parameters["rope_theta"] == 77.0
    for scheme in set(get_args(options.PositionEmbedding)) - {"rotary"}:
        assert not hasattr(config_class(position_embedding_type=scheme), "rope_parameters")


@every_config
def test_saving_checks_fields_changed_after_construction(config_class, tmp_path):
    config = config_class()
    config.num_key_value_heads = 5
    with pytest.raises(StrictDataclassError, match="num_key_value_heads=5"):
        config.save_pretrained(tmp_path)


@every_config
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"position_embedding_type": "rotary", "rope_theta": 500.0},
        {
            "position_embedding_type": "rotary",
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64
            },
        },
        {"position_embedding_type": "sinusoidal", "sinusoidal_layout": "halves", "norm": "rms_norm", "num_labels": 5},
        {"hidden_size": 96, "num_attention_heads": 4, "head_dim": 10, "num_key_value_heads": 2, "dropout": 0},
    ],
    ids=["defaults", "rotary", "yarn", "sinusoidal", "sizes"],
)  # fmt: skip
def test_saved_and_loaded_by_the_auto_class_it_is_equal(config_class, fields, tmp_path):
    config = config_class(**fields)
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is config_class
    assert loaded.to_dict() == config.to_dict() | {"_name_or_path": str(tmp_path)}
    stored = json.loads((tmp_path / "config.json").read_text())
    assert stored["model_type"] == config_class.model_type
    assert not [key for key, value in stored.items() if isinstance(value, dict) and key not in (
        "rope_parameters", "id2label", "label2id"
    )], "config.json is not flat"  # fmt: skip
    assert config_class.from_dict(copy.deepcopy(config.to_dict())).to_dict() == config.to_dict()


@every_config
def test_an_auto_config_takes_overrides_and_checks_them(config_class, tmp_path):
    config_class().save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path, dropout=0.25).dropout == 0.25
    with pytest.raises((ValueError, StrictDataclassError), match="norm_placement"):
        AutoConfig.from_pretrained(tmp_path, norm_placement="sideways")
