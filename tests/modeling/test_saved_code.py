"""The code beside a saved model, two files, makes the same model: weights, losses, gradients and generated tokens.

`VANILLAFORMER_SAVED_CODE` is the number of random configs.
"""

import importlib.util
import os
import sys
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedModel

from vanillaformer import PRESETS, preset
from vanillaformer.acceleration.plug_in import switched_off
from vanillaformer.configuration import VanillaConfig
from vanillaformer.hub import remote_code
from vanillaformer.hub.remote_code import auto_classes

from .random_configs import LENGTH, NEW, random_fields
from .toys import ALL_KINDS, KINDS, pixels, sharpen, toy_config

RANDOM = int(os.environ.get("VANILLAFORMER_SAVED_CODE", "18"))
TEXT = {"num_attention_heads": 4, "head_dim": 8, "intermediate_size": 48, "max_position_embeddings": 16}
LAYERS = {"num_hidden_layers": 2, "hidden_size": 32}


def small(name: str) -> VanillaConfig:
    """Return the config of a preset with small sizes."""
    fields, config_class = PRESETS[name].fields, PRESETS[name].config_class
    if "Image" in config_class.__name__:
        sizes: dict[str, Any] = {"image_size": 32, "patch_size": 4 if "depths" in fields else 16}
        sizes |= {"depths": [2, 2]} if "depths" in fields else {"hidden_size": 24, "num_hidden_layers": 2}
        if "depths" in fields:
            sizes |= {"hidden_size": 24}
        return preset(name, **sizes)
    sizes = LAYERS | {"vocab_size": 40}
    sizes |= {field: 2 for field in ("encoder_layers",) if field in fields}
    if "Recurrent" not in config_class.__name__:
        shared = fields.get("num_key_value_heads") not in (None, fields.get("num_attention_heads"))
        sizes |= TEXT | {"num_key_value_heads": 2 if shared else 4}
    special = {f"{name}_token_id": number for number, name in enumerate(("pad", "bos", "eos", "decoder_start"))}
    return preset(name, **sizes, **{name: special[name] for name in special if hasattr(config_class, name)})


def saved_module(config: VanillaConfig, folder: Path) -> tuple[VanillaConfig, ModuleType]:
    """Save a config, and return what the code in the folder reads, with its module of models."""
    config.save_pretrained(folder)
    name = f"saved_{abs(hash(folder))}"
    spec = importlib.util.spec_from_loader(name, None, is_package=True)
    sys.modules[name] = package = importlib.util.module_from_spec(spec)
    package.__path__ = [str(folder)]
    models = importlib.import_module(f"{name}.modeling_{config.model_type}")
    configs = importlib.import_module(f"{name}.configuration_{config.model_type}")
    return getattr(configs, type(config).__name__).from_pretrained(folder), models


