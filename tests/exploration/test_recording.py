"""What a recording holds is what the models compute, for every placement and every kind of model."""

import pytest
import torch
from modeling.toys import inputs_of, shared_toy, toy

from exploration.toys import doubled
from vanillaformer.exploration.recording import record, stacks
from vanillaformer.modeling.parts.residual import RESIDUALS, PostNorm

OUTPUTS = {
    "encoder_decoder": {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"},
    "decoder": {"decoder": "attentions"},
    "encoder": {"encoder": "attentions"},
    "image_encoder": {"encoder": "attentions"},
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_attention_and_logits_are_those_of_the_model(kind):
    model, inputs = shared_toy(kind, {}), doubled(inputs_of(kind))
    found = record(model, inputs)
    assert model.config._attn_implementation == "sdpa"
    model.set_attn_implementation("eager")
    expected = model(**inputs, output_attentions=True, output_hidden_states=True)
    model.set_attn_implementation("sdpa")
    torch.testing.assert_close(found.logits, expected.logits, rtol=0, atol=0)
    assert list(found.attentions) == list(OUTPUTS[kind])
    for name, output in OUTPUTS[kind].items():
        assert len(found.attentions[name]) == len(expected[output])
        for ours, theirs in zip(found.attentions[name], expected[output]):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
            torch.testing.assert_close(ours.sum(dim=-1), torch.ones_like(ours[..., 0]))
    last = list(stacks(model).items())[-1]
    states = expected["decoder_hidden_states" if kind == "encoder_decoder" else "hidden_states"]
    for ours, theirs in zip(found.hidden_states[last[0]][:-1], states):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("placement", "layout"), [*((each, "sequential") for each in RESIDUALS), ("sandwich", "parallel")]
)
def test_sublayers_add_up_to_the_stream(placement, layout):
    model = toy("encoder_decoder", norm_placement=placement, block_layout=layout, layer_scale_init_value=0.5).double()
    found = record(model, inputs_of("encoder_decoder"))
    for name, stack in stacks(model).items():
        names = ["self_attn", "cross_attn", "mlp"] if name == "decoder" else ["self_attn", "mlp"]
        sublayers = found.sublayers[name]
        assert [(each.layer, each.name) for each in sublayers] == [(layer, each) for layer in (0, 1) for each in names]
        after = [each.x for each in sublayers[1:]] + [found.hidden_states[name][-1]]
        for each, result in zip(sublayers, after):
            residual = getattr(stack.layers[each.layer], f"{each.name}_residual")
            total = each.kept + each.added
            torch.testing.assert_close(residual.norm(total) if isinstance(residual, PostNorm) else total, result)
            assert "after" not in vars(residual)
            assert "branch" not in vars(residual)
    torch.testing.assert_close(found.sublayers["encoder"][0].x, found.hidden_states["encoder"][0])


def test_a_recurrent_model_has_cross_attention_and_no_stream():
    found = record(toy("recurrent_encoder_decoder"), inputs_of("recurrent_encoder_decoder"))
    assert found.attentions["cross"][0].shape == (3, 1, 5, 7)
    assert not found.sublayers
    assert not found.hidden_states


def test_other_models_are_refused():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_embd=8, n_head=2, n_layer=1, bos_token_id=1, eos_token_id=1))
    with pytest.raises(ValueError, match="GPT2LMHeadModel is not a model of this package: convert it first"):
        record(model, {"input_ids": torch.ones(1, 3, dtype=torch.long)})
