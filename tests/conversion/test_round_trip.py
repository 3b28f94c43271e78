"""There and back, also from files as others wrote them: not a bit, a name or a field is lost."""

import copy
import dataclasses
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from refusals import refused
from safetensors.torch import save_file
from transformers import AutoConfig, GPT2Config, GPT2LMHeadModel, PreTrainedModel

from vanillaformer.conversion import ARCHITECTURES, from_native, native_architectures, to_native
from vanillaformer.conversion.convert import give_back, take_over
from vanillaformer.conversion.mapping.canonical import canonical_native_value
from vanillaformer.conversion.mapping.weights import head_names, tensors_of
from vanillaformer.hub.loading import saved_folder

from . import natives
from .natives import CASES, MAIN, MAIN_CASES, SEQ2SEQ, T5, UNTIED, Case, D, V, batch_for, converted, native_model


def assert_equal(actual: PreTrainedModel, expected: PreTrainedModel) -> None:
    """The same names, the same bits, the same tensors tied."""
    ours, theirs = tensors_of(actual), tensors_of(expected)
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype, name
        assert torch.equal(ours[name], value), name
    assert partition(ours) == partition(theirs)


def partition(tensors: dict[str, torch.Tensor]) -> set[frozenset[str]]:
    """Names of one tensor, together."""
    groups: dict[int, set[str]] = {}
    for name, tensor in tensors.items():
        groups.setdefault(id(tensor), set()).add(name)
    return {frozenset(names) for names in groups.values()}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_there_and_back(case):
    native, ours = converted(case)
    by_name = ARCHITECTURES[case.architecture].by_name  # if it is not the only one
    assert by_name or case.architecture in native_architectures(ours.config, case.head)
    back = to_native(ours, case.architecture)
    assert type(back) is type(native)
    assert not back.training
    assert_equal(back, native)
    for one, other in ((native, ours), (ours, back)):  # no weight is shared
        used = {tensor.data_ptr() for tensor in tensors_of(one).values()}
        assert not used & {tensor.data_ptr() for tensor in tensors_of(other).values()}
    again = from_native(back)
    assert_equal(again, ours)
    assert again.config.to_dict() == ours.config.to_dict()
    for field in dataclasses.fields(native.config):
        if field.name not in ("architectures", "dtype", "transformers_version", "forced_eos_token_id"):
            values = [canonical_native_value(each, field.name) for each in (back.config, native.config)]
            assert values[0] == values[1], field.name


@pytest.mark.parametrize("case", [case for case in CASES if case.number == 0], ids=str)
def test_a_model_is_taken_over_and_given_back(case):
    """The weights move: the native model is empty, and what comes back is what came in."""
    native, _ = converted(case)
    taken = copy.deepcopy(native)
    ours = take_over(taken)
    architecture = ARCHITECTURES[case.architecture]
    unread = head_names(architecture.unused | architecture.fixed_tables, architecture, case.head)
    assert {name for name, tensor in taken.named_parameters() if tensor.numel()} <= set(unread)
    assert_equal(ours, from_native(native))
    back = give_back(pickle.loads(pickle.dumps(ours)))
    assert type(back) is type(native)
    known = {"dtype": None}  # which only a saved model's config has
    assert back.config.to_dict() | known == native.config.to_dict() | known
    assert_equal(back, native)


def test_layers_that_somebody_tied_are_not_taken_over():
    """Ours have a tensor each, of which one would never be written."""
    sizes = {"n_embd": 8, "n_head": 2, "n_layer": 2, "n_positions": 8, "vocab_size": 11}
    native = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=2))
    first, second = native.transformer.h
    second.mlp.c_fc.weight = first.mlp.c_fc.weight
    refused(r"c_fc\.weight is one tensor with another of the native model", take_over, native)
    assert all(weight.numel() for weight in native.parameters())


