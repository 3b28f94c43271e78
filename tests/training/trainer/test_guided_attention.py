"""Guided attention: against its formula, with padding, and how a translator's training takes it."""

import math
from typing import Any

import pytest
import torch
from modeling.toys import toy

from vanillaformer import VanillaEncoderDecoderForConditionalGeneration
from vanillaformer.training.report.card.descriptions import techniques
from vanillaformer.training.tasks.translation import TranslationTrainingArguments, attend_eagerly
from vanillaformer.training.trainer import losses
from vanillaformer.training.trainer.losses import CrossEntropy, GuidedAttention, guided_attention_loss, training_loss
from vanillaformer.training.trainer.trainer import TranslationTrainer

SOURCES, TARGETS = (4, 6, 1), (5, 2, 3)  # lengths of three sentences
SIGMA = 0.3


def mask_of(lengths: tuple[int, ...], side: str) -> torch.Tensor:
    rows = [[1] * length + [0] * (max(lengths) - length) for length in lengths]
    return torch.tensor([row if side == "right" else row[::-1] for row in rows])


def batch(side: str = "right") -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    sources, targets = mask_of(SOURCES, side), mask_of(TARGETS, side)
    return {
        "input_ids": torch.randint(5, 20, sources.shape).masked_fill(sources == 0, 0),
        "attention_mask": sources,
        "decoder_input_ids": torch.randint(5, 20, targets.shape).masked_fill(targets == 0, 0),
        "labels": torch.randint(5, 20, targets.shape).masked_fill(targets == 0, -100),
    }


def attending_toy(**fields: Any) -> VanillaEncoderDecoderForConditionalGeneration:
    model = toy("encoder_decoder", **fields)
    model.set_attn_implementation("eager")
    return model


def loss_of(model: Any, inputs: dict[str, torch.Tensor], items: int, *more: Any) -> Any:
    return training_loss(model, inputs, [CrossEntropy(0.1), GuidedAttention(3.0, SIGMA), *more], items=items)


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_penalty_is_the_mean_of_the_paper_over_the_real_tokens_of_each_sentence(side):
    inputs = batch(side)
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
    found = guided_attention_loss(attentions, inputs["labels"], inputs["attention_mask"], SIGMA)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


def test_the_gradient_of_one_sentence_is_the_weight_of_each_place():
    attention = torch.rand(1, 2, 3, 4, dtype=torch.float64).requires_grad_()
    guided_attention_loss([attention], torch.ones(1, 3).long(), torch.ones(1, 4), SIGMA).backward()
    t, s = torch.arange(3.0).double()[:, None] / 3, torch.arange(4.0).double() / 4
    weights = 1 - torch.exp(-((t - s) ** 2) / (2 * SIGMA**2))
    torch.testing.assert_close(attention.grad, (weights / 4 / 2).expand(1, 2, 3, 4))  # S sources, two heads
    assert weights[0, 0] == 0
    with pytest.raises(ValueError, match="got 8 positions for 3 targets"):
        guided_attention_loss([torch.rand(1, 2, 8, 4)], torch.ones(1, 3).long(), torch.ones(1, 4), SIGMA)


def test_the_loss_of_a_padded_batch_is_that_of_its_sentences():
    model, inputs, items = attending_toy(), batch(), sum(TARGETS)
    together = loss_of(model, inputs, items)
    assert together > training_loss(model, inputs, [CrossEntropy(0.1)], items=items)
    alone = 0.0
    for row, (size, length) in enumerate(zip(TARGETS, SOURCES)):
        ends = {"input_ids": length, "attention_mask": length, "decoder_input_ids": size, "labels": size}
        alone += loss_of(model, {name: inputs[name][row : row + 1, :end] for name, end in ends.items()}, items)
    torch.testing.assert_close(together, alone)
    torch.testing.assert_close(loss_of(model, inputs, items, losses.RDrop(1.0)), together)  # two equal passes


def test_a_program_attends_eagerly_and_says_what_that_costs(capsys):
    model = toy("encoder_decoder")
    inputs = batch()
    before = model(**inputs, output_attentions=True).cross_attentions
    for _ in range(2):
        attend_eagerly(model)
    assert (len(before), len(model(**inputs, output_attentions=True).cross_attentions)) == (0, 2)
    printed = capsys.readouterr()
    assert printed.out.count("attention is eager, not sdpa") == 1
    assert printed.err.count("order") >= 2
    found = techniques({"guided_attention": 1.0, "guided_attention_sigma": 0.2}, {})
    assert "guided attention, weight 1.0, width 0.2" in [technique.words for technique in found]


def test_training_a_translator_adds_the_penalty_and_records_attention_for_it_only(tmp_path):
    guidance = {"guided_attention": 2.0, "guided_attention_sigma": SIGMA}
    args = TranslationTrainingArguments(output_dir=str(tmp_path), use_cpu=True, eval_strategy="no", **guidance)
    model, inputs, items = attending_toy(), batch(), sum(TARGETS)
    trainer = TranslationTrainer(model=model, args=args)
    expected = training_loss(model, inputs, [CrossEntropy(), GuidedAttention(2.0, SIGMA)], items=items)
    plain = trainer.compute_loss(model.eval(), inputs, num_items_in_batch=items)
    found = trainer.compute_loss(model.train(), inputs, num_items_in_batch=items)
    assert torch.equal(found, expected)
    assert found > plain
    args = TranslationTrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    model, inputs, seen = attending_toy(), batch(), []
    model.register_forward_hook(lambda *call: seen.append(call[2].get("output_attentions")), with_kwargs=True)
    for args.guided_attention in (0.0, 1.0):
        training_loss(model, inputs, losses.loss_terms(args), items=10)
    assert seen == [None, True]