def batch_for(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return inputs and labels of a model."""
    config, name = model.config, type(model).__name__
    torch.manual_seed(1)
    if "Image" in name:
        sides = config.image_size if isinstance(config.image_size, list) else [config.image_size] * 2
        inputs = {"pixel_values": pixels(2, *sides, config.num_channels)}
        return inputs | ({"labels": torch.tensor([0, 1])} if name.endswith("Classification") else {})
    inputs = {"input_ids": torch.randint(0, config.vocab_size, (2, LENGTH))}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if name.endswith("QuestionAnswering"):
        return inputs | {"start_positions": torch.tensor([0, 1]), "end_positions": torch.tensor([2, 3])}
    if name.endswith("MultipleChoice"):  # both texts are choices
        return {key: tensor[None] for key, tensor in inputs.items()} | {"labels": torch.tensor([1])}
    if name.endswith("Model"):
        return inputs | ({"decoder_input_ids": inputs["input_ids"] % 8} if config.is_encoder_decoder else {})
    most = getattr(config, "target_vocab_size", config.vocab_size)
    labels = torch.randint(0, config.num_labels if "Classification" in name else most, (2, LENGTH))
    return inputs | {"labels": labels[:, 0] if "SequenceClassification" in name else labels}


def computed(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return what a model computes: a training step, outputs, tokens."""
    batch = batch_for(model)
    torch.manual_seed(2)
    outputs = model.train()(**batch)
    loss = outputs["loss"] if {"labels", "start_positions"} & batch.keys() else outputs[0].square().mean()
    loss.backward()
    found = {f"gradient of {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.eval()
    with torch.no_grad():
        batch.pop("labels", None)
        if model.config.is_encoder_decoder and "decoder_input_ids" not in batch:
            batch["decoder_input_ids"] = batch["input_ids"] % 8
        found |= {"loss": loss.detach(), "output": model(**batch)[0]}
        if model.can_generate():
            batch.pop("decoder_input_ids", None)
            for beams in (1, 2):
                found[f"beams {beams}"] = model.generate(**batch, max_new_tokens=NEW, num_beams=beams, do_sample=False)
    return found


def check(config: VanillaConfig, folder: Path, *names: str) -> None:
    """Compare the models of a config, or those of some names, with those of the code that is saved with it."""
    config.auto_map = None
    del config.auto_map
    saved, models = saved_module(config, folder)
    fields = {name: value for name, value in config.to_dict().items() if name != "auto_map"}
    assert fields.items() <= saved.to_dict().items()
    for cls in {cls for key, cls in auto_classes(config).items() if key != "AutoConfig"}:
        if names and cls.__name__ not in names:
            continue
        if getattr(config, "patch_embedding", "") == "early_convolutions" and cls.__name__.endswith("ImageModeling"):
            continue  # masked patches need patches that do not see each other
        torch.manual_seed(0)
        model = cls(type(config)(**config.to_dict()))
        torch.manual_seed(0)
        twin = getattr(models, cls.__name__)(saved)
        assert not type(twin).__mro__[1].__module__.startswith("vanillaformer")
        weights, copies = model.state_dict(), twin.state_dict()
        assert weights.keys() == copies.keys()
        assert all(torch.equal(weights[name], copies[name]) for name in weights), "fresh weights"
        sharpen(model)
        twin.load_state_dict(model.state_dict())
        with switched_off():
            expected = computed(model)
        actual = computed(twin)
        assert expected.keys() == actual.keys()
        for name, value in expected.items():
            assert torch.equal(value.nan_to_num(7.0), actual[name].nan_to_num(7.0)), f"{cls.__name__}: {name}"


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name: str, tmp_path: Path) -> None:
    check(small(name), tmp_path)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_toys(kind: str, tmp_path: Path) -> None:
    check(toy_config(kind), tmp_path)


@pytest.mark.parametrize("number", [*range(RANDOM), 44, 90])  # two whose parts are replaced while a model is built
def test_random_configs(number: int, tmp_path: Path) -> None:
    kind = list(KINDS)[number % len(KINDS)]
    draw = Random(number)
    while True:
        try:
            config = ALL_KINDS[kind][0](**random_fields(draw, kind))
            break
        except (ValueError, StrictDataclassError):
            continue
    check(config, tmp_path, ALL_KINDS[kind][1].__name__)


def test_the_code_of_a_config_is_made_once_and_that_of_another_anew(tmp_path: Path, monkeypatch) -> None:
    made, files_of, config = [], remote_code.files_of, toy_config("decoder")
    monkeypatch.setattr(remote_code, "FILES", {})
    monkeypatch.setattr(remote_code, "files_of", lambda *given: made.append(given) or files_of(*given))
    texts = []
    for number, norm in enumerate(("layer_norm", "layer_norm", "rms_norm", "layer_norm")):
        config.norm = norm
        config.save_pretrained(tmp_path / str(number))
        texts.append((tmp_path / str(number) / "modeling_vanilla_decoder.py").read_text())
    assert texts[0] == texts[1] == texts[3] != texts[2]
    assert len(made) == 2
