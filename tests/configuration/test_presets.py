"""Presets: what they are called, and that they have the size of the published models."""

import json

import pytest
import torch
import transformers
from refusals import refused
from transformers import AutoConfig, BertConfig, DeiTConfig, GPT2Config, ViTConfig, ViTForImageClassification

import vanillaformer
from vanillaformer import PRESETS, VanillaDecoderConfig, VanillaDecoderForCausalLM, VanillaImageEncoderModel, preset


def parameters(model_class: type[transformers.PreTrainedModel], config) -> int:
    with torch.device("meta"):
        model = model_class(config)
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_names_and_unknown_ones_of_presets_and_fields_are_answered_with_them():
    assert set(PRESETS) == {
        "transformer-base", "transformer-big", "transformer-tiny", "marian", "bart", "t5", "t5-v1.1",
        "gru-attention", "gru-tiny", "lstm-attention",
        "gpt", "gpt2", "nanogpt", "gpt-tiny", "opt", "gpt-neox", "bloom", "llama-tiny", "gemma2", "olmo2",
        "bert-base", "bert-tiny", "roberta", "modernbert", "vit-mini", "vitc-mini", "vit-tiny", "vit-base",
        "deit-tiny", "swin-tiny", "dinov2-small",
    }  # fmt: skip
    with pytest.raises(ValueError, match="gtp2") as info:
        preset("gtp2")
    for name in PRESETS:
        assert name in str(info.value)
    refused("got 'lama-tiny'; did you mean 'llama-tiny'", preset, "lama-tiny")
    refused("has no field 'foo' .value 1.$", preset, "gpt2", foo=1)
    refused("did you mean 'hidden_size'", preset, "gpt2", hiden_size=1)


def test_derived_fields_follow_a_change():
    changed = []
    for change in (
        lambda config: config.update({"num_attention_heads": 4}),
        lambda config: config.update_from_string("num_attention_heads=4"),
    ):
        config = VanillaDecoderConfig(hidden_size=64, num_attention_heads=8, intermediate_size=100)
        change(config)
        config.validate()
        changed.append((config.num_key_value_heads, config.head_dim, config.intermediate_size))
    assert changed == [(4, 16, 100)] * 2
    config = VanillaDecoderConfig(hidden_size=64, num_attention_heads=8, num_key_value_heads=2, head_dim=6)
    config.update({"num_attention_heads": 4, "norm": "rms_norm"})
    assert (config.num_key_value_heads, config.head_dim, config.norm_bias) == (2, 6, False)
    config.update({"num_key_value_heads": 4, "num_attention_heads": 8})
    assert config.num_key_value_heads == 4


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_survives_json_and_the_auto_class_and_an_override_wins_over_its_own_field(name, tmp_path):
    config = preset(name, num_labels=99)
    assert (type(config), config.num_labels) == (PRESETS[name].config_class, 99)
    assert type(config).from_dict(json.loads(config.to_json_string())).to_dict() == config.to_dict()
    config.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).to_dict() == config.to_dict() | {"_name_or_path": str(tmp_path)}
    stored = json.loads((tmp_path / "config.json").read_text())
    assert stored["model_type"] == config.model_type
    nested = {key for key, value in stored.items() if isinstance(value, dict)}
    assert nested <= {"rope_parameters", "id2label", "label2id", "auto_map"}, "config.json is not flat"
    for field, value in PRESETS[name].fields.items():
        if isinstance(value, float) and hasattr(preset(name), field):  # not one that goes into `rope_parameters`
            assert getattr(preset(name, **{field: 0.4321}), field) == 0.4321
    depths = {"depths": [9]} if "depths" in PRESETS[name].fields else {}
    assert preset(name, num_hidden_layers=9, **depths).num_hidden_layers == 9


def test_presets_do_not_share_state():
    preset("llama-tiny").rope_parameters["rope_theta"] = 1.0
    assert preset("llama-tiny").rope_parameters["rope_theta"] == 10000.0


TINY = {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768, "num_labels": 1000}
LLAMA = {"vocab_size": 50257, "hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 4}
LLAMA |= {"num_attention_heads": 4, "num_key_value_heads": 2}
DINO = {"hidden_size": 384, "num_attention_heads": 6, "image_size": 518, "patch_size": 14}
IMAGES = vanillaformer.VanillaImageEncoderForImageClassification


# Our class, the native class and config, and the number that is published for it
@pytest.mark.parametrize(("name", "case"), {
    "gpt2": (VanillaDecoderForCausalLM, transformers.GPT2LMHeadModel, GPT2Config(), 124_439_808),
    "gpt": (VanillaDecoderForCausalLM, transformers.OpenAIGPTLMHeadModel, transformers.OpenAIGPTConfig(), 116_534_784),
    "llama-tiny": (VanillaDecoderForCausalLM, transformers.LlamaForCausalLM, transformers.LlamaConfig(**LLAMA),
                   13_591_936),
    "bert-base": (vanillaformer.VanillaEncoderForMaskedLM, transformers.BertForMaskedLM, BertConfig(), 109_514_298),
    "vit-tiny": (IMAGES, ViTForImageClassification, ViTConfig(**TINY), 5_717_416),
    "vit-base": (IMAGES, ViTForImageClassification, ViTConfig(num_labels=1000), 86_567_656),
    # A token and its position more
    "deit-tiny": (IMAGES, transformers.DeiTForImageClassification, DeiTConfig(**TINY), 5_717_416 + 2 * 192),
    "swin-tiny": (IMAGES, transformers.SwinForImageClassification, transformers.SwinConfig(num_labels=1000),
                  28_288_354),
    "dinov2-small": (VanillaImageEncoderModel, transformers.Dinov2Model, transformers.Dinov2Config(**DINO), 22_056_576)
}.items())  # fmt: skip
def test_a_preset_has_the_published_number_of_parameters(name, case):
    ours, native_class, native_config, published = case
    labels = {"num_labels": 1000} if ours is IMAGES else {}
    assert parameters(ours, preset(name, **labels)) == parameters(native_class, native_config) == published


@pytest.mark.parametrize(("name", "sizes"), [
    ("base", {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8, "dropout": 0.1}),
    ("big", {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "dropout": 0.3}),
])  # fmt: skip
def test_the_papers_transformer_is_table_3(name, sizes):
    config = preset(f"transformer-{name}")
    table = sizes | {
        "num_hidden_layers": 6, "encoder_layers": 6, "head_dim": 64, "hidden_act": "relu", "norm_placement": "post",
        "position_embedding_type": "sinusoidal", "scale_embedding": True, "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
    }  # fmt: skip
    assert {name: getattr(config, name) for name in table} == table


@pytest.mark.parametrize("name", [name for name in PRESETS if name.endswith("-tiny") and name != "gru-tiny"])
def test_a_tiny_preset_leaves_the_fused_attention_on(name):
    assert preset(name).attention_dropout == 0
