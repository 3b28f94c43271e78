"""Techniques of training, in whole runs: they do what they say, and a resumed run ends as an uninterrupted one."""

import errno
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from refusals import refused
from safetensors.torch import load_file
from script_runs import adding, assert_equal_weights, logged, losses, nan_loss, record, train, weights
from transformers import TrainerCallback, modeling_utils

from vanillaformer.training import run as runs
from vanillaformer.training.run_folder.files import SAVING


@pytest.mark.parametrize(("task", "more"), [("translation", "--predict_with_generate False"), ("classification", "")])
def test_packed_texts_train_as_padded_ones(task: str, more: str, tmp_path: Path) -> None:
    for name, packing in {"padded": "false", "packed": "true"}.items():
        run = train(task, tmp_path / name, "--set", "dropout=0.0", "--packing", packing, *more.split())
        if more:  # without generation the loss decides
            assert "eval_bleu" not in run.metrics
            assert run.settings["training"]["metric_for_best_model"] == "loss"
    for name in ("loss", "eval_loss"):
        assert logged(tmp_path / "packed", name) == pytest.approx(logged(tmp_path / "padded", name), rel=1e-5)
    assert "packed rows" in (tmp_path / "packed" / "README.md").read_text()


class Steps(TrainerCallback):
    """Keeps the weights after each step of the optimizer of the runs that begin while it is `listening`."""

    def __init__(self):
        self.weights: list[dict[str, torch.Tensor]] = []

    def listening(self) -> Any:
        return mock.patch.object(runs, "replace_callbacks", adding(self))

    def on_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.weights.append({name: value.detach().clone().double() for name, value in model.named_parameters()})


@pytest.mark.parametrize(("warmup", "decays"), [("False", [0.3] * 5), ("True", [2 / 11, 3 / 12, 0.3, 0.3, 0.3])])
def test_moving_average_does_not_change_the_training(warmup: str, decays: list[float], trained, tmp_path) -> None:
    options = ["--ema_decay", "0.3", "--ema_warmup", warmup, "--metric_for_best_model", "loss"]
    recorder, whole = Steps(), tmp_path / "whole"
    with recorder.listening():
        train("causal", whole, *options)
    expected = recorder.weights[0]
    for step, (decay, now) in enumerate(zip([0.0, *decays], recorder.weights, strict=True), start=1):
        expected = {name: decay * value + (1 - decay) * now[name] for name, value in expected.items()}
        if step % 2 == 0:  # a checkpoint holds the average, and beside it what is trained
            folder = whole / f"checkpoint-{step}"
            for name, value in weights(folder).items():
                torch.testing.assert_close(value, expected[name].float(), rtol=1e-5, atol=1e-6, msg=name)
            plain = weights(trained("causal") / f"checkpoint-{step}")
            for name, value in load_file(folder / "training_weights.safetensors").items():
                assert torch.equal(value, now[name].float()), name
                assert torch.equal(value, plain[name]), name
    best = min(range(3), key=lambda index: logged(whole, "eval_loss")[index])
    assert_equal_weights(whole, whole / f"checkpoint-{2 * (best + 1)}")
    assert (
        record(whole)["metrics"]["eval_loss"] == logged(whole, "eval_loss")[best]
    )  # the average is what is evaluated


def test_freeze(tmp_path: Path, capfd) -> None:
    options = ["--freeze", "embed_tokens", "layers.0.mlp", "*.bias", "--weight_decay", "0.5", "--max_steps", "3"]
    recorder = Steps()
    with recorder.listening():
        train("causal", tmp_path, *options)
    assert "Trained: " in capfd.readouterr().out
    first, last = recorder.weights[0], recorder.weights[-1]
    frozen = {name for name in first if "embed_tokens" in name or "mlp." in name or name.endswith("bias")}
    assert 3 < len(frozen) < len(first)
    assert {name for name in first if torch.equal(first[name], last[name])} == frozen
    assert len(torch.load(tmp_path / "checkpoint-3" / "optimizer.pt")["state"]) == len(first) - len(frozen)


LORA = ["--lora_rank", "2", "--lora_alpha", "64", "--lora_dropout", "0.1", "--learning_rate", "0.05"]


