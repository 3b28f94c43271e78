import time
from pathlib import Path

import pytest
import torch
from modeling.toys import sharpen, toy
from torch.distributions import Categorical, kl_divergence

from vanillaformer import VanillaEncoderForSequenceClassification
from vanillaformer.training.tasks.classification import ClassifierTrainingArguments
from vanillaformer.training.trainer.distillation import Distillation, teacher_arguments
from vanillaformer.training.trainer.losses import training_loss

EARLIER = [{"tokens": 90, "flops": 900}] * 3
"""What three teachers have consumed."""


def classifier(seed: int) -> VanillaEncoderForSequenceClassification:
    return sharpen(toy("encoder", VanillaEncoderForSequenceClassification, num_labels=3), seed=seed)


def test_a_student_learns_the_mean_of_the_probabilities() -> None:
    student, models = classifier(0), [classifier(1), classifier(2)]
    inputs = {"input_ids": torch.randint(5, 20, (4, 9)), "attention_mask": (torch.arange(9) < 7).long().repeat(4, 1)}
    distillation = Distillation(models, torch.device("cpu"))
    torch.manual_seed(0)
    mean = (models[0](**inputs).logits.softmax(-1) + models[1](**inputs).logits.softmax(-1)) / 2
    torch.testing.assert_close(distillation.probabilities(inputs), mean)
    p, q = Categorical(probs=mean), Categorical(logits=student(**inputs).logits)
    loss = training_loss(student, {**inputs, "labels": torch.zeros(4)}, [distillation], items=8)
    torch.testing.assert_close(loss, (kl_divergence(p, q) + p.entropy()).sum() / 8)
    loss.backward()
    assert all(parameter.grad is None for model in models for parameter in model.parameters())
    alone = Distillation([student], torch.device("cpu"))
    student.zero_grad()
    student.requires_grad_(True)
    training_loss(student, inputs, [alone], items=4).backward()
    grads = [value.grad for value in student.parameters() if value.grad is not None]
    assert max(float(grad.abs().max()) for grad in grads) < 1e-6  # it agrees with itself


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_steps": 9}, {"max_steps": 4, "max_time": None}),
        ({"num_train_epochs": 3.0}, {"num_train_epochs": 1.5, "max_time": None}),
        ({"max_time": "100s", "max_epochs": 8.0}, {"max_epochs": 4.0}),
        ({"max_tokens": 800, "max_epochs": 8.0}, {"max_tokens": 100, "max_epochs": 4.0}),
        ({"max_flops": "8e9"}, {"max_flops": 1e9, "max_time": None}),
    ],
)
def test_teachers_have_half_of_the_length(options, expected, tmp_path: Path) -> None:
    args = ClassifierTrainingArguments(output_dir=str(tmp_path), seed=7, ensemble=4, **options)
    one, last = (
        teacher_arguments(args, tmp_path / str(len(earlier) + 1), earlier) for earlier in (EARLIER[:0], EARLIER)
    )
    assert {name: getattr(one, name) for name in expected} == expected
    assert (one.ensemble, one.output_dir, args.ensemble) == (0, str(tmp_path / "1"), 4)
    assert len({one.seed, last.seed, args.seed}) == 3
    if args.max_tokens is not None:
        assert last.max_tokens == 400 - 3 * 90  # what the others have left of their half
    if args.max_time is not None:
        args.started = time.monotonic() - 20  # of 100 s, so that 30 are left for the four of them
        times = [teacher_arguments(args, tmp_path, earlier).max_time for earlier in (EARLIER[:0], EARLIER)]
        assert times == [pytest.approx(30 / 4, abs=1), pytest.approx(30, abs=1)]
