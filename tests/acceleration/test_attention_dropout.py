"""Attention with dropout drawn cheaply on a CPU, against torch's SDPA: equal without draws, its distribution with."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from vanillaformer.acceleration import attention_dropout, switched_off
from vanillaformer.acceleration.attention_dropout import CHUNK, with_dropout
from vanillaformer.modeling.decoder import VanillaDecoderForCausalLM

LENGTH, HEADS, GROUPS, WIDTH, RATE = CHUNK + 40, 4, 2, 8, 0.25

DISTANCES = (torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)).abs()[None, None]


def padding(length: int) -> torch.Tensor:
    """The second row ends a third earlier."""
    return (torch.arange(length) < torch.tensor([[length], [length * 2 // 3]]))[:, None, None]


MASKS = {
    "causal": None, "none": None, "padding": padding(LENGTH),
    "padding, causal": padding(LENGTH) & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(),
    "window": DISTANCES < 20,
    "window, padding": padding(LENGTH) & (DISTANCES < LENGTH * 3 // 4),
    "added": torch.linspace(-3, 3, LENGTH).outer(torch.linspace(0, 1, LENGTH))[None, None],
}  # fmt: skip


def sdpa(is_causal: bool, **options: Any) -> Any:
    module = SimpleNamespace(is_causal=is_causal, num_key_value_groups=HEADS // GROUPS)
    return partial(sdpa_attention_forward, module, dropout=RATE, scaling=0.3, **options)


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, heads, LENGTH, WIDTH) for heads in (HEADS, GROUPS, GROUPS)]
    return [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("name", MASKS)
def test_without_draws_it_is_sdpa(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs and gradients, where nothing is dropped in either."""
    monkeypatch.setattr(attention_dropout, "Dropout", lambda rate: nn.Identity())
    mask, plain = MASKS[name], sdpa(name == "causal")
    results = []
    for function in (with_dropout(plain), partial(plain.func, *plain.args, scaling=0.3)):
        tensors = inputs()
        output = function(*tensors, mask)[0]
        results.append([output, *torch.autograd.grad(output.square().sum(), tensors)])
    assert_close(*results, rtol=1e-4, atol=1e-4)


def test_windows_are_found_without_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    """In long rows, whose scores outside are not computed: torch's own function is called for all others."""
    monkeypatch.setattr(attention_dropout, "LONG", LENGTH)
    calls = []

    def counted(*tensors: Any, **options: Any) -> Any:
        calls.append(tensors)
        return sdpa_attention_forward(*tensors, **options)

    monkeypatch.setattr(attention_dropout, "sdpa_attention_forward", counted)
    plain = sdpa(False)
    for name, mask in MASKS.items():
        output = with_dropout(partial(counted, *plain.args, scaling=0.3))(*inputs(), mask)[0]
        assert_close(output, plain.func(*plain.args, *inputs(), mask, scaling=0.3)[0], rtol=1e-4, atol=1e-4)
        assert len(calls) == (name != "window"), name
        calls.clear()


@pytest.mark.parametrize("name", MASKS)
def test_probabilities_are_dropped_and_scaled(name: str) -> None:
    """With unit vectors as values the output is the probabilities: each is 0 or that over 1 - rate."""
    query, key, _ = inputs()
    value = torch.eye(LENGTH).expand(2, GROUPS, -1, -1)
    torch.manual_seed(0)
    dropped = with_dropout(sdpa(name == "causal"))(query, key, value, MASKS[name])[0]
    plain = sdpa(name == "causal")
    whole = plain.func(*plain.args, query, key, value, MASKS[name], scaling=0.3)[0]
    kept = dropped != 0
    assert_close(dropped[kept], whole[kept] / (1 - RATE), rtol=1e-4, atol=1e-7)
    count = int((whole > 0).sum())
    assert abs(int(kept.sum()) / count - (1 - RATE)) < 4 * (RATE * (1 - RATE) / count) ** 0.5


@pytest.mark.parametrize("options", [
    {"is_causal": False}, {"softcap": 5.0},
    {"position_bias": torch.zeros(1, HEADS, LENGTH, LENGTH)},
])  # fmt: skip
def test_what_it_does_not_know_is_left_to_sdpa_and_other_functions_stay(options: dict[str, Any]) -> None:
    plain = sdpa(True)
    plain = partial(plain.func, *plain.args, **plain.keywords | options)
    for function in (plain, len, partial(len, [])):
        assert with_dropout(function) is function


@pytest.mark.parametrize("shape", ["more keys", "bfloat16", "autocast"])
def test_other_inputs_are_left_to_sdpa(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A triangle that is not a square, and numbers of another kind."""
    monkeypatch.setattr(attention_dropout, "attention", lambda *_, **__: pytest.fail("not for these"))
    tensors = inputs()
    if shape == "more keys":
        tensors[0] = tensors[0][:, :, 1:]
    if shape == "bfloat16":
        tensors = [tensor.bfloat16() for tensor in tensors]
    with torch.autocast("cpu", enabled=shape == "autocast"):
        assert with_dropout(sdpa(True))(*tensors, None)[0].shape == (2, tensors[0].shape[2], HEADS, WIDTH)


def test_models_in_training_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from vanillaformer.configuration import VanillaDecoderConfig

    calls: list[int] = []
    usual = attention_dropout.attention
    monkeypatch.setattr(attention_dropout, "attention", lambda *a, **k: calls.append(1) or usual(*a, **k))
    sizes = {"vocab_size": 11, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = VanillaDecoderForCausalLM(VanillaDecoderConfig(**sizes, attention_dropout=RATE))
    ids = torch.arange(10)[None]
    for training, expected in ((False, 0), (True, 2)):
        calls.clear()
        model.train(training)(ids)
        assert len(calls) == expected
    with switched_off():
        model.train()(ids)
    assert len(calls) == 2
