"""A model that FSDP2 divides between two processes is trained as it is on one."""

import signal
from pathlib import Path

import pytest
import torch
from script_runs import (
    assert_equal_weights,
    losses,
    train,
    train_as_killed_sharding_rank,
    train_as_sharding_rank,
    weights,
)
from test_processes import ALONE, assert_same_training, train_together

from vanillaformer.data.tasks import TASKS

SHARDED = "--fsdp", "--load_best_model_at_end", "False"
RECIPES = [
    ("translation", "--label_smoothing_factor 0.1 --tokens_per_batch 400"),  # all embeddings are one table
    ("translation", "--joint_vocabulary False"),
    ("causal", "--optim muon"),
    ("masked", "--freeze layers.0.mlp"),
    ("classification", "--optim radam"),
]


@pytest.mark.parametrize(("job", "recipe"), RECIPES)
def test_divided_model(job: str, recipe: str, tmp_path: Path) -> None:
    options = recipe.split()
    train(job, tmp_path / "alone", *ALONE, *SHARDED[1:], *options)
    train_together(job, tmp_path / "two", *SHARDED, *options, target=train_as_sharding_rank)
    assert_same_training(tmp_path / "alone", tmp_path / "two")
    saved = weights(tmp_path / "two")
    assert saved.keys() == weights(tmp_path / "alone").keys()
    loaded = TASKS[job].auto_class.from_pretrained(tmp_path / "two").state_dict()
    for name, value in saved.items():
        assert torch.equal(loaded[name], value), name


def test_divided_model_after_a_kill(tmp_path: Path) -> None:
    options = [*SHARDED, "--r_drop", "1", "--scheduled_sampling", "linear", "--scheduled_sampling_k", "5"]
    options += ["--set", "dropout=0.1"]
    train_together("causal", tmp_path / "whole", *options, target=train_as_sharding_rank)
    killed = tmp_path / "killed"
    train_together("causal", killed, *options, target=train_as_killed_sharding_rank, exitcode=-signal.SIGKILL)
    assert not (killed / "model.safetensors").exists()
    train_together("causal", killed, *options, target=train_as_sharding_rank)
    assert_equal_weights(tmp_path / "whole", killed)
    assert losses(tmp_path / "whole")[4:] == losses(killed)[4:]
