"""Fields of the block: what is allowed, what is derived, and what the errors say."""

import dataclasses
import json
from functools import partial
from typing import Any, get_args

import pytest
import torch
from modeling.axes import names_of
from modeling.toys import assert_refused
from transformers import AutoConfig

import vanillaformer
from vanillaformer import VanillaDecoderConfig, VanillaEncoderConfig, VanillaEncoderDecoderConfig
from vanillaformer.configuration import options
from vanillaformer.configuration.base import TENSOR_PARALLEL_PLAN
from vanillaformer.configuration.names import FOREIGN_NAMES, GENERATION_NAMES
from vanillaformer.configuration.package import VERSION_KEY
from vanillaformer.modeling import VanillaDecoderModel

CONFIGS = [VanillaEncoderDecoderConfig, VanillaDecoderConfig, VanillaEncoderConfig]
ALL_CONFIGS = [*CONFIGS, vanillaformer.VanillaImageEncoderConfig, vanillaformer.VanillaRecurrentEncoderDecoderConfig]
every_config = pytest.mark.parametrize("config_class", CONFIGS)


def positioned(scheme: str, **fields: Any) -> dict[str, Any]:
    return {"position_embedding_type": scheme, **fields}


@pytest.mark.parametrize("config_class", ALL_CONFIGS)
def test_a_wrong_choice_is_answered_with_the_names(config_class):
    for field in dataclasses.fields(config_class):
        if field.name in options.OPTIONS:
            assert_refused([field.name, "nonsense", *names_of(field.type)], config_class, **{field.name: "nonsense"})


# One of each rule; `modeling/test_fuzz.py` has wrong values of every field
@every_config
@pytest.mark.parametrize(("allowed", "wrong"), {
    "at least 1": [("hidden_size", 0), ("hidden_size", -8), ("sliding_window", 0)],
    "at least 0": [("dropout", -0.1), ("norm_eps", -1e-5), ("initializer_range", -0.02), ("position_offset", -1)],
    "greater than 0": [("attention_scale", 0), ("attn_logit_softcapping", 0.0), ("final_logit_softcapping", -1.0)],
    "less than 1": [("dropout", 1.0), ("attention_dropout", 1), ("activation_dropout", 1.5)],
    "finite": [("norm_eps", float("inf")), ("logit_scale", float("inf"))],
    "int": [("hidden_size", 64.0), ("hidden_size", True)], "float": [("initializer_range", "small")],
    "bool": [("scale_embedding", "yes"), ("attention_bias", None)], "gelu": [("hidden_act", "gelo")],
    "o_proj": [("attention_bias", ["q_proj", "out_proj"])], "different": [("attention_bias", ["q_proj", "q_proj"])],
}.items())  # fmt: skip
def test_an_error_names_the_field_the_value_and_what_is_allowed(config_class, allowed, wrong):
    for field, value in wrong:
        assert_refused([field, str(value), allowed], config_class, **{field: value})


