import pytest
import torch

from vanillaformer.modeling.block import LayerDrop
from vanillaformer.modeling.parts.dropout import identity

from .toys import KINDS, inputs_of, labels_of, toy

every_kind = pytest.mark.parametrize("kind", KINDS)
RATE = 0.5


def stacks(model) -> list:
    return [module for module in model.modules() if hasattr(module, "layer_drop")]


def calls(model) -> dict[str, int]:
    """How often each block runs from now on, in a dictionary that is kept up to date."""
    counts = {}
    for name, module in model.named_modules():
        if "layers." in name and name.rpartition(".")[2].isdigit():
            counts[name] = 0

            def count(module, inputs, output, name=name):
                counts[name] += 1

            module.register_forward_hook(count)
    return counts


def test_no_rate_no_module() -> None:
    assert all(stack.layer_drop is identity for stack in stacks(toy("decoder")))
    assert all(isinstance(stack.layer_drop, LayerDrop) for stack in stacks(toy("decoder", layer_drop=0.1)))


@every_kind
def test_layers_are_left_out_at_the_rate_and_each_for_itself(kind) -> None:
    model, inputs = toy(kind, layer_drop=0.3).train(), inputs_of(kind)
    counts, patterns = calls(model), set()
    torch.manual_seed(0)
    with torch.no_grad():
        for _ in range(400):
            before = dict(counts)
            model(**inputs)
            patterns.add(tuple(counts[name] - before[name] for name in counts))
    for name, times in counts.items():
        assert abs(times / 400 - 0.7) < 0.08, name  # 3.5 standard deviations
    assert len(patterns) == 2 ** len(counts)


@every_kind
def test_evaluation_and_training_without_rate_are_as_before(kind) -> None:
    plain, dropping, inputs = toy(kind), toy(kind, layer_drop=RATE), inputs_of(kind)
    assert plain.state_dict().keys() == dropping.state_dict().keys()
    torch.manual_seed(0)
    state = torch.get_rng_state()
    assert torch.equal(plain(**inputs).logits, dropping(**inputs).logits)
    plain.train()(**inputs)
    assert torch.equal(torch.get_rng_state(), state)  # nothing was drawn


@every_kind
@pytest.mark.parametrize("checkpointing", [None, True, False], ids=["kept", "reentrant", "recomputed"])
def test_a_layer_that_is_left_out_is_the_identity_and_has_no_gradient(kind, checkpointing, monkeypatch) -> None:
    model, inputs, labels = toy(kind, layer_drop=RATE).train(), inputs_of(kind), labels_of(kind)
    if checkpointing is not None:
        model.gradient_checkpointing_enable({"use_reentrant": checkpointing})
        model.enable_input_require_grads()
    expected = toy(kind)
    for stack in stacks(expected):
        stack.layers = stack.layers[1:]  # of two layers the second
        stack.layer_types = stack.layer_types[1:]
    monkeypatch.setattr(torch, "rand", lambda count, device: torch.linspace(0, 1, count))
    loss, wanted = model(**inputs, labels=labels, use_cache=False).loss, expected(**inputs, labels=labels).loss
    assert torch.equal(loss, wanted)
    for result in (loss, wanted):
        result.backward()
    gradients = {name: parameter.grad for name, parameter in expected.named_parameters()}
    for name, parameter in model.named_parameters():
        if "layers.0." in name:
            assert parameter.grad is None, name
        else:
            torch.testing.assert_close(parameter.grad, gradients[name.replace("layers.1.", "layers.0.")], msg=name)


@every_kind
def test_every_layer_is_among_the_recorded_states(kind, monkeypatch) -> None:
    model, inputs = toy(kind, layer_drop=RATE).train(), inputs_of(kind)
    monkeypatch.setattr(torch, "rand", lambda count, device: torch.linspace(0, 1, count))
    outputs = model(**inputs, output_hidden_states=True)
    names = ["encoder_hidden_states", "decoder_hidden_states"] if kind == "encoder_decoder" else ["hidden_states"]
    for name in names:
        first, second, last = outputs[name]
        assert torch.equal(first, second), name
        assert not torch.equal(second, last), name


def test_a_cache_while_training() -> None:
    model, inputs = toy("decoder", layer_drop=RATE).train(), inputs_of("decoder")
    torch.manual_seed(0)
    for _ in range(8):
        assert model(**inputs, use_cache=True).logits.isfinite().all()


@every_kind
def test_the_rate_is_saved(kind, tmp_path) -> None:
    toy(kind, layer_drop=0.25).save_pretrained(tmp_path)
    loaded = KINDS[kind][1].from_pretrained(tmp_path)
    assert loaded.config.layer_drop == 0.25
    assert [stack.layer_drop.rate for stack in stacks(loaded)] == [0.25] * len(stacks(loaded))
