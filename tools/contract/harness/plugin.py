"""A pytest plugin: seeds each test, bounds its time, and counts the models that it builds."""

import functools
import os
import signal
from collections.abc import Generator
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, set_seed

pytest.register_assert_rewrite("harness.checks")

_models_built = 0


class TooSlow(Exception):
    """A test ran out of time."""


def pytest_configure() -> None:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    build = PreTrainedModel.__init__

    @functools.wraps(build)
    def count_and_build(self: PreTrainedModel, *args: Any, **kwargs: Any) -> None:
        global _models_built
        _models_built += 1
        build(self, *args, **kwargs)

    PreTrainedModel.__init__ = count_and_build


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    global _models_built
    set_seed(0)
    _models_built = 0
    seconds = int(os.environ["CONTRACT_TEST_SECONDS"])

    def stop(*_: object) -> None:
        raise TooSlow(f"the test ran longer than {seconds} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
        item.user_properties.append(("models_built", _models_built))
