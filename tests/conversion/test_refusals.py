"""What an architecture cannot say is refused with the field's name, and what is not refused computes the same."""

import zlib
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from modeling.axes import ALL_CONFIGS, axes
from modeling.toys import relative_error
from refusals import refused
from transformers import CONFIG_MAPPING, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

import vanillaformer
from vanillaformer import BlockConfig, VanillaEncoderConfig, VanillaEncoderDecoderConfig, preset
from vanillaformer.conversion import ARCHITECTURES, from_native, native_architectures, to_native
from vanillaformer.conversion.folders import random_inputs
from vanillaformer.conversion.mapping.architecture import OUR_CLASSES
from vanillaformer.conversion.mapping.canonical import canonical_form, differences
from vanillaformer.conversion.mapping.fitting import fit

from . import natives
from .natives import GPT, GROUPED, MAIN, MAIN_CASES, PAD, Case, batch_for, native_model, poison, transformers_class

Change = dict[str, Any]
# Beside every value of every axis: sizes, and values that some architecture has
CHANGES: list[Change] = [
    *({"head_act": name} for name in ("relu", "gelu")),
    *({"rope_parameters": {"rope_theta": 50.0, "partial_rotary_factor": part}} for part in (0.4, 1.0)),
    {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 50.0}},
    {"attention_bias": ["q_proj", "k_proj", "v_proj"]}, {"attention_scale": 1.0},
    {"sliding_window": 3, "layer_types": ["full_attention"]}, {"position_offset": 3},
    {"encoder_hidden_size": 16, "share_encoder_decoder_embeddings": False},
    {"decoder_vocab_size": 31, "share_encoder_decoder_embeddings": False},
    *({name: size} for name, size in {
        "intermediate_size": 20, "encoder_intermediate_size": 20, "num_hidden_layers": 3, "num_channels": 3,
        "max_position_embeddings": 30, "relative_attention_num_buckets": 12, "relative_attention_max_distance": 30,
        "vocab_size": 43, "image_size": 8,
    }.items()),
]  # fmt: skip
# Where the native config has one switch for two of our fields, or one follows from the other, either may be named
COUPLED = {
    "num_attention_heads": "head_dim", "rope_parameters": "rope_interleaved", "skip_first_norm": "final_norm",
    "image_size": "window_size", "mlp_bias": "attention_bias", "norm_weight": "norm_bias",
    "norm_placement": "skip_first_norm", "feed_forward": "hidden_act", "image_pooling": "pooler_norm",
    "tie_word_embeddings": "share_encoder_decoder_embeddings", "parametrization": "_scale=",
}  # fmt: skip


def changed(config: BlockConfig, change: Change) -> BlockConfig | None:
    """The config with other values, `None` where they are not its fields or do not fit together."""
    fields, missing = config.to_dict() | change, object()
    present = {name: getattr(config, name, missing) for name in change.keys() - {"layer_types", "rope_parameters"}}
    if missing in present.values() or present == change:
        return None
    unset = {
        "position_embedding_type": ("position_offset", "sinusoidal_layout", "rope_parameters", "rope_interleaved"),
        "norm_placement": ("skip_first_norm", "final_norm"),
    }
    for name in (name for key in change for name in unset.get(key, ())):
        fields.pop(name, None)
    if hasattr(config, "image_size"):
        fields.pop("max_position_embeddings")
    if {"sliding_window", "num_hidden_layers", "encoder_layers"} & change.keys():
        for name in {"layer_types", "encoder_layer_types"} - change.keys():
            fields.pop(name, None)
    try:
        return type(config)(**fields)
    except (ValueError, StrictDataclassError):
        return None


def assert_computes_the_same(config: BlockConfig, case: Case) -> None:
    ours = OUR_CLASSES[type(config)][case.head](config).eval()
    poison(ours)
    native = to_native(ours, case.architecture)
    batch = batch_for(case, native)
    batch = {name: batch[name] for name in batch if name not in ("labels", "token_type_ids")}
    with torch.no_grad():
        expected, actual = ours(**batch).logits, native(**batch).logits
    error = relative_error(natives.real(actual, batch), natives.real(expected, batch))
    assert error <= 1e-5, f"relative error {error:.2e}"


