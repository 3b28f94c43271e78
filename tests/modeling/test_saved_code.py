"""The code beside a saved model, two files, makes the same model: weights, losses, gradients and generated tokens.

`VANILLAFORMER_SAVED_CODE` is the number of random configs.
"""

import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.dynamic_module_utils import get_imports
from without_package import answers, report_of

from vanillaformer import PRESETS, VanillaDecoderConfig, VanillaDecoderForCausalLM, preset
from vanillaformer.acceleration.plug_in import switched_off
from vanillaformer.configuration import VanillaConfig
from vanillaformer.hub import remote_code
from vanillaformer.hub.remote_code import auto_classes
from vanillaformer.modeling import AUTO_CLASSES

from .axes import OF_KIND, SMALL
from .random_configs import NEW, batch_for, valid_fields
from .toys import ALL_KINDS, KINDS, inputs_of, sharpen, toy, toy_config

RANDOM = int(os.environ.get("VANILLAFORMER_SAVED_CODE", "18"))
TEXT = {"num_attention_heads": 4, "head_dim": 8, "intermediate_size": 48, "max_position_embeddings": 16}


def small(name: str) -> VanillaConfig:
    """Return the config of a preset with small sizes."""
    fields, config_class = PRESETS[name].fields, PRESETS[name].config_class
    if "Image" in config_class.__name__:
        patches = {"patch_size": 16, "num_hidden_layers": 2}
        stages = {"patch_size": 4, "depths": [2, 2]} if "depths" in fields else patches
        return preset(name, image_size=32, hidden_size=24, **stages)
    sizes: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 32, "vocab_size": 40}
    sizes |= {"encoder_layers": 2} if "encoder_layers" in fields else {}
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
    vars(config).pop("auto_map", None)
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


# Of which one has parts that are replaced while a model is built
REPLACED = SMALL | OF_KIND["decoder"] | {"norm_placement": "pre", "block_layout": "parallel_shared_norm"}


@pytest.mark.parametrize("number", [None, *range(RANDOM)])
def test_random_configs(number: int | None, tmp_path: Path) -> None:
    kind = "decoder" if number is None else list(KINDS)[number % len(KINDS)]
    fields = REPLACED if number is None else valid_fields(Random(number), kind)
    check(ALL_KINDS[kind][0](**fields), tmp_path, ALL_KINDS[kind][1].__name__)


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


MODELS = sorted({model for models in AUTO_CLASSES.values() for model in models}, key=lambda model: model.__name__)
AUTO = {model: [auto for auto, models in AUTO_CLASSES.items() if model in models] for model in MODELS}
REQUIRED = {"torch", "transformers", "huggingface_hub", "packaging"} | set(sys.stdlib_module_names)


def kind_of(model_class: type) -> str:
    return model_class.config_class.model_type.removeprefix("vanilla_")


def code(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("*.py")}


