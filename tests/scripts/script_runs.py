"""Tiny runs of the training programs: their arguments, and processes that are killed or work together."""

import gc
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from accelerate import DistributedType, PartialState
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from vanillaformer.modeling.block import LayerDrop
from vanillaformer.scripts import train_classifier, train_image_classifier, train_language_model, train_translation
from vanillaformer.training import run as runs
from vanillaformer.training.report import plots, predictions, summary
from vanillaformer.training.run_folder.run import Run
from vanillaformer.training.trainer import distillation
from vanillaformer.training.trainer.trainer import RunTrainer

COMMON = """
    --set hidden_size=16 num_hidden_layers=1 num_attention_heads=2 dropout=0.1
    --max_steps 6 --eval_steps 2 --save_total_limit 5 --logging_steps 1 --per_device_train_batch_size 8
    --use_cpu --warmup_steps 2
"""
OF_TEXTS = "--set max_position_embeddings=64 --tokenizer_vocab_size 300"
PAIRS = "--embedded_size 150 --max_source_length 32 --max_target_length 24"
TEXTS = "--max_train_samples 3 --max_validation_samples 1 --block_size 32 --max_test_samples 1"
FEW = "--max_train_samples 60 --max_validation_samples 20 --max_test_samples 20"
NAMES = f"{FEW} --max_length 32"

PROGRAMS = {
    "translation": (train_translation, f"{OF_TEXTS} {PAIRS}"),
    "causal": (train_language_model, f"{OF_TEXTS} {TEXTS}"),
    "masked": (train_language_model, f"{OF_TEXTS} {TEXTS} --objective masked"),
    "mlm+nsp": (train_language_model, f"{OF_TEXTS} {TEXTS} --objective mlm+nsp"),
    "classification": (train_classifier, f"{OF_TEXTS} {NAMES}"),
    "image_classification": (train_image_classifier, f"{FEW} --shift 1 --flip both --random_erasing 0.5 --mixup 0.5"),
    "masked_image": (train_image_classifier, f"{FEW} --objective masked_image"),
}


def arguments(job: str, folder: Path, *more: str) -> list[str]:
    """Return the command line of a tiny run."""
    return [*COMMON.split(), *PROGRAMS[job][1].split(), "--output_dir", str(folder), *more]


def train(job: str, folder: Path, *more: str) -> Run:
    """Run a training program in this process."""
    return PROGRAMS[job][0].train(arguments(job, folder, *more))


@contextmanager
def pictures(drawn: bool) -> Iterator[None]:
    """Let runs draw their pictures, or leave empty files instead: drawing takes a third of a tiny run."""

    def leave_empty(*details: Any, **options: Any) -> None:
        next(detail for detail in details if isinstance(detail, Path)).touch()

    curve, matrix = (plots.loss_curve, plots.confusion_picture) if drawn else (leave_empty, leave_empty)
    with mock.patch.object(summary, "loss_curve", curve), mock.patch.object(predictions, "confusion_picture", matrix):
        yield


if multiprocessing.parent_process() is not None:  # one of `processes`
    gc.freeze()  # see tests/conftest.py
    torch.set_num_threads(1)
    pictures(drawn=False).__enter__()


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def assert_equal_weights(first: Path, second: Path) -> None:
    one, other = weights(first), weights(second)
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def losses(folder: Path) -> list[float]:
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return [entry["loss"] for entry in history if "loss" in entry]


# ------------------------------------------------------------------------------- processes of their own
def processes() -> Any:
    """Return a context whose processes start with everything imported, and nothing else in common with this one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([program.__name__ for program, _ in PROGRAMS.values()])
    return context


class DieAt(TrainerCallback):
    """Kills the process without warning in the middle of a step."""

    def __init__(self, step: int):
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


class Ticks(TrainerCallback):
    """Moves the clock of a time budget by as many seconds in every step."""

    def __init__(self, trainer: Any, seconds: float):
        self.time, self.seconds = 0.0, seconds
        trainer.budget.clock, trainer.budget.origin = (lambda: self.time), 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.time += self.seconds


def ticking(seconds: float, *others: TrainerCallback) -> Any:
    """Return a `replace_callbacks` for runs on a clock that each step moves, with other callbacks."""
    replace = runs.replace_callbacks

    def and_tick(trainer: Any) -> None:
        replace(trainer)
        for callback in (Ticks(trainer, seconds), *others):
            trainer.add_callback(callback)

    return and_tick


def train_on_clock_until_killed(job: str, step: int, argv: Sequence[str]) -> None:
    """Run a training program whose steps take a second each, and which is killed in the step after `step`."""
    runs.replace_callbacks = ticking(1.0, DieAt(step))
    PROGRAMS[job][0].train(argv)


def train_until_killed(job: str, step: int, argv: Sequence[str]) -> None:
    """Run a training program that is killed in the step after `step`."""
    replace = runs.replace_callbacks

    def and_die(trainer: Any) -> None:
        replace(trainer)
        trainer.add_callback(DieAt(step))

    runs.replace_callbacks = and_die
    PROGRAMS[job][0].train(argv)


def train_until_killed_while_saving(job: str, folder: str, files: int, argv: Sequence[str]) -> None:
    """Run a training program that is killed before it writes a file in a folder or moves one there, the n-th of them.

    Args:
        job: The program.
        folder: How the paths of these files begin.
        files: The number n.
        argv: The program's arguments.
    """
    left = [files]

    def die(event: str, details: tuple[Any, ...]) -> None:
        written = event == "open" and "w" in (details[1] or "") and str(details[0]).startswith(folder)
        if not written and not (event == "os.rename" and str(details[1]).startswith(folder)):
            return
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(die)
    PROGRAMS[job][0].train(argv)


def killed(target: Any, *details: Any) -> None:
    """Run a function in a process of its own, which has to be killed."""
    process = processes().Process(target=target, args=details)
    process.start()
    process.join(timeout=120)
    assert process.exitcode == -signal.SIGKILL


def kill_in_step(job: str, step: int, argv: list[str]) -> None:
    killed(train_until_killed, job, step, argv)


def train_as_rank(job: str, rank: int, size: int, port: int, argv: Sequence[str]) -> None:
    """Run a training program as one of several processes, as torchrun starts them."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    PROGRAMS[job][0].train(argv)