@pytest.mark.parametrize("case", MAIN_CASES, ids=str)
def test_a_change_is_refused_by_name_or_converted(case):
    """Every option in turn: no third way, in which a model is converted that computes something else."""
    architecture = ARCHITECTURES[case.architecture]
    _, ours = natives.converted(case)
    rejected = converted_changes = 0
    kind = next(kind for kind, config_class in ALL_CONFIGS.items() if config_class is type(ours.config))
    for change in [*(value for values in axes(kind).values() for value in values), *CHANGES]:
        config = changed(ours.config, change)
        if config is None:
            continue
        mismatches = fit(architecture, config, case.head).mismatches
        if not differences(canonical_form(ours.config, case.head), canonical_form(config, case.head)):
            assert not mismatches, f"{change} changes nothing, but: {mismatches}"
        elif mismatches:
            rejected += 1
            text = "; ".join(mismatches)
            names = {*change, *(COUPLED.get(name, name) for name in change)}
            assert any(name in text for name in names), f"{change} is refused without its name: {text}"
        else:
            converted_changes += 1
            if zlib.crc32(f"{case} {change}".encode()) % 3 == 0:  # each change with some of many architectures
                assert_computes_the_same(config, case)
    assert rejected >= 20
    assert converted_changes >= 3


@pytest.mark.parametrize(("native_class", "change", "message"), [
    ("GPT2LMHeadModel", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
    ("BloomForCausalLM", {"apply_residual_connection_post_layernorm": True}, "residual_connection_post_layernorm"),
    ("OPTForCausalLM", {"word_embed_proj_dim": 12}, "word_embed_proj_dim"),
    ("GemmaForCausalLM", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("BertForMaskedLM", {"is_decoder": True}, "is_decoder"),
    ("DistilBertForMaskedLM", {"sinusoidal_pos_embds": True}, "sinusoidal_pos_embds"),
    ("BartForConditionalGeneration", {"encoder_attention_heads": 2}, "attention_heads"),
    ("MarianMTModel", {"decoder_attention_heads": 2}, "decoder_attention_heads"),
    ("T5ForConditionalGeneration", {"pad_token_id": 50}, "pad_token_id=50"),
    ("XGLMForCausalLM", {"pad_token_id": 2}, "pad_token_id=2 takes a position away: it must be 0, 1 or None"),
    ("ViTForImageClassification", {"patch_size": [4, 2]}, r"patch_size=\[4, 2\]"),
    ("ViTMSNForImageClassification", {"image_size": 14}, "image_size=14 must be a multiple of patch_size=4"),
    ("ViTModel", {"pooler_output_size": 12}, "pooler_output_size=12, which here can only be 24"),
    ("ViTForMaskedImageModeling", {"encoder_stride": 2}, "encoder_stride=2, which here can only be 4"),
    ("ViTForMaskedImageModeling", {"image_size": [8, 12]}, r"image_size=\[8, 12\], which here"),
    ("DeiTForImageClassificationWithTeacher", {}, "of deit only DeiTModel, DeiTForImageClass"),
    ("BeitModel", {"use_relative_position_bias": True, "use_absolute_position_embeddings": True},
     "use_absolute_position_embeddings=True, which here can only be False"),
    ("SwinModel", {"window_size": 3}, "window_size=3 must divide the 8 by 8 patches of stage 1"),
    ("SwinModel", {"layer_norm_eps": 1e-6}, "layer_norm_eps=1e-06, which here can only be"),
])  # fmt: skip
def test_a_native_model_without_counterpart_is_refused(native_class, change, message):
    made = transformers_class(native_class)
    refused(message, from_native, made(made.config_class(**MAIN[made.config_class.model_type].config | change)))


SMALL = {"hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 41}


def small(**fields: Any) -> PreTrainedModel:
    return vanillaformer.VanillaDecoderForCausalLM(vanillaformer.VanillaDecoderConfig(**(SMALL | fields)))


REZERO = {"position_embedding_type": "learned", "norm_placement": "rezero"}


def test_a_refusal_names_what_is_wrong():
    refused("gpt2.*got 'gpt3'", to_native, small(), "gpt3")
    message = "cannot be converted to gpt2: .*norm_placement='rezero', where gpt2 has 'pre'"
    refused(message, to_native, small(**REZERO), "gpt2")
    refused("fits no native architecture.*nearest are .*gpt2: norm_placement='rezero'", to_native, small(**REZERO))
    refused("vanilla_decoder", from_native, small())
    refused("GPT2LMHeadModel", to_native, GPT2LMHeadModel(GPT2Config(**GPT)))
    refused("GPT2DoubleHeadsModel", from_native, transformers_class("GPT2DoubleHeadsModel")(GPT2Config(**GPT)))
    unknown = CONFIG_MAPPING["xlnet"](vocab_size=41, d_model=8, n_head=2, n_layer=1, d_inner=8)
    refused("got 'xlnet'", from_native, transformers_class("XLNetLMHeadModel")(unknown))
    refused("revision", from_native, LlamaForCausalLM(LlamaConfig(**GROUPED)), revision="main")


@pytest.mark.parametrize(("name", "expected"), [
    ("transformer-base", ["marian"]), ("transformer-big", ["marian"]), ("transformer-tiny", ["marian"]),
    ("marian", ["marian"]), ("bart", ["bart"]), ("t5", ["t5"]), ("t5-v1.1", ["t5"]),
    ("gpt", ["openai-gpt"]), ("gpt2", ["gpt2"]), ("nanogpt", ["gpt2"]), ("opt", ["opt"]),
    ("gpt-neox", ["gpt_neox"]), ("bloom", ["bloom"]), ("gemma2", ["gemma2"]), ("olmo2", ["olmo2"]),
    ("bert-base", ["bert"]), ("modernbert", ["modernbert"]),
])  # fmt: skip
def test_presets_fit_the_architectures_they_are_named_after(name, expected):
    assert native_architectures(preset(name)) == expected


def test_a_tensor_without_counterpart_is_named():
    for name, native_class in (("roberta", "RobertaModel"), ("ijepa", "IJepaModel")):
        config = CONFIG_MAPPING[name](**MAIN[name].config)
        pooling = transformers_class(native_class)(config, add_pooling_layer=True)
        refused(r"native pooler\.dense\.weight", from_native, pooling)
    native = native_model(MAIN["marian"])
    native.model.encoder.embed_positions.weight.data[3] += 0.1
    refused(r"encoder\.embed_positions\.weight", from_native, native)


def test_padding_is_where_roberta_numbers_positions_from_and_a_config_of_another_kind_fits_nothing():
    fitting = VanillaEncoderConfig(vocab_size=41, position_offset=PAD + 1, pad_token_id=PAD)
    assert native_architectures(fitting) == ["roberta"]
    other = VanillaEncoderConfig(vocab_size=41, position_offset=PAD + 2, pad_token_id=PAD)
    assert native_architectures(other) == ["bert", "roberta"]  # with other rows
    unpadded = VanillaEncoderConfig(vocab_size=41, position_offset=2, pad_token_id=None)
    assert native_architectures(unpadded) == ["bert"]
    assert fit(ARCHITECTURES["gpt2"], VanillaEncoderDecoderConfig(), "lm").mismatches
    assert native_architectures(vanillaformer.VanillaDecoderConfig(position_embedding_type="learned"), "token") == []


PADDED_POSITIONS: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 32, "norm_placement": "pre", "sinusoidal_layout": "tensor2tensor",
    "position_offset": 1, "pad_token_id": 0, "attention_bias": True, "initialization": "normal",
}  # fmt: skip


def test_m2m_100_does_not_start_from_padding():
    """It gives padding no position, wherever that stands, and all that follows an earlier one."""
    config = VanillaEncoderDecoderConfig(**PADDED_POSITIONS, decoder_start_token_id=2)
    model = vanillaformer.VanillaEncoderDecoderForConditionalGeneration(config).eval()
    assert native_architectures(config) == ["m2m_100"]
    native = to_native(model)
    ids, more = torch.tensor([[5, 6, 7]]), torch.tensor([[2, 8, 9]])
    expected = model(input_ids=ids, decoder_input_ids=more).logits
    assert relative_error(native(input_ids=ids, decoder_input_ids=more).logits, expected) < 1e-5

    from_padding = VanillaEncoderDecoderConfig(**PADDED_POSITIONS, decoder_start_token_id=0)
    assert native_architectures(from_padding) == []
    model = vanillaformer.VanillaEncoderDecoderForConditionalGeneration(from_padding)
    refused("decoder_start_token_id=0 is pad_token_id, which m2m_100 treats", to_native, model, "m2m_100")
    native.config.decoder_start_token_id = native.config.pad_token_id
    refused("no counterpart here: decoder_start_token_id=0 is pad_token_id", from_native, native)


def test_the_comparison_of_logits_begins_with_the_start_token():
    config = VanillaEncoderDecoderConfig(**PADDED_POSITIONS, decoder_start_token_id=0)
    model = vanillaformer.VanillaEncoderDecoderForConditionalGeneration(config)
    assert random_inputs(model)["decoder_input_ids"][:, 0].tolist() == [0, 0]
    model.generation_config.decoder_start_token_id = 3
    assert random_inputs(model)["decoder_input_ids"][:, 0].tolist() == [3, 3]
