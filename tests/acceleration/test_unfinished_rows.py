"""Finished texts leave the batch: the same tokens, from fewer rows."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from modeling.toys import PAD, TARGET_VOCABULARY, attending, few_choices, over, shared_toy, tokens, with_autocast
from transformers import LogitsProcessorList

from vanillaformer.acceleration.unfinished_rows import UnfinishedRows

ENDS = [2, 9, 3, 3, 4, 5, 9, 2, 3, 2, 4, 3]
"""Number of tokens after which each row ends."""
END = 3


def end_rows(prompt: int, vocabulary: int) -> Callable[[int, torch.Tensor], list[int]]:
    """Return which tokens may follow: each row ends after its number of tokens, counted from the prompt."""
    others = [token for token in range(vocabulary) if token != END]
    return lambda row, ids: [END] if ENDS[row] <= len(ids) - prompt + 1 else others


def batch() -> dict[str, torch.Tensor]:
    lengths = torch.tensor([5, 20, 3, 4, 5, 6, 3, 18, 4, 5, 3, 4])
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    return {"input_ids": tokens(*mask.shape).masked_fill(~mask, PAD), "attention_mask": mask.long()}


def inputs_of(kind: str) -> dict[str, torch.Tensor]:
    """Sources with padding on the right, in which there are groups, or prompts with padding on the left."""
    return batch() if kind == "encoder_decoder" else {name: value.flip(1) for name, value in batch().items()}


def generate(model: Any, kind: str, **options: Any) -> Any:
    inputs = inputs_of(kind)
    prompt = 1 if kind == "encoder_decoder" else inputs["input_ids"].shape[1]
    settings = {"max_new_tokens": 12, "eos_token_id": END, "pad_token_id": PAD}
    allowed = end_rows(prompt, model.lm_head.out_features)
    return model.generate(**inputs, **settings, prefix_allowed_tokens_fn=allowed, **options)


@pytest.fixture
def computed(monkeypatch) -> list[int]:
    """The rows of each step that the model computes."""
    seen: list[int] = []
    compute = UnfinishedRows.__call__

    def call(self: UnfinishedRows, **inputs: Any) -> Any:
        output = compute(self, **inputs)
        seen.append(len(self.rows) if self.rows is not None else len(ENDS))
        return output

    monkeypatch.setattr(UnfinishedRows, "__call__", call)
    return seen


def all_rows(monkeypatch: Any) -> None:
    monkeypatch.setattr("vanillaformer.acceleration.unfinished_rows.WORTHWHILE", 0.0)


@pytest.mark.parametrize("sampling", [False, True])
@over({"encoder_decoder": few_choices(), "decoder": few_choices()})
def test_tokens_are_those_of_the_whole_batch(kind, overrides, sampling, computed, monkeypatch):
    model = shared_toy(kind, overrides | {"max_position_embeddings": 40})
    torch.manual_seed(0)
    found = generate(model, kind, do_sample=sampling)
    assert computed == [12, 9, 5, 3, 2, 2, 2, 2]
    all_rows(monkeypatch)
    torch.manual_seed(0)
    assert torch.equal(found, generate(model, kind, do_sample=sampling))
    assert computed[8:] == [12] * 8


def test_copied_tokens_are_those_of_the_whole_batch(computed, monkeypatch):
    fields = {"output_distribution": "pointer_generator", "decoder_vocab_size": None}
    model = shared_toy("encoder_decoder", fields | {"share_encoder_decoder_embeddings": True})
    found = generate(model, "encoder_decoder")
    assert min(computed) == 2
    all_rows(monkeypatch)
    assert torch.equal(found, generate(model, "encoder_decoder"))


@pytest.mark.parametrize("options", [
    {"return_dict_in_generate": True, "output_scores": True},
    {"cache_implementation": "static"}, {"use_cache": False},
], ids=lambda options: "-".join(options))  # fmt: skip
def test_all_rows_stay_where_more_than_tokens_is_asked_for(options, computed):
    model = shared_toy("encoder_decoder", {"max_position_embeddings": 40})
    with attending(model, "eager"):
        found = generate(model, "encoder_decoder", **options)
    assert not computed
    if options.get("output_scores"):
        assert all(len(scores) == len(ENDS) for scores in found.scores)


@pytest.mark.parametrize("kind", ["encoder_decoder", "decoder"])
def test_a_processor_of_the_caller_sees_the_scores_of_all_rows(kind, computed):
    model = shared_toy(kind, {"max_position_embeddings": 40})
    mean_of_rows = lambda input_ids, scores: scores + 4 * scores.mean(0, keepdim=True)  # noqa: E731
    options = {"logits_processor": LogitsProcessorList([mean_of_rows])}
    found = generate(model, kind, **options)
    assert not computed
    assert torch.equal(found, generate(model, kind, **options, return_dict_in_generate=True).sequences)


@pytest.mark.parametrize("kind", ["encoder_decoder", "decoder"])
@pytest.mark.parametrize("before", [False, True])
def test_hooks_see_all_rows(before, kind, computed):
    model, seen = shared_toy(kind, {"max_position_embeddings": 40}), []
    layers = (model.model.decoder if kind == "encoder_decoder" else model.model).layers
    register = layers[-1].register_forward_pre_hook if before else layers[-1].register_forward_hook
    hook = register(lambda module, inputs, *output: seen.append(len(inputs[0])))
    found = generate(model, kind)
    hook.remove()
    assert set(seen) == {12}
    assert not computed
    assert torch.equal(found, generate(model, kind))
    assert computed


@pytest.mark.parametrize("kind", ["encoder_decoder", "decoder"])
def test_recording_states_and_autocast_keep_nothing_back(kind, computed):
    """Both leave something at the model that has no part in what is computed later."""
    model = copy.deepcopy(shared_toy(kind, {"max_position_embeddings": 40})).float()
    target = {"decoder_input_ids": tokens(12, 3, TARGET_VOCABULARY)} if kind == "encoder_decoder" else {}
    model(**inputs_of(kind), **target, output_hidden_states=True)
    model = with_autocast(model)
    generate(model, kind)
    assert computed == [12, 9, 5, 3, 2, 2, 2, 2]
