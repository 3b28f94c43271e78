"""Gradients, checkpointing, compilation, accumulation, adapters and other vocabularies, as training needs them."""

import copy
import zlib
from typing import Any, get_args

import pytest
import torch
from torch import nn
from transformers import AutoModelForSeq2SeqLM, Trainer, TrainingArguments

from vanillaformer import (
    VanillaDecoderForSequenceClassification,
    VanillaEncoderForSequenceClassification,
    VanillaEncoderForTokenClassification,
)
from vanillaformer.configuration import options

from .axes import cover
from .toys import (
    KINDS,
    SOURCE_VOCABULARY,
    TARGET_VOCABULARY,
    assert_close,
    inputs_of,
    labels_of,
    over,
    shared_toy,
    tokens,
    toy,
    toy_config,
    toys,
)

every_kind = pytest.mark.parametrize("kind", KINDS)


SAME_FOR_ALL_KEYS = ("k_proj.bias", "k_norm.bias")


def gradients(model: nn.Module, kind: str) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(**inputs_of(kind), labels=labels_of(kind)).loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@toys(times=5)
def test_gradient_checkpointing_changes_no_gradient_and_every_parameter_has_one(kind, overrides):
    model = copy.deepcopy(shared_toy(kind, overrides)).requires_grad_(True).train()
    if model.config.position_embedding_type == "relative":
        model.set_attn_implementation("eager")  # sdpa has another kernel for a trained bias, but not while recording
    runs = []
    layer = next(module for name, module in model.named_modules() if name.endswith("layers.1.mlp"))
    layer.register_forward_pre_hook(lambda *args: runs.append(1))
    expected = gradients(model, kind)
    largest = max(gradient.norm() for gradient in expected.values())
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
            assert_close(actual[name], gradient, f"{name}, reentrant={reentrant}")


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


@every_kind
def test_a_few_steps_bring_the_loss_down(kind):
    model = KINDS[kind][1](toy_config(kind)).train()
    inputs, labels = inputs_of(kind), labels_of(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        loss = model(**inputs, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def traceable(fields: dict[str, Any]) -> bool:
    """Whether transformers' code for the rotary scaling asks for no length in Python."""
    return "dynamic" not in str(fields.get("rope_parameters"))


@over({kind: COMPILED[n::3] + list(filter(traceable, cover(kind, times=1)))[::10] for n, kind in enumerate(KINDS)})
def test_a_model_compiles_into_one_graph(kind, overrides):
    """`fullgraph` raises where Python would have to interrupt the graph."""
    model, inputs = toy(kind, **overrides), inputs_of(kind)
    labels = labels_of(kind)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    output, expected = compiled(**inputs, labels=labels), model(**inputs, labels=labels)
    assert_close(output.logits, expected.logits, "logits")
    assert_close(output.loss, expected.loss, "loss")
    output.loss.backward()
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
ACCUMULATING = {kind: (None, {}, labels_of(kind, batch=4)) for kind in KINDS}
ACCUMULATING |= {
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
    rows = [{key: value[row] for key, value in inputs.items()} for row in range(4)]
    seen = []
    for size, steps in ((4, 1), (2, 2)):
        model = toy(kind, model_class, **fields).train()
        arguments = TrainingArguments(
            tmp_path, per_device_train_batch_size=size, gradient_accumulation_steps=steps, max_steps=1, optim="sgd",
            learning_rate=1.0, lr_scheduler_type="constant", max_grad_norm=0.0, report_to="none", use_cpu=True,
            save_strategy="no", disable_tqdm=True, logging_strategy="no", remove_unused_columns=False,
        )  # fmt: skip
        before = {key: value.clone() for key, value in model.state_dict().items()}
        Trainer(model, arguments, train_dataset=rows).train()
        moved = [(value - before[key]).flatten() for key, value in model.state_dict().items()]
        seen.append(torch.cat(moved))
    assert_close(seen[1], seen[0], "step", 1e-3)


@every_kind
@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "v_proj"]], ids=["all-linear", "query-value"])
def test_lora_trains_its_adapters_alone_and_merges(kind, targets, tmp_path):
    peft = pytest.importorskip("peft")
    base, inputs = toy(kind), inputs_of(kind)
    plain = base(**inputs).logits.detach()
    model = peft.get_peft_model(copy.deepcopy(base), peft.LoraConfig(r=4, target_modules=targets))
    assert torch.equal(model(**inputs).logits, plain), "a fresh adapter changes the model"
    model(**inputs, labels=labels_of(kind)).loss.backward()
    trained = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert trained == {name for name, _ in model.named_parameters() if "lora_" in name}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    adapted = model.eval()(**inputs).logits
    assert not torch.allclose(adapted, plain, atol=1e-2)
    model.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path).eval()
    assert torch.equal(loaded(**inputs).logits, adapted)
    assert_close(loaded.merge_and_unload()(**inputs).logits, adapted, "merged")


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", ["decoder", "encoder"])
@pytest.mark.parametrize("size", [45, 30])
def test_a_resized_vocabulary_keeps_its_tokens_and_survives_saving(kind, tied, size, tmp_path):
    model = toy(kind, tie_word_embeddings=tied)
    ids = tokens(2, 5, vocabulary=30)
    before = model(ids).logits
    model.resize_token_embeddings(size)
    after = model(ids).logits
    kept = min(size, SOURCE_VOCABULARY)
    assert after.shape[-1] == model.config.vocab_size == model.lm_head.out_features == size
    assert_close(after[..., :kept], before[..., :kept], "logits of the old tokens")
    assert (model.lm_head.weight is model.get_input_embeddings().weight) is tied
    model.save_pretrained(tmp_path)
    loaded, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["mismatched_keys"]
    assert torch.equal(loaded.eval()(ids).logits, after)


