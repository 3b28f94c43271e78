"""Batches, optimizers and losses in whole runs: accumulated batches are the large batch."""

from pathlib import Path

import pytest
from script_runs import ALONE, assert_same_training, losses, train

ACCUMULATED = "--per_device_train_batch_size 2 --gradient_accumulation_steps 4"
BY_TOKENS = "--tokens_per_batch 400", "--gradient_accumulation_steps 3"
SMOOTHED = "--label_smoothing_factor 0.1 --train_sampling_strategy random", ACCUMULATED
GENERATIVE = "--preset gpt-tiny --lm_loss_weight 0.5 --train_sampling_strategy random"
# Options of both runs, and of the one whose batches are divided
CASES = {
    "translation by tokens": ("translation", f"{BY_TOKENS[0]} --predict_with_generate False", BY_TOKENS[1]),
    **{f"{job} by tokens": (job, *BY_TOKENS) for job in ("causal", "masked", "classification")},
    "translation, smoothed": ("translation", f"{SMOOTHED[0]} --predict_with_generate False", SMOOTHED[1]),
    "causal, smoothed": ("causal", *SMOOTHED),
    "a second loss of classes": ("classification", GENERATIVE, ACCUMULATED),
    "a second loss of pairs": ("mlm+nsp", "--max_train_samples 40 --block_size 24", ACCUMULATED),
}


@pytest.mark.parametrize("case", CASES)
def test_accumulated_batches_are_the_large_batch(case: str, tmp_path: Path) -> None:
    job, options, divided = CASES[case]
    train(job, tmp_path / "whole", *ALONE, *options.split())
    train(job, tmp_path / "parts", *ALONE, *options.split(), *divided.split())
    if "second loss" in case:
        assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "whole"), rel=1e-5)
    else:
        assert_same_training(tmp_path / "whole", tmp_path / "parts")
