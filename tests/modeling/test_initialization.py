"""Fresh weights have the spread that their initialisation says, for each kind of parameter."""

from typing import get_args

import pytest
import torch
from torch import nn

from vanillaformer.configuration import options

from .toys import KINDS, toy_config

WIDE = {
    "hidden_size": 96,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 16,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "vocab_size": 300,
    "position_embedding_type": "learned",
    "max_position_embeddings": 300,
    "initializer_range": 0.05,
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def fresh(kind: str, initialization: str, **overrides) -> nn.Module:
    fields = WIDE | ({"decoder_vocab_size": 300} if kind == "encoder_decoder" else {})
    return KINDS[kind][1](toy_config(kind, **(fields | {"initialization": initialization} | overrides)))


def weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """Weights of linear maps and embeddings; a tied head counts as the embedding that it is."""
    kinds = (nn.Linear, nn.Embedding)
    owners = {name for name, module in model.named_modules() if isinstance(module, kinds)}
    return {n: p for n, p in model.named_parameters() if n.removesuffix(".weight") in owners and n.endswith("weight")}


def assert_normal(name: str, parameter: torch.Tensor, std: float) -> None:
    count = parameter.numel()
    assert abs(parameter.std().item() / std - 1) < 5 * (2 * count) ** -0.5, (
        f"{name}: std {parameter.std():.4f}, not {std}"
    )
    assert abs(parameter.mean().item()) < 5 * std * count**-0.5, f"{name} is not centred"
    # uniform numbers of this spread would end at 1.73 standard deviations
    assert parameter.abs().max() > 2.3 * std, f"{name} is not normal"


@every_kind
def test_normal(kind):
    for name, parameter in weights(fresh(kind, "normal")).items():
        assert_normal(name, parameter, 0.05)


@pytest.mark.parametrize(
    ("kind", "sums"),
    [("decoder", {"model": 6}), ("encoder", {"model": 6}), ("encoder_decoder", {"encoder": 6, "decoder": 9})],
)
def test_gpt2_scales_the_maps_that_end_in_a_residual_sum_by_the_number_of_sums(kind, sums):
    scaled = 0
    for name, parameter in weights(fresh(kind, "gpt2")).items():
        ends_in_sum = name.endswith(("o_proj.weight", "down_proj.weight"))
        stack = next(stack for stack in reversed(name.split(".")) if stack in sums) if ends_in_sum else None
        assert_normal(name, parameter, 0.05 / sums[stack] ** 0.5 if stack else 0.05)
        scaled += ends_in_sum
    assert scaled == sum(sums.values())


@every_kind
def test_xavier(kind):
    model = fresh(kind, "xavier", tie_word_embeddings=False)
    for name, parameter in weights(model).items():
        if isinstance(model.get_submodule(name.removesuffix(".weight")), nn.Embedding):
            assert_normal(name, parameter, 96**-0.5)
        else:
            bound = (6 / sum(parameter.shape)) ** 0.5
            assert parameter.abs().max() <= bound, name
            assert parameter.abs().max() > 0.97 * bound, name
            assert abs(parameter.std().item() / (bound / 3**0.5) - 1) < 0.05, f"{name} is not uniform"


@every_kind
@pytest.mark.parametrize("initialization", get_args(options.Initialization))
@pytest.mark.parametrize("norm", get_args(options.Norm))
def test_biases_start_at_zero_and_norms_at_the_identity(kind, initialization, norm):
    model = fresh(kind, initialization, norm=norm)
    drawn = weights(model)
    biases = norms = 0
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all(), name
            biases += 1
        elif name not in drawn:
            assert (parameter == 1).all(), name
            norms += 1
    assert biases > 0
    assert norms > 0


@every_kind
@pytest.mark.parametrize("initialization", get_args(options.Initialization))
def test_a_seed_draws_the_same_weights_and_another_seed_others(kind, initialization):
    drawn = []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        drawn.append(weights(fresh(kind, initialization)))
    for name, parameter in drawn[0].items():
        assert torch.equal(parameter, drawn[1][name])
        assert not torch.equal(parameter, drawn[2][name])


@every_kind
def test_no_two_layers_start_alike(kind):
    seen = [parameter for name, parameter in weights(fresh(kind, "normal")).items()]
    for number, one in enumerate(seen):
        assert not any(one.shape == other.shape and torch.equal(one, other) for other in seen[:number])
