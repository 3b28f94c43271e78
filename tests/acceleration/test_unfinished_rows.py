"""Attention with cheap dropout against torch's SDPA, and finished texts that leave the batch: the same tokens."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from modeling.axes import TARGET_VOCABULARY
from modeling.test_pointers import COPYING
from modeling.toys import PAD, attending, few_choices, over, ragged, shared_toy, tokens, toy, with_autocast
from torch import nn
from torch.testing import assert_close
from transformers import LogitsProcessorList
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from vanillaformer.acceleration import attention, speed_up, switched_off
from vanillaformer.acceleration.attention import CHUNK, faster_attention
from vanillaformer.acceleration.unfinished_rows import UnfinishedRows

LENGTH, HEADS, GROUPS, WIDTH, RATE = CHUNK + 40, 4, 2, 8, 0.25
DISTANCES = (torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)).abs()[None, None]


def padding(length: int) -> torch.Tensor:
    """The second row ends a third earlier."""
    return (torch.arange(length) < torch.tensor([[length], [length * 2 // 3]]))[:, None, None]


MASKS = {
    "causal": None, "none": None, "padding": padding(LENGTH),
    "padding, causal": padding(LENGTH) & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(),
    "padding in front, causal": padding(LENGTH).flip(3) & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(),
    "window": DISTANCES < 20, "window, padding": padding(LENGTH) & (DISTANCES < LENGTH * 3 // 4),
    "added": torch.linspace(-3, 3, LENGTH).outer(torch.linspace(0, 1, LENGTH))[None, None],
}  # fmt: skip


class Attends(nn.Module):
    num_key_value_groups = HEADS // GROUPS

    def __init__(self, is_causal: bool):
        super().__init__()
        self.is_causal = is_causal


def both(is_causal: bool) -> list[Callable[..., torch.Tensor]]:
    """Return the faster attention of a module that `speed_up` was called with, and transformers' own."""
    module = speed_up(Attends(is_causal))
    return [
        lambda *inputs, function=function, **options: function(module, *inputs, scaling=0.3, **options)[0]
        for function in (faster_attention, sdpa_attention_forward)
    ]


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, heads, LENGTH, WIDTH) for heads in (HEADS, GROUPS, GROUPS)]
    return [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MASKS)
def test_without_draws_it_is_sdpa(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs and gradients, where nothing is dropped in either; in bfloat16 by itself and by autocast."""
    monkeypatch.setattr(attention, "build_dropout", lambda rate: nn.Identity())
    faster, plain = both(name == "causal")
    tolerance = 1e-4 if dtype == torch.float32 else 0.05
    tensors = inputs()
    expected = plain(*tensors, MASKS[name])
    expected = [expected, *torch.autograd.grad(expected.square().sum(), tensors)]
    for autocast in (False, True):
        tensors = [tensor if autocast else tensor.to(dtype) for tensor in inputs()]
        with torch.autocast("cpu", dtype, enabled=autocast and dtype != torch.float32):
            output = faster(*tensors, MASKS[name], dropout=RATE)
        found = [output, *torch.autograd.grad(output.float().square().sum(), tensors)]
        assert output.dtype == dtype
        for own, reference in zip(found, expected):
            assert (own.float() - reference).norm() <= tolerance * reference.norm()


def test_windows_and_bfloat16_need_no_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    """In long rows, whose scores outside are not computed: torch's own function is called for all others."""
    monkeypatch.setattr(attention, "LONG", LENGTH)
    monkeypatch.setattr(attention, "is_faster", lambda *_: True)
    calls = []

    def counted(*tensors: Any, **options: Any) -> Any:
        calls.append(tensors)
        return sdpa_attention_forward(*tensors, **options)

    monkeypatch.setattr(attention, "sdpa_attention_forward", counted)
    faster, plain = both(False)
    for name, mask in MASKS.items():
        assert_close(faster(*inputs(), mask), plain(*inputs(), mask), rtol=1e-4, atol=1e-4)
        assert len(calls) == (name != "window"), name
        calls.clear()
    halves = [tensor.bfloat16() for tensor in inputs()]
    for limit, value in (("", None), ("SHORT", LENGTH - 1), ("KEYS", 2 * LENGTH + 1)):
        if limit:
            monkeypatch.setattr(attention, limit, value)
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                faster(*halves, None)
            assert len(calls) == (limit == "KEYS" or (limit == "SHORT" and grad)), limit
            calls.clear()
    monkeypatch.undo()
    monkeypatch.setattr(attention, "attention", lambda *_, **__: pytest.fail("not on this machine"))
    monkeypatch.setattr(attention, "is_faster", lambda *_: False)
    faster(*halves, None)


@pytest.mark.parametrize("name", MASKS)
def test_probabilities_are_dropped_and_scaled(name: str) -> None:
    """With unit vectors as values the output is the probabilities: each is 0 or that over 1 - rate."""
    query, key, _ = inputs()
    value = torch.eye(LENGTH).expand(2, GROUPS, -1, -1)
    torch.manual_seed(0)
    faster, plain = both(name == "causal")
    dropped = faster(query, key, value, MASKS[name], dropout=RATE)
    whole = plain(query, key, value, MASKS[name])
    kept = dropped != 0
    assert_close(dropped[kept], whole[kept] / (1 - RATE), rtol=1e-4, atol=1e-7)
    count = int((whole > 0).sum())
    assert abs(int(kept.sum()) / count - (1 - RATE)) < 4 * (RATE * (1 - RATE) / count) ** 0.5


@pytest.mark.parametrize(("change", "options", "marked"), [
    (lambda query, *others: (query[:, :, 1:], *others), {}, True), (lambda *x: [each.half() for each in x], {}, True),
    (lambda *x: x, {"position_bias": torch.zeros(1, HEADS, LENGTH, LENGTH)}, True), (lambda *x: x, {}, False),
], ids=["more keys", "float16", "biased", "not marked"])  # fmt: skip
def test_the_rest_is_left_to_sdpa(change: Any, options: Any, marked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "attention", lambda *_, **__: pytest.fail("not for these"))
    tensors, module = change(*inputs()), Attends(True)
    output = faster_attention(speed_up(module) if marked else module, *tensors, None, dropout=RATE, **options)[0]
    assert output.shape == (2, tensors[0].shape[2], HEADS, WIDTH)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "mask"), {
    "nothing to attend to": torch.full((2, 1, LENGTH, LENGTH), torch.finfo(torch.float32).min),
    "nothing, infinite": torch.full((2, 1, LENGTH, LENGTH), -torch.inf),
    "two dimensions": DISTANCES[0, 0] < 20, "three dimensions": DISTANCES[0] < 20,
    "one for all keys": torch.ones(1, 1, LENGTH, 1, dtype=torch.bool),
}.items())  # fmt: skip
def test_unusual_masks(name: str, mask: torch.Tensor, dtype: torch.dtype) -> None:
    """Where all is hidden the output is what SDPA gives, and finite."""
    module, tensors = speed_up(Attends(False)), [x.to(dtype) for x in inputs()]
    mask = mask if mask.dtype == torch.bool else mask.to(dtype)
    output, _ = faster_attention(module, *tensors, mask, dropout=1e-6)
    assert output.is_contiguous()
    assert_close(output, sdpa_attention_forward(module, *tensors, mask)[0], rtol=0.05, atol=0.05)