@pytest.mark.parametrize("case", [*MAIN_CASES, *(case for case in CASES if str(case) == "t5-lm-1")], ids=str)
def test_saved_folders(case, tmp_path: Path):
    """A native folder is read by its path, and what was converted loads without a missing or unexpected key."""
    native, ours = converted(case)
    native.save_pretrained(tmp_path / "native")
    read = from_native(tmp_path / "native").eval()
    assert_equal(read, ours)
    unsaid = {"_name_or_path": "", "dtype": None}
    assert read.config.to_dict() | unsaid == ours.config.to_dict() | unsaid
    to_native(read, case.architecture).save_pretrained(tmp_path / "back")
    back, report = type(native).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert [*report["missing_keys"], *report["unexpected_keys"], *report["mismatched_keys"]] == []
    assert_equal(back, native)
    assert AutoConfig.from_pretrained(tmp_path / "back").architectures == [type(native).__name__]
    batch = batch_for(case, native)
    assert torch.equal(back.eval()(**batch).logits, native(**batch).logits)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "marian", "t5", "vit"])
def test_the_dtype_is_kept(name):
    native = native_model(MAIN[name]).to(torch.bfloat16)
    ours = from_native(native)
    assert {tensor.dtype for tensor in tensors_of(ours).values()} == {torch.bfloat16}
    assert_equal(to_native(ours, name), native)


def test_a_table_saved_in_half_precision_is_exact_only_in_that_dtype(tmp_path):
    """Its rounding would change float32 logits by a thousandth."""
    native_model(MAIN["pegasus"]).to(torch.bfloat16).save_pretrained(tmp_path)
    assert from_native(tmp_path, dtype=torch.bfloat16).dtype == torch.bfloat16
    refused("equal only in that dtype", from_native, tmp_path, dtype=torch.float32)


def test_the_generation_config_is_carried():
    native = native_model(MAIN["bart"])
    native.generation_config.num_beams = 4
    native.generation_config.forced_bos_token_id = 7
    ours = from_native(native)
    assert ours.generation_config is not native.generation_config
    assert (ours.generation_config.num_beams, ours.generation_config.forced_bos_token_id) == (4, 7)
    assert to_native(ours).generation_config.to_dict() == native.generation_config.to_dict()


@pytest.mark.parametrize(("name", "head"), [("bert", "sequence"), ("vit", "image")])
def test_labels_are_carried(name, head):
    labels = {"id2label": {0: "no", 1: "maybe", 2: "yes"}, "label2id": {"no": 0, "maybe": 1, "yes": 2}}
    labels["problem_type"] = "single_label_classification"
    ours = from_native(native_model(Case(name, MAIN[name].config | labels, head)))
    for config in (ours.config, to_native(ours, name).config):
        assert {field: getattr(config, field) for field in labels} == labels


@pytest.mark.parametrize("name", ["bert", "gpt2"])
@pytest.mark.parametrize("problem", ["regression", "multi_label_classification", None])
def test_what_is_given_back_has_the_problem_that_it_was_trained_for(name, problem):
    native = native_model(Case(name, MAIN[name].config | natives.LABELS, "sequence"))
    native.config.problem_type = "single_label_classification"
    ours = take_over(native)
    assert ours.config.problem_type == "single_label_classification"
    ours.config.problem_type = problem
    assert give_back(ours).config.problem_type == problem


def test_weights_decide_what_is_tied_and_a_bias_of_zeros_that_is_not_trained_is_none():
    """A checkpoint may have an output layer of its own although its config says otherwise."""
    native = native_model(MAIN["gpt2"])
    native.lm_head.weight = torch.nn.Parameter(torch.randn_like(native.lm_head.weight))
    ours = from_native(native)
    assert not ours.config.tie_word_embeddings
    assert torch.equal(ours.lm_head.weight, native.lm_head.weight)
    assert torch.equal(ours.model.embed_tokens.weight, native.transformer.wte.weight)
    assert not to_native(ours).config.tie_word_embeddings
    native = native_model(MAIN["marian"])
    native.final_logits_bias.zero_()
    ours = from_native(native)
    assert not ours.config.lm_head_bias
    assert_equal(to_native(ours), native)


Weights = dict[str, torch.Tensor]
TARGETS = 50  # tokens of a vocabulary of its own
GATED = T5 | UNTIED | {"feed_forward_proj": "gated-gelu"}
SEPARATE = SEQ2SEQ | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": TARGETS}
TABLES = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")


