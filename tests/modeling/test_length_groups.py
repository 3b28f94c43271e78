"""Sources in groups of similar length: the same tokens and states, and less padding computed."""

from typing import Any

import pytest
import torch

from vanillaformer.modeling import encoder_decoder
from vanillaformer.modeling.decoding.length_groups import length_groups

from .toys import PAD, assert_close, attending, few_choices, over, shared_toy, tokens

LENGTHS = [3, 20, 4, 5, 3, 6, 4, 5, 19, 3, 4, 6, 5, 3, 4, 5]


def sources() -> dict[str, torch.Tensor]:
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    return {"input_ids": tokens(*mask.shape).masked_fill(~mask, PAD), "attention_mask": mask.long()}


def generate(model, **inputs):
    settings = {"max_new_tokens": 6, "num_beams": 2, "output_scores": True, "return_dict_in_generate": True}
    return model.generate(**(settings | inputs))


def recorded_keys(model) -> tuple[list[tuple[int, int]], Any]:
    """The rows and lengths of the sources whose keys are computed from now on, by the first layer."""
    seen: list[tuple[int, int]] = []
    layer = model.model.decoder.layers[0].cross_attn.k_proj
    return seen, layer.register_forward_hook(lambda module, args, output: seen.append(output.shape[:2]))


@pytest.mark.parametrize("beams", [1, 2])
@over({"encoder_decoder": few_choices()})
def test_tokens_and_scores_are_those_of_one_batch(kind, overrides, beams, monkeypatch):
    model, batch = shared_toy(kind, overrides), sources()
    seen = []
    hook = model.model.encoder.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    keys, key_hook = recorded_keys(model)
    settings = {"num_beams": beams}
    found = generate(model, **batch, **settings)
    monkeypatch.setattr(encoder_decoder, "encode_in_groups", lambda *args: None)
    monkeypatch.setattr(encoder_decoder, "length_groups", lambda *args: [])
    expected = generate(model, **batch, **settings)
    hook.remove(), key_hook.remove()
    assert seen == keys == [(8, 4), (8, 20), (16, 20)]
    assert torch.equal(found.sequences, expected.sequences)
    for step, (ours, theirs) in enumerate(zip(found.scores, expected.scores, strict=True)):
        assert_close(ours, theirs, f"scores of step {step}", 1e-10)


def test_vectors_are_grouped_as_tokens_are():
    model, batch = shared_toy("encoder_decoder", {}), sources()
    vectors = model.get_input_embeddings()(batch["input_ids"])
    found = generate(model, inputs_embeds=vectors, attention_mask=batch["attention_mask"])
    assert torch.equal(found.sequences, generate(model, **batch).sequences)


def test_recorded_states_are_those_of_the_whole_batch():
    model, batch = shared_toy("encoder_decoder", {}), sources()
    with attending(model, "eager"):
        output = generate(model, **batch, output_hidden_states=True, output_attentions=True)
    assert output.cross_attentions[0][0].shape[-1] == batch["input_ids"].shape[1]
    assert all(states.shape[:2] == batch["input_ids"].shape for states in output.encoder_hidden_states)


@pytest.mark.parametrize(
    "mask",
    [
        None,
        sources()["attention_mask"].flip(1),  # padding on the left
        torch.ones(16, 20),
        sources()["attention_mask"][:8],  # few rows
        sources()["attention_mask"][:, None],
        sources()["attention_mask"].to("meta"),
    ],
)
def test_one_group_where_more_do_not_pay(mask):
    assert length_groups(mask) == []


def test_every_row_is_in_one_group():
    mask = torch.arange(60) < torch.randint(1, 60, (100, 1), generator=torch.Generator().manual_seed(0))
    groups = length_groups(mask)
    assert sorted(torch.cat([rows for rows, _ in groups]).tolist()) == list(range(100))
    assert max(len(rows) for rows, _ in groups) <= 13
