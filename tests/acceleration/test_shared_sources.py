"""Sources in groups of similar length, and the chunked cross-entropy: the same numbers at less cost."""

from functools import partial
from typing import Any

import pytest
import torch
from refusals import refused
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache, EncoderDecoderCache, LogitsProcessorList

from modeling import toys
from vanillaformer.acceleration import chunked_loss, shared_sources
from vanillaformer.acceleration.chunked_loss import chunked_cross_entropy
from vanillaformer.acceleration.shared_sources import source_buckets
from vanillaformer.modeling.heads import cap_logits
from vanillaformer.modeling.parts.attention import CrossAttention
from vanillaformer.modeling.parts.dropout import identity
from vanillaformer.modeling.stack import EncoderStack

from .conftest import Made


def sources() -> dict[str, torch.Tensor]:
    return toys.ragged([3, 20, 4, 5, 3, 6, 4, 5, 19, 3, 4, 6, 5, 3, 4, 5])


def generate(model, **inputs) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The tokens and the scores of each step."""
    steps: list[torch.Tensor] = []

    def recorded(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        steps.append(scores.clone())
        return scores

    settings = {"max_new_tokens": 6, "num_beams": 2, "logits_processor": LogitsProcessorList([recorded])}
    return model.generate(**(settings | inputs)), steps


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
@toys.few_toys("encoder_decoder")
def test_tokens_and_scores_are_those_of_one_batch(kind, overrides, beams, encoded, monkeypatch):
    model, batch = toys.shared_toy(kind, overrides), sources() | {"num_beams": beams}
    found, found_scores = generate(model, **batch)
    monkeypatch.setattr(shared_sources, "source_buckets", lambda mask: [])
    expected, expected_scores = generate(model, **batch)
    assert encoded == ([(8, 4), (8, 20), (16, 20)],) * 2
    assert torch.equal(found, expected)
    for step, (ours, theirs) in enumerate(zip(found_scores, expected_scores, strict=True)):
        toys.assert_close(ours, theirs, f"scores of step {step}", 1e-10)


@pytest.mark.parametrize("search", [
    {"num_beams": 3}, {"num_beams": 4, "num_return_sequences": 2},
    {"num_beams": 1, "do_sample": True, "num_return_sequences": 3},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("way", ["eager", "sdpa"])
def test_outputs_of_a_source_share_its_keys_and_values(way, search, encoded):
    model, batch = toys.shared_toy("encoder_decoder", {}), {name: value[:3] for name, value in sources().items()}
    found = []
    for cache in ({}, {"past_key_values": EncoderDecoderCache(DynamicCache(), DynamicCache())}):
        torch.manual_seed(0)
        with toys.attending(model, way):
            found.append(generate(model, **batch, **search, **cache))
    (tokens, scores), (expected, expected_scores) = found
    assert torch.equal(tokens, expected)
    for step, (ours, theirs) in enumerate(zip(scores, expected_scores, strict=True)):
        toys.assert_close(ours, theirs, f"scores of step {step}", 1e-12)
    repeated = max(search["num_beams"], search.get("num_return_sequences", 1))
    assert encoded[1] == [(3, 20), (3 * repeated, 20)]


def test_vectors_are_grouped_as_tokens_are_and_recorded_states_are_those_of_the_whole_batch():
    model, batch = toys.shared_toy("encoder_decoder", {}), sources()
    vectors = model.get_input_embeddings()(batch["input_ids"])
    found = generate(model, inputs_embeds=vectors, attention_mask=batch["attention_mask"])
    assert torch.equal(found[0], generate(model, **batch)[0])
    with toys.attending(model, "eager"):
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
    model, batch, seen = toys.shared_toy("encoder_decoder", {}), sources(), []
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
    model = toys.shared_toy("encoder_decoder", {})
    batch = {"input_ids": toys.tokens(12, 7), "attention_mask": mask.long()}
    found, _ = generate(model, **batch, num_beams=1)
    for rows in (slice(8), slice(8, 12)):
        alone, _ = generate(model, **{name: value[rows] for name, value in batch.items()}, num_beams=1)
        assert torch.equal(found[rows, : alone.shape[1]], alone)


N, D, V = 11, 6, 19
TARGETS = torch.randint(V, (N,), generator=torch.Generator().manual_seed(1))
TARGETS[3] = -100
OPTIONS = {"ignore_index": -100, "label_smoothing": 0.0}


def layer_and_states(bias: bool, dtype: torch.dtype = torch.float64) -> tuple[nn.Linear, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Linear(D, V, bias=bias).to(dtype), torch.randn(N, D).to(dtype).requires_grad_()


def whole(states: torch.Tensor, layer: nn.Linear, transform: Any, options: dict[str, Any]) -> torch.Tensor:
    return nn.functional.cross_entropy(transform(layer(states)), TARGETS, reduction="sum", **options)


def gradients(loss: torch.Tensor, states: torch.Tensor, layer: nn.Linear) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(2.5 * loss, (states, *layer.parameters()))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("transform", [identity, partial(cap_logits, scale=0.7, cap=2.0)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("positions", [1, 4, 100, None])
def test_loss_and_gradients_are_those_of_all_logits(bias, transform, smoothing, positions):
    layer, states = layer_and_states(bias)
    options = OPTIONS | {"label_smoothing": smoothing}
    found = chunked_cross_entropy(states, layer, TARGETS, transform, options, positions)
    expected = whole(states, layer, transform, options)
    toys.assert_close(found, expected, "loss", 1e-13)
    pairs = zip(gradients(found, states, layer), gradients(expected, states, layer))
    for name, (own, reference) in zip(("states", "weight", "bias"), pairs):
        toys.assert_close(own, reference, name, 1e-12)


@pytest.mark.parametrize(("learning", "products"), [(False, 1), (True, 3)])
def test_chunks_cost_no_operations_and_without_gradients_only_the_loss_is_computed(learning, products):
    layer, states = layer_and_states(bias=False)
    with torch.set_grad_enabled(learning), FlopCounterMode(display=False) as counter:
        loss = chunked_cross_entropy(states, layer, TARGETS, identity, OPTIONS, 4)
        if learning:
            loss.backward()
    assert counter.get_total_flops() == products * 2 * N * D * V


def test_rounding_does_not_add_up_over_chunks():
    layer, states = layer_and_states(False, torch.bfloat16)
    exact = gradients(whole(states.double(), layer.double(), identity, OPTIONS), states, layer)[1]
    layer, states = layer_and_states(False, torch.bfloat16)
    chunked = chunked_cross_entropy(states, layer, TARGETS, identity, OPTIONS, 1)
    losses = chunked, whole(states, layer, identity, OPTIONS)
    ours, theirs = ((gradients(loss, states, layer)[1].double() - exact).abs().max() for loss in losses)
    assert ours <= theirs


def test_autocast_computes_in_its_own_type():
    layer, states = layer_and_states(True, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = chunked_cross_entropy(states, layer, TARGETS, identity, OPTIONS, 4)
        expected = nn.functional.cross_entropy(layer(states).float(), TARGETS, reduction="sum", **OPTIONS)
    toys.assert_close(found, expected, "loss", 1e-6)
    for own, reference in zip(gradients(found, states, layer), gradients(expected, states, layer)):
        assert own.dtype == torch.float32
        toys.assert_close(own, reference, "gradient", 2**-7)


def test_it_cannot_be_differentiated_twice():
    layer, states = layer_and_states(bias=False)
    loss = chunked_cross_entropy(states, layer, TARGETS, identity, OPTIONS, 4)
    (slope,) = torch.autograd.grad(loss**2, states, create_graph=True)
    refused("once_differentiable", slope.sum().backward, error=RuntimeError)


@pytest.mark.parametrize(("kind", "fields"), [
    ("encoder_decoder", {"decoder_vocab_size": 500, "num_hidden_layers": 1}), ("decoder", {"vocab_size": 500}),
])  # fmt: skip
def test_a_model_asked_for_no_logits_never_has_them_all(kind, fields, monkeypatch):
    monkeypatch.setitem(chunked_loss.LOGITS, "cpu", 0)
    monkeypatch.setattr(chunked_loss, "BYTES", 8)
    model, labels, sizes = toys.toy(kind, **fields), toys.labels_of(kind), {}
    for asked in (True, False):
        with Made() as made:
            model(**toys.inputs_of(kind), labels=labels, return_logits=asked).loss.backward()
        sizes[asked] = max(size for _, size in made.tensors)
    assert sizes[False] == model.lm_head.weight.numel()
    assert sizes[True] >= labels.numel() * model.lm_head.out_features


@pytest.mark.parametrize("kind", toys.KINDS)
@pytest.mark.parametrize(("change", "make"), {
    "a forward": lambda head: setattr(head, "forward", lambda x: 2 * nn.functional.linear(x, head.weight, head.bias)),
    "a hook": lambda head: head.register_forward_hook(lambda module, inputs, output: 2 * output),
    "a hook before": lambda head: head.register_forward_pre_hook(lambda module, inputs: (2 * inputs[0],)),
    "a hook of all": lambda head: register_module_forward_hook(lambda m, _, out: 2 * out if m is head else None),
    "weights": nn.utils.parametrizations.weight_norm,
}.items())  # fmt: skip
def test_what_changes_the_logits_changes_the_loss_without_logits(change, make, kind):
    model, batch = toys.toy(kind), toys.inputs_of(kind) | {"labels": toys.labels_of(kind)}
    before = model(**batch, return_logits=False).loss
    handle = make(model.lm_head)
    expected = model(**batch).loss
    found = [model(**batch, **way).loss for way in ({"return_logits": False}, {"labeled_only": True})]
    if change == "a hook of all":
        handle.remove()
    for loss in found:
        toys.assert_close(loss, expected, change)
    assert torch.allclose(expected, before, rtol=1e-5) == (change == "weights")


@pytest.mark.parametrize("register", ["register_full_backward_pre_hook", "register_full_backward_hook"])
def test_hooks_of_the_gradient_are_called_without_logits(register):
    model, calls = toys.toy("decoder"), []
    getattr(model.lm_head, register)(lambda *_: calls.append(1))
    model(**toys.inputs_of("decoder"), labels=toys.labels_of("decoder"), return_logits=False).loss.backward()
    assert calls == [1]


def test_functions_of_functions_of_a_loss_without_logits():
    model, batch = toys.toy("decoder"), toys.inputs_of("decoder") | {"labels": toys.labels_of("decoder")}
    weights = {name: value.detach() for name, value in model.named_parameters()}

    def loss(weights: dict[str, torch.Tensor], asked: bool) -> torch.Tensor:
        return torch.func.functional_call(model, weights, (), batch | {"return_logits": asked}).loss

    ours, theirs = (torch.func.grad(loss)(weights, asked) for asked in (False, True))
    for name, value in theirs.items():
        toys.assert_close(ours[name], value, name, 1e-4)


@pytest.mark.parametrize("kind", toys.KINDS)
@pytest.mark.parametrize("option", [{"return_logits": False}, {"labeled_only": True}], ids=str)
def test_a_loss_of_the_user_gets_all_logits(option, kind):
    model, batch, shapes = toys.toy(kind), toys.inputs_of(kind) | {"labels": toys.labels_of(kind)}, []
    whole = model(**batch).logits

    def loss(logits: torch.Tensor, labels: torch.Tensor, **_: Any) -> torch.Tensor:
        shapes.append(logits.shape)
        return logits.float().std() + labels.sum()

    model.loss_function = loss
    expected = model(**batch).loss
    output = model(**batch, **option)
    assert torch.equal(output.loss, expected)
    assert shapes == [whole.shape] * 2
    assert output.logits is None or torch.equal(output.logits, whole[model.targets(batch["labels"]) != -100])


@pytest.mark.parametrize("option", [{}, {"return_logits": False}, {"labeled_only": True}], ids=str)
def test_other_labels_are_ignored_if_asked(option):
    model, labels = toys.toy("decoder"), toys.labels_of("decoder")
    expected = model(**toys.inputs_of("decoder"), labels=labels).loss
    labels = labels.masked_fill(labels == -100, -7)
    found = model(**toys.inputs_of("decoder"), labels=labels, ignore_index=-7, **option).loss
    toys.assert_close(found, expected, "loss")


def test_a_loss_of_the_user_cannot_be_smoothed():
    model = toys.toy("decoder")
    model.loss_function = lambda **_: torch.tensor(7.0)
    smoothed = toys.inputs_of("decoder") | {"labels": toys.labels_of("decoder"), "label_smoothing": 0.1}
    refused("label_smoothing=0.1 needs the model's own loss_function", model, **smoothed)
