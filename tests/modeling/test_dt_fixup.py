"""DT-Fixup's factors against the paper's formula, and what they are for: the size of the first update."""

import pytest
import torch
from torch import nn

from vanillaformer.modeling.dt_fixup import scale_by_inputs
from vanillaformer.modeling.parts.initialization import VALUE_MAPS

from .toys import KINDS, inputs_of, toy, toy_config


def fresh(kind: str, layers: int = 3, **fields) -> nn.Module:
    torch.manual_seed(0)
    fields = {"norm_placement": "no_norm", "initialization": "dt_fixup", "num_hidden_layers": layers} | fields
    return KINDS[kind][1](toy_config(kind, **fields))


@pytest.mark.parametrize("kind", KINDS)
def test_values_outputs_and_feed_forward_layers_are_scaled_by_depth_and_input(kind):
    model, inputs = fresh(kind), inputs_of(kind)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    stacks = [model.model.encoder, model.model.decoder] if kind == "encoder_decoder" else [model.model]
    seen: list[torch.Tensor] = []
    for stack in stacks:
        stack.layers[0].register_forward_hook(lambda module, args, output: seen.append(args[0].detach()))
    model.eval()(**inputs)
    longest = max(vector.norm().item() for states in seen for row in states for vector in row)
    factors = scale_by_inputs(model, [{name: value[:1] for name, value in inputs.items()}, inputs])
    for name, parameter in model.named_parameters():
        expected = 1.0
        if name.endswith(VALUE_MAPS):
            # N^-½ / 2μ in the paper's blocks of two sublayers; the decoder's with cross-attention have three
            sublayers = 3 if kind == "encoder_decoder" and "decoder" in name else 2
            expected = (2 * sublayers * 3) ** -0.5 / longest
            assert factors[name] == pytest.approx(expected, rel=1e-5)
        assert torch.allclose(parameter, expected * before[name], rtol=1e-5), name
    assert len(factors) == {"encoder_decoder": 12 + 18}.get(kind, 12)


def test_the_first_update_of_the_output_does_not_grow_with_the_input_as_it_does_without():
    """The paper's aim: ‖Δf‖ stays in the order of the learning rate, however deep the stack and long its inputs."""

    def update(layers: int, length: float, scaled: bool) -> float:
        model, inputs = fresh("encoder", layers, embedding_norm=False), inputs_of("encoder")
        with torch.no_grad():
            model.model.embed_tokens.weight.mul_(length)
        if scaled:
            scale_by_inputs(model, [inputs])
        states = model.model(**inputs).last_hidden_state
        direction = torch.randn(states.shape, generator=torch.Generator().manual_seed(1))
        (states * direction).sum().div(direction.norm()).backward()
        blocks = list(model.model.layers.named_parameters())
        # the change of the output in the direction of the gradient, for a step of gradient descent in the blocks
        return sum(weight.grad.square().sum().item() for name, weight in blocks if name.endswith(VALUE_MAPS))

    deep = [update(layers, length, scaled=True) for layers, length in ((2, 5.0), (12, 5.0), (12, 50.0))]
    plain = [update(layers, length, scaled=False) for layers, length in ((2, 5.0), (12, 50.0))]
    assert max(deep) < 10 * min(deep)
    assert plain[1] > 1e4 * plain[0]


def test_other_models_are_refused_and_the_mode_and_hooks_stay():
    model = fresh("decoder", dropout=0.5).train()
    scale_by_inputs(model, [inputs_of("decoder")])
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules())
    with pytest.raises(ValueError, match="initialization='dt_fixup', got 'gpt2'"):
        scale_by_inputs(toy("decoder", initialization="gpt2"), [inputs_of("decoder")])