@every_config
@pytest.mark.parametrize(("fields", "parts"), [
    ({"hidden_size": 100, "num_attention_heads": 8}, ["hidden_size=100", "num_attention_heads=8", "head_dim"]),
    ({"num_attention_heads": 8, "num_key_value_heads": 3}, ["num_attention_heads=8", "num_key_value_heads=3"]),
    (positioned("rotary", head_dim=7), ["rotary", "even", "head_dim=7"]),
    (positioned("sinusoidal", hidden_size=63, head_dim=8), ["sinusoidal", "even", "hidden_size"]),
    (positioned("learned", rope_theta=100.0), ["rope_theta=100.0", "rotary", "learned"]),
    *((positioned("none", **{name: {"rope_theta": 1e4, "rope_type": "default"}}), [name, "rotary", "none"])
      for name in ("rope_parameters", "rope_scaling")),
    (positioned("rotary", head_dim=10, partial_rotary_factor=0.5),
     ["partial_rotary_factor of 0.5", "head_dim=10", "even", "gives 5"]),
    (positioned("rotary", rope_parameters={"rope_theta": 1e4, "rope_type": "spiral", "factor": 2.0}),
     ["rope_type", "spiral", "default", "yarn"]),
    (positioned("rotary", rope_parameters={"sliding_attention": {"rope_theta": 1e4}}),
     ["rope_parameters", "sliding_attention", "sliding_window=None"]),
    (positioned("rotary", sliding_window=4, layer_types=["sliding_attention", "full_attention"],
                rope_parameters={"sliding_attention": {"rope_theta": 1e4}}), ["rope_parameters", "full_attention"]),
    (positioned("rotary", position_offset=2), ["position_offset=2", "learned", "rotary"]),
    (positioned("learned", rope_interleaved=True), ["rope_interleaved", "rotary", "learned"]),
    (positioned("learned", rotary_layers=[True]), ["rotary_layers", "rotary", "learned"]),
    (positioned("none", sinusoidal_layout="halves"), ["sinusoidal_layout", "none"]),
    (positioned("alibi", relative_attention_per_layer=True), ["relative_attention_per_layer", "relative", "alibi"]),
    (positioned("relative", relative_attention_num_buckets=6), ["attention_num_buckets", "multiple of 4", "6"]),
    (positioned("relative", relative_attention_max_distance=16), ["relative_attention_max_distance", "16"]),
    ({"norm_unit_offset": True, "norm_weight": False}, ["norm_unit_offset", "norm_weight"]),
    ({"skip_first_norm": True, "norm_placement": "post"}, ["skip_first_norm", "pre", "post"]),
    ({"block_layout": "parallel", "norm_placement": "post"}, ["block_layout", "parallel", "sandwich", "post"]),
    ({"block_layout": "parallel_shared_norm", "norm_placement": "sandwich"},
     ["block_layout", "parallel_shared_norm", "pre", "sandwich"]),
    ({"initialization": "admin", "norm_placement": "post"}, ["initialization", "admin", "post"]),
    ({"initialization": "zero_output", "norm_placement": "rezero"}, ["zero_output", "pre", "rezero"]),
    ({"initialization": "mimetic", "hidden_size": 64, "num_attention_heads": 4, "head_dim": 32},
     ["mimetic", "hidden_size=64", "128"]),
    ({"layer_types": ["sliding_attention"]}, ["layer_types", "sliding_window"]),
    ({"layer_types": ["chunked_attention"], "sliding_window": 4}, ["layer_types", "chunked", "full_attention"]),
    ({"attn_logit_softcapping": 5.0, "attn_implementation": "sdpa"},
     ["attn_logit_softcapping=5.0", "sdpa", "eager", "flex_attention"]),
    (positioned("alibi", attn_implementation="flash_attention_2"), ["flash_attention_2", "alibi", "eager"]),
    (positioned("relative", attn_implementation="paged|eager"), ["paged|eager", "relative", "sdpa"]),
], ids=lambda value: "-".join(value) if isinstance(value, dict) else "")  # fmt: skip
def test_fields_that_do_not_fit_together(config_class, fields, parts):
    assert_refused(parts, config_class, **fields)


@every_config
@pytest.mark.parametrize(("wrong", "meant"), [
    ("norm_placment", "norm_placement"), ("hiden_size", "hidden_size"), ("num_attention_head", "num_attention_heads"),
    ("initialisation", "initialization"), ("feedforward", "feed_forward"), ("rope_paramaters", "rope_parameters"),
    ("attn_implmentation", "attn_implementation"), ("num_label", "num_labels"),
])  # fmt: skip
def test_a_misspelled_name_is_answered_with_the_field(config_class, wrong, meant):
    parts = wrong, f"did you mean {meant!r}?", "123", config_class.__name__
    assert_refused(parts, config_class, **{wrong: 123})


@every_config
def test_no_foreign_name_passes(config_class):
    for wrong in {*FOREIGN_NAMES, "decoder_hidden_size", "kv_lora_rank", "use_rel_pos"}:
        assert_refused([f"has no field {wrong!r} (value 123)"], config_class, **{wrong: 123})
    for wrong in GENERATION_NAMES:
        assert_refused(["generation_config"], config_class, **{wrong: 123})


@every_config
def test_a_field_of_another_config_is_refused_by_the_name_of_its_config(config_class):
    theirs = {field for other in ALL_CONFIGS for field in other.keywords()} - config_class.keywords()
    standard = {"use_cache", "bos_token_id", "eos_token_id", "decoder_start_token_id"}  # set by transformers' Trainer
    for name in theirs - standard:
        owners = [other.__name__ for other in ALL_CONFIGS if name in other.keywords()]
        said = f"{config_class.__name__} has no field '{name}' (value 2): it is a field of"
        assert_refused([said, *owners], config_class, **{name: 2})
    for name in theirs & standard - {"use_cache"}:  # which transformers drops
        assert getattr(config_class(**{name: 2}), name) == 2


