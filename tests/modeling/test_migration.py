"""Weights saved by their old names are read, and saved again by those of today."""

import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from vanillaformer import VanillaDecoderForCausalLM
from vanillaformer.configuration import migration

from .toys import inputs_of, toy


@pytest.mark.parametrize("info", [False, True])
def test_renamed_weights_are_read_by_their_old_names_and_saved_by_the_new(info, tmp_path, monkeypatch):
    model = toy("decoder")
    model.save_pretrained(tmp_path / "new")
    model.save_pretrained(tmp_path / "old")
    weights = load_file(tmp_path / "new" / "model.safetensors")
    old = {name.replace(".mlp.", ".ffn."): value for name, value in weights.items()}
    assert old.keys() != weights.keys()
    save_file(old, tmp_path / "old" / "model.safetensors", {"format": "pt"})
    with monkeypatch.context() as patch:
        patch.setitem(migration.RENAMED_WEIGHTS, r"\.ffn\.", ".mlp.")
        for name in ("old", "new"):
            if info:
                loaded, report = VanillaDecoderForCausalLM.from_pretrained(tmp_path / name, output_loading_info=True)
                assert not report["missing_keys"]
                assert not report["unexpected_keys"]
            else:
                loaded = AutoModelForCausalLM.from_pretrained(tmp_path / name)
            assert torch.equal(loaded.eval()(**inputs_of("decoder")).logits, model(**inputs_of("decoder")).logits)
            loaded.save_pretrained(tmp_path / "again")
            assert load_file(tmp_path / "again" / "model.safetensors").keys() == weights.keys()


def test_no_name_of_today_is_taken_for_an_old_one():
    for kind in ("encoder_decoder", "decoder", "encoder"):
        for name in toy(kind).state_dict():
            assert not any(re.search(pattern, name) for pattern in migration.RENAMED_WEIGHTS), name
