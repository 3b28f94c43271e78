"""What all tests share: no network, one thread, one seed, and quiet libraries."""

import gc
import os

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


def pytest_collection_finish() -> None:
    """Keep libraries and tests out of garbage collection: each training run begins with one, a fifth of a tiny run."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