def test_nothing_is_measured_for_other_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor while a compiler records, which may not call such a function."""
    monkeypatch.setattr(attention, "is_faster", lambda *_: pytest.fail("measured"))
    tensors = [tensor.bfloat16() for tensor in inputs()]
    faster_attention(Attends(True), *tensors, None)
    module = speed_up(Attends(True))
    torch.compile(faster_attention, fullgraph=True, backend="eager")(module, *tensors, None)


def test_an_attention_function_of_the_caller_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", attending)
    with switched_off():
        assert ALL_ATTENTION_FUNCTIONS["sdpa"] is attending
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is attending


def test_models_in_training_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    usual = attention.attention
    monkeypatch.setattr(attention, "attention", lambda *a, **k: calls.append(1) or usual(*a, **k))
    model, ids = toy("decoder", attention_dropout=RATE), tokens(1, 10)
    for training, expected in ((False, 0), (True, 2)):
        model.train(training)(ids)
        assert len(calls) == expected
    with switched_off():
        model.train()(ids)
    assert len(calls) == 2


ENDS = [2, 9, 3, 3, 4, 5, 9, 2, 3, 2, 4, 3]
"""Number of tokens after which each row ends."""
END = 3


def end_rows(prompt: int, vocabulary: int) -> Callable[[int, torch.Tensor], list[int]]:
    """Return which tokens may follow: each row ends after its number of tokens, counted from the prompt."""
    others = [token for token in range(vocabulary) if token != END]
    return lambda row, ids: [END] if ENDS[row] <= len(ids) - prompt + 1 else others


def inputs_of(kind: str) -> dict[str, torch.Tensor]:
    """Sources with padding on the right, in which there are groups, or prompts with padding on the left."""
    return ragged([5, 20, 3, 4, 5, 6, 3, 18, 4, 5, 3, 4], left=kind == "decoder")


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


@pytest.mark.parametrize("sampling", [False, True])
@over({"encoder_decoder": [*few_choices(), COPYING], "decoder": few_choices()})
def test_tokens_are_those_of_the_whole_batch(kind, overrides, sampling, computed, monkeypatch):
    model = shared_toy(kind, overrides | {"max_position_embeddings": 40})
    torch.manual_seed(0)
    found = generate(model, kind, do_sample=sampling)
    assert computed == [12, 9, 5, 3, 2, 2, 2, 2]
    monkeypatch.setattr("vanillaformer.acceleration.unfinished_rows.WORTHWHILE", 0.0)
    torch.manual_seed(0)
    assert torch.equal(found, generate(model, kind, do_sample=sampling))
    assert computed[8:] == [12] * 8


@pytest.mark.parametrize("options", [
    {"return_dict_in_generate": True, "output_scores": True}, {"cache_implementation": "static"}, {"use_cache": False},
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
