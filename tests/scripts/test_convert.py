"""The program that converts saved models, as a user calls it."""

import subprocess
import sys
from pathlib import Path

import pytest

from vanillaformer import VanillaDecoderForCausalLM, preset

SCRIPT = Path(__file__).parents[2] / "scripts" / "convert.py"


def run(*arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    folder = tmp_path_factory.mktemp("convert") / "ours"
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    VanillaDecoderForCausalLM(preset("llama-tiny", **sizes, intermediate_size=48)).save_pretrained(folder)
    return folder


def test_it_says_what_it_made_and_how_exact_it_is(ours, tmp_path):
    result = run(ours, tmp_path / "native", "--to", "llama")
    assert result.returncode == 0, result.stderr[-2000:]
    assert "VanillaDecoderForCausalLM -> LlamaForCausalLM" in result.stdout
    error = float(result.stdout.split("relative error ")[1].split()[0])
    assert error <= 1e-6
    assert (tmp_path / "native" / "model.safetensors").is_file()
    back = run(tmp_path / "native", tmp_path / "back", "--from")
    assert "LlamaForCausalLM -> VanillaDecoderForCausalLM" in back.stdout


def test_an_error_is_one_line_and_writes_nothing(ours, tmp_path):
    result = run(ours, tmp_path / "native", "--to", "gpt2")
    assert result.returncode == 1
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("convert.py: this model is no gpt2: ")
    assert "norm='rms_norm'" in line
    assert not list(tmp_path.iterdir())


def test_an_unknown_architecture_is_answered_with_the_known_ones(ours, tmp_path):
    result = run(ours, tmp_path / "native", "--to", "lama")
    assert result.returncode == 2
    for name in ("lama", "llama", "gpt2", "marian"):
        assert name in result.stderr
