"""One table of scores: the best checkpoint, the patience and the option --metric_for_best_model go by it."""

import math
import random
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from transformers import TrainerState
from transformers.trainer_callback import TrainerControl

from vanillaformer.training.metrics.scores import SCORES, gain, is_better, ranking_names
from vanillaformer.training.tasks.classification import ClassifierTrainingArguments
from vanillaformer.training.tasks.language_model import LanguageModelTrainingArguments
from vanillaformer.training.tasks.translation import TranslationTrainingArguments
from vanillaformer.training.trainer.callbacks import EarlyStopping
from vanillaformer.training.trainer.saving import SavingTrainer

JOBS = ("translation", "causal", "masked", "mlm+nsp", "classification")
LOWER = {"loss", "ter", "perplexity", "perplexity_per_character", "perplexity_per_byte", "bits_per_byte"}


def settings(job: str, **fields: Any) -> Any:
    if job == "translation":
        return TranslationTrainingArguments(use_cpu=True, **fields)
    if job == "classification":
        return ClassifierTrainingArguments(use_cpu=True, **fields)
    return LanguageModelTrainingArguments(use_cpu=True, objective=job, **fields)


class Evaluated(SavingTrainer):
    """The Trainer's own steps from an evaluation to a checkpoint, with scores that are given."""

    def __init__(self, args: Any, scores: list[dict[str, float]], folder: Path):
        self.args, self.state, self.control = args, TrainerState(max_steps=1_000), TrainerControl()
        self.scores, self.folder, self.stopping = scores, folder, None
        if args.early_stopping_patience:
            self.stopping = EarlyStopping(args.early_stopping_patience)
            self.stopping.on_train_begin(args, self.state, self.control)

    def evaluate(self, *arguments: Any, **keywords: Any) -> dict[str, float]:
        metrics = {f"eval_{name}": value for name, value in self.scores.pop(0).items()}
        self.state.log_history.append({**metrics, "step": self.state.global_step})
        if self.stopping is not None:
            self.stopping.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def run(self, *, saved: Any = lambda step: True) -> int | None:
        """Evaluate until the scores or the patience are used up; return the step of the best checkpoint."""
        while self.scores and not self.control.should_training_stop:
            self.state.global_step += 1
            self.control.should_save = saved(self.state.global_step)
            self._determine_best_metric(self.evaluate(), None)
            self.state.save_to_json(str(self.folder / "state.json"))  # what a resumed run knows
            self.state = TrainerState.load_from_json(str(self.folder / "state.json"))
        return self.state.best_global_step


@pytest.mark.parametrize(("job", "name"), [(job, name) for job in JOBS for name in ranking_names(job)])
def test_best_checkpoint_is_the_best_of_ten_evaluations(job: str, name: str, tmp_path: Path) -> None:
    draw = random.Random(0)
    history = [{"loss": draw.uniform(1, 2), name: draw.randrange(1, 4)} for _ in range(10)]
    trainer = Evaluated(settings(job, metric_for_best_model=name), list(history), tmp_path)
    best = (min if name in LOWER else max)(entry[name] for entry in history)
    losses = {step: entry["loss"] for step, entry in enumerate(history, start=1) if entry[name] == best}
    assert len(losses) > 1 or name == "loss"  # there are ties
    assert trainer.run() == min(losses, key=lambda step: losses[step])
    assert trainer.state.best_metric == best
    with_prefix = settings(job, metric_for_best_model=f"eval_{name}")
    assert (with_prefix.metric_for_best_model, with_prefix.greater_is_better) == (name, name not in LOWER)


def test_only_evaluations_with_a_checkpoint_and_with_numbers_can_be_the_best(tmp_path: Path) -> None:
    history = [{"loss": loss} for loss in (5.0, 3.0, 1.0, 2.0)]
    assert Evaluated(settings("causal"), history, tmp_path).run(saved=lambda step: step % 2 == 0) == 4
    score, nothing, number = SCORES["bleu"], {"eval_loss": math.nan}, {"eval_bleu": 0.0, "eval_loss": 9.0}
    assert is_better(number, nothing, score)
    assert not is_better(nothing, number, score)
    assert is_better(nothing, nothing, score)  # the later one
    assert gain(number, nothing, score) == math.inf
    assert gain(nothing, nothing, score) == 0