@every_config
def test_names_of_transformers_pass(config_class):
    config = config_class(num_labels=7, attn_implementation="eager", name_or_path="x", problem_type="regression")
    assert (config.num_labels, config._attn_implementation) == (7, "eager")
    assert config_class(torch_dtype="bfloat16").dtype == config_class(dtype="bfloat16").dtype == torch.bfloat16
    named = {"sep_token_id": 3, "tokenizer_class": "X", "quantization_config": {}, "my_note": "mine"}
    assert {name: getattr(config_class(**named), name) for name in named} == named
    assert (config.name_or_path, config.problem_type) == ("x", "regression")


@every_config
@pytest.mark.parametrize("name", ["layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps"])
def test_other_names_of_epsilon_are_the_same_field(config_class, name):
    config = config_class(**{name: 0.25})
    assert config.norm_eps == getattr(config, name) == 0.25


@every_config
def test_derived_fields_and_the_initialization_by_placement_or_model_type(config_class):
    config = config_class(hidden_size=48, num_attention_heads=6)
    assert (config.num_key_value_heads, config.head_dim, config.intermediate_size) == (6, 8, 192)
    sizes = {"num_key_value_heads": 2, "head_dim": 10, "intermediate_size": 50}
    given = config_class(hidden_size=48, num_attention_heads=6, **sizes)
    assert (given.num_key_value_heads, given.head_dim, given.intermediate_size) == (2, 10, 50)
    published = {"deepnorm": "deepnorm", "admin": "admin", "no_norm": "t_fixup"}
    for placement in get_args(options.NormPlacement):
        expected = published.get(placement, config_class.default_initialization)
        assert config_class(norm_placement=placement).initialization == expected
        assert config_class(norm_placement=placement, initialization="normal").initialization == "normal"


@every_config
def test_rope_parameters_are_there_with_rotary_positions_alone_and_checked_after_a_change(config_class, tmp_path):
    assert config_class(position_embedding_type="rotary").rope_parameters["rope_theta"] == 10000.0
    assert config_class(position_embedding_type="rotary", rope_theta=77.0).rope_parameters["rope_theta"] == 77.0
    for scheme in set(get_args(options.PositionEmbedding)) - {"rotary"}:
        assert not hasattr(config_class(position_embedding_type=scheme), "rope_parameters")
    config = config_class(position_embedding_type="rotary")
    config.position_embedding_type = "none"
    assert_refused(["only applies to position_embedding_type='rotary', got"], config.save_pretrained, tmp_path)
    config = config_class(position_embedding_type="none")
    config.position_embedding_type = "rotary"
    assert_refused(["'rotary' needs rope_parameters, got rope_parameters=None"], config.save_pretrained, tmp_path)


@every_config
def test_pruned_heads_of_an_older_version_are_refused_with_the_remedy(config_class, tmp_path):
    saved = config_class().to_dict()
    assert not hasattr(config_class.from_dict(saved | {"pruned_heads": None}), "pruned_heads")
    (tmp_path / "config.json").write_text(json.dumps(saved | {"pruned_heads": ["decoder.0.1"]}))
    assert_refused(["pruned_heads=['decoder.0.1']", "trust_remote_code=True"], config_class.from_pretrained, tmp_path)


def reloaded(config: Any, folder: Any, **overrides: Any) -> Any:
    """Return a saved config loaded with overrides, which is one that can be saved and loaded again."""
    config.save_pretrained(folder)
    loaded = AutoConfig.from_pretrained(folder, **overrides)
    loaded.save_pretrained(folder)
    assert AutoConfig.from_pretrained(folder).to_dict() == loaded.to_dict()
    return loaded


