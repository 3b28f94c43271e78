"""What all tests share: no network, one thread, one seed, and quiet libraries."""

import gc
import os
from pathlib import Path

# Before transformers and torch are imported: a test that reaches for the Hub fails at once, and processes that tests
# start have one thread too, for sums that are equal bit for bit.
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")

import pytest
import torch
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()
torch.set_num_threads(1)
os.fsync = lambda descriptor: None  # no test cuts the power, and a tiny run waits for the disk 60 times


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> None:
    """Keep what earlier files made and imported out of garbage collection, which took a fifth of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


# Of tests that save models but are not about the code beside them, which takes 25 times as long to write as the rest
WITHOUT_CODE = ("configuration", "conversion", "modeling")
WITH_CODE = ("test_saved_code",)


@pytest.fixture(autouse=True)
def _no_code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = request.path.relative_to(Path(__file__).parent).parts[0]
    if folder in WITHOUT_CODE and request.path.stem not in WITH_CODE:
        monkeypatch.setenv("VANILLAFORMER_REMOTE_CODE", "0")
