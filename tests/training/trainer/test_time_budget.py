"""Runs with a time budget, on a clock that only the test moves."""

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerControl, TrainerState
from transformers.optimization import get_scheduler

from vanillaformer import VanillaEncoderConfig, VanillaEncoderForSequenceClassification
from vanillaformer.training.run import parse_arguments
from vanillaformer.training.tasks.classification import ClassifierTrainingArguments
from vanillaformer.training.trainer import budget as budgets
from vanillaformer.training.trainer.budget import UNCOUNTED_STEPS, UNLIMITED, TimeBudget, seconds_of
from vanillaformer.training.trainer.callbacks import EvaluateAtEnd, line
from vanillaformer.training.trainer.trainer import RunTrainer

STATE = SimpleNamespace(global_step=340, max_steps=2_097, is_world_process_zero=True)


class Simulation:
    """Goes through the events of a training as transformers' Trainer does; nothing is trained.

    Steps and evaluations take as many seconds as a number says, or a function of theirs.
    """

    def __init__(
        self,
        seconds: float,
        step: float | Callable[[int], float] = 1.0,
        *,
        evaluation: float | Callable[[int], float] = 0.0,
        saving: float = 0.0,
        preparation: float = 0.0,
        largest: int | None = None,
        saved: TrainerState | None = None,
        schedule: str = "cosine",
        **options: Any,
    ):
        self.time = 100.0  # a clock that is moved by hand
        self.budget = TimeBudget(seconds, self.time, lambda: self.time)
        self.budget.largest = largest
        self.seconds_of_step = step if callable(step) else lambda number: step
        self.seconds_of_evaluation = evaluation if callable(evaluation) else lambda number: evaluation
        self.saving = saving
        self.time += preparation
        defaults = {"eval_steps": 0.1, "save_steps": 0.1, "logging_steps": 0.02, "warmup_steps": 0.05, "eval_delay": 0}
        strategies = dict.fromkeys(("eval_strategy", "save_strategy", "logging_strategy"), "steps")
        self.args = SimpleNamespace(**{**defaults, **strategies, **options}, device=torch.device("cpu"))
        self.state = saved or TrainerState()
        self.state.max_steps = UNLIMITED
        self.control = TrainerControl()
        self.evaluated, self.saved, self.logged, self.estimates, self.progress = ([] for _ in range(5))
        warmup = self.args.warmup_steps if self.args.warmup_steps < 1 else budgets.WARMUP_SHARE
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        self.scheduler = get_scheduler(
            schedule, optimizer, int(warmup * budgets.SCHEDULE_STEPS), budgets.SCHEDULE_STEPS
        )
        self.scheduler.lr_lambdas = [budgets.follow(self.budget, each) for each in self.scheduler.lr_lambdas]
        self.rates: list[float] = []  # of the steps

    @property
    def elapsed(self) -> float:
        """Seconds since the program started."""
        return self.time - 100.0

    def event(self, name: str, **details: Any) -> None:
        for callback in (self.budget, EvaluateAtEnd()):
            getattr(callback, name)(self.args, self.state, self.control, **details)

    def run(self, until: float = float("inf")) -> "Simulation":
        """Train to the end, or until a time."""
        self.event("on_train_begin")
        while not self.control.should_training_stop and self.time < until:
            self.step()
        return self

    def step(self) -> None:
        self.control._new_step()
        self.rates.append(self.scheduler.get_last_lr()[0])
        self.time += self.seconds_of_step(self.state.global_step + 1)
        self.event("on_optimizer_step")
        self.scheduler.optimizer.step()
        self.scheduler.step()
        self.state.global_step += 1
        assert self.state.global_step < self.state.max_steps  # or else transformers would end the training
        self.event("on_step_end")
        self.progress.append(self.budget.progress)
        self.estimates.append(self.state.max_steps)
        if self.control.should_log:
            self.logged.append(self.state.global_step)
            self.event("on_log", logs={"loss": 1.0})
        if self.control.should_evaluate:
            self.time += self.seconds_of_evaluation(len(self.evaluated) + 1)
            self.evaluated.append((self.state.global_step, self.elapsed))
            self.event("on_evaluate")
        if self.control.should_save:
            self.state.stateful_callbacks["TimeBudget"] = self.budget.state()
            self.time += self.saving
            self.saved.append(self.state.global_step)
            self.event("on_save")