@every_config
@pytest.mark.parametrize(("saved", "overrides"), [
    (positioned("rotary"), positioned("none")), (positioned("rotary"), positioned("alibi")),
    (positioned("learned"), positioned("rotary")), (positioned("none"), positioned("rotary", rope_theta=5.0)),
    (positioned("rotary"), {"rope_theta": 500.0, "partial_rotary_factor": 0.5}),
    (positioned("rotary", rope_theta=5.0), {"partial_rotary_factor": 0.5}),
    ({"num_attention_heads": 4}, {"num_attention_heads": 2}), ({}, {"hidden_size": 64}),
    ({"num_attention_heads": 4, "num_key_value_heads": 2}, {"num_attention_heads": 8}),
    ({"head_dim": 10, "intermediate_size": 24}, {"hidden_size": 64}), ({}, {"norm": "rms_norm"}),
    ({}, {"head_dim": 4, "num_attention_heads": 16}), ({}, {"layer_norm_eps": 0.25}),
    ({"norm_placement": "pre"}, {"norm_placement": "deepnorm"}),
    ({"norm_placement": "pre", "initialization": "mimetic"}, {"norm_placement": "deepnorm"}),
    ({"norm_placement": "deepnorm"}, {"norm_placement": "pre"}),
    ({"num_hidden_layers": 2}, {"num_hidden_layers": 3}), ({"sliding_window": 4}, {"sliding_window": None}),
    ({"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}, {"num_hidden_layers": 5}),
    ({"sliding_window": 4}, {"layer_types": ["full_attention", "sliding_attention"]}),
    ({}, {"sliding_window": 4, "layer_types": ["full_attention", "sliding_attention"]}),
], ids=lambda value: "-".join(value) or "default")  # fmt: skip
def test_a_saved_config_with_overrides_is_one_made_with_both(config_class, saved, overrides, tmp_path):
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 3, "norm_placement": "post"}
    loaded = reloaded(config_class(**sizes | saved), tmp_path, **overrides)
    expected = config_class(**sizes | saved | overrides)
    unsaid = dict.fromkeys(("_name_or_path", "auto_map", VERSION_KEY))
    assert loaded.to_dict() | unsaid == expected.to_dict() | unsaid
    for name in ("rope_parameters", "layer_types"):
        assert hasattr(loaded, name) == hasattr(expected, name)


def test_fields_of_one_model_type_follow_overrides_too(tmp_path):
    assert reloaded(VanillaEncoderConfig(dropout=0.1), tmp_path, dropout=0.3).classifier_dropout == 0.3
    given = VanillaEncoderConfig(dropout=0.1, classifier_dropout=0.2)
    assert reloaded(given, tmp_path, dropout=0.3).classifier_dropout == 0.2
    deeper = reloaded(VanillaEncoderDecoderConfig(num_hidden_layers=2), tmp_path, num_hidden_layers=3)
    assert (deeper.num_hidden_layers, deeper.encoder_layers) == (3, 3)
    own = reloaded(VanillaEncoderDecoderConfig(num_hidden_layers=2, encoder_layers=4), tmp_path, num_hidden_layers=3)
    assert (own.num_hidden_layers, own.encoder_layers) == (3, 4)
    windows = VanillaEncoderDecoderConfig(num_hidden_layers=3, sliding_window=4)
    one = reloaded(windows, tmp_path, layer_types=["full_attention"], encoder_layers=1)
    assert (one.layer_types, one.encoder_layer_types) == (["full_attention"] * 3, ["full_attention"])
    other = reloaded(windows, tmp_path, encoder_layer_types=["full_attention"])
    assert (other.layer_types, other.encoder_layer_types) == (["sliding_attention"] * 3, ["full_attention"] * 3)


@every_config
@pytest.mark.parametrize(("saved", "overrides", "parts"), [
    ({}, {"block_layout": "parallel", "norm_placement": "post"}, ["block_layout='parallel'", "'post'"]),
    ({}, {"dropuot": 0.3}, ["dropuot", "0.3", "did you mean 'dropout'?"]),
    ({}, {"n_layers": 3}, ["n_layers", "num_hidden_layers"]),
    ({}, {"num_attention_heads": 3}, ["hidden_size=512", "num_attention_heads=3", "head_dim"]),
    (positioned("learned", position_offset=2), positioned("rotary"), ["position_offset=2", "rotary"]),
    (positioned("learned"), {"rope_theta": 5.0}, ["rope_theta=5.0", "rotary", "learned"]),
    (positioned("rotary", sliding_window=4, rope_parameters={"sliding_attention": {"rope_theta": 1e4}}),
     {"rope_theta": 5.0}, ["rope_theta", "each"]),
    (positioned("rotary"), {"rope_theta": 5.0, "rope_parameters": {"rope_theta": 6.0}},
     ["rope_theta=5.0", "contradicts", "6.0"]),
], ids=lambda value: "-".join(value) or "default" if isinstance(value, dict) else "")  # fmt: skip
def test_overrides_that_do_not_fit_are_refused_on_loading(config_class, saved, overrides, parts, tmp_path):
    config_class(**saved).save_pretrained(tmp_path)
    for load in (AutoConfig.from_pretrained, config_class.from_pretrained):
        assert_refused(parts, load, tmp_path, **overrides)


@every_config
def test_what_loading_models_and_tokenizers_passes_on_is_returned(config_class, tmp_path):
    config_class().save_pretrained(tmp_path)
    passed = {"device_map": "cpu", "pad_token": "<pad>", "padding_side": "left", "max_length": 3, "key_mapping": {}}
    options = {"dtype": "float16", "num_labels": 4, "attn_implementation": "eager", "dropout": 0.25}
    config, unused = AutoConfig.from_pretrained(tmp_path, return_unused_kwargs=True, **passed, **options)
    assert unused == passed
    assert (config.num_labels, config._attn_implementation, config.dropout) == (4, "eager", 0.25)
    assert config.dtype in ("float16", torch.float16)


@every_config
def test_a_config_is_of_one_model_type_and_its_layers_are_alike(config_class):
    other = not config_class().is_encoder_decoder
    assert_refused([f"is_encoder_decoder={other} must be {not other}"], config_class, is_encoder_decoder=other)
    config = config_class()
    config.per_layer_config = {0: {"skip": ["mlp"]}}
    assert_refused(["per_layer_config is not supported"], config.validate)


@every_config
def test_numbers_that_transformers_computes_may_be_none(config_class):
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
    nulls = dict.fromkeys(("attention_factor", "beta_fast", "beta_slow"))
    config = config_class(position_embedding_type="rotary", rope_parameters=yarn | nulls)
    assert config.rope_parameters["attention_factor"] is None
    for name in ("factor", "original_max_position_embeddings"):
        rope = {"position_embedding_type": "rotary", "rope_parameters": yarn | {name: None}}
        assert_refused([name, "None"], config_class, **rope)


@every_config
def test_layer_types_are_there_with_a_window_alone_and_a_pattern_is_repeated_or_cut(config_class):
    assert not hasattr(config_class(), "layer_types")
    assert not hasattr(config_class(layer_types=["full_attention"]), "layer_types")
    assert config_class(sliding_window=4).layer_types == ["sliding_attention"] * 6
    pattern = ["full_attention", "sliding_attention", "sliding_attention"]
    for layers, expected in ((6, pattern * 2), (4, [*pattern, pattern[0]]), (1, pattern[:1])):
        config = config_class(sliding_window=4, layer_types=pattern, num_hidden_layers=layers)
        assert config.layer_types == expected
    config = config_class(position_embedding_type="rotary", num_hidden_layers=7, rotary_layers=[True, True, False])
    assert [config.is_rotary_layer(layer) for layer in range(7)] == [True, True, False, True, True, False, True]


def test_an_encoder_has_the_pattern_of_the_decoder_unless_it_is_given_one():
    pattern = ["full_attention", "sliding_attention"]
    windows = partial(VanillaEncoderDecoderConfig, sliding_window=4, layer_types=pattern)
    config = windows(encoder_layers=3)
    assert (config.layer_types, config.encoder_layer_types) == (pattern * 3, [*pattern, pattern[0]])
    assert windows(encoder_layer_types=["full_attention"]).encoder_layer_types == ["full_attention"] * 6
    assert VanillaEncoderDecoderConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()


@every_config
@pytest.mark.parametrize(("norm", "bias"), [("layer_norm", True), ("rms_norm", False)])
def test_layer_norm_has_a_bias_and_rms_norm_has_none_unless_it_is_said(config_class, norm, bias):
    assert config_class(norm=norm).norm_bias is bias
    assert config_class(norm=norm, norm_bias=not bias).norm_bias is not bias


def test_a_tensor_parallel_plan_keeps_together_what_needs_all_heads():
    def plan(**fields: str) -> dict[str, str]:
        with torch.device("meta"):
            return VanillaDecoderModel(VanillaDecoderConfig(num_hidden_layers=1, **fields))._tp_plan

    layers = {key: style for key, style in plan().items() if key.startswith("layers.")}
    assert layers.items() <= TENSOR_PARALLEL_PLAN.items()
    for qk_norm in ("each_head", "full"):
        whole = plan(qk_norm=qk_norm)
        assert whole["layers.*.self_attn.q_proj"] == "colwise_gather_output"
        assert not [key for key in whole if key.endswith("norm")]
    assert whole["layers.*.mlp.up_proj"] == "colwise"
    biased = plan(position_embedding_type="alibi")
    assert "layers.*.mlp.up_proj" in biased
    assert not [key for key in biased if "self_attn" in key]
