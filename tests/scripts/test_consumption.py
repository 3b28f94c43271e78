"""What a run consumes, as its record says, against counts of what was really read and computed."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import script_runs
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from refusals import refused
from script_runs import adding, assert_equal_weights, logged, record, state, train
from torch.utils.flop_counter import FlopCounterMode

from vanillaformer import VanillaEncoderDecoderForConditionalGeneration
from vanillaformer.acceleration import autotune
from vanillaformer.training import run as runs
from vanillaformer.training.report.card.writing import short
from vanillaformer.training.trainer.trainer import RunTrainer

NO_STEPS = "--max_steps", "-1"
EAGER = "--attn_implementation", "eager"
# Rows of texts of equal length, so that nothing is padded and torch's own counter sees no more than is recorded
SENTENCES = [f"{one} {two} {three} {four}" for one in "abc" for two in "de" for three in "fgh" for four in "ij"]
# What the record has more than torch computes for an image: a convolution of 3 x 3 for 16 outputs at 4 x 4 places
GRADIENT_OF_PIXELS = 2 * (3 * 3 * 3 * 16) * 16


class Spy:
    """Counts rows, tokens and torch's matrix products of training steps, by what the model is called with."""

    def __init__(self) -> None:
        self.rows = self.tokens = self.flops = 0

    @contextmanager
    def watching(self) -> Iterator["Spy"]:
        step, spy = RunTrainer.training_step, self

        def counted(trainer: Any, model: Any, inputs: dict[str, Any], *details: Any, **keywords: Any) -> Any:
            spy.add(inputs, trainer.model.config.is_encoder_decoder)
            with FlopCounterMode(display=False) as counter:
                loss = step(trainer, model, inputs, *details, **keywords)
            spy.flops += counter.get_total_flops()
            return loss

        with mock.patch.object(RunTrainer, "training_step", counted):
            yield self

    def add(self, inputs: dict[str, torch.Tensor], pairs: bool) -> None:
        if "pixel_values" in inputs:
            self.rows += len(inputs["pixel_values"])
            self.tokens += len(inputs["pixel_values"]) * 16  # patches of 2 x 2 of 8 x 8 pixels
            self.flops += len(inputs["pixel_values"]) * GRADIENT_OF_PIXELS
            return
        mask, packed = inputs.get("attention_mask"), "position_ids" in inputs
        self.tokens += int(mask.sum()) if mask is not None else int((inputs["input_ids"] != 0).sum())
        self.tokens += int((inputs["labels"] != -100).sum()) if pairs else 0
        if packed and mask is not None:  # each text with a row of its own in the data
            begins = (inputs["position_ids"] == 0) & (mask == 1)
            self.rows += int(begins.sum())
        else:
            self.rows += len(inputs["input_ids"])


def consumed(folder: Path) -> dict[str, Any]:
    return record(folder)["details"]["consumed"]


@pytest.fixture
def sentences(tmp_path: Path) -> list[str]:
    """Options for classified texts that all have the same number of tokens."""
    lines = [{"text": text, "label": "xy"[number % 2]} for number, text in enumerate(SENTENCES)]
    for split, rows in (("train", lines * 2), ("validation", lines[:8])):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    files = [f"--{split}_file {tmp_path / split}.jsonl" for split in ("train", "validation")]
    return f"{' '.join(files)} --tokenizer_algorithm word --max_length 16 --max_test_samples".split()[:-1]


@pytest.mark.parametrize("options", [
    "",
    "--gradient_accumulation_steps 2 --per_device_train_batch_size 4",
    "--r_drop 1 --token_dropout 0.3 --set max_ngram=2", "--gradient_checkpointing",
])  # fmt: skip
def test_texts_of_equal_length_cost_what_torch_counts(options, sentences, tmp_path: Path) -> None:
    """Nothing is padded: the record has the very matrix products that torch sees."""
    with Spy().watching() as spy:
        train("classification", tmp_path / "run", *sentences, *EAGER, *options.split())
    found = consumed(tmp_path / "run")
    assert (found["rows"], found["tokens"]) == (spy.rows, spy.tokens)
    assert found["steps"] == 6
    if "checkpointing" in options:
        assert found["flops"] < spy.flops  # what is computed again to save memory does not count
    else:
        assert found["flops"] == spy.flops


@pytest.mark.parametrize(("job", "options", "share"), [
    ("translation", "--packing true", (0.4, 1.02)),
    ("translation", "--tokens_per_batch 200 --scheduled_sampling linear --scheduled_sampling_k 4", (0.7, 1.02)),
    ("classification", "--packing true", (0.4, 1.02)),
    ("causal", "--scheduled_sampling linear --scheduled_sampling_k 4", (0.95, 1.02)),
    ("causal", "--packing true", (0.6, 1.02)), ("mlm+nsp", "", (0.9, 1.02)), ("image_classification", "", (1, 1)),
    ("masked_image", "", (0.98, 1.02)),
])  # fmt: skip
def test_rows_and_tokens_are_those_read(job, options, share, tmp_path: Path) -> None:
    """What torch counts beyond the record is padding, which is a part of the batches of texts."""
    with Spy().watching() as spy:
        train(job, tmp_path, *EAGER, *options.split())
    found = consumed(tmp_path)
    assert (found["rows"], found["tokens"]) == (spy.rows, spy.tokens)
    assert share[0] <= found["flops"] / spy.flops <= share[1]


