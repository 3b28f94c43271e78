"""One tiny run of each kind for all tests of a worker."""

import os
from functools import cache
from importlib import import_module
from pathlib import Path

import datasets
import pytest
from script_runs import PROGRAMS, pictures, train


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory):
    """Keep what is loaded and tokenized in a folder of these tests, in the processes they start too."""
    folder = tmp_path_factory.mktemp("datasets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "HF_DATASETS_CACHE", str(folder))
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
        yield


@pytest.fixture(scope="session", autouse=True)
def _cheap_runs():
    """Runs without pictures, but for those of `trained`, which read the names that are to be classified once."""
    names = import_module("vanillaformer.data.embedded.corpora")
    with pytest.MonkeyPatch.context() as patch, pictures(drawn=False):
        patch.setattr(names, "language_names", cache(names.language_names))
        yield


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory):
    """Return a function (job) -> folder of a finished tiny run, trained on first use."""
    folders: dict[str, Path] = {}

    def folder(job: str) -> Path:
        if job not in folders:
            folders[job] = tmp_path_factory.mktemp(job) / "run"
            with pictures(drawn=True):
                if job == "separate":
                    train("translation", folders[job], "--joint_vocabulary", "False")
                elif job == "decoder_classification":
                    train("classification", folders[job], "--preset", "gpt-tiny")
                else:
                    assert job in PROGRAMS
                    train(job, folders[job])
        return folders[job]

    return folder