def resumed(run: Simulation, seconds: float, **options: Any) -> Simulation:
    """Return a run that resumes from the last checkpoint of another, in a new process."""
    state = TrainerState(global_step=run.saved[-1], stateful_callbacks=dict(run.state.stateful_callbacks))
    return Simulation(seconds, saved=state, **options)


@pytest.mark.parametrize(("text", "seconds"), [
    *(("90s", 90), ("10m", 600), ("2h", 7200), ("1h30m", 5400), ("45", 45), ("1.5h", 5400), ("0.5m", 30)),
    *(("1h 30min", 5400), (" 10M ", 600), ("1h5s", 3605), ("2m30", 150), (600.0, 600)),
])  # fmt: skip
def test_durations(text, seconds) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "x", "10 days", "-5m", "0", "0m", "1.2.3h", "m", "inf", "nan", "1m1h"])
def test_a_malformed_duration_is_refused(text) -> None:
    refused(f"--max_time {text}: it must be a time above 0, such as 90s, 10m or 1h30m", seconds_of, text)


def arguments(*words: str) -> Any:
    return parse_arguments("train-classifier", ["--use_cpu", *words]).training_args


@pytest.mark.parametrize(("words", "seconds"), [
    ([], 600), (["--max_time", "1h30m"], 5400), (["--max_steps", "5"], None), (["--num_train_epochs", "2"], None),
    (["--num_train_epochs", "3"], None),  # the default's value, and yet given
    (["--max_steps", "-1"], 600), (["--max_epochs", "2"], 600),
    (["--max_tokens", "5.0e+6", "--max_epochs", "2"], None),
    (["--max_flops", "2e9"], None),
])  # fmt: skip
def test_time_when_no_other_length_is_given(words, seconds) -> None:
    assert arguments(*words).max_time == seconds


@pytest.mark.parametrize(("words", "message"), [
    ("--max_time 10m --max_steps 100", "--max_time 10m and --max_steps 100"),
    ("--num_train_epochs 2.5 --max_time 90", "--max_time 1m30s and --num_train_epochs 2.5"),
    ("--max_epochs 2 --max_steps 100", "--max_epochs 2 and --max_steps 100"),
    ("--max_tokens 5e6 --max_time 10m", "--max_time 10m and --max_tokens 5e+06"),
    ("--max_tokens 5e6 --max_flops 2e9", "--max_tokens 5e+06 and --max_flops 2e+09"),
    ("--max_flops 2e9 --max_steps 100", "--max_flops 2e+09 and --max_steps 100"),
    *((words, words) for words in ("--max_tokens 0", "--max_flops inf", "--max_time soon", "--max_epochs 0")),
])  # fmt: skip
def test_lengths_that_cannot_be(words, message) -> None:
    refused(re.escape(message), arguments, *words.split())


def test_time_is_reserved_for_the_last_evaluation_of_longer_outputs() -> None:
    """Those of a translator are a third as long as the references when it is evaluated first."""
    run = Simulation(60, 0.1, evaluation=lambda number: 6.0 if number == 1 else 18.0)
    run.budget.growth = 3.0
    run.run()
    assert (len(run.evaluated), run.elapsed) == (2, pytest.approx(60, rel=0.01))


def test_the_number_of_steps_is_estimated_and_compilation_is_not_the_speed() -> None:
    """A first step of two minutes costs time, and neither the warm-up nor the estimate."""
    run = Simulation(600, lambda number: 120.0 if number == 1 else 0.5).run()
    assert run.progress[UNCOUNTED_STEPS - 1] == 0
    assert run.progress[UNCOUNTED_STEPS] == pytest.approx(4 / run.state.global_step, rel=0.02)
    assert run.rates[:4] == [0.0, 0.02, 0.04, 0.06]
    assert max(run.rates) > 0.99
    assert run.estimates[20] == pytest.approx(run.state.global_step, rel=0.02)
    assert run.elapsed == pytest.approx(600, abs=0.5)
    run = Simulation(600, 0.5, evaluation=2, saving=0.5).run()
    assert run.estimates[0] == UNLIMITED
    for estimate in run.estimates[UNCOUNTED_STEPS:]:
        assert estimate == pytest.approx(run.state.global_step, rel=0.06)


