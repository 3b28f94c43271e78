"""What is said of a run, from made-up logs."""

import re
from typing import Any

import pytest

from vanillaformer.training.metrics.scores import SCORES
from vanillaformer.training.report.diagnosis import RunSummary, diagnose

REGULAR = {"dropout": 0.3, "label_smoothing_factor": 0.1, "token_dropout": 0.1, "r_drop": 1.0, "pretrained": True}


def history(losses: list[float], **scores: list[float]) -> list[dict[str, Any]]:
    """Return a log with an evaluation every 100 steps."""
    named = {"loss": losses, **scores}
    log: list[dict[str, Any]] = [
        {"step": 100 * (i + 1), **{f"eval_{name}": values[i] for name, values in named.items()}}
        for i in range(len(losses))
    ]
    return [{"step": 50, "loss": 9.9}, *log, {"step": 100 * len(losses), "train_runtime": 5.0}]


def classifier(losses: list[float], accuracies: list[float], **changes: Any) -> RunSummary:
    """Return a run of a classifier whose last evaluation is that of the kept weights, and which fits as it should."""
    known: dict[str, Any] = {
        "task": "classification", "score": SCORES["accuracy"], "log_history": history(losses, accuracy=accuracies),
        "steps": 100 * len(losses), "planned": 100 * len(losses), "length": f"{100 * len(losses):,}",
        "metrics": {"eval_loss": losses[-1], "eval_accuracy": accuracies[-1]},
        "training": {"loss": 0.8 * losses[-1], "accuracy": accuracies[-1] + 0.01},
        "trivial": {"majority class": {"eval_loss": 1.4, "eval_accuracy": 0.25}},
        "rows": {"eval": 1000, "test": 1000}, "targets": 1000, "more": ("max_steps", "2000"), "settings": REGULAR,
    }  # fmt: skip
    return RunSummary(**known | changes)


def language_model(losses: list[float], **changes: Any) -> RunSummary:
    known = {
        "task": "causal", "score": SCORES["loss"], "log_history": history(losses),
        "metrics": {"eval_loss": min(losses)}, "training": {"loss": 0.9 * min(losses)},
        "trivial": {"unigram": {"eval_loss": 6.0}}, "targets": 50_000, "settings": {"dropout": 0.1},
        "rows": {"eval": 400},
    }  # fmt: skip
    return classifier(losses, [0.0] * len(losses), **known | changes)


FALLING = [1.0, 0.9, 0.8, 0.7, 0.6, 0.55, 0.5, 0.45, 0.4, 0.36]
RISING = [1.0, 0.7, 0.5, 0.4, 0.42, 0.5, 0.6, 0.7, 0.8, 0.9]
FLAT = [0.9, 0.6, 0.5, 0.4, 0.39, 0.39, 0.39, 0.39, 0.39, 0.39]
GROWING = [0.5, 0.6, 0.65, 0.7, 0.74, 0.78, 0.8, 0.82, 0.85, 0.87]
STANDING = [0.5, 0.6, 0.7, 0.8, 0.85, 0.851, 0.849, 0.85, 0.851, 0.853]
IMPROVING = (
    "Still improving at the end (validation {} in the last fifth): more time helps, by the same command with "
    "`--max_steps 2000`."
)
LEVEL = "Leveled off: validation accuracy 85.1% → {}% at best in the last fifth (noise: ± 1.1%)."
STOPPED = "Stopped improving at step {} (validation accuracy 84.0%): nothing was gained after it{}."
TOO_FEW = "Too few evaluations (--eval_steps) to tell whether the model was still improving at the end."
PEAKED = [0.5, 0.7, 0.8, 0.84, 0.83, 0.83, 0.82, 0.83, 0.83, 0.83]
EARLY = [0.5, 0.7, 0.8, 0.82, 0.84, 0.83]
DESCENT = [5, 4.5, 4.2, 4.0, 3.9]
RISEN = [*DESCENT, 3.95, 4.0, 4.1, 4.2, 4.3]
NOTHING = {"score": SCORES["loss"], "log_history": [{"step": 5, "loss": 1.0}], "steps": 5, "planned": 5, "length": "5"}