def test_a_pass_without_gradient_counts_once(trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At first all inputs are gold ones, and there is one pass; later there are two, one of them with gradients."""
    choices = {"oneDNN": True, "oneDNN, inference": False}
    monkeypatch.setattr(autotune, "CHOICES", dict(choices))
    train("causal", tmp_path, "--scheduled_sampling", "linear", "--scheduled_sampling_k", "1")
    assert record(tmp_path)["details"]["acceleration"] == choices
    gold, own = consumed(trained("causal")), consumed(tmp_path)
    assert own["tokens"] == gold["tokens"]
    assert own["flops"] / gold["flops"] == pytest.approx(1 + 5 / 6 / 3, rel=0.01)  # five of six steps


@settings(deadline=None, max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.sampled_from(["tokens", "flops"]), steps=st.integers(8, 24),
    technique=st.sampled_from(["", "--r_drop 1", "--gradient_accumulation_steps 2"]), batch=st.sampled_from([2, 5, 8]),
)  # fmt: skip
@example(count="tokens", steps=8, technique="--gradient_accumulation_steps 2", batch=8)  # four steps
def test_a_run_ends_with_its_budget(tmp_path_factory, count, steps, technique, batch) -> None:
    folder = tmp_path_factory.mktemp("budget")
    options = *NO_STEPS, "--per_device_train_batch_size", str(batch), *technique.split(), "--eval_strategy", "no"
    passes = 2 if technique else 1
    amount = steps * batch * 16 * (1 if count == "tokens" else 20_000 * passes)
    train("classification", folder, *options, f"--max_{count}", f"{amount}")
    found = consumed(folder)
    step = found[count] / found["steps"]
    longest = 2.0 if batch == 2 else 1.5  # as parts of the mean step: two rows can be long at once
    assert abs(found[count] - amount) <= max(0.02 * amount, longest * step / 2)
    # Below half of 1e-3, but of four steps or fewer the last report can be on the one before the last
    assert logged(folder, "learning_rate")[-1] < max(5e-4, 1e-3 * 2.5 * step / amount)


def test_the_same_steps_whatever_their_time(tmp_path: Path, capfd) -> None:
    options = *NO_STEPS, "--max_tokens", "1.6e3", "--eval_steps", "0.25"
    train("classification", tmp_path / "run", *options)
    printed = capfd.readouterr().out
    assert "Training for up to 1,600 tokens (--max_tokens)\n" in printed
    assert " tokens left · loss" in printed
    first = consumed(tmp_path / "run")
    assert first["tokens"] == pytest.approx(1600, abs=70)
    train("classification", tmp_path / "run", *options)
    assert "is finished already: nothing to train" in capfd.readouterr().out
    train("classification", tmp_path / "run", *NO_STEPS, "--max_tokens", "3200", "--eval_steps", "0.25")
    assert f"(--max_tokens); {first['tokens']:,} tokens of it were spent before\n" in capfd.readouterr().out
    assert consumed(tmp_path / "run")["tokens"] == pytest.approx(3200, abs=70)
    card = (tmp_path / "run" / "README.md").read_text()
    assert "| token budget | 3.2 k |" in card
    assert f"| tokens seen | {short(consumed(tmp_path / 'run')['tokens'])} |" in card
    shorter = *NO_STEPS, "--max_tokens", "3e3", "--eval_steps", "0.25"
    refused("max_tokens: 3200.0 there, 3000.0 now", train, "classification", tmp_path / "run", *shorter)


def test_a_stream_ends_with_its_budget(tmp_path: Path) -> None:
    train("causal", tmp_path / "run", *script_runs.stream_options("causal", tmp_path), *NO_STEPS, "--max_flops", "1e8")
    found = consumed(tmp_path / "run")
    assert found["flops"] == pytest.approx(1e8, abs=0.5 * found["flops"] / found["steps"])


@pytest.mark.parametrize(("job", "options"), [
    ("classification", "--max_train_samples 17 --preset gpt-tiny"),
    ("mlm+nsp", "--max_train_samples 1 --block_size 24 --per_device_train_batch_size 50"),
])  # fmt: skip
def test_a_budget_changes_no_step(job, options, tmp_path: Path) -> None:
    """Though the next step is read while one is made, and the last batch of an epoch has fewer rows."""
    options = [*options.split(), "--lr_scheduler_type", "constant"]
    epochs = train(job, tmp_path / "epochs", *options, *NO_STEPS, "--num_train_epochs", "2")
    train(job, tmp_path / "budget", *options, *NO_STEPS, "--max_epochs", "2", "--max_tokens", "1e6")
    assert record(tmp_path / "budget")["details"]["steps"] == epochs.details["steps"]
    assert_equal_weights(tmp_path / "epochs", tmp_path / "budget")


# Programs with a time budget, on a clock that each of their steps moves by a second.


def test_the_speed_counts_what_processes_share_once(tmp_path: Path, monkeypatch) -> None:
    trainers: list[Any] = []
    monkeypatch.setattr(RunTrainer, "get_tp_size", lambda trainer: 2)
    monkeypatch.setattr(runs, "replace_callbacks", trainers.append)
    run = train("classification", tmp_path, *NO_STEPS, "--max_tokens", "800", "--eval_strategy", "no")
    assert trainers[0].budget.tokens == pytest.approx(run.details["consumed"]["tokens"], rel=0.02)


TIME = "--max_steps", "-1", "--eval_steps", "0.25", "--warmup_steps", "0.1", "--max_time"


@pytest.fixture
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "replace_callbacks", adding(clock=1.0))


@pytest.mark.usefixtures("_clock")
def test_a_run_ends_in_time(tmp_path: Path, capfd) -> None:
    train("classification", tmp_path / "run", *TIME, "20s")
    printed = capfd.readouterr().out
    first, second, *_ = printed.splitlines()
    assert first == f"Run {tmp_path / 'run'}: from the beginning"
    assert second == "Training for up to 20 seconds (--max_time)"
    assert "step 20/20 · 20 s · 0 s left · validation: loss" in printed
    assert "tokens/s · loss" in printed
    assert "Trained to step 20; this took" in printed
    assert logged(tmp_path / "run", "eval_loss", "step") == [5, 10, 15, 20]
    assert record(tmp_path / "run")["settings"]["training"]["max_time"] == 20
    assert "| time budget | 20 s |" in (tmp_path / "run" / "README.md").read_text()
    train("classification", tmp_path / "run", *TIME, "0m20s")
    assert "is finished already: nothing to train" in capfd.readouterr().out


@pytest.mark.usefixtures("_clock")
def test_epochs_or_patience_end_a_run_before_its_time(tmp_path: Path, capfd) -> None:
    """60 rows in batches of 8 are 8 steps."""
    run = tmp_path / "epochs"
    train("classification", run, *TIME, "10m", "--max_epochs", "1.5")
    assert "step 12/12 · 12 s · " in capfd.readouterr().out
    rates = logged(run, "learning_rate")
    assert rates[-1] < 0.2 * max(rates)
    assert logged(run, "eval_loss", "step")[-1] == 12
    train("classification", run, *TIME, "10m", "--max_epochs", "2")
    assert "step 16/16 · 16 s · " in capfd.readouterr().out
    never = "--learning_rate", "0", "--early_stopping_patience", "2", "--metric_for_best_model", "loss"
    run = tmp_path / "patience"
    epochs = "--max_epochs", "100", "--logging_strategy", "epoch"
    train("classification", run, *TIME, "100", *epochs, "--eval_steps", "0.1", *never)
    printed = capfd.readouterr().out
    assert "Stopped early at step 3" in printed
    assert printed.count(" tokens/s · loss") == 4
    assert " 0 tokens/s" not in printed
    assert state(run)["global_step"] == pytest.approx(30, abs=1)


@pytest.mark.parametrize(("written", "growth"), [(1, (3.0, 24.0)), (24, (1.0, 1.0))])
def test_a_translators_evaluations_get_longer_with_its_outputs(written, growth, tmp_path: Path, monkeypatch) -> None:
    """Outputs of a token are far shorter than the references, those of 24 tokens as long as they can be."""

    def generate(model: Any, *details: Any, input_ids: torch.Tensor, **options: Any) -> torch.Tensor:
        return torch.full((len(input_ids), written), 7)

    monkeypatch.setattr(VanillaEncoderDecoderForConditionalGeneration, "generate", generate)
    budgets, replace = [], adding(clock=1.0)
    monkeypatch.setattr(runs, "replace_callbacks", lambda trainer: budgets.append(trainer.budget) or replace(trainer))
    train("translation", tmp_path, *TIME, "4s")
    assert growth[0] <= budgets[0].growth <= growth[1]


def test_the_clock_of_the_first_process_counts(tmp_path: Path) -> None:
    script_runs.train_together("classification", tmp_path, *TIME, "20", setups=[script_runs.clock_of_its_own])
    rates = [json.loads((tmp_path / f"rates_{rank}.json").read_text()) for rank in range(2)]
    assert rates[0] == rates[1]
    assert len(rates[0]) == 20
    assert rates[0][-1] == 0
