"""One tiny run of each kind for all tests, of all workers."""

import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import datasets
import pytest
from filelock import FileLock
from script_runs import PROGRAMS, SECRET, pictures, train

from vanillaformer.training.report.card import writing
from vanillaformer.training.trainer import account

SEPARATE = "--joint_vocabulary False --label_smoothing_factor 0.1 --license mit"


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory):
    """Keep what is loaded and tokenized in a folder of these tests, in the processes they start too."""
    folder = tmp_path_factory.mktemp("datasets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "HF_DATASETS_CACHE", str(folder))
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
        yield


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a model or its config, and of numbers, that is computed once for each config."""
    found: dict[Any, Any] = {}

    def known(model: Any, *numbers: int | None) -> Any:
        config = getattr(model, "config", model)
        key = type(model), repr(config), config._attn_implementation, numbers
        if key not in found:
            found[key] = function(model, *numbers)
        return found[key]

    return known


@pytest.fixture(scope="session", autouse=True)
def _cheap_runs():
    """Runs without pictures, but for those of `trained`, which read names and count operations of a config once."""
    names = import_module("vanillaformer.data.embedded")
    with pytest.MonkeyPatch.context() as patch, pictures(drawn=False):
        patch.setattr(names, "language_names", cache(names.language_names))
        patch.setattr(account, "text_flops", once(account.text_flops))
        patch.setattr(writing, "count_flops", once(writing.count_flops))
        yield


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory):
    """Return a function (job) -> folder of a finished tiny run, trained by the worker that first needs it."""
    special = {
        "separate": ("translation", *SEPARATE.split(), "--data_license", "House rules", "--hub_token", SECRET),
        "decoder_classification": ("classification", "--preset", "gpt-tiny"),
    }
    root = tmp_path_factory.getbasetemp()
    root = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "trained"
    root.mkdir(exist_ok=True)

    def folder(job: str) -> Path:
        assert job in PROGRAMS or job in special
        with FileLock(root / f"{job}.lock"):
            if not (root / f"{job}.done").exists():
                program, *options = special.get(job, (job,))
                with pictures(drawn=True):
                    train(program, root / job / "run", *options)
                (root / f"{job}.done").touch()
        return root / job / "run"

    return folder
