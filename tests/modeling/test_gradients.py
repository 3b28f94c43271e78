"""Gradients, checkpointing, compilation, accumulation, adapters and other vocabularies, as training needs them."""

import copy
import zlib
from typing import Any, get_args

import pytest
import torch
from torch import nn

from vanillaformer import (
    VanillaDecoderForSequenceClassification,
    VanillaEncoderForSequenceClassification,
    VanillaEncoderForTokenClassification,
)
from vanillaformer.configuration import options

from . import toys
from .axes import cover
from .toys import IMAGE_SHAPES, KINDS, assert_close, inputs_of, labels_of, over, shared_toy, tokens, toy

every_kind = pytest.mark.parametrize("kind", KINDS)


SAME_FOR_ALL_KEYS = ("k_proj.bias", "k_norm.bias")


def gradients(model: nn.Module, kind: str, run: Any = None) -> dict[str, torch.Tensor]:
    """The gradients, and the logits and the loss, by `run`, a form of the model."""
    model.zero_grad()
    output = (model if run is None else run)(**inputs_of(kind, config=model.config), labels=labels_of(kind))
    output.loss.backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    return found | {"logits": output.logits.detach(), "loss": output.loss.detach()}


SHAPES = list(IMAGE_SHAPES.values())


@over({kind: cover(kind, times=5) for kind in KINDS} | {"image_encoder": SHAPES})
def test_gradient_checkpointing_changes_no_gradient_and_every_parameter_has_one(kind, overrides):
    model = copy.deepcopy(shared_toy(kind, overrides)).requires_grad_(True).train()
    if model.config.position_embedding_type == "relative":
        model.set_attn_implementation("eager")  # sdpa has another kernel for a trained bias, but not while recording
    runs = []
    layer = next(module for name, module in model.named_modules() if name.endswith("layers.1.mlp"))
    layer.register_forward_pre_hook(lambda *args: runs.append(1))
    expected = gradients(model, kind)
    largest = max(gradient.norm() for name, gradient in expected.items() if name not in ("logits", "loss"))
    assert len(runs) == 1
    for name, gradient in expected.items():
        assert torch.isfinite(gradient).all(), name
        # what is added to all keys moves all scores of a query alike: its gradient is rounding, unless keys are turned
        moves_nothing = name.endswith(SAME_FOR_ALL_KEYS) and gradient.norm() < 1e-12 * largest
        assert gradient.norm() > 0 or moves_nothing, f"{name} has no gradient"
    reentrant = zlib.crc32(str(overrides).encode()) % 2 == 0  # one of the ways for each of many configs
    runs.clear()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    actual = gradients(model, kind)
    assert len(runs) == 2, "nothing was recomputed"
    for name, gradient in expected.items():
        # of terms that cancel each other, much of what is left is their rounding
        if not name.endswith(SAME_FOR_ALL_KEYS) or gradient.norm() > 1e-3 * largest:
            tolerance = 1e-12 if kind == "image_encoder" else None
            assert_close(actual[name], gradient, f"{name}, reentrant={reentrant}", tolerance)


COMPILED = [{"position_embedding_type": scheme} for scheme in get_args(options.PositionEmbedding)]


@every_kind
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "activation_dropout"])
def test_each_dropout_has_its_own_rate_and_acts_in_training_alone(kind, rate, implementation):
    model, inputs = toy(kind, **{rate: 0.5}), inputs_of(kind)
    model.set_attn_implementation(implementation)
    assert torch.equal(model(**inputs).logits, model(**inputs).logits)
    model.train()
    assert not torch.equal(model(**inputs).logits, model(**inputs).logits)


# Transformers' code for `dynamic` asks for a length in Python
TRACED = {
    kind: COMPILED[n::3] + [each for each in cover(kind, times=1) if "dynamic" not in str(each)][::10]
    for n, kind in enumerate(KINDS)
}


@over(TRACED | {"image_encoder": SHAPES})
def test_a_model_compiles_into_one_graph(kind, overrides):
    """`fullgraph` raises where Python would have to interrupt the graph."""
    model = toy(kind, **overrides).double()
    torch.compiler.reset()
    found = gradients(model, kind, torch.compile(model, fullgraph=True, backend="eager"))
    for name, value in gradients(model, kind).items():
        if not name.endswith(SAME_FOR_ALL_KEYS):
            assert_close(found[name], value, name, 1e-6 if name == "loss" else 1e-12)
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("kind", "backend"), [("decoder", "aot_eager"), ("encoder", "eager"), ("encoder_decoder", "eager")]
)
def test_the_loss_without_logits_is_part_of_the_graph(kind, backend):
    model, inputs = toy(kind), inputs_of(kind) | {"labels": labels_of(kind), "return_logits": False}
    torch.compiler.reset()
    found = torch.compile(model, fullgraph=True, backend=backend)(**inputs)
    assert found.logits is None
    assert_close(found.loss, model(**inputs).loss, "loss")
    found.loss.backward()
    torch.compiler.reset()


CLASSIFIERS = {"decoder": VanillaDecoderForSequenceClassification, "encoder": VanillaEncoderForSequenceClassification}
TEXT_LABELS = {
    "one class": (3, torch.tensor([2, 0, 1, 1])),
    "regression": (1, torch.tensor([0.5, -1.0, 2.0, 0.1])),
    "several classes": (3, torch.tensor([[1.0, 0, 1], [0, 0, 1], [1, 1, 0], [0, 0, 0]])),
}
# Of classifiers; `test_upstream_traps.py` has language models
ACCUMULATING = {
    f"{kind} {name}": (model_class, {"num_labels": num_labels}, labels)
    for kind, model_class in CLASSIFIERS.items()
    for name, (num_labels, labels) in TEXT_LABELS.items()
}
TOKEN_LABELS = labels_of("encoder", batch=4)
TOKEN_LABELS[TOKEN_LABELS > 0] %= 5
ACCUMULATING["encoder tokens"] = (VanillaEncoderForTokenClassification, {"num_labels": 5}, TOKEN_LABELS)


@pytest.mark.parametrize("name", ACCUMULATING)
def test_gradients_accumulated_over_two_batches_are_those_of_one(name, tmp_path):
    """A head that takes `num_items_in_batch` without dividing by it makes them twice as long."""
    model_class, fields, labels = ACCUMULATING[name]
    kind = name.split()[0]
    inputs = inputs_of(kind, batch=4) | {"labels": labels}
    whole, halves = (toys.step_of_trainer(toy(kind, model_class, **fields), inputs, size, tmp_path) for size in (4, 2))
    assert_close(halves, whole, "step", 1e-3)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", ["decoder", "encoder"])
@pytest.mark.parametrize("size", [45, 30])
def test_a_resized_vocabulary_keeps_its_tokens_and_survives_saving(kind, tied, size, tmp_path):
    model = toy(kind, tie_word_embeddings=tied)
    ids = tokens(2, 5, vocabulary=30)
    before = model(ids).logits
    model.resize_token_embeddings(size)
    after = model(ids).logits
    kept = min(size, toys.SOURCE_VOCABULARY)
    assert after.shape[-1] == model.config.vocab_size == model.lm_head.out_features == size
    assert_close(after[..., :kept], before[..., :kept], "logits of the old tokens")
    assert (model.lm_head.weight is model.get_input_embeddings().weight) is tied
    model.save_pretrained(tmp_path)
    loaded, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["mismatched_keys"]
    assert torch.equal(loaded.eval()(ids).logits, after)