def train_as_spoiled_rank(job: str, rank: int, size: int, port: int, argv: Sequence[str]) -> None:
    """The same, where the loss of the second process is no number at step 3."""
    compute = RunTrainer.compute_loss

    def spoiled(trainer: RunTrainer, model: Any, *details: Any, **keywords: Any) -> Any:
        loss = compute(trainer, model, *details, **keywords)
        return loss * float("nan") if model.training and rank == 1 and trainer.state.global_step == 2 else loss

    RunTrainer.compute_loss = spoiled  # type: ignore[method-assign]
    train_as_rank(job, rank, size, port, argv)


def train_as_rank_that_drops_its_own(job: str, rank: int, size: int, port: int, argv: Sequence[str]) -> None:
    """The same with random numbers of its own; it leaves behind its weights and which layers it did not skip."""
    folder, passed, choose = Path(argv[argv.index("--output_dir") + 1]), [], LayerDrop.forward
    replace = runs.replace_callbacks

    def chosen(drop: LayerDrop, layers: Any) -> Any:
        kept = choose(drop, layers)
        if drop.training:
            passed.append([layer is not drop.skipped for layer in kept])
        return kept

    class OwnNumbers(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            torch.manual_seed(rank)

        def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            torch.save({"passed": passed, "weights": model.state_dict()}, folder / f"rank_{rank}.pt")

    def and_draw(trainer: Any) -> None:
        replace(trainer)
        trainer.add_callback(OwnNumbers())

    LayerDrop.forward, runs.replace_callbacks = chosen, and_draw  # type: ignore[method-assign]
    train_as_rank(job, rank, size, port, argv)


def train_as_rank_on_its_own_clock(job: str, rank: int, size: int, port: int, argv: Sequence[str]) -> None:
    """Run a training program as one of several processes, whose steps take 1 and 8 s; it leaves its rates.

    The second one also believes to have begun 3 s earlier when it plans the models of an ensemble.
    """
    rates: list[float] = []

    class Rates(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, lr_scheduler: Any = None, **kwargs: Any) -> None:
            rates.append(lr_scheduler.get_last_lr()[0])

    monotonic = time.monotonic
    distillation.time = SimpleNamespace(monotonic=lambda: monotonic() + 3 * rank)  # type: ignore[attr-defined]
    runs.replace_callbacks = ticking(1.0 + 7 * rank, Rates())
    train_as_rank(job, rank, size, port, argv)
    folder = Path(argv[argv.index("--output_dir") + 1])
    (folder / f"rates_{rank}.json").write_text(json.dumps(rates))


def shard_on_cpus() -> None:
    """Let accelerate take processes on CPUs for ones on accelerators: otherwise it takes no notice of FSDP."""
    begin = PartialState.__init__

    def as_accelerators(state: PartialState, *details: Any, **keywords: Any) -> None:
        begin(state, *details, **keywords)
        if state.distributed_type == DistributedType.MULTI_CPU:
            state.distributed_type = DistributedType.MULTI_GPU

    PartialState.__init__ = as_accelerators  # type: ignore[method-assign]


def train_as_sharding_rank(job: str, rank: int, size: int, port: int, argv: Sequence[str]) -> None:
    """Run a training program as one of several processes among which FSDP2 divides the model."""
    shard_on_cpus()
    prepare = RunTrainer._prepare_for_training

    def checked(trainer: RunTrainer, *details: Any, **keywords: Any) -> Any:
        prepared = prepare(trainer, *details, **keywords)
        assert all(isinstance(parameter, DTensor) for parameter in trainer.model.parameters())
        return prepared

    RunTrainer._prepare_for_training = checked  # type: ignore[method-assign]
    train_as_rank(job, rank, size, port, argv)


def train_as_killed_sharding_rank(job: str, rank: int, size: int, port: int, argv: Sequence[str]) -> None:
    """The same, killed in the step after the fourth."""
    replace = runs.replace_callbacks

    def and_die(trainer: Any) -> None:
        replace(trainer)
        trainer.add_callback(DieAt(4))

    runs.replace_callbacks = and_die
    train_as_sharding_rank(job, rank, size, port, argv)
