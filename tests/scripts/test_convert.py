"""The program that converts saved models, as a user calls it."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conversion.test_imports import checkpoint_of, gpt
from script_runs import generated
from transformers import GPT2Config, GPT2LMHeadModel

from vanillaformer import VanillaDecoderConfig, VanillaDecoderForCausalLM, preset
from vanillaformer.scripts import convert
from vanillaformer.scripts.eject import main

SCRIPT = Path(__file__).parents[2] / "scripts" / "convert.py"


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    folder = tmp_path_factory.mktemp("convert") / "ours"
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    VanillaDecoderForCausalLM(preset("llama-tiny", **sizes, intermediate_size=48)).save_pretrained(folder)
    return folder


def test_it_says_what_it_made_and_how_exact_it_is(ours, tmp_path, capfd):
    out, _ = generated(capfd, ours, tmp_path / "native", "--to", "llama", main=convert.main)
    assert "VanillaDecoderForCausalLM -> LlamaForCausalLM" in out
    assert float(out.split("relative error ")[1].split()[0]) <= 1e-6
    assert (tmp_path / "native" / "model.safetensors").is_file()
    out, _ = generated(capfd, tmp_path / "native", tmp_path / "back", "--from", main=convert.main)
    assert "LlamaForCausalLM -> VanillaDecoderForCausalLM" in out


def test_an_error_is_one_line_and_writes_nothing(ours, tmp_path):
    """In a process of its own: nothing that is imported may speak."""
    command = [sys.executable, SCRIPT, ours, tmp_path / "native", "--to", "gpt2"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 1
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("convert.py: this model cannot be converted to gpt2: ")
    assert "norm='rms_norm'" in line
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_of_nanogpt_becomes_ours(tmp_path, capfd):
    state = checkpoint_of(gpt(), bias=True)
    torch.save(state, tmp_path / "ckpt.pt")
    options = "--from-state-dict", "nanogpt", "--set", "eos_token_id=3"
    out, _ = generated(capfd, tmp_path / "ckpt.pt", tmp_path / "ours", *options, main=convert.main)
    assert "nanogpt -> VanillaDecoderForCausalLM" in out
    model = VanillaDecoderForCausalLM.from_pretrained(tmp_path / "ours")
    assert (model.config.num_attention_heads, model.config.eos_token_id) == (state["model_args"]["n_head"], 3)
    assert torch.equal(model.model.embed_tokens.weight, state["model"]["_orig_mod.transformer.wte.weight"])


# The code of a model or preset as two files.


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
    assert text.splitlines()[1].startswith("# Edits are used and saved, except with `import vanillaformer`")
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
