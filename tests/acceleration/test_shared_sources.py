"""Sources in groups of similar length: the same tokens and states, and less padding computed."""

from typing import Any

import pytest
import torch
from modeling.toys import PAD, assert_close, attending, few_choices, over, shared_toy, tokens
from torch.nn.modules.module import register_module_forward_hook
from transformers import LogitsProcessor, LogitsProcessorList

from vanillaformer.acceleration import shared_sources
from vanillaformer.acceleration.shared_sources import source_buckets
from vanillaformer.modeling.parts.attention import CrossAttention
from vanillaformer.modeling.stack import EncoderStack

LENGTHS = [3, 20, 4, 5, 3, 6, 4, 5, 19, 3, 4, 6, 5, 3, 4, 5]


def sources() -> dict[str, torch.Tensor]:
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    return {"input_ids": tokens(*mask.shape).masked_fill(~mask, PAD), "attention_mask": mask.long()}


class Recorded(LogitsProcessor):
    """Keeps the scores of each step."""

    def __init__(self) -> None:
        self.steps: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.steps.append(scores.clone())
        return scores


def generate(model, **inputs) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The tokens and the scores of each step."""
    scores = Recorded()
    settings = {"max_new_tokens": 6, "num_beams": 2, "logits_processor": LogitsProcessorList([scores])}
    return model.generate(**(settings | inputs)), scores.steps


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], list[Any]]:
    """The rows and lengths of the sources that are encoded, and of those whose keys the first layer computes."""
    sources, keys = [], []
    forward, source_heads = EncoderStack.forward, CrossAttention.source_heads

    def encode(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = forward(self, *args, **kwargs)
        sources.append(output[0].shape[:2])
        return output

    def heads(self: Any, states: torch.Tensor) -> Any:
        keys.extend([states.shape[:2]] if self.layer_idx == 0 else [])
        return source_heads(self, states)

    monkeypatch.setattr(EncoderStack, "forward", encode)
    monkeypatch.setattr(CrossAttention, "source_heads", heads)
    return sources, keys


@pytest.mark.parametrize("beams", [1, 2])
@over({"encoder_decoder": few_choices()})
def test_tokens_and_scores_are_those_of_one_batch(kind, overrides, beams, encoded, monkeypatch):
    model, batch = shared_toy(kind, overrides), sources()
    settings = {"num_beams": beams}
    found, found_scores = generate(model, **batch, **settings)
    monkeypatch.setattr(shared_sources, "source_buckets", lambda mask: [])
    expected, expected_scores = generate(model, **batch, **settings)
    assert encoded == ([(8, 4), (8, 20), (16, 20)],) * 2
    assert torch.equal(found, expected)
    for step, (ours, theirs) in enumerate(zip(found_scores, expected_scores, strict=True)):
        assert_close(ours, theirs, f"scores of step {step}", 1e-10)


def test_vectors_are_grouped_as_tokens_are_and_recorded_states_are_those_of_the_whole_batch():
    model, batch = shared_toy("encoder_decoder", {}), sources()
    vectors = model.get_input_embeddings()(batch["input_ids"])
    found = generate(model, inputs_embeds=vectors, attention_mask=batch["attention_mask"])
    assert torch.equal(found[0], generate(model, **batch)[0])
    with attending(model, "eager"):
        recorded = {"output_hidden_states": True, "output_attentions": True, "return_dict_in_generate": True}
        output = model.generate(**batch, **recorded, max_new_tokens=6, num_beams=2)
    assert output.cross_attentions[0][0].shape[-1] == batch["input_ids"].shape[1]
    assert all(states.shape[:2] == batch["input_ids"].shape for states in output.encoder_hidden_states)


@pytest.mark.parametrize("mask", [
    None, sources()["attention_mask"].flip(1),  # padding on the left
    torch.ones(16, 20), sources()["attention_mask"][:8],  # few rows
    sources()["attention_mask"][:, None], sources()["attention_mask"].to("meta"),
])  # fmt: skip
def test_one_group_where_more_do_not_pay(mask):
    assert source_buckets(mask) == []


def test_every_row_is_in_one_group():
    mask = torch.arange(60) < torch.randint(1, 60, (100, 1), generator=torch.Generator().manual_seed(0))
    groups = source_buckets(mask)
    assert sorted(torch.cat([rows for rows, _ in groups]).tolist()) == list(range(100))
    assert max(len(rows) for rows, _ in groups) <= 13


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize("where", ["encoder", "decoder", "anywhere"])
def test_hooks_see_the_whole_batch(where, beams, encoded):
    """Of a layer, and of all modules: what counts on the rows of the batch may be there, and its own calls."""
    model, batch, seen = shared_toy("encoder_decoder", {}), sources(), []
    stack = {"encoder": model.model.encoder, "decoder": model.model.decoder}.get(where, model.model.encoder)
    layer = stack.layers[0].mlp if where == "encoder" else stack.layers[0].self_attn.q_proj
    watched = register_module_forward_hook if where == "anywhere" else layer.register_forward_hook
    hook = watched(lambda module, inputs, output: seen.append(inputs[0].shape) if module is layer else None)
    found, _ = generate(model, **batch, num_beams=beams)
    hook.remove()
    assert encoded == ([(16, 20)], [(16 * beams, 20)])
    assert set(seen) == ({(16 * beams, 1, 24)} if where == "decoder" else {(16, 20, 24)})
    assert torch.equal(found, generate(model, **batch, num_beams=beams)[0])


def test_sources_of_padding_alone():
    mask = torch.arange(7) < torch.tensor([0] * 8 + [5] * 4)[:, None]
    model, batch = shared_toy("encoder_decoder", {}), {"input_ids": tokens(12, 7), "attention_mask": mask.long()}
    found, _ = generate(model, **batch, num_beams=1)
    for rows in (slice(8), slice(8, 12)):
        alone, _ = generate(model, **{name: value[rows] for name, value in batch.items()}, num_beams=1)
        assert torch.equal(found[rows, : alone.shape[1]], alone)