def test_half_of_the_budget_is_left_after_a_long_preparation_and_beside_long_evaluations() -> None:
    run = Simulation(100, preparation=500).run()
    assert (run.elapsed, run.state.global_step) == (pytest.approx(550, abs=1), pytest.approx(50, abs=1))
    run = Simulation(600, evaluation=250, preparation=10).run()
    assert (run.state.global_step, len(run.evaluated)) == (pytest.approx(300, abs=2), 2)
    again = resumed(Simulation(600, evaluation=250).run(until=500), 600, evaluation=250).run()
    assert again.state.global_step == pytest.approx(300, abs=2)
    run = Simulation(10, 25.0).run()  # a step that is longer than the budget
    assert (run.saved, run.progress) == ([1], [1.0])


@pytest.mark.parametrize("schedule", ["linear", "cosine", "polynomial"])
def test_warmup_in_steps(schedule) -> None:
    """The rate rises over as many steps, and falls over the rest of the time."""
    run = Simulation(400, warmup_steps=40, schedule=schedule).run()
    for step in (1, 10, 20, 39, 40):
        assert run.rates[step] == pytest.approx(step / 40, abs=1e-3)
    assert run.rates[40:] == sorted(run.rates[40:], reverse=True)
    assert run.rates[-1] < 0.01
    assert run.rates[220] == pytest.approx(0.5, abs=0.02)  # halfway from 40 to 400


@settings(deadline=None, max_examples=60)
@given(
    speeds=st.lists(st.floats(0.05, 20), min_size=1, max_size=12), evaluation=st.floats(0, 30),
    preparation=st.floats(0, 100), largest=st.none() | st.integers(1, 300),
    warmup=st.sampled_from([0.0, 0.05, 0.3, 1, 20]),
)  # fmt: skip
def test_any_speeds(speeds, evaluation, preparation, largest, warmup) -> None:
    run = Simulation(
        300, lambda number: speeds[number // 7 % len(speeds)], evaluation=evaluation, preparation=preparation,
        largest=largest, warmup_steps=warmup,
    ).run()  # fmt: skip
    assert run.progress[-1] == 1
    assert run.progress == sorted(run.progress)
    assert run.scheduler.get_last_lr() == [0.0]
    peak = run.rates.index(max(run.rates))
    assert run.rates[peak:] == sorted(run.rates[peak:], reverse=True)
    assert run.rates[: peak + 1] == sorted(run.rates[: peak + 1])
    assert run.saved[-1] == run.evaluated[-1][0] == run.logged[-1] == run.state.global_step == run.state.max_steps
    # A first evaluation cannot be foreseen, and a step can last longer than those before it
    if largest is None:
        assert 300 - max(speeds) <= run.elapsed <= 300 + evaluation + 2 * max(speeds)
    else:
        assert run.state.global_step <= largest


def trainer(tmp_path: Path, **options: Any) -> RunTrainer:
    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    settings = ClassifierTrainingArguments(output_dir=str(tmp_path), use_cpu=True, **options)
    model = VanillaEncoderForSequenceClassification(VanillaEncoderConfig(vocab_size=9, **size))
    return RunTrainer(model=model, args=settings, eval_dataset=[{}])


@pytest.mark.parametrize(("schedule", "warmup", "options"), [
    *((name, 0.1, {}) for name in ("linear", "cosine", "polynomial", "inverse_sqrt", "constant_with_warmup")),
    *((name, 0.0, {}) for name in ("linear", "cosine_with_restarts", "constant")),
    ("cosine_with_min_lr", 0.05, {"min_lr_rate": 0.1}),
    ("cosine_warmup_with_min_lr", 0.05, {"min_lr_rate": 0.1}),
    ("warmup_stable_decay", 0.1, {"num_decay_steps": 200}), ("warmup_stable_decay", 0.1, {}),
])  # fmt: skip
def test_schedules_are_those_of_transformers(schedule, warmup, options, tmp_path) -> None:
    """At each progress the rate is that of a run of a thousand steps after as many thousandths."""
    chosen = {"lr_scheduler_type": schedule, "warmup_steps": warmup, "lr_scheduler_kwargs": options}
    found = trainer(tmp_path, max_time="10m", **chosen)
    optimizer = found.create_optimizer()
    scheduler = found.create_scheduler(UNLIMITED)
    if schedule == "warmup_stable_decay":  # in the last tenth of any length, where nothing else is given
        options = {"num_decay_steps": 100} | options
        of_steps = trainer(tmp_path, max_steps=1000, **chosen)
        assert (of_steps.budget, of_steps.args.max_steps) == (None, 1000)
        assert not any(isinstance(callback, TimeBudget) for callback in of_steps.callback_handler.callbacks)
        of_steps.create_optimizer()
        rate_of_step = of_steps.create_scheduler(1000).lr_lambdas[0]
    expected = get_scheduler(schedule, optimizer, round(1000 * warmup), 1000, options).lr_lambdas[0]
    for progress in (0, 0.05, 0.1, 0.25, 0.5, 0.85, 1):
        found.budget.position = progress
        optimizer.step()
        scheduler.step()
        assert scheduler.get_last_lr()[0] == pytest.approx(1e-3 * expected(1000 * progress))
        if schedule == "warmup_stable_decay":
            assert rate_of_step(1000 * progress) == pytest.approx(expected(1000 * progress))
    assert found.args.warmup_steps == warmup


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "constant_with_warmup", "reduce_lr_on_plateau", "greedy"])
def test_schedules_that_do_not_depend_on_the_length(schedule, tmp_path) -> None:
    options = {"lr_scheduler_type": schedule, "warmup_steps": 4, "metric_for_best_model": "loss"}
    found = trainer(tmp_path, max_time="10m", **options)
    optimizer = found.create_optimizer()
    scheduler = found.create_scheduler(UNLIMITED)
    expected = get_scheduler(schedule, optimizer, 4, None, found.args.lr_scheduler_kwargs)
    assert type(scheduler) is type(expected)
    if isinstance(expected, LambdaLR):
        for step in (0, 1, 4, 16):
            assert scheduler.lr_lambdas[0](step) == expected.lr_lambdas[0](step)


