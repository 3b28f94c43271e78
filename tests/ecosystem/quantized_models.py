"""Models in 8 bits by torchao and bitsandbytes, on a processor; `test_quantization.py` runs this file."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from modeling.toys import relative_error
from torch import nn
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8Tensor, Int8WeightOnlyConfig
from transformers import BitsAndBytesConfig, TorchAoConfig

from vanillaformer import VanillaDecoderForCausalLM, VanillaEncoderDecoderForConditionalGeneration

from .tiny import LOADERS, batch_of, kind_of, tiny

QUANTIZATIONS: dict[str, Any] = {
    "torchao-weights": lambda: TorchAoConfig(Int8WeightOnlyConfig()),
    "torchao-dynamic": lambda: TorchAoConfig(Int8DynamicActivationInt8WeightConfig()),
    "bitsandbytes": lambda: BitsAndBytesConfig(load_in_8bit=True),
}
every_model = pytest.mark.parametrize("model_class", list(LOADERS))
every_quantization = pytest.mark.parametrize("quantization", list(QUANTIZATIONS))


@pytest.fixture(autouse=True)
def exact_products(monkeypatch):
    """Products of 8-bit numbers as they are defined: torch's kernel for CPUs without VNNI adds two in 16 bits."""
    monkeypatch.setattr(torch, "_int_mm", lambda one, other: (one.float() @ other.float()).to(torch.int32))


def quantized(model_class: Any, quantization: str, saved: Any) -> Any:
    settings = QUANTIZATIONS[quantization]()
    loader = LOADERS[model_class]
    return loader.from_pretrained(saved(model_class), quantization_config=settings, dtype=torch.float32).eval()


def logits_of(model: Any, model_class: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(**batch_of(kind_of(model_class))).logits.float()


def linear_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """All but the output layer, which both libraries leave as it is."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not model.get_output_embeddings()
    }


def rounded(model_class: Any) -> nn.Module:
    """The model with every row of its linear layers rounded to 255 steps: what 8 bits are, written by hand."""
    model = tiny(model_class)
    with torch.no_grad():
        for layer in linear_layers(model).values():
            step = layer.weight.abs().amax(1, keepdim=True) / 127.5
            layer.weight.copy_((layer.weight / step).round().clamp(-128, 127) * step)
    return model


@every_model
@every_quantization
def test_all_layers_are_in_8_bits_near_the_float_model_and_the_same_when_loaded(
    model_class, quantization, saved, tmp_path
):
    """Rounding a layer's inputs to as many steps as its weights errs about as much again: 2.5 times is plenty."""
    model, plain = quantized(model_class, quantization, saved), tiny(model_class)
    layers = linear_layers(model)
    assert set(layers) == set(linear_layers(plain))
    for layer in layers.values():
        stored = layer.weight.qdata if isinstance(layer.weight, Int8Tensor) else layer.weight
        assert stored.dtype == torch.int8
    exact, logits = (logits_of(each, model_class) for each in (plain, model))
    of_weights = relative_error(logits_of(rounded(model_class), model_class), exact)
    assert 0 < of_weights < 0.05
    assert 0 < relative_error(logits, exact) < 2.5 * of_weights
    model.save_pretrained(tmp_path)
    assert torch.equal(logits_of(LOADERS[model_class].from_pretrained(tmp_path).eval(), model_class), logits)
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (tmp_path, saved(model_class))]
    assert sizes[0] < 0.8 * sizes[1]


@pytest.mark.parametrize("model_class", [VanillaDecoderForCausalLM, VanillaEncoderDecoderForConditionalGeneration])
@every_quantization
def test_it_generates(model_class, quantization, saved):
    """Greedy search by the quantised logits themselves: cache and quantised layers go together."""
    model = quantized(model_class, quantization, saved)
    source = batch_of(kind_of(model_class))["input_ids"][1:2]
    written = model.generate(source, do_sample=False, max_new_tokens=6)
    with torch.no_grad():
        if model.config.is_encoder_decoder:
            logits, start = model(source, decoder_input_ids=written).logits, 0
        else:
            logits, start = model(written).logits, source.shape[1] - 1
    assert logits[0, start:-1].argmax(-1).tolist() == written[0, start + 1 :].tolist()


def test_the_block_of_the_page_runs(saved, tmp_path, monkeypatch):
    page = Path(__file__).parents[2].joinpath("docs", "ecosystem.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python quantization\n(.*?)```", page, re.DOTALL)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "language_model").symlink_to(saved(VanillaDecoderForCausalLM))
    monkeypatch.chdir(tmp_path)
    exec(block, {})
    assert (tmp_path / "int8" / "model.safetensors").is_file()
