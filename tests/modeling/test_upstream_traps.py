"""What broke custom models in releases of transformers and torch, each named by the thread that reported it."""

import itertools
import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from refusals import refused
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForSeq2SeqLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from vanillaformer.configuration import options, preset

from .toys import ALL_KINDS, KINDS, assert_close, inputs_of, labels_of, step_of_trainer, toy

INITIALIZATIONS = [{"initialization": name} for name in get_args(options.Initialization)]
INITIALIZATIONS += [{"norm_placement": "admin"}, *({"norm_placement": "no_norm", **one} for one in INITIALIZATIONS)]
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}), "half precision": ({}, {"dtype": torch.bfloat16}), "dtype of the file": ({}, {"dtype": "auto"}),
    "devices": ({}, {"device_map": "cpu"}), "shards": ({"max_shard_size": "20KB"}, {}),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_loading_keeps_every_weight_whatever_initializes_it(kind: str, way: str, tmp_path: Path) -> None:
    """transformers#46620: an `_init_weights` that writes in place drew loaded weights again."""
    saving, loading = WAYS[way]
    models = []
    for fields in [{}, *(INITIALIZATIONS if way == "plain" else [])]:
        with suppress(ValueError, StrictDataclassError):  # as the placement excludes
            models.append(toy(kind, **fields))
    assert len(models) > (2 if way == "plain" and kind in KINDS else 0)
    for number, model in enumerate(models):
        for value, parameter in enumerate(model.parameters()):
            parameter.data.fill_(value % 127 + 1)  # which every dtype holds exactly
        model.save_pretrained(tmp_path / str(number), **saving)
        assert (len(list((tmp_path / str(number)).glob("*.safetensors"))) > 1) == (way == "shards")
        with torch.random.fork_rng():
            loaded = type(model).from_pretrained(tmp_path / str(number), **loading)
        found = dict(loaded.named_parameters())
        for name, parameter in model.named_parameters():
            assert torch.equal(found[name].float(), parameter), (model.config.to_diff_dict(), name)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("kind", KINDS)
def test_ragged_rows_accumulated_by_transformers_trainer(kind: str, smoothing: float, tmp_path: Path) -> None:
    """transformers#47688: a loss that takes the number of targets without dividing by it; rows of other lengths."""
    inputs = inputs_of(kind, batch=4) | {"labels": labels_of(kind, batch=4)}
    inputs["labels"][:2, 1:] = -100
    moved = [step_of_trainer(toy(kind), inputs, size, tmp_path, smoothing) for size in (4, 1)]
    assert_close(moved[1], moved[0], "step", 1e-3)


@pytest.mark.parametrize(("shared", "tied", "twice"), itertools.product([True, False], repeat=3))
def test_ties_survive_saving_loading_and_resizing(shared: bool, tied: bool, twice: bool, tmp_path: Path) -> None:
    """transformers#48154: a table became the output layer, because one field decides of all ties."""
    fields: dict[str, Any] = {"share_encoder_decoder_embeddings": shared, "tie_word_embeddings": tied}
    model = toy("encoder_decoder", **fields, decoder_vocab_size=37 if shared else 29)
    model.save_pretrained(tmp_path)
    if twice:  # as other programs store tied tensors
        path = tmp_path / "model.safetensors"
        whole = {name: value.clone() for name, value in model.state_dict().items()}
        transformers.modeling_utils.safe_save_file(whole, path, metadata={"format": "pt"})
    loaded = type(model).from_pretrained(tmp_path).eval()
    inputs = inputs_of("encoder_decoder")
    before = model.eval()(**inputs).logits
    assert torch.equal(loaded(**inputs).logits, before)
    assert ties(loaded) == (shared, tied)
    loaded.resize_token_embeddings(45)
    if shared:
        refused("resize_token_embeddings", loaded.resize_decoder_token_embeddings, 50)
    else:  # each side for itself
        assert (loaded.config.vocab_size, loaded.config.target_vocab_size) == (45, 29)
        assert torch.equal(loaded(**inputs).logits, before)
        loaded.resize_decoder_token_embeddings(40)
    target = 45 if shared else 40
    assert (loaded.config.vocab_size, loaded.config.target_vocab_size) == (45, target)
    assert loaded.lm_head.out_features == target
    loaded.save_pretrained(tmp_path / "resized")
    again, report = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "resized", output_loading_info=True)
    assert not any(report.values())
    assert ties(again) == (shared, tied)
    after = again.eval()(**inputs).logits
    assert torch.equal(after, loaded(**inputs).logits)
    assert_close(after[..., : before.shape[-1]], before, "logits of the old tokens")
    new_words = again(torch.tensor([[43, 44, 40]]), labels=torch.tensor([[39, 38]]))
    assert torch.isfinite(new_words.loss)