def test_evaluations_come_at_equal_intervals_or_those_asked_for_and_expensive_ones_are_reported(capsys) -> None:
    run = Simulation(3600, 0.5, evaluation=5, saving=1).run()
    times = [time for _, time in run.evaluated]
    assert [later - earlier for earlier, later in pairwise([0, *times[:-1]])] == pytest.approx([360] * 9, abs=12)
    assert times[-1] == pytest.approx(3600, abs=2)
    assert run.saved == [step for step, _ in run.evaluated]
    assert 45 <= len(run.logged) <= 52
    Simulation(600, evaluation=90).run()
    assert capsys.readouterr().out == (
        "An evaluation takes 90 s of the 10 minutes: with fewer rows, --max_validation_samples, there is more time "
        "to train.\n"
    )
    run = Simulation(3600, 0.1, largest=200, evaluation=0.05).run()
    assert [step for step, _ in run.evaluated] == pytest.approx([20, 40, 60, 80, 100, 120, 140, 160, 180, 200], abs=1)
    run = Simulation(60, eval_steps=7, save_steps=7, logging_steps=5).run()  # transformers' own callback does these
    assert [step for step, _ in run.evaluated] == run.saved == run.logged == [run.state.global_step]


@pytest.mark.parametrize(("evaluation", "share"), [(1, 0.03), (10, 0.13), (30, 0.15)])
def test_evaluations_do_not_eat_the_run(evaluation, share) -> None:
    run = Simulation(600, 0.2, evaluation=evaluation).run()
    assert len(run.evaluated) * evaluation <= share * 600
    assert run.elapsed == pytest.approx(600, abs=1)


@pytest.mark.parametrize(("options", "evaluations", "checkpoints"), [
    ({"eval_strategy": "no"}, 0, 10), ({"eval_steps": 0.2, "save_steps": 0.05}, 5, 20),
    ({"eval_steps": 0.2, "save_steps": 0.3}, 5, 3), ({"save_steps": 0.3}, 10, 4),
])  # fmt: skip
def test_checkpoints_with_and_without_evaluations(options, evaluations, checkpoints) -> None:
    run = Simulation(1000, **options).run()
    assert (len(run.evaluated), len(run.saved)) == (evaluations, checkpoints)
    assert run.saved[-1] == run.state.global_step
    if options == {"save_steps": 0.3}:  # a multiple of the interval of evaluations
        assert run.saved == [step for step, _ in run.evaluated[:-1:3]] + [run.state.global_step]