def only(*tables: str, **added: tuple[int, int]) -> Callable[[Weights], Weights]:
    """A file with these of the token tables, and other tensors of these shapes; `head` is the output layer."""

    def change(weights: Weights) -> Weights:
        kept = {name: value for name, value in weights.items() if not name.endswith(TABLES) or name.endswith(tables)}
        names = {"head": "lm_head.weight", "bias": "final_logits_bias"}
        return kept | {names[name]: torch.randn(shape) for name, shape in added.items()}

    return change


def old_bert(weights: Weights) -> Weights:
    """Names of TensorFlow's layer norms, one bias of the output layer and its weight in the embeddings only."""
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in weights.items()
        if not name.startswith("cls.predictions.decoder")
    }
    return renamed | {"cls.predictions.bias": torch.randn(V), "bert.embeddings.position_ids": torch.arange(64)[None]}


def old_gpt2(weights: Weights) -> Weights:
    """The bare stack's names, and masks."""
    bare = {name.removeprefix("transformer."): value for name, value in weights.items() if name != "lm_head.weight"}
    return bare | {"h.0.attn.bias": torch.ones(1, 1, natives.LENGTH, natives.LENGTH)}


# Class, fields of config.json, and what the file has of the weights
@pytest.mark.parametrize(("name", "case"), {
    "t5": ("T5ForConditionalGeneration", T5, only("shared.weight")),
    "t5-1.1": ("T5ForConditionalGeneration", GATED, only("shared.weight", head=(V, D))),
    "t5-1.1-all-names": ("T5ForConditionalGeneration", GATED, only(*TABLES[:3], head=(V, D))),
    "madlad": ("T5ForConditionalGeneration", GATED, only("decoder.embed_tokens.weight", head=(V, D))),
    "t5-by-encoder": ("T5ForConditionalGeneration", GATED, only("encoder.embed_tokens.weight", head=(V, D))),
    "mt5": ("MT5ForConditionalGeneration", GATED, only("shared.weight", head=(V, D))),
    "umt5": ("UMT5ForConditionalGeneration", GATED, only("shared.weight", head=(V, D))),
    "marian": ("MarianMTModel", SEQ2SEQ, only("shared.weight", bias=(1, V))),
    "marian-separate": ("MarianMTModel", SEPARATE, only(*TABLES[1:3], bias=(1, TARGETS))),
    "marian-untied": ("MarianMTModel", SEPARATE | UNTIED,
                      only(*TABLES[1:3], head=(TARGETS, D), bias=(1, TARGETS))),
    "bart": ("BartForConditionalGeneration", SEQ2SEQ, only("shared.weight", bias=(1, V))),
    "bert": ("BertForMaskedLM", natives.ENCODER, old_bert), "gpt2": ("GPT2LMHeadModel", natives.GPT, old_gpt2),
    "llama": ("LlamaForCausalLM", natives.DECODER,
              lambda weights: weights | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}),
}.items())  # fmt: skip
def test_tensors_of_a_file_come_back_bit_for_bit(name: str, case: Any, tmp_path: Path) -> None:
    class_name, fields, change = case
    torch.manual_seed(0)
    model_class: Any = getattr(transformers, class_name)
    model = model_class(model_class.config_class(**fields))
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter)
    raw = {key: value.detach().clone().contiguous() for key, value in change(model.state_dict()).items()}
    save_file(raw, tmp_path / "model.safetensors", metadata={"format": "pt"})
    written = {"model_type": model.config.model_type, "architectures": [class_name], **fields}
    (tmp_path / "config.json").write_text(json.dumps(written))

    assert saved_folder(str(tmp_path)) == tmp_path  # as the programs look at it
    native = give_back(from_native(tmp_path))
    native.save_pretrained(tmp_path / "out")
    for tensors in (native.state_dict(), model_class.from_pretrained(tmp_path / "out").state_dict()):
        for key, value in raw.items():
            if key.endswith(("position_ids", "attn.bias", "inv_freq")):  # buffers that no class of today has
                continue
            today = key.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
            found = tensors[today if today in tensors else f"transformer.{today}"]
            assert torch.equal(found, value), key