@pytest.mark.parametrize(("summary", "sentence"), [
    (classifier(FALLING, GROWING), IMPROVING.format("accuracy 82.0% → 87.0%")),
    # The loss contradicts, but no evaluation of the last fifth is as bad as the best one before it
    (classifier(RISING, GROWING), IMPROVING.format("accuracy 82.0% → 87.0%")),
    # The accuracy stands still, the loss does not
    (classifier(FALLING, STANDING), IMPROVING.format("loss 0.4500 → 0.3600")),
    (classifier(FLAT, STANDING), LEVEL.format(85.3)),
    # One lucky evaluation, with a loss that stands still
    (classifier(FLAT, [*STANDING[:9], 0.866]), LEVEL.format(86.6)),
    (classifier(RISING, PEAKED), STOPPED.format("400 of 1,000", "")),
    (classifier(RISING[:6], EARLY, planned=1012, length="≈1,000"),
     STOPPED.format("500 of ≈1,000", ", and training ended at step 600")),
    (classifier(FALLING[:2], GROWING[:2]), TOO_FEW),
    (RunSummary(task="causal", metrics={}, **NOTHING), TOO_FEW),
    (language_model([*DESCENT, 3.8, 3.75, 3.7, 3.65, 3.6]), IMPROVING.format("loss 3.7000 → 3.6000")),
    (language_model([*DESCENT, 3.8, 3.8, 3.8, 3.8, 3.79]),
     "Leveled off: validation loss 3.8000 → 3.7900 at best in the last fifth (noise: ± 0.0190)."),
    (language_model(RISEN), STOPPED.format("500 of 1,000", "").replace("accuracy 84.0%", "loss 3.9000")),
])  # fmt: skip
def test_trend(summary: RunSummary, sentence: str) -> None:
    assert diagnose(summary)[0] == sentence


def test_nothing_left_to_gain_and_an_evaluation_of_the_best_weights() -> None:
    assert diagnose(classifier(FALLING, [*GROWING[:8], 0.99, 1.0])) == [
        "Nothing is left to gain on the validation data (accuracy 100.0%)."
    ]
    log = [*history(RISING, accuracy=GROWING), {"step": 1000, "eval_loss": 0.4, "eval_accuracy": 0.7}]
    assert "→ 87.0%" in diagnose(classifier(RISING, GROWING, log_history=log))[0]


def test_bleu_has_a_resolution() -> None:
    losses = [4.0, 3.0, 2.5, 2.2, 2.1, 2.1, 2.1, 2.1, 2.1, 2.1]
    scores = [1.0, 9.0, 15.0, 20.0, 22.0, 22.4, 22.6, 22.5, 22.7, 22.9]
    summary = classifier(
        losses, scores, task="translation", score=SCORES["bleu"], log_history=history(losses, bleu=scores),
        metrics={"eval_loss": 2.1, "eval_bleu": 22.9, "test_bleu": 22.0}, training={},
        trivial={"copied source": {"eval_bleu": 3.0, "test_bleu": 3.1}, "unigram of the targets": {"eval_loss": 6.0}},
        targets=20_000,
    )  # fmt: skip
    assert diagnose(summary) == ["Leveled off: validation BLEU 22.6 → 22.9 at best in the last fifth (noise: ± 0.5)."]


OVERFITTED = {"training": {"loss": 0.01, "accuracy": 0.998}, "metrics": {"eval_loss": 0.6, "eval_accuracy": 0.84}}
UNUSED = {"dropout": 0.1, "label_smoothing_factor": 0.1, "token_dropout": 0.0, "r_drop": 0.0, "pretrained": False}
POOR = {"training": {"loss": 1.39, "accuracy": 0.3}, "metrics": {"eval_loss": 1.4, "eval_accuracy": 0.3}}