@pytest.mark.parametrize(("history", "stopped", "best"), [
    # BLEU is 0 at first: the loss decides, and no patience is spent while it falls.
    ([(0.0, 6.0), (0.0, 5.7), (0.0, 5.5), (0.0, 5.4), (1.0, 5.3)], None, 5),
    ([(0.09, 5.9), (0.08, 5.5), (0.09, 5.3), (0.07, 5.2), (0.08, 5.1), (4.0, 5.2)], None, 6),
    ([(0.09, 5.9), (0.08, 5.5), (0.07, 5.6), (0.08, 5.7)], 4, 1),
    ([(0.0, 6.0), (0.0, 6.1), (0.0, 6.2), (0.0, 5.4)], 3, 1),
    ([(3.0, 2.0), (2.0, 1.0), (3.0, 1.9), (1.0, 1.0), (3.0, 1.9), (9.0, 1.0)], 5, 3),
])  # fmt: skip
def test_patience(history: list, stopped: int | None, best: int, tmp_path: Path) -> None:
    args = settings("translation", early_stopping_patience=2)
    trainer = Evaluated(args, [{"bleu": bleu, "loss": loss} for bleu, loss in history], tmp_path)
    assert trainer.run() == best
    assert trainer.state.global_step == (stopped or len(history))
    assert trainer.control.should_training_stop is (stopped is not None)


def test_patience_is_remembered_and_what_is_asked_for_now_counts(tmp_path: Path, capsys) -> None:
    history = [{"accuracy": score, "loss": 1.0} for score in (0.5, 0.4, 0.63, 0.62, 0.6, 0.61)]
    fields = {"early_stopping_patience": 3, "metric_for_best_model": "accuracy"}
    trainer = Evaluated(settings("classification", **fields), history, tmp_path)
    trainer.run()
    assert capsys.readouterr().out == "Stopped early at step 6: no better accuracy than 0.63 in 3 evaluations.\n"
    assert trainer.control.should_save
    trainer.state.stateful_callbacks["EarlyStopping"] = trainer.stopping.state()
    for patience, stopped in ((3, True), (4, False)):
        resumed, control = EarlyStopping(patience), TrainerControl()
        resumed.on_train_begin(trainer.args, trainer.state, control)
        assert (resumed.early_stopping_patience_counter, control.should_training_stop) == (3, stopped)


@pytest.mark.parametrize(("job", "fields", "message"), [
    ("classification", {"metric_for_best_model": "accuracyy"}, "accuracyy: did you mean 'accuracy'.* f1$"),
    ("translation", {"metric_for_best_model": "eval_blue"}, "eval_blue: did you mean 'bleu'"),
    ("translation", {"metric_for_best_model": "gen_len"}, "gen_len: choose from loss, exact_match, bleu"),
    ("masked", {"metric_for_best_model": "bits_per_byte"}, "bits_per_byte: choose from loss, perplexity, acc"),
    ("causal", {"metric_for_best_model": "next_sentence_accuracy"}, "next_sentence_accuracy: choose from"),
    ("translation", {"metric_for_best_model": "ter", "greater_is_better": True}, "better True: a lower ter"),
    ("translation", {"metric_for_best_model": "chrf", "predict_with_generate": False}, "chrf needs translations"),
    ("causal", {"metric_for_best_model": None, "early_stopping_patience": 2}, "patience 2 needs a --metric_for_best"),
])  # fmt: skip
def test_scores_that_cannot_choose(job: str, fields: dict, message: str) -> None:
    refused(message, settings, job, **fields)


def test_schedules_that_follow_a_score_know_its_direction() -> None:
    plateau = {"lr_scheduler_type": "reduce_lr_on_plateau"}
    assert settings("translation", **plateau).lr_scheduler_kwargs == {"mode": "max"}
    assert (settings("causal", **plateau).lr_scheduler_kwargs or {}).get("mode", "min") == "min"
