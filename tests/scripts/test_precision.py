"""Half precision and recomputed activations change how a model is trained, not what it learns."""

from pathlib import Path

import pytest
import torch
from script_runs import assert_equal_weights, losses, train, weights
from transformers import modeling_utils

RECIPES = {
    "translation": "--learning_rate 0.01 --label_smoothing_factor 0.1 --tokens_per_batch 400 "
    "--predict_with_generate False",
    "causal": "--learning_rate 0.01 --r_drop 2",
    "classification": "--learning_rate 0.01",
}


@pytest.mark.parametrize("job", ["translation", "causal"])
def test_bfloat16(job: str, tmp_path: Path) -> None:
    train(job, tmp_path / "exact", *RECIPES[job].split())
    exact = losses(tmp_path / "exact")
    for option, tolerance in (("--bf16", 2e-3), ("--dtype bfloat16", 1e-2)):  # weights drawn as bfloat16 are others
        train(job, tmp_path / option, *RECIPES[job].split(), *option.split())
        half = losses(tmp_path / option)
        assert max(exact[-1] / exact[0], half[-1] / half[0]) < 0.96
        assert half == pytest.approx(exact, rel=tolerance)
        assert half != exact
        # The cross-entropy is computed in float32
        assert all(torch.tensor(loss).bfloat16().item() != loss for loss in half)
        kept = torch.float32 if option == "--bf16" else torch.bfloat16
        assert {value.dtype for value in weights(tmp_path / option).values()} == {kept}


@pytest.mark.parametrize("job", RECIPES)
def test_gradient_checkpointing(job: str, tmp_path: Path, monkeypatch) -> None:
    train(job, tmp_path / "kept", *RECIPES[job].split(), "--set", "layer_drop=0.3")
    calls, checkpoint = [], modeling_utils.checkpoint

    def counted(*details, **keywords):
        calls.append(details[0])
        return checkpoint(*details, **keywords)

    monkeypatch.setattr(modeling_utils, "checkpoint", counted)
    train(job, tmp_path / "again", *RECIPES[job].split(), "--set", "layer_drop=0.3", "--gradient_checkpointing")
    assert len(calls) >= 3  # of the 6 or 12 layers passed, some were dropped
    assert losses(tmp_path / "again") == losses(tmp_path / "kept")
    assert_equal_weights(tmp_path / "kept", tmp_path / "again")
