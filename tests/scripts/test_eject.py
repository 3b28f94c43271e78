"""The code of a model or preset as two files."""

import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from vanillaformer import VanillaDecoderConfig, VanillaDecoderForCausalLM
from vanillaformer.scripts.eject import main

SMALL = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 20}


def test_a_preset_and_a_saved_model_give_the_code_that_saving_gives(tmp_path, capsys):
    VanillaDecoderForCausalLM(VanillaDecoderConfig(**SMALL)).save_pretrained(tmp_path / "saved")
    main([str(tmp_path / "saved"), str(tmp_path / "of-model")])
    main(["gpt-tiny", str(tmp_path / "of-preset"), "--set", "norm=rms_norm"])
    names = ["configuration_vanilla_decoder.py", "modeling_vanilla_decoder.py"]
    for name in names:
        assert (tmp_path / "of-model" / name).read_text() == (tmp_path / "saved" / name).read_text()
    assert {path.name for path in (tmp_path / "of-preset").iterdir()} == {*names, "config.json"}
    text = (tmp_path / "of-preset" / names[1]).read_text()
    assert "class RMSNorm(" in text
    assert "class LayerNorm(" not in text
    assert capsys.readouterr().out.count(" lines\n") == 4


def test_native_models_and_fields_of_a_saved_model_are_refused(tmp_path, capsys):
    GPT2LMHeadModel(GPT2Config(n_embd=8, n_head=2, n_layer=1, vocab_size=20, n_positions=8)).save_pretrained(tmp_path)
    for options in ([], ["--set", "norm=rms_norm"]):
        with pytest.raises(SystemExit) as ended:
            main([str(tmp_path), str(tmp_path / "out"), *options])
        assert ("--set" if options else "gpt2") in f"{ended.value}{capsys.readouterr().err}"
    assert not (tmp_path / "out").exists()
