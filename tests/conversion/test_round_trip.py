"""There and back: not a bit, a name or a field is lost, in memory and through saved folders."""

import copy
import dataclasses
import pickle
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, PreTrainedModel

import vanillaformer
from vanillaformer.conversion import ARCHITECTURES, from_native, native_architectures, to_native
from vanillaformer.conversion.convert import give_back, take_over
from vanillaformer.conversion.mapping.canonical import canonical_native_value
from vanillaformer.conversion.mapping.weights import head_names, tensors_of

from .natives import CASES, MAIN_CASES, batch_for, converted, native_model

AUTO = {
    vanillaformer.VanillaDecoderConfig: AutoModelForCausalLM,
    vanillaformer.VanillaEncoderConfig: transformers.AutoModelForMaskedLM,
    vanillaformer.VanillaEncoderDecoderConfig: transformers.AutoModelForSeq2SeqLM,
    vanillaformer.VanillaImageEncoderConfig: transformers.AutoModelForImageClassification,
}


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
    with pytest.raises(ValueError, match=r"c_fc\.weight is one tensor with another of the native model"):
        take_over(native)
    assert all(weight.numel() for weight in native.parameters())


OWN_OUTPUT_LAYER = [case for case in CASES if str(case) == "t5-lm-1"]


@pytest.mark.parametrize("case", MAIN_CASES + OWN_OUTPUT_LAYER, ids=str)
def test_saved_folders(case, tmp_path: Path):
    """A native folder is read by its path, and what was converted loads without a missing or unexpected key."""
    native, ours = converted(case)
    native.save_pretrained(tmp_path / "native")
    read = from_native(tmp_path / "native").eval()
    assert_equal(read, ours)
    unsaid = {"_name_or_path": "", "dtype": None}
    assert read.config.to_dict() | unsaid == ours.config.to_dict() | unsaid
    to_native(read, case.architecture).save_pretrained(tmp_path / "back")
    auto = AUTO[ARCHITECTURES[case.architecture].config_class]
    back, report = auto.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert [*report["missing_keys"], *report["unexpected_keys"], *report["mismatched_keys"]] == []
    assert_equal(back, native)
    assert AutoConfig.from_pretrained(tmp_path / "back").architectures == [type(native).__name__]
    batch = batch_for(case, native)
    assert torch.equal(back.eval()(**batch).logits, native(**batch).logits)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "marian", "t5", "vit"])
def test_the_dtype_is_kept(name):
    native = native_model(next(case for case in MAIN_CASES if case.architecture == name)).to(torch.bfloat16)
    ours = from_native(native)
    assert {tensor.dtype for tensor in tensors_of(ours).values()} == {torch.bfloat16}
    assert_equal(to_native(ours, name), native)


def test_the_generation_config_is_carried():
    case = next(case for case in MAIN_CASES if case.architecture == "bart")
    native = native_model(case)
    native.generation_config.num_beams = 4
    native.generation_config.forced_bos_token_id = 7
    ours = from_native(native)
    assert ours.generation_config is not native.generation_config
    assert (ours.generation_config.num_beams, ours.generation_config.forced_bos_token_id) == (4, 7)
    assert to_native(ours).generation_config.to_dict() == native.generation_config.to_dict()


@pytest.mark.parametrize(("name", "head"), [("bert", "sequence"), ("vit", "image")])
def test_labels_are_carried(name, head):
    native = native_model(next(case for case in CASES if case.architecture == name and case.head == head))
    native.config.id2label = {0: "no", 1: "maybe", 2: "yes"}
    native.config.label2id = {"no": 0, "maybe": 1, "yes": 2}
    native.config.problem_type = "single_label_classification"
    ours = from_native(native)
    for config in (ours.config, to_native(ours, name).config):
        assert (config.id2label, config.label2id) == ({0: "no", 1: "maybe", 2: "yes"}, {"no": 0, "maybe": 1, "yes": 2})
        assert config.problem_type == "single_label_classification"


@pytest.mark.parametrize(("name", "head"), [("bert", "sequence"), ("gpt2", "sequence")])
@pytest.mark.parametrize("problem", ["regression", "multi_label_classification", None])
def test_what_is_given_back_has_the_problem_that_it_was_trained_for(name, head, problem):
    native = native_model(next(case for case in CASES if case.architecture == name and case.head == head))
    native.config.problem_type = "single_label_classification"
    ours = take_over(native)
    assert ours.config.problem_type == "single_label_classification"
    ours.config.problem_type = problem
    assert give_back(ours).config.problem_type == problem


def test_weights_decide_what_is_tied_and_a_bias_of_zeros_that_is_not_trained_is_none():
    """A checkpoint may have an output layer of its own although its config says otherwise."""
    case = next(case for case in MAIN_CASES if case.architecture == "gpt2")
    native = native_model(case)
    native.lm_head.weight = torch.nn.Parameter(torch.randn_like(native.lm_head.weight))
    ours = from_native(native)
    assert not ours.config.tie_word_embeddings
    assert torch.equal(ours.lm_head.weight, native.lm_head.weight)
    assert torch.equal(ours.model.embed_tokens.weight, native.transformer.wte.weight)
    assert not to_native(ours).config.tie_word_embeddings
    case = next(case for case in MAIN_CASES if case.architecture == "marian")
    native = native_model(case)
    native.final_logits_bias.zero_()
    ours = from_native(native)
    assert not ours.config.lm_head_bias
    assert_equal(to_native(ours), native)