def stored(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A saved model of every class, and what it computes."""
    torch.manual_seed(0)
    root, found = tmp_path_factory.mktemp("remote"), {}
    for model_class in MODELS:
        kind = kind_of(model_class)
        model = toy(kind, model_class)
        folder = found[model_class.__name__] = root / model_class.__name__
        model.save_pretrained(folder)
        inputs = inputs_of(kind)
        if model_class.__name__.endswith("ForMultipleChoice"):  # its texts are choices
            inputs = {name: tensor[None] for name, tensor in inputs.items()}
        torch.save({"inputs": inputs, "answers": answers(model, inputs)}, f"{folder}.pt")
    return found


@pytest.fixture(scope="module")
def bad(folders) -> tuple[Path, Path]:
    """A folder whose code leaves a file when it is imported, and that file."""
    decoder = folders["VanillaDecoderForCausalLM"]
    folder, trace = decoder.parent / "bad", decoder.parent / "trace"
    shutil.copytree(decoder, folder)
    for name in ("configuration_vanilla_decoder.py", "modeling_vanilla_decoder.py"):
        text = (folder / name).read_text()
        (folder / name).write_text(f"{text}\nopen({str(trace)!r}, 'w').close()\n")
    return folder, trace


@pytest.fixture(scope="module")
def report(folders, bad, tmp_path_factory) -> dict:
    """What a process without the package found."""
    models = [(str(folders[model.__name__]), auto.__name__) for model in MODELS for auto in AUTO[model]]
    bases = [(str(folders[model.__name__]), AUTO[model][0].__name__) for _, model in ALL_KINDS.values()]
    jobs = {"models": models, "bases": bases, "bad": str(bad[0]), "trace": str(bad[1])}
    home = tmp_path_factory.mktemp("home")
    environment = os.environ | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    found = report_of(Path(__file__).with_name("remote_loading.py"), jobs, home, environment)
    bad[1].unlink(missing_ok=True)
    return found


def test_every_model_and_its_parts_load_and_are_saved_without_the_package_and_compute_the_same(report, folders):
    assert report["ours"] == []
    expected = [model.__name__ for model in MODELS for _ in AUTO[model]]
    assert [entry["class"] for entry in report["models"]] == expected
    for entry in report["models"]:
        assert entry["module"].startswith("transformers_modules."), entry
        assert entry["equal"] == [True, True], entry
        assert entry["known"], entry  # by its name, which tells Trainer's label smoothing what to shift
    for entry in report["models"]:
        first, again = folders[entry["class"]], Path(entry["again"])
        assert (code(again), stored(again)) == (code(first), stored(first))
    for parts, (_, model) in zip(report["bases"], ALL_KINDS.values(), strict=True):
        for folder in map(Path, parts):
            assert code(folder) == code(folders[model.__name__])
            assert stored(folder)["auto_map"] == stored(folders[model.__name__])["auto_map"]


def test_without_the_flag_nothing_is_executed(report):
    for refusal in [*report["refusals"], report["bad refusal"]]:
        assert "trust_remote_code=True" in refusal
    assert not report["left"]
    assert not report["left without the flag"]
    assert report["left with the flag"], "the trap does not work: nothing was tested"


@pytest.mark.parametrize("flag", [None, True])
def test_with_the_package_its_own_classes_are_used_and_saved_again(flag, report, folders, bad, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(bad[0], trust_remote_code=flag)
    assert type(model) is VanillaDecoderForCausalLM
    assert type(model.config) is VanillaDecoderConfig
    assert not bad[1].exists()
    model.save_pretrained(tmp_path)
    assert code(tmp_path) == code(folders["VanillaDecoderForCausalLM"])
    assert stored(tmp_path) == stored(folders["VanillaDecoderForCausalLM"])


def test_a_folder_saved_without_the_package_loads_with_it(report):
    for entry in report["models"]:
        model = getattr(transformers, entry["again"].split("_")[-2]).from_pretrained(entry["again"]).eval()
        assert type(model).__module__.startswith("vanillaformer.")
        expected = torch.load(entry["again"].rsplit("_", 2)[0] + ".pt")
        assert torch.equal(answers(model, expected["inputs"])["output"], expected["answers"]["output"])


def test_the_code_needs_no_other_library(folders):
    for path in (path for folder in folders.values() for path in folder.glob("*.py")):
        assert set(get_imports(path)) <= REQUIRED, path


@pytest.mark.parametrize("value", ["0", "False"])
def test_switched_off_it_saves_no_code_and_leaves_no_map(value, folders, tmp_path, monkeypatch):
    model = AutoModelForCausalLM.from_pretrained(folders["VanillaDecoderForCausalLM"])
    monkeypatch.setenv("VANILLAFORMER_REMOTE_CODE", value)
    model.save_pretrained(tmp_path)
    assert code(tmp_path) == {}
    assert "auto_map" not in stored(tmp_path)
    assert type(AutoConfig.from_pretrained(tmp_path)) is VanillaDecoderConfig


def test_a_custom_class_keeps_its_place_in_the_map(tmp_path):
    config = toy_config("decoder")
    (tmp_path / "mine.py").write_text("")
    config.auto_map = {"AutoModelForCausalLM": "mine.Mine", "AutoModel": "gone.Gone"}
    config.save_pretrained(tmp_path)
    auto_map = stored(tmp_path)["auto_map"]
    assert auto_map["AutoModelForCausalLM"] == "mine.Mine"
    assert auto_map["AutoModel"] == "modeling_vanilla_decoder.VanillaDecoderModel"


def test_a_subclass_of_a_config_is_left_to_transformers(tmp_path):
    class Mine(VanillaDecoderConfig):
        """Somebody's own."""

    Mine(vocab_size=10, hidden_size=8, num_attention_heads=2).save_pretrained(tmp_path)
    assert code(tmp_path) == {}
    assert "auto_map" not in stored(tmp_path)


def test_a_config_pushed_from_its_folder_brings_its_code(tmp_path):
    config = toy_config("encoder")
    config.save_pretrained(tmp_path)
    assert set(config._get_files_timestamps(tmp_path)) == {"config.json"}


@pytest.mark.parametrize(("record", "commit"), [
    (None, ""), ('{"url": "file:///here", "dir_info": {"editable": true}}', ""),
    ('{"url": "https://example.org/it", "vcs_info": {"vcs": "git", "commit_id": "abc123"}}', ", commit abc123"),
])  # fmt: skip
def test_the_commit_is_named_if_the_package_was_installed_from_a_repository(record, commit, monkeypatch):
    monkeypatch.setattr(remote_code, "distribution", lambda name: SimpleNamespace(read_text=lambda file: record))
    monkeypatch.setattr(remote_code, "known_commit", remote_code.known_commit.__wrapped__)
    first = remote_code.header(toy_config("decoder"), "modeling_mine").splitlines()[0]
    version = f"vanillaformer {VanillaDecoderConfig.code_version}{commit}"
    assert first == f"# Generated: vanillaformer/modeling_mine.py by {version}."
