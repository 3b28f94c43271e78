"""Models divided among processes train as whole ones, and go on in any other layout."""

import shutil
import signal
from pathlib import Path

import pytest
import script_runs
import torch
from refusals import refused
from safetensors.torch import save_file
from script_runs import ALONE, die_after_four, kill_in_step, losses, record, stream_options, train, weights
from test_processes import arguments

from vanillaformer.data.tasks import TASKS
from vanillaformer.training import plan
from vanillaformer.training.run_folder.files import checkpoints

SCORED_BY_LOSS = "--predict_with_generate False"
SGD = "--optim sgd --learning_rate 0.5"  # whose steps do not make rounding errors of tiny gradients large
CASES = [
    # All embeddings are one table
    ("translation", "fsdp=2", f"--label_smoothing_factor 0.1 --tokens_per_batch 400 {SCORED_BY_LOSS}"),
    ("translation", "fsdp=2", "--joint_vocabulary False"), ("translation", "tp=2", ""),
    ("causal", "fsdp=2", "--optim muon --average_checkpoints 2"),
    ("causal", "fsdp=2", "--packing --set vocab_size=303"),  # parts of two sizes of a tied weight
    ("causal", "fsdp=2,tp=2", "--set vocab_size=303"),
    ("causal", "replicate=2,fsdp=2", "--gradient_checkpointing --set value_residual=true"),
    ("causal", "tp=2", "--gradient_accumulation_steps 2 --set position_embedding_type=alibi qk_norm=full"),
    ("classification", "fsdp=2", "--optim radam --freeze layers.0.mlp --max_train_samples 19"),
    ("classification", "fsdp=2,tp=2", "--set wide_max_ngram=2 wide_buckets=64"),
    ("token_classification", "replicate=2", "--ema_decay 0.5"), ("mlm+nsp", "fsdp=2", ""),
    ("span", "tp=2", "--tokens_per_batch 400"),
    ("causal", "fsdp=2,tp=2", f"--lora_rank 3 --lora_targets o_proj up_proj --packing --set qk_norm=full {SGD}"),
    ("classification", "tp=2", f"--lora_rank 2 --lora_targets q_proj down_proj --gradient_accumulation_steps 2 {SGD}"),
    ("translation", "replicate=2,fsdp=2", f"--lora_rank 2 {SCORED_BY_LOSS} {SGD}"),
    ("image_classification", "tp=2", ""), ("masked_image", "fsdp=2", ""),
]  # fmt: skip


def processes_of(layout: str) -> tuple[int, int]:
    """Return how many processes a layout has, and how many have rows of their own."""
    sizes = {name: int(size) for name, size in (part.split("=") for part in layout.split(","))}
    rows = sizes.get("replicate", 1) * sizes.get("fsdp", 1)
    return rows * sizes.get("tp", 1), rows