def reloaded(model, tmp_path):
    model.save_pretrained(tmp_path)
    loaded, info = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[kind]
    return loaded.eval()


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_shared_vocabulary_is_resized_on_both_sides(tied, tmp_path):
    shared = {"decoder_vocab_size": SOURCE_VOCABULARY, "share_encoder_decoder_embeddings": True}
    model = toy("encoder_decoder", **shared, tie_word_embeddings=tied)
    source, target = tokens(2, 5), tokens(2, 4)
    before = model(source, decoder_input_ids=target).logits
    model.resize_token_embeddings(45)
    assert (model.config.vocab_size, model.config.target_vocab_size) == (45, 45)
    after = model(source, decoder_input_ids=target).logits
    assert after.shape[-1] == model.lm_head.out_features == 45
    assert_close(after[..., :SOURCE_VOCABULARY], before, "logits of the old tokens")
    assert model.get_encoder().embed_tokens.weight is model.get_decoder().embed_tokens.weight
    assert torch.equal(reloaded(model, tmp_path)(source, decoder_input_ids=target).logits, after)
    with pytest.raises(ValueError, match="resize_token_embeddings"):
        model.resize_decoder_token_embeddings(50)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_separate_vocabularies_are_resized_apart(tied, tmp_path):
    model = toy("encoder_decoder", tie_word_embeddings=tied)
    source, target = tokens(2, 5), tokens(2, 4, TARGET_VOCABULARY)
    before = model(source, decoder_input_ids=target).logits
    model.resize_token_embeddings(50)
    assert (model.config.vocab_size, model.config.target_vocab_size) == (50, TARGET_VOCABULARY)
    assert torch.equal(model(source, decoder_input_ids=target).logits, before)
    model.resize_decoder_token_embeddings(40)
    assert (model.config.vocab_size, model.config.target_vocab_size) == (50, 40)
    after = model(source, decoder_input_ids=target).logits
    assert after.shape[-1] == model.lm_head.out_features == 40
    assert_close(after[..., :TARGET_VOCABULARY], before, "logits of the old tokens")
    assert (model.lm_head.weight is model.get_decoder().embed_tokens.weight) is tied
    assert torch.equal(reloaded(model, tmp_path)(source, decoder_input_ids=target).logits, after)
    new_words = torch.tensor([[48, 49, 45]])
    assert torch.isfinite(model(new_words, labels=torch.tensor([[39, 38]])).loss)
