"""The Auto classes know the models, and what these return: hidden states and attentions of the right shapes."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from refusals import refused

import vanillaformer
from vanillaformer.modeling import AUTO_CLASSES, register

from . import toys

PAIRS = [(auto, model) for auto, models in AUTO_CLASSES.items() for model in models]


@pytest.mark.parametrize(("auto_class", "model_class"), PAIRS, ids=lambda value: value.__name__)
def test_an_auto_class_builds_the_model_of_a_config_and_knows_its_name(auto_class, model_class):
    register()  # twice does no harm
    kind = model_class.config_class.model_type.removeprefix("vanilla_")
    assert type(auto_class.from_config(toys.toy_config(kind))) is model_class
    names = auto_class._model_mapping._model_mapping  # `MODEL_FOR_..._MAPPING_NAMES`, which Trainer and cards read
    assert names[model_class.config_class.model_type] == model_class.__name__


def test_every_model_class_has_an_auto_class():
    public = {value for name, value in vars(vanillaformer).items() if isinstance(value, type) and "Config" not in name}
    assert public == {model for _, model in PAIRS}


@pytest.mark.parametrize("kind", toys.ALL_KINDS)
def test_a_config_changed_to_what_saving_would_refuse_makes_no_model(kind):
    config = toys.toy_config(kind)
    field, message = ("num_key_value_heads", r"num_attention_heads=4 .* num_key_value_heads=3")
    if kind == "recurrent_encoder_decoder":
        field, message = ("decoder_start_token_id", f"decoder_start_token_id={toys.TARGET_VOCABULARY}")
    setattr(config, field, 3 if field == "num_key_value_heads" else toys.TARGET_VOCABULARY)
    for model_class in {toys.ALL_KINDS[kind][1], type(toys.ALL_KINDS[kind][1](toys.toy_config(kind)).base_model)}:
        refused(message, model_class, config, error=StrictDataclassError)


B, S, T, D, H = 3, 7, 5, 24, 4


def future(length: int) -> torch.Tensor:
    """True where a query would see a later key, (T, T)."""
    return torch.ones(length, length).triu(1) == 1


@toys.few_toys()
def test_hidden_states_end_with_the_output_and_attentions_leave_out_what_is_masked(kind, overrides):
    model, inputs = toys.shared_toy(kind, overrides), toys.inputs_of(kind)
    output = model.base_model(**inputs, output_hidden_states=True)
    assert not [name for name in model(**inputs) if "attentions" in name or "hidden_states" in name], "not asked for"
    if kind == "encoder_decoder":
        last = output.encoder_last_hidden_state
        recorded = [(output.encoder_hidden_states, last, model.base_model.encoder, S)]
        recorded += [(output.decoder_hidden_states, output.last_hidden_state, model.base_model.decoder, T)]
    else:
        recorded = [(output.hidden_states, output.last_hidden_state, model.base_model, S)]
    for states, last, stack, length in recorded:
        assert len(states) == 3
        assert {tuple(state.shape) for state in states} == {(B, length, D)}
        assert torch.equal(states[-1], last)
        ids = inputs["decoder_input_ids" if length == T else "input_ids"]
        toys.assert_close(states[0], stack.embed(ids, None, None)[0], "the first of the hidden states")
    with toys.attending(model, "eager"):
        output = model(**inputs, output_attentions=True)
    padded = inputs["attention_mask"][:, None, None, :] == 0
    expected = {"attentions": ((S, S), future(S) | padded if kind == "decoder" else padded)}
    if kind == "encoder_decoder":
        expected = {"encoder_attentions": ((S, S), padded), "cross_attentions": ((T, S), padded)}
        expected["decoder_attentions"] = ((T, T), future(T))
    for name, (shape, masked) in expected.items():
        assert len(output[name]) == 2, name
        for probabilities in output[name]:
            assert probabilities.shape == (B, H, *shape), name
            toys.assert_close(probabilities.sum(-1), torch.ones(B, H, shape[0]), f"{name}: sums")
            masked = masked.expand_as(probabilities)
            assert (probabilities[masked] == 0).all(), f"{name} look at what is masked"
            assert (probabilities[~masked] > 0).all(), f"{name} miss what is not masked"