def test_resuming_counts_what_was_spent_and_a_run_killed_after_its_last_step_is_over() -> None:
    first = Simulation(600, 0.5, evaluation=2, saving=1, preparation=30).run(until=350)
    second = resumed(first, 600, step=0.5, evaluation=2, saving=1, preparation=10).run()
    spent = first.state.stateful_callbacks["TimeBudget"]["attributes"]["spent"]
    assert spent < 350
    # What comes before it resumes is not counted again
    assert second.elapsed == pytest.approx(10 + 600 - spent, abs=2)
    before = first.progress[first.saved[-1] - 1]
    assert (second.progress[0], second.progress[-1]) == (pytest.approx(before, abs=0.02), 1)
    assert second.evaluated[0][1] > 40  # not at once
    first = Simulation(600, 0.5, evaluation=20, saving=1).run()
    for budget, steps in ((600, 0), (500, 0), (1200, pytest.approx(1180, abs=20))):
        second = resumed(first, budget, step=0.5, evaluation=2).run()
        assert second.state.global_step - first.state.global_step == steps
        assert second.control.should_training_stop


def test_more_epochs_or_a_longer_budget_extend_a_run() -> None:
    first = Simulation(600, largest=50).run()
    for largest, steps in ((50, 50), (80, 80), (None, 600)):
        second = resumed(first, 600, largest=largest).run()
        assert second.state.global_step == pytest.approx(steps, abs=1 if largest is None else 0)
        assert second.elapsed == pytest.approx(steps - 50, abs=1)
    second = resumed(Simulation(300).run(), 600, step=1.0).run()
    assert (second.elapsed, second.progress[0]) == (pytest.approx(300, abs=2), pytest.approx(0.5, abs=0.02))
    assert (second.rates[1], second.progress[-1]) == (pytest.approx(0.54, abs=0.02), 1)
    third = Simulation(100, saved=TrainerState(global_step=50), preparation=10).run()  # the first counted steps
    assert (third.elapsed, third.progress[0]) == (pytest.approx(100, abs=1), 0)


def budget(**attributes: Any) -> TimeBudget:
    found = TimeBudget(600, 0.0)
    for name, value in attributes.items():
        setattr(found, name, value)
    return found


def test_lines_with_a_budget_the_time_left_and_the_tokens_of_a_second() -> None:
    found = budget(spent=96.4, rate=5_400.3)
    assert line(STATE, {"loss": 2.31, "learning_rate": 1.2e-3}, 90, found) == (
        "step 340/≈2,100 · 96 s · 8.4 min left · 5,400 tokens/s · loss 2.310 · learning rate 0.0012"
    )
    scores = {"eval_loss": 0.5, "eval_exact_match": 99.06, "eval_runtime": 3.0}
    assert line(STATE, scores, 70) == "step  340/2097 ·   70 s · validation: loss 0.5000 · exact match 99.1 %"
    assert line(STATE, {"train_runtime": 3.0}, 70) is None
    unknown = SimpleNamespace(global_step=2, max_steps=UNLIMITED)
    assert str(line(unknown, {"loss": 1}, 3, budget(spent=3.0))).startswith("step 2/? · 3 s · 9.9 min left · ")
    last = SimpleNamespace(global_step=2_104, max_steps=2_104)
    assert str(line(last, {"loss": 1}, 3, budget(spent=600.2, over=True))).startswith("step 2,104/2,104 · 600 s · 0 s")
    found = budget(spent=10.0, largest=440, step=0.5, evaluation=4.0, saving=1.0)  # which epochs end
    assert found.texts(STATE, 9.0)[0][1] == "55 s left"
    assert found.texts(SimpleNamespace(global_step=430, max_steps=440), 9.0)[0][1] == "10 s left"
    run = Simulation(600, 0.5, evaluation=5)
    run.event("on_train_begin")
    while not run.evaluated or run.logged[-1] < run.evaluated[0][0]:
        run.budget.tokens += 100
        run.step()
    assert run.budget.rate == pytest.approx(200)