def train_in(layout: str, job: str, folder: Path, *options: str, setups=(), exitcode: int = 0) -> None:
    count, parts = processes_of(layout)
    size = "--per_device_train_batch_size", str(8 // parts)
    accelerated = [script_runs.as_accelerators] if "tp" in layout else []
    options = "--parallel", layout, *size, *options
    setups = [*accelerated, script_runs.own_parts, script_runs.read_by_first, *setups]
    script_runs.train_together(job, folder, *options, count=count, setups=setups, exitcode=exitcode)


@pytest.mark.parametrize(("job", "layout", "recipe"), CASES)
def test_a_divided_model_trains_as_a_whole_one(job: str, layout: str, recipe: str, tmp_path: Path) -> None:
    options = recipe.split()
    train(job, tmp_path / "alone", *ALONE, *options)
    train_in(layout, job, tmp_path / "together", *options)
    script_runs.assert_same_training(tmp_path / "alone", tmp_path / "together", error=1e-5)
    one, other = (record(tmp_path / name) for name in ("alone", "together"))
    assert other["details"]["consumed"] == one["details"]["consumed"]
    for name, value in one["metrics"].items():
        if name.startswith("eval_") and not name.endswith(("runtime", "per_second")):
            assert other["metrics"][name] == pytest.approx(value, rel=1e-4, abs=1e-3), name
    saved, expected = (weights(tmp_path / name) for name in ("together", "alone"))
    assert saved.keys() == expected.keys()
    loaded = TASKS[job].auto_class.from_pretrained(tmp_path / "together")
    assert other["details"]["training"]["model_class"] == type(loaded).__name__
    for name, value in expected.items():
        error = 1e-5 if SGD in recipe else 1e-3
        assert (value - saved[name]).norm() <= error * (value.norm() + 0.1), name
        assert torch.equal(loaded.state_dict()[name], saved[name]), name


def little_memory(rank: int, folder: Path) -> None:
    plan.memory_of_process = lambda device: 1_500_000


@pytest.mark.parametrize(("width", "divides"), [(16, False), (48, True)])
def test_auto_divides_what_has_no_room(width: int, divides: bool, tmp_path: Path) -> None:
    options = ["--parallel", "auto", "--set", f"hidden_size={width}"]
    train("causal", tmp_path / "alone", *ALONE, *options[2:])
    script_runs.train_together("causal", tmp_path / "together", *options, setups=[little_memory])
    script_runs.assert_same_training(tmp_path / "alone", tmp_path / "together", error=1e-5)
    assert (tmp_path / "together" / "checkpoint-6" / "optimizer").is_dir() is divides


def test_one_process_reads_the_model_that_training_starts_from(trained, tmp_path: Path) -> None:
    options = ["--model_name_or_path", str(trained("masked"))]
    train("classification", tmp_path / "alone", *ALONE, *options)
    script_runs.train_together("classification", tmp_path / "None", *options, setups=[script_runs.read_by_first])
    train_in("fsdp=2,tp=2", "classification", tmp_path / "divided", *options)
    for layout in ("None", "divided"):
        script_runs.assert_same_training(tmp_path / "alone", tmp_path / layout, error=1e-5)


# Layouts before and after a kill; None is one process
CHANGES = [
    ("causal", "fsdp=2", None, "--optim muon"),
    ("causal", None, "fsdp=2", "--optim muon --ema_decay 0.5"),
    ("translation", "fsdp=2", "tp=2", SCORED_BY_LOSS),
    ("classification", "replicate=2,fsdp=2", "tp=2", "--ema_decay 0.5 --async_save"),
    ("causal", "tp=2", "fsdp=2,tp=2", "STREAM"),
    ("classification", "fsdp=2,tp=2", None, "--lora_rank 2 --async_save"),
    ("causal", None, "replicate=2,fsdp=2", "--lora_rank 2 --lora_targets q_proj down_proj"),
]


@pytest.mark.parametrize(("job", "first", "second", "recipe"), CHANGES)
def test_a_run_resumes_in_another_layout(job: str, first, second, recipe: str, tmp_path: Path) -> None:
    options = stream_options(job, tmp_path) if recipe == "STREAM" else recipe.split()
    train(job, tmp_path / "whole", *ALONE, *options)
    killed = tmp_path / "killed"
    if first is None:
        kill_in_step(job, 4, arguments(job, killed, *ALONE, *options))
    else:
        train_in(first, job, killed, *options, setups=[die_after_four], exitcode=-signal.SIGKILL)
    assert not (killed / "model.safetensors").exists()
    if second is None:
        train(job, killed, *ALONE, *options)
    else:
        train_in(second, job, killed, *options)
    assert losses(killed) == pytest.approx(losses(tmp_path / "whole"), rel=1e-5)
    for name, value in weights(tmp_path / "whole").items():
        torch.testing.assert_close(weights(killed)[name], value, rtol=1e-3, atol=1e-4, msg=name)


def test_a_divided_model_after_a_kill(tmp_path: Path) -> None:
    options = [
        "--r_drop", "1", "--scheduled_sampling", "linear", "--scheduled_sampling_k", "5", "--set", "dropout=0.1",
    ]  # fmt: skip
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train_in("fsdp=2", "causal", whole, *options)
    train_in("fsdp=2", "causal", killed, *options, setups=[die_after_four], exitcode=-signal.SIGKILL)
    shutil.copytree(killed, tmp_path / "damaged")
    (tmp_path / "damaged" / "checkpoint-4" / "optimizer" / "__1_0.distcp").unlink()
    damaged = r"checkpoint-4/optimizer cannot be read as a state of the optimizer: .*__1_0"
    refused(damaged, train, "causal", tmp_path / "damaged", *ALONE, *options)
    assert sorted(checkpoints(tmp_path / "damaged")) == [2, 4]
    (tmp_path / "damaged" / "checkpoint-4" / "optimizer" / ".metadata").unlink()
    assert sorted(checkpoints(tmp_path / "damaged")) == [2]
    shutil.copytree(killed, tmp_path / "partial")
    checkpoint = tmp_path / "partial" / "checkpoint-4"
    kept = weights(checkpoint)
    del kept["model.layers.0.self_attn.q_proj.weight"]
    save_file(kept, checkpoint / "model.safetensors", {"format": "pt"})
    train_in("fsdp=2", "causal", tmp_path / "partial", *options, exitcode=1)
    train_in("fsdp=2", "causal", killed, *options)
    script_runs.assert_equal_weights(whole, killed)
    assert losses(whole)[4:] == losses(killed)[4:]
