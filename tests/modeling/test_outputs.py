"""Hidden states and attention probabilities: all layers, all three kinds, the right shapes and the right content."""

import torch

from .toys import assert_close, attending, few_toys, inputs_of, shared_toy

B, S, T, D, H = 3, 7, 5, 24, 4


def future(length: int) -> torch.Tensor:
    """True where a query would see a later key, (T, T)."""
    return torch.ones(length, length).triu(1) == 1


@few_toys()
def test_hidden_states_end_with_the_output_and_attentions_leave_out_what_is_masked(kind, overrides):
    model, inputs = shared_toy(kind, overrides), inputs_of(kind)
    output = model.base_model(**inputs, output_hidden_states=True)
    assert not [name for name in model(**inputs) if "attentions" in name or "hidden_states" in name], "not asked for"
    if kind == "encoder_decoder":
        recorded = [
            (output.encoder_hidden_states, output.encoder_last_hidden_state, model.base_model.encoder, S),
            (output.decoder_hidden_states, output.last_hidden_state, model.base_model.decoder, T),
        ]
    else:
        recorded = [(output.hidden_states, output.last_hidden_state, model.base_model, S)]
    for states, last, stack, length in recorded:
        assert len(states) == 3
        assert {tuple(state.shape) for state in states} == {(B, length, D)}
        assert torch.equal(states[-1], last)
        ids = inputs["decoder_input_ids" if length == T else "input_ids"]
        assert_close(states[0], stack.embed(ids, None, None)[0], "the first of the hidden states")
    with attending(model, "eager"):
        output = model(**inputs, output_attentions=True)
    padded = inputs["attention_mask"][:, None, None, :] == 0
    if kind == "encoder_decoder":
        expected = {
            "encoder_attentions": ((S, S), padded),
            "decoder_attentions": ((T, T), future(T)),
            "cross_attentions": ((T, S), padded),
        }
    else:
        expected = {"attentions": ((S, S), future(S) | padded if kind == "decoder" else padded)}
    for name, (shape, masked) in expected.items():
        assert len(output[name]) == 2, name
        for probabilities in output[name]:
            assert probabilities.shape == (B, H, *shape), name
            assert_close(probabilities.sum(-1), torch.ones(B, H, shape[0]), f"{name}: sums")
            masked = masked.expand_as(probabilities)
            assert (probabilities[masked] == 0).all(), f"{name} look at what is masked"
            assert (probabilities[~masked] > 0).all(), f"{name} miss what is not masked"