@pytest.mark.parametrize(("summary", "said"), [
    (
        classifier(RISING, PEAKED, **OVERFITTED, settings=UNUSED),
        "fits the training data but not the validation.* 0.0100 .* 0.6000 .* 99.8% .* 84.0% .* data; "
        "`--set dropout=0.3`; `--token_dropout 0.1`; `--r_drop 1`; pre-training .*--objective masked`",
    ),
    # Advice that is in use is left out, and R-Drop without dropout
    (classifier(RISING, PEAKED, **OVERFITTED), "What can help: more training data[.]$"),
    (
        classifier(RISING, PEAKED, **OVERFITTED, settings={"dropout": 0.0, "r_drop": 0.0}),
        "What can help: more training data; `--set dropout=0.1`[.]$",
    ),
    (language_model(RISEN, training={"loss": 2.5}), "but not .* 2.5000 .* 3.9000 .*data; `--set dropout=0.3`.$"),
    (classifier([1.4] * 10, [0.3] * 10, **POOR), "does not fit .*either .* 1.390 .* 1.400 .*: .*--learning_rate"),
    (language_model([*DESCENT, *[3.8] * 5], training={"loss": 3.7}), "no better on training .* 3.7000 .* 3.8000 "),
])  # fmt: skip
def test_fit(summary: RunSummary, said: str) -> None:
    assert re.search(said, diagnose(summary)[1])


def test_a_model_that_improves_or_is_right_and_a_difference_within_the_noise_are_no_overfitting() -> None:
    right = {"score": SCORES["exact_match"], "task": "translation", "settings": UNUSED, "rows": {"eval": 300}}
    for percent, sentences in ((99.7, 1), (95.0, 2)):
        scores = [*(100 * share for share in GROWING[:6]), *[percent] * 4]
        right |= {"metrics": {"eval_loss": 0.0011, "eval_exact_match": percent}, "training": {"loss": 0.0006}}
        log = history(FLAT, exact_match=scores)
        assert len(diagnose(classifier(FLAT, scores, log_history=log, trivial={}, **right))) == sentences
    assert len(diagnose(classifier(FALLING, GROWING, **OVERFITTED))) == 1
    changes = {"training": {"loss": 0.1, "accuracy": 0.93}, "metrics": {"eval_loss": 0.4, "eval_accuracy": 0.9}}
    assert len(diagnose(classifier(FLAT, STANDING, **changes, rows={"eval": 40}, targets=40))) == 1


def test_below_the_majority_class_and_the_copied_source() -> None:
    trivial = {"eval_accuracy": 0.61, "test_accuracy": 0.58, "test_f1": 0.2}
    metrics = {"eval_loss": 1.0, "eval_accuracy": 0.6, "test_loss": 1.1, "test_accuracy": 0.55}
    changes = {"metrics": metrics, "training": {}, "trivial": {"majority class": trivial}}
    (said,) = diagnose(classifier(FLAT, STANDING, **changes))[1:]
    assert said.startswith("Not above a trivial baseline (test accuracy 55.0%, majority class 58.0%): do the labels")
    metrics["test_accuracy"] = trivial["test_accuracy"] = 1.0  # nothing is wrong
    (*_, said) = diagnose(classifier(FLAT, STANDING, **changes))
    assert said.endswith("(test accuracy 100.0%, majority class 100.0%).")
    # What may be wrong is left out where more is known
    changes = {"training": {"loss": 1.39}, "metrics": {"eval_loss": 1.41, "eval_accuracy": 0.2}}
    assert diagnose(classifier([1.4] * 10, [0.2] * 10, **changes))[2:] == [
        "Not above a trivial baseline (validation accuracy 20.0%, majority class 25.0%)."
    ]
    changes = {
        "task": "translation", "score": SCORES["loss"], "metrics": {"eval_loss": 1.0, "test_bleu": 1.0},
        "training": {},
        "trivial": {"copied source": {"test_bleu": 2.0}, "unigram of the targets": {"eval_loss": 5.0}},
    }  # fmt: skip
    (said,) = diagnose(classifier(FLAT, STANDING, **changes))[1:]
    assert said.startswith("Not above a trivial baseline (test BLEU 1.0, copied source 2.0): are sources and targets")


@pytest.mark.parametrize(("theirs", "count"), [(0.93, 1), (0.905, 0), (0.5, 0)])
def test_below_the_linear_svm(theirs: float, count: int) -> None:
    changes = {
        "metrics": {"eval_loss": 0.4, "test_accuracy": 0.9},
        "training": {},
        "trained": {"linear classifier": {"test_accuracy": theirs}},
    }
    sentence = "Below the linear classifier (test accuracy 90.0%, linear classifier 93.0%)."
    assert diagnose(classifier(FLAT, STANDING, **changes))[1:] == [sentence] * count