def ties(model: Any) -> tuple[bool, bool]:
    """Return whether one table serves source and target, and whether the output layer is the target's."""
    source, target = model.model.encoder.embed_tokens.weight, model.model.decoder.embed_tokens.weight
    return source is target, model.lm_head.weight is target


@pytest.mark.parametrize("kind", KINDS)
def test_an_attention_function_of_the_user_sees_the_mask(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers#45811: without a mask function of its own it got none, and causality was lost in silence."""

    def own(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **kwargs: Any) -> Any:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)

    monkeypatch.setattr(AttentionInterface, "_global_mapping", dict(AttentionInterface._global_mapping))
    AttentionInterface.register("of_the_user", own)
    monkeypatch.setattr(AttentionMaskInterface, "_global_mapping", dict(AttentionMaskInterface._global_mapping))
    model, inputs = toy(kind).eval(), inputs_of(kind)
    expected = model(**inputs).logits
    refused("attn_implementation='of_the_user' has no mask function", model.set_attn_implementation, "of_the_user")
    AttentionMaskInterface.register("of_the_user", sdpa_mask)
    model.set_attn_implementation("of_the_user")
    assert_close(model(**inputs).logits, expected, "logits")


def test_remote_and_registered_code_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers#45698: what one had saved, the other could not load."""
    monkeypatch.delenv("VANILLAFORMER_REMOTE_CODE")
    toy("decoder").eval().save_pretrained(tmp_path / "model")
    code = """if True:
        import sys, torch
        from transformers import AutoModelForCausalLM as Auto
        folder, ids = sys.argv[1], torch.tensor([[3, 4, 5, 6]])
        remote = Auto.from_pretrained(folder, trust_remote_code=True).eval()
        assert type(remote).__module__.startswith("transformers_modules."), type(remote).__module__
        import vanillaformer
        remote.save_pretrained(folder + "/../remote")
        vanillaformer.VanillaDecoderForCausalLM.from_pretrained(folder).save_pretrained(folder + "/../ours")
        for name, flag in (("model", None), ("remote", None), ("ours", None), ("ours", True)):
            one = Auto.from_pretrained(folder + "/../" + name, trust_remote_code=flag).eval()
            assert torch.equal(one(ids).logits, remote(ids).logits), (name, flag)
    """
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "model")], check=True)


def test_no_release_of_transformers_has_our_names() -> None:
    """transformers#45848: a base class that acts on a field `mup`; or a model type like one of ours."""
    ours = {kind for kind in transformers.CONFIG_MAPPING if str(kind).startswith("vanilla")}
    assert not ours & set(transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES)
    refused("mup", preset, "gpt2", error=(TypeError, ValueError), mup=True)


@pytest.mark.parametrize("kind", KINDS)
def test_other_trainers_build_on_the_meta_device_shard_and_load(kind: str, tmp_path: Path) -> None:
    """torchtitan#3775, transformers#43749: models that start from noise, and ties lost in shards."""
    model, inputs = toy(kind).eval(), inputs_of(kind) | {"labels": labels_of(kind)}
    model.save_pretrained(tmp_path)
    expected = model(**inputs).loss
    init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        with torch.device("meta"):
            empty = type(model)(type(model.config)(**json.loads((tmp_path / "config.json").read_text())))
        fully_shard(empty, mesh=init_device_mesh("cpu", (1,)))
        empty.to_empty(device="cpu")
        empty.init_weights()
        options = StateDictOptions(full_state_dict=True)
        set_model_state_dict(empty, dict(model.state_dict()), options=options)
        assert_close(empty.eval()(**inputs).loss, expected, "loss")
    finally:
        destroy_process_group()
