"""Comparisons of trainings that are pretended, or that run in the process of the tests, which starts faster."""

import os
import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from vanillaformer.comparison import running
from vanillaformer.scripts import train_classifier, train_language_model

TRAIN = {"train-classifier": train_classifier.train, "train-language-model": train_language_model.train}


class AtOnce(Executor):
    """An executor that does not wait."""

    def submit(self, function: Callable[..., Any], job: Any) -> Future:
        future: Future = Future()
        future.set_result(function(job))
        return future


def execute(runner: running.Runner, job: running.Job, settings: Path) -> tuple[int, float]:
    log = runner._file("logs", job)
    log.parent.mkdir(parents=True, exist_ok=True)
    runner._note_start(job, settings, os.getpid())
    with log.open("a", encoding="utf-8") as output, redirect_stdout(output), redirect_stderr(output):
        try:
            TRAIN[runner.plan.program]([str(settings)])
        except ValueError as error:
            print(error)
            return 1, 1.0
    return 0, 1.0


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let comparisons start a program that only pretends to train."""
    program = Path(__file__).with_name("pretended_training.py")
    monkeypatch.setattr(running.Runner, "command", (sys.executable, str(program)))


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setattr(running, "ThreadPoolExecutor", lambda workers: AtOnce())
    monkeypatch.setattr(running.Runner, "execute", execute)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
