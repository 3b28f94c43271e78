"""What is saved comes back: every tensor, in every combination, through the Auto classes and into every dtype."""

import copy
import json
import re
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import vanillaformer
from vanillaformer.modeling import AUTO_CLASSES

from .axes import cover, single_values
from .toys import KINDS, every_value, inputs_of, over, shared_toy, toy


def assert_same_tensors(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert actual[name].dtype == value.dtype, name
        assert torch.equal(actual[name], value), f"{name} is not what was saved"


@over({kind: cover(kind, times=3) for kind in KINDS} | {"image_encoder": single_values("image_encoder")[::5]})
def test_saved_and_loaded_a_model_is_bit_equal(kind, overrides, tmp_path):
    model = copy.deepcopy(shared_toy(kind, overrides)).float()
    model.save_pretrained(tmp_path)
    auto_class = next(auto for auto, classes in AUTO_CLASSES.items() if type(model) in classes)
    loaded, info = auto_class.from_pretrained(tmp_path, output_loading_info=True)
    lost = {name: info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")}
    assert not any(lost.values()), lost
    assert type(loaded) is type(model)
    assert_same_tensors(dict(loaded.named_parameters()), dict(model.named_parameters()))
    assert_same_tensors(dict(loaded.named_buffers()), dict(model.named_buffers()))
    unsaid = {"_name_or_path": "", "dtype": ""}
    assert loaded.config.to_dict() | unsaid == model.config.to_dict() | unsaid
    inputs = inputs_of(kind, config=model.config)
    with torch.no_grad():  # sdpa has another kernel for a position bias that is trained
        assert torch.equal(loaded.eval()(**inputs).logits, model(**inputs).logits)


SHARED = {"decoder_vocab_size": 37, "share_encoder_decoder_embeddings": True}


@pytest.mark.parametrize(("kind", "fields", "absent"), [
    ("decoder", {}, {"lm_head.weight"}), ("decoder", {"tie_word_embeddings": False}, set()),
    ("encoder", {}, {"lm_head.weight"}), ("encoder_decoder", {}, {"lm_head.weight"}),
    ("encoder_decoder", {"tie_word_embeddings": False}, set()),
    ("encoder_decoder", SHARED, {"lm_head.weight", "model.decoder.embed_tokens.weight"}),
    ("encoder_decoder", SHARED | {"tie_word_embeddings": False}, {"model.decoder.embed_tokens.weight"}),
])  # fmt: skip
def test_a_file_holds_each_tensor_once_and_no_buffer(kind, fields, absent, tmp_path):
    model = toy(kind, **fields)
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        stored = set(file.keys())
    assert stored == set(dict(model.named_parameters(remove_duplicate=False))) - absent


@every_value()
def test_a_model_made_on_the_meta_device_gets_its_tables_back(kind, overrides):
    """Memory first, then every weight and table by the model's own initialization."""
    model = toy(kind, **overrides)
    config_class, model_class = KINDS[kind]
    with torch.device("meta"):
        empty = model_class(config_class(**model.config.to_dict()))
    assert {tensor.device.type for tensor in (*empty.parameters(), *empty.buffers())} == {"meta"}
    empty.to_empty(device="cpu")
    for tensor in (*empty.parameters(), *empty.buffers()):
        tensor.data.fill_(float("nan"))
    empty.init_weights()
    assert_same_tensors(dict(empty.named_buffers()), dict(model.named_buffers()))
    for name, parameter in empty.named_parameters():
        assert torch.isfinite(parameter).all(), f"{name} was not initialized"


RELEASES = Path(__file__).parent / "releases"
FOLDERS = sorted(path.parent for path in RELEASES.glob("*/*/config.json"))
CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_a_released_model_computes_what_it_did(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    assert config["vanillaformer_version"] == folder.parent.name
    by_name = {model.__name__: model for models in AUTO_CLASSES.values() for model in models}
    model, report = by_name[config["architectures"][0]].from_pretrained(folder, output_loading_info=True)
    assert not any(report.values())
    expected = load_file(folder / "expected.safetensors")
    logits = expected.pop("logits")
    assert (model(**expected).logits - logits).norm() < 1e-5 * logits.norm()
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert torch.equal(again(**expected).logits, model(**expected).logits)
    assert again.config.vanillaformer_version == vanillaformer.__version__


def test_every_release_has_its_models():
    released = set(re.findall(r"^## (\d\S*)", CHANGELOG.read_text(encoding="utf-8"), re.MULTILINE))
    written = {path.name for path in RELEASES.iterdir() if path.is_dir() and path.name[0].isdigit()}
    assert written >= released | {vanillaformer.__version__}
