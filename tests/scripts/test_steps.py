"""Batches, optimizers and losses in whole runs: the same on several processes, when accumulated, and after a kill."""

from pathlib import Path

import pytest
from script_runs import arguments, assert_equal_weights, kill_in_step, losses, train
from test_processes import ALONE, assert_same_training, train_together

JOBS = ["translation", "causal", "masked", "classification"]
ACCUMULATED = "--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "4"
BY_TOKENS = "--tokens_per_batch", "400"
BUDGET = "--max_steps", "-1", "--max_epochs", "2", "--max_tokens", "1e6"
RECIPES = {
    "muon": "--optim muon --weight_decay 0.1",
    "radam": "--optim radam --label_smoothing_factor 0.1 --lr_scheduler_type inverse_sqrt",
    "r_drop": "--r_drop 2 --lr_scheduler_type cosine --tokens_per_batch 400",
    "scheduled_sampling": "--scheduled_sampling linear --scheduled_sampling_k 5",
}


@pytest.mark.parametrize("job", JOBS)
def test_batches_by_tokens_on_two_processes(job: str, tmp_path: Path) -> None:
    train(job, tmp_path / "alone", *ALONE, *BY_TOKENS)
    train_together(job, tmp_path / "two", *BY_TOKENS)
    assert_same_training(tmp_path / "alone", tmp_path / "two")


@pytest.mark.parametrize("job", JOBS)
def test_accumulated_batches_are_the_large_batch(job: str, tmp_path: Path) -> None:
    train(job, tmp_path / "whole", *ALONE, *BY_TOKENS)
    train(job, tmp_path / "parts", *ALONE, *BY_TOKENS, "--gradient_accumulation_steps", "3")
    assert_same_training(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("job", ["translation", "causal"])
def test_smoothed_losses_of_accumulated_rows_are_those_of_the_large_batch(job: str, tmp_path: Path) -> None:
    options = [*ALONE, "--label_smoothing_factor", "0.1", "--train_sampling_strategy", "random"]
    train(job, tmp_path / "whole", *options)
    train(job, tmp_path / "parts", *options, *ACCUMULATED)
    assert_same_training(tmp_path / "whole", tmp_path / "parts")


SECOND_LOSS = {
    "classification": ["--preset", "gpt-tiny", "--lm_loss_weight", "0.5", "--train_sampling_strategy", "random"],
    "mlm+nsp": ["--max_train_samples", "40", "--block_size", "24"],
}


@pytest.mark.parametrize("job", SECOND_LOSS)
def test_a_second_loss_of_accumulated_rows_is_that_of_the_large_batch(job: str, tmp_path: Path) -> None:
    options = [*ALONE, *SECOND_LOSS[job]]
    train(job, tmp_path / "whole", *options)
    train(job, tmp_path / "parts", *options, *ACCUMULATED)
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "whole"), rel=1e-5)


UNEVEN = {  # 19 rows are batches of 8, 8 and 3, and 17 of 8, 8 and 1
    "classification": ["--max_train_samples", "19", "--r_drop", "1"],
    "idle": ["--max_train_samples", "17", "--preset", "gpt-tiny", "--lm_loss_weight", "0.5"],
    "idle, read ahead": ["--max_train_samples", "17", "--ensemble", "2", *BUDGET],
    "image_classification": ["--max_train_samples", "17", "--ensemble", "2", "--mixup", "0"],
    "masked_image": ["--max_train_samples", "19"],
}


@pytest.mark.parametrize("case", UNEVEN)
def test_two_processes_have_the_batches_of_one(case: str, tmp_path: Path) -> None:
    """The last batch of an epoch is divided without repeating rows."""
    job, options = "classification" if case.startswith("idle") else case, UNEVEN[case]
    train(job, tmp_path / "alone", *ALONE, *options)
    train_together(job, tmp_path / "two", *options)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "alone"), rel=1e-5)
    assert_same_training(tmp_path / "alone", tmp_path / "two")


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_killed_run_ends_as_an_uninterrupted_one(recipe: str, tmp_path: Path) -> None:
    options = RECIPES[recipe].split()
    train("translation", tmp_path / "whole", *options)
    kill_in_step("translation", 5, arguments("translation", tmp_path / "killed", *options))
    train("translation", tmp_path / "killed", *options)
    assert_equal_weights(tmp_path / "whole", tmp_path / "killed")
    assert losses(tmp_path / "whole") == losses(tmp_path / "killed")


def test_scheduled_sampling_needs_a_model_that_feeds_itself(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--scheduled_sampling linear: .* feeds itself no tokens"):
        train("masked", tmp_path, *RECIPES["scheduled_sampling"].split())