@pytest.mark.parametrize(("base", "job", "targets", "heads"), [
    ("causal", "causal", ["q_proj", "up_proj"], set()),
    ("masked", "classification", ["q_proj", "v_proj"], {"classifier", "pooler"}),
    ("translation", "translation", ["q_proj", "v_proj"], set()),
])  # fmt: skip
def test_lora(base: str, job: str, targets: list[str], heads: set[str], trained, tmp_path: Path, capfd) -> None:
    start, whole, resumed = trained(base), tmp_path / "whole", tmp_path / "resumed"
    options = ["--model_name_or_path", str(start), *LORA, "--lora_targets", *targets]
    train(job, whole, *options)
    adapter = load_file(whole / "adapter" / "adapter_model.safetensors")
    before, after, scale = weights(start), weights(whole), 64 / 2
    for name, value in after.items():
        module = name.removesuffix(".weight")
        if module.rpartition(".")[2] in targets and name.endswith("weight"):
            one, other = (adapter[f"base_model.model.{module}.lora_{side}.weight"] for side in "AB")
            assert other.norm() > 0
            torch.testing.assert_close(value, before[name] + scale * other @ one, rtol=1e-5, atol=1e-6, msg=name)
        elif name.partition(".")[0] in heads:
            assert torch.equal(value, adapter[f"base_model.model.{name}"]), name
        else:
            assert torch.equal(value, before[name]), name
    assert {name.split(".")[2] for name in adapter if "lora" not in name} == heads
    score = {"causal": "eval_loss", "classification": "eval_accuracy", "translation": "eval_bleu"}[job]
    best = min if job == "causal" else max
    assert record(whole)["metrics"][score] == pytest.approx(best(logged(whole, score)), rel=1e-5)

    again = *options, "--resume_from_checkpoint", str(whole / "checkpoint-2")
    train(job, resumed, *again)
    assert_equal_weights(whole, resumed)
    for option in ("--lora_alpha 3", "--lora_rank 3", "--lora_targets k_proj"):
        message = f"{option}: the adapters in .* have .*: use the same"
        refused(message, train, job, tmp_path / "other", *again, *option.split())
    assert "Warning" not in capfd.readouterr().out


def test_nan_loss_stops_before_it_spoils_anything(trained, tmp_path: Path) -> None:
    with nan_loss(4):
        message = r"NaN or infinite at step 4 \(learning rate 0.00\d+\); .* the last checkpoint is .*checkpoint-2"
        refused(message, train, "causal", tmp_path)
    train("causal", tmp_path)
    assert_equal_weights(trained("causal"), tmp_path)


@pytest.mark.parametrize("options", [[], ["--async_save"]])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("failed writing")])
def test_full_disk(error: Exception, options: list[str], trained, tmp_path: Path) -> None:
    save = torch.save

    def full(content: Any, path: Any, **options: Any) -> None:
        if "checkpoint-4" in str(path) and "optimizer" in str(path):
            raise error
        save(content, path, **options)

    message = r"the checkpoint of step 4 could not be written to .*checkpoint-4 \(.*\); the last .*checkpoint-2, from"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "save", full)
        refused(message, train, "causal", tmp_path, *options, error=OSError)
    assert not (tmp_path / "checkpoint-4").exists()
    assert not (tmp_path / SAVING).exists()
    train("causal", tmp_path, *options)
    assert_equal_weights(trained("causal"), tmp_path)


@pytest.mark.parametrize("reason", ["no folder", "read-only"])
def test_unwritable_folder(reason: str, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "run" if reason == "no folder" else tmp_path / "run"
    if reason == "read-only":  # simulated: root may write everywhere
        monkeypatch.setattr(Path, "write_text", lambda *_: (_ for _ in ()).throw(PermissionError("read-only")))
    monkeypatch.setattr(runs, "prepare_tokenizers", lambda *_: pytest.fail("work was begun"))
    refused(r"--output_dir .*run cannot be written to \(", train, "causal", folder)


PRECISE = {
    "translation": "--learning_rate 0.01 --label_smoothing_factor 0.1 --tokens_per_batch 400 "
    "--predict_with_generate False --set layer_drop=0.3",
    "causal": "--learning_rate 0.01 --r_drop 2 --set layer_drop=0.3",
}


@pytest.mark.parametrize("job", PRECISE)
def test_bfloat16_and_gradient_checkpointing(job: str, tmp_path: Path, monkeypatch) -> None:
    options = PRECISE[job].split()
    train(job, tmp_path / "exact", *options)
    exact = losses(tmp_path / "exact")
    for option, tolerance in (("--bf16", 2e-3), ("--dtype bfloat16", 1e-2)):  # weights drawn as bfloat16 are others
        train(job, tmp_path / option, *options, *option.split())
        half = losses(tmp_path / option)
        assert max(exact[-1] / exact[0], half[-1] / half[0]) < 0.96
        assert half == pytest.approx(exact, rel=tolerance)
        assert half != exact
        # The cross-entropy is computed in float32
        assert all(torch.tensor(loss).bfloat16().item() != loss for loss in half)
        kept = torch.float32 if option == "--bf16" else torch.bfloat16
        assert {value.dtype for value in weights(tmp_path / option).values()} == {kept}
    calls, checkpoint = [], modeling_utils.checkpoint

    def counted(*details, **keywords):
        calls.append(details[0])
        return checkpoint(*details, **keywords)

    monkeypatch.setattr(modeling_utils, "checkpoint", counted)
    train(job, tmp_path / "again", *options, "--activation_checkpointing")
    assert len(calls) >= 3  # of the 6 or 12 layers passed, some were dropped
    assert losses(tmp_path / "again") == exact
    assert_equal_weights(tmp_path / "exact", tmp_path / "again")
