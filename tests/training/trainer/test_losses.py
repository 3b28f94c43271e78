"""Losses of the trainers against their formulas, and guided attention with them."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from modeling.toys import gradients, toy
from torch import nn
from transformers.trainer_pt_utils import LabelSmoother

from vanillaformer import VanillaEncoderForSequenceClassification, VanillaEncoderForTokenClassification, preset
from vanillaformer.conversion import to_native
from vanillaformer.training.tasks.translation import TranslationTrainingArguments, attend_eagerly
from vanillaformer.training.trainer import losses
from vanillaformer.training.trainer.losses import training_loss
from vanillaformer.training.trainer.trainer import TranslationTrainer

KINDS = ["encoder_decoder", "decoder", "encoder"]
SIGMA = 0.3


def batch(kind: str, rows: int = 3, length: int = 9) -> dict[str, Any]:
    torch.manual_seed(1)
    ids = torch.randint(5, 20, (rows, length))
    mask = torch.ones_like(ids)
    mask[0, 6:] = 0
    labels = ids.masked_fill(mask == 0, -100)
    if kind == "encoder":
        labels = labels.masked_fill(torch.rand(ids.shape) < 0.6, -100)
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    if kind == "encoder_decoder":
        inputs["labels"] = labels.roll(1, dims=0)
        inputs["decoder_input_ids"] = torch.randint(5, 20, (rows, length))
    return inputs


def count(inputs: dict[str, Any], kind: str) -> int:
    labels = inputs["labels"][:, 1:] if kind == "decoder" else inputs["labels"]
    return int((labels != -100).sum())


def terms(smoothing: float = 0.0, guided: float = 0.0, r_drop: float = 0.0) -> Any:
    options = {"guided_attention": guided, "guided_attention_sigma": SIGMA, "r_drop": r_drop}
    return SimpleNamespace(label_smoothing_factor=smoothing, **options)


def assert_near(first: Any, second: Any) -> None:
    torch.testing.assert_close(first, second, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_loss_and_gradients_are_those_of_transformers_label_smoother(kind, epsilon) -> None:
    model, inputs = toy(kind), batch(kind)
    items = 2 * count(inputs, kind)  # as if another batch of the step had as many
    own = training_loss(model, inputs, terms(epsilon), items=torch.tensor(items))
    own.backward()
    found = gradients(model)
    outputs = model(**{name: value for name, value in inputs.items() if name != "labels"})
    smoother = LabelSmoother(epsilon=epsilon)
    expected = smoother(outputs, inputs["labels"], shift_labels=kind == "decoder", num_items_in_batch=items)
    expected.backward()
    assert_near(own, expected)
    assert_near(found, gradients(model))


@pytest.mark.parametrize(("kind", "labels", "smoothing"), [
    ("regression", 1, 0), ("multi_label_classification", 4, 0), ("single_label_classification", 4, 0.1),
    ("tokens", 4, 0), ("tokens", 4, 0.1),
])  # fmt: skip
def test_losses_of_classifiers_are_those_of_bert_with_gradients(kind: Any, labels: int, smoothing: float) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    fields: dict[str, Any] = {**sizes, "vocab_size": 30, "dropout": 0, "num_labels": labels}
    inputs = {"input_ids": torch.randint(5, 30, (3, 7)), "attention_mask": torch.ones(3, 7, dtype=torch.long)}
    if kind == "tokens":
        ours: Any = VanillaEncoderForTokenClassification(preset("bert-tiny", **fields)).eval()
        targets = torch.randint(0, 4, (3, 7)).masked_fill(torch.rand(3, 7) < 0.4, -100)
    else:
        ours = VanillaEncoderForSequenceClassification(preset("bert-tiny", **fields, problem_type=kind)).eval()
        targets = torch.rand(3) if labels == 1 else torch.randint(0, 2, (3, labels)).float()
        targets = torch.randint(0, labels, (3,)) if kind.startswith("single") else targets
    native = to_native(ours, "bert").eval()
    assert native.config.problem_type == (None if kind == "tokens" else kind)
    expected = native(**inputs, labels=targets).loss.item()
    if smoothing:
        logits = native(**inputs).logits.reshape(-1, labels)
        expected = nn.functional.cross_entropy(logits, targets.flatten(), label_smoothing=smoothing).item()
    for model in (ours, native):
        items = 2 * int((targets != -100).sum())
        loss = training_loss(model, {**inputs, "labels": targets}, terms(smoothing), items=items)
        loss.backward()
        assert loss.item() == pytest.approx(expected / 2, rel=1e-5)
    torch.testing.assert_close(ours.classifier.weight.grad, native.classifier.weight.grad)
    embeddings = native.bert.embeddings.word_embeddings.weight.grad
    torch.testing.assert_close(ours.model.embed_tokens.weight.grad, embeddings, atol=1e-6, rtol=1e-4)


def test_hidden_tokens_do_not_reach_a_classifier() -> None:
    model = toy("encoder", VanillaEncoderForSequenceClassification, classifier_pooling="mean", num_labels=3)
    inputs = {name: batch("encoder", rows=64)[name] for name in ("input_ids", "attention_mask")}
    assert losses.with_hidden_tokens(inputs, 0.0) is inputs
    dropped = losses.with_hidden_tokens(inputs, 0.4)
    hidden = (inputs["attention_mask"] == 1) & (dropped["attention_mask"] == 0)
    assert not hidden[:, 0].any()
    assert hidden.sum() / (inputs["attention_mask"].sum() - 64) == pytest.approx(0.4, abs=0.07)
    other = {**dropped, "input_ids": inputs["input_ids"].masked_fill(hidden, 7)}
    assert_near(model(**dropped).logits, model(**other).logits)
    assert not torch.allclose(model(**dropped).logits, model(**inputs).logits)


@pytest.mark.parametrize("kind", KINDS)
def test_r_drop_is_the_formula_of_the_paper_on_two_passes_and_without_dropout_the_plain_loss(kind) -> None:
    model, inputs = toy(kind, dropout=0.3), batch(kind)
    model.train()
    items, seen = count(inputs, kind), []
    handle = model.lm_head.register_forward_hook(lambda module, arguments, output: seen.append(output))
    loss = training_loss(model, inputs, terms(r_drop=3.0), items=items)
    handle.remove()
    first, second = model.logits_transform(seen[0]).chunk(2)
    assert not torch.allclose(first, second)  # dropout differs
    targets = model.targets(inputs["labels"])
    targets = targets[targets != -100]
    nll = [nn.functional.cross_entropy(logits, targets) for logits in (first, second)]
    kl = [
        nn.functional.kl_div(a.log_softmax(-1), b.log_softmax(-1), log_target=True, reduction="batchmean")
        for a, b in ((first, second), (second, first))
    ]
    assert_near(loss, (sum(nll) + 3.0 * sum(kl) / 2) / 2)
    model, inputs = toy(kind), batch(kind)
    items = count(inputs, kind)
    regularized = training_loss(model, inputs, terms(0.1, r_drop=5.0), items=items)
    assert_near(regularized, training_loss(model, inputs, terms(0.1), items=items))


def test_share_of_own_predictions_falls_as_in_the_paper() -> None:
    def at(kind: Any, k: float, step: int, floor: float = 0.0) -> float:
        decay = {"scheduled_sampling_k": k, "scheduled_sampling_floor": floor}
        arguments = losses.ScheduledSamplingArguments(scheduled_sampling=kind, **decay)
        arguments.check()
        return losses.gold_probability(arguments, step)

    assert at("none", 0.0, 10**6) == 1.0
    assert [at("linear", 100, step) for step in (0, 25, 100, 200)] == [1.0, 0.75, 0.0, 0.0]
    assert at("linear", 100, 99, floor=0.3) == 0.3
    assert at("exponential", 0.99, 50) == pytest.approx(0.99**50)
    assert at("inverse_sigmoid", 100, 300) == pytest.approx(100 / (100 + math.e**3))
    assert at("inverse_sigmoid", 1, 10**6) == pytest.approx(0.0)
    model, inputs = toy("decoder"), batch("decoder", rows=64, length=16)
    everything = losses.scheduled_sampling_inputs(model, inputs, 0.0)["input_ids"]
    torch.manual_seed(0)
    mixed = losses.scheduled_sampling_inputs(model, inputs, 0.7)["input_ids"]
    differing = everything != inputs["input_ids"]
    own = (mixed == everything) & differing
    assert own.sum() / differing.sum() == pytest.approx(0.3, abs=0.06)
    assert torch.equal(mixed[~differing], inputs["input_ids"][~differing])


@pytest.mark.parametrize(("kind", "packed"), [("encoder_decoder", False), ("decoder", False), ("decoder", True)])
def test_own_predictions_take_the_places_of_gold_tokens(kind, packed) -> None:
    model, inputs = toy(kind), batch(kind)
    if packed:  # of which each has only its own text before it
        inputs["position_ids"] = torch.arange(9).remainder(4).expand(3, -1)
        inputs["labels"] = inputs["labels"].masked_fill(inputs["position_ids"] == 0, -100)
        del inputs["attention_mask"]
    name = "decoder_input_ids" if kind == "encoder_decoder" else "input_ids"
    mixed = losses.scheduled_sampling_inputs(model, inputs, 0.0)[name]
    with torch.no_grad():
        predicted = model(**{key: value for key, value in inputs.items() if key != "labels"}).logits.argmax(-1)
    scored = inputs["labels"][:, :-1] != -100 if kind == "encoder_decoder" else inputs["labels"][:, 1:] != -100
    assert torch.equal(mixed[:, 0], inputs[name][:, 0])
    assert torch.equal(mixed[:, 1:][scored], predicted[:, :-1][scored])
    assert torch.equal(mixed[:, 1:][~scored], inputs[name][:, 1:][~scored])
    assert not torch.equal(mixed, inputs[name])


SOURCES, TARGETS = (4, 6, 1), (5, 2, 3)  # lengths of three sentences


def mask_of(lengths: tuple[int, ...], side: str) -> torch.Tensor:
    rows = [[1] * length + [0] * (max(lengths) - length) for length in lengths]
    return torch.tensor([row if side == "right" else row[::-1] for row in rows])


def attended_batch(side: str = "right") -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    sources, targets = mask_of(SOURCES, side), mask_of(TARGETS, side)
    return {
        "input_ids": torch.randint(5, 20, sources.shape).masked_fill(sources == 0, 0),
        "attention_mask": sources,
        "decoder_input_ids": torch.randint(5, 20, targets.shape).masked_fill(targets == 0, 0),
        "labels": torch.randint(5, 20, targets.shape).masked_fill(targets == 0, -100),
    }


def attending_toy(**fields: Any) -> Any:
    model = toy("encoder_decoder", **fields)
    model.set_attn_implementation("eager")
    return model


def loss_of(model: Any, inputs: dict[str, torch.Tensor], items: int, r_drop: float = 0.0) -> Any:
    return training_loss(model, inputs, terms(0.1, 3.0, r_drop), items=items)


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_penalty_is_the_mean_of_the_paper_over_the_real_tokens_of_each_sentence(side):
    inputs = attended_batch(side)
    attentions = [torch.rand(3, heads, 5, 6, dtype=torch.float64).softmax(-1) for heads in (2, 2)]
    expected = 0.0
    for row, (size, length) in enumerate(zip(TARGETS, SOURCES)):
        start, first = (5 - size, 6 - length) if side == "left" else (0, 0)
        attention = torch.stack(attentions)[:, row].mean(dim=(0, 1))
        costs = [
            attention[start + t, first + s] * (1 - math.exp(-((t / size - s / length) ** 2) / (2 * SIGMA**2)))
            for t in range(size)
            for s in range(length)
        ]
        expected += size * sum(costs) / len(costs)
    found = losses.guided_attention_loss(attentions, inputs["labels"], inputs["attention_mask"], SIGMA)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    with pytest.raises(ValueError, match="got 8 positions for 3 targets"):
        losses.guided_attention_loss([torch.rand(1, 2, 8, 4)], torch.ones(1, 3).long(), torch.ones(1, 4), SIGMA)


def test_the_loss_of_a_padded_batch_is_that_of_its_sentences():
    model, inputs, items = attending_toy(), attended_batch(), sum(TARGETS)
    together = loss_of(model, inputs, items)
    assert together > training_loss(model, inputs, terms(0.1), items=items)
    alone = 0.0
    for row, (size, length) in enumerate(zip(TARGETS, SOURCES)):
        ends = {"input_ids": length, "attention_mask": length, "decoder_input_ids": size, "labels": size}
        alone += loss_of(model, {name: inputs[name][row : row + 1, :end] for name, end in ends.items()}, items)
    torch.testing.assert_close(together, alone)
    torch.testing.assert_close(loss_of(model, inputs, items, 1.0), together)  # two equal passes


def test_a_program_attends_eagerly_and_says_what_that_costs(capsys):
    model = toy("encoder_decoder")
    inputs = attended_batch()
    before = model(**inputs, output_attentions=True).cross_attentions
    for _ in range(2):
        attend_eagerly(model)
    assert (len(before), len(model(**inputs, output_attentions=True).cross_attentions)) == (0, 2)
    printed = capsys.readouterr()
    assert printed.out.count("attention is eager, not sdpa") == 1
    assert printed.err.count("order") >= 2


def test_training_a_translator_adds_the_penalty_and_records_attention_for_it_only(tmp_path):
    guidance = {"guided_attention": 2.0, "guided_attention_sigma": SIGMA}
    args = TranslationTrainingArguments(output_dir=str(tmp_path), use_cpu=True, eval_strategy="no", **guidance)
    model, inputs, items = attending_toy(), attended_batch(), sum(TARGETS)
    trainer = TranslationTrainer(model=model, args=args)
    expected = training_loss(model, inputs, terms(guided=2.0), items=items)
    plain = trainer.compute_loss(model.eval(), inputs, num_items_in_batch=items)
    found = trainer.compute_loss(model.train(), inputs, num_items_in_batch=items)
    assert torch.equal(found, expected)
    assert found > plain
    args = TranslationTrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    model, inputs, seen = attending_toy(), attended_batch(), []
    model.register_forward_hook(lambda *call: seen.append(call[2].get("output_attentions")), with_kwargs=True)
    for args.guided_attention in (0.0, 1.0):
        training_loss(model, inputs, args, items=10)
    assert seen == [None, True]
