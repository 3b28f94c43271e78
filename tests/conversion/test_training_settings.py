"""What fine-tuning a converted model goes by: rates that are carried over, and the names of those that are not."""

import pytest
from transformers import BartConfig, GPT2Config, GPT2LMHeadModel, OPTConfig

from vanillaformer import VanillaDecoderForCausalLM, VanillaEncoderDecoderForConditionalGeneration, preset
from vanillaformer.configuration import VanillaDecoderConfig, VanillaEncoderDecoderConfig
from vanillaformer.conversion import from_native, to_native
from vanillaformer.conversion.architectures.bart import BART
from vanillaformer.conversion.architectures.gpt import OPT
from vanillaformer.conversion.folders import lost_settings
from vanillaformer.scripts import convert

ENDS = {"bos_token_id": 2, "eos_token_id": 3}
SMALL = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
RATES = {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3, "layer_drop": 0.4}
KINDS = {
    "bart": (VanillaEncoderDecoderForConditionalGeneration, {"encoder_layers": 1}, []),
    "t5": (VanillaEncoderDecoderForConditionalGeneration, {"encoder_layers": 1}, ["attention_dropout=0.2 (now 0.1)",
     "activation_dropout=0.3 (now 0.1)", "layer_drop=0.4 (now 0.0)"]),
    "gpt2": (VanillaDecoderForCausalLM, {}, ["activation_dropout=0.3 (now 0.0)", "layer_drop=0.4 (now 0.0)"]),
    "llama-tiny": (VanillaDecoderForCausalLM, {"num_key_value_heads": 2, "head_dim": 8}, ["dropout=0.1 (now 0.0)",
     "activation_dropout=0.3 (now 0.0)", "layer_drop=0.4 (now 0.0)"]),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_rates_that_a_native_config_does_not_have_are_named(name):
    model_class, fields, lost = KINDS[name]
    model = model_class(preset(name, **SMALL, **fields, **RATES))
    native = to_native(model, "llama" if name == "llama-tiny" else name)
    assert lost_settings(model, native) == lost
    again = from_native(native)
    kept = [rate for rate in RATES if not any(entry.startswith(f"{rate}=") for entry in lost)]
    assert {rate: getattr(again.config, rate) for rate in kept} == {rate: RATES[rate] for rate in kept}


def test_rates_that_ours_does_not_have_are_named_and_layer_drop_is_carried():
    config = GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2, embd_pdrop=0.0, resid_pdrop=0.3, **ENDS)
    native = GPT2LMHeadModel(config)
    assert lost_settings(from_native(native), native, back=True) == ["embd_pdrop=0.0 (now 0.3)"]
    native = BART.to_native_config(VanillaEncoderDecoderConfig(layer_drop=0.2), "lm")
    assert (native.encoder_layerdrop, native.decoder_layerdrop) == (0.2, 0.2)
    assert OPT.to_native_config(VanillaDecoderConfig(layer_drop=0.2), "lm").layerdrop == 0.2
    assert OPT.to_our_config(OPTConfig(layerdrop=0.3), "lm").layer_drop == 0.3


def test_the_program_says_what_is_lost(tmp_path, capsys):
    VanillaDecoderForCausalLM(preset("gpt2", **SMALL, **RATES)).save_pretrained(tmp_path / "ours")
    convert.main([str(tmp_path / "ours"), str(tmp_path / "native")])
    said = "settings of training that GPT2LMHeadModel does not have: activation_dropout=0.3 (now 0.0), layer_drop=0.4"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(("encoder", "decoder", "rate"), [(0.1, 0.1, 0.1), (None, 0.0, 0.0), (0.1, 0.2, None)])
def test_layer_drop_of_both_sides(encoder: float | None, decoder: float, rate: float | None) -> None:
    ours = BART.to_our_config(BartConfig(encoder_layerdrop=encoder, decoder_layerdrop=decoder), "lm")
    assert ours.layer_drop == (0.0 if rate is None else rate)
