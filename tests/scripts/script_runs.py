"""Tiny runs of the training programs: their arguments, and processes that are killed or work together."""

import gc
import io
import json
import multiprocessing
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import safetensors.torch
import torch
from accelerate import DistributedType, PartialState
from datasets import Dataset, Features, Image, Value
from PIL import Image as Pillow
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback, modeling_utils

from vanillaformer.modeling.block import LayerDrop
from vanillaformer.scripts import (
    generate,
    train_classifier,
    train_image_classifier,
    train_language_model,
    train_token_classifier,
    train_translation,
)
from vanillaformer.training import finishing
from vanillaformer.training import run as runs
from vanillaformer.training.report import classes, plots
from vanillaformer.training.run_folder.files import checkpoints
from vanillaformer.training.run_folder.run import Run
from vanillaformer.training.trainer import averaging, parallel
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
    "span": (train_language_model, f"{OF_TEXTS} {TEXTS} --objective span --packing"),
    "classification": (train_classifier, f"{OF_TEXTS} {NAMES}"),
    "token_classification": (train_token_classifier, f"{OF_TEXTS} {NAMES}"),
    "image_classification": (train_image_classifier, f"{FEW} --shift 1 --flip both --random_erasing 0.5"),
    "masked_image": (train_image_classifier, f"{FEW} --objective masked_image"),
}
SECRET = "hf_NobodyMayReadThis"


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
    with mock.patch.object(finishing, "loss_curve", curve), mock.patch.object(classes, "confusion_picture", matrix):
        yield


def weights(path: Path) -> dict[str, torch.Tensor]:
    """Return the weights in a file or a folder, of a checkpoint of adapters theirs."""
    return load_file(path if path.is_file() else next(path.glob("*model.safetensors")))


def assert_equal_weights(first: Path, second: Path) -> None:
    one, other = weights(first), weights(second)
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_text())


def state(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "trainer_state.json").read_text())


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def edit(path: Path, **fields: Any) -> None:
    """Change fields of a file of JSON."""
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def generated(captured: pytest.CaptureFixture, *words: object, main: Callable[..., Any] = generate.main) -> Any:
    """Return what a program, `generate` or another, writes to standard output and standard error."""
    captured.readouterr()  # what the training of the model has printed
    main([str(word) for word in words])
    return captured.readouterr()


def answers(captured: pytest.CaptureFixture, *words: object) -> list[str]:
    """Return the lines that `generate` prints."""
    return generated(captured, *words).out.split("\n")[:-1]  # a text may hold other ends of lines


def unfinished(whole: Path, folder: Path, last: int) -> None:
    """Make the folder of a run that ended after a checkpoint, from that of a finished one."""
    shutil.copytree(whole, folder, dirs_exist_ok=True)
    for step, path in checkpoints(folder).items():
        if step > last:
            shutil.rmtree(path)
    edit(folder / "run.json", finished=False)


def logged(folder: Path, name: str, what: str = "") -> list[Any]:
    """Return what a run logged by a name, or another entry beside it, such as the step."""
    return [entry[what or name] for entry in state(folder)["log_history"] if name in entry]


def losses(folder: Path) -> list[float]:
    return logged(folder, "loss")


def assert_same_training(alone: Path, together: Path, error: float = 1e-4) -> None:
    """Losses and weights of two runs are equal but for the order of sums."""
    assert losses(together) == pytest.approx(losses(alone), rel=error)
    ours, theirs = weights(alone / "checkpoint-6"), weights(together / "checkpoint-6")
    for name, value in ours.items():
        assert (value - theirs[name]).norm() <= 1e-3 * value.norm() + 1e-4, name


SENTENCES = [" ".join(["word", "other", "third"][: n % 3 + 1]) + f" {n}" for n in range(90)]


def text_file(folder: Path, lines: Sequence[str] = SENTENCES, end: str = "\n") -> list[str]:
    """Return the option that trains on a file of these lines."""
    (folder / "text.txt").write_text(end.join(lines))
    return ["--train_file", str(folder / "text.txt")]


def picture(number: int, height: int = 8, width: int = 8) -> bytes:
    """An image in a file: dark or bright, and no two the same."""
    pixels = np.random.default_rng(number).integers(0, 100, (height, width, 3)) + 150 * (number % 2)
    stream = io.BytesIO()
    Pillow.fromarray(pixels.astype(np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def stream_options(job: str, folder: Path) -> list[str]:
    """Return options that stream a file of 36 rows, of which 6 are held out."""
    rows: list[dict[str, str]] = [{"source": text, "target": text.upper()} for text in SENTENCES]
    if job != "translation":
        rows = [{"text": text, "label": "ab"[n % 2]} for n, text in enumerate(SENTENCES)]
    if job == "image_classification":
        path, features = folder / "rows.parquet", Features({"image": Image(), "label": Value("string")})
        pictures = [{"image": {"bytes": picture(n), "path": None}, "label": "ab"[n % 2]} for n in range(36)]
        Dataset.from_list(pictures, features=features).to_parquet(path)
    else:
        path = folder / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows[:36]))
    options = ["--train_file", str(path), "--streaming", "--streaming_buffer", "16"]
    options += ["--max_validation_samples", "6", "--max_train_samples", "30", "--eval_steps", "1"]
    return [*options, "--block_size", "24"] if job in ("causal", "masked") else options


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


def adding(*callbacks: TrainerCallback, clock: float | None = None) -> Callable[[Any], None]:
    """Return a `replace_callbacks` that adds callbacks, and a clock that each step moves by some seconds."""
    replace = runs.replace_callbacks

    def and_add(trainer: Any) -> None:
        replace(trainer)
        for callback in (*([] if clock is None else [Ticks(trainer, clock)]), *callbacks):
            trainer.add_callback(callback)

    return and_add


def die_in_step(step: int, clock: float | None = None) -> None:
    """Let runs of this process be killed in the step after `step`."""
    runs.replace_callbacks = adding(DieAt(step), clock=clock)


def die_while_saving(folder: str, files: int) -> None:
    """Let this process be killed before it writes the n-th file, or moves it, to a path that begins so."""
    left = [files]

    def die(event: str, details: tuple[Any, ...]) -> None:
        written = event == "open" and "w" in (details[1] or "") and str(details[0]).startswith(folder)
        if not written and not (event == "os.rename" and str(details[1]).startswith(folder)):
            return
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(die)


def train_in_child(job: str, argv: Sequence[str]) -> None:
    """Run a training program in one of `processes`, at the least cost."""
    gc.freeze()  # see tests/conftest.py
    torch.set_num_threads(1)
    with pictures(drawn=False):
        PROGRAMS[job][0].train(argv)


def train_after(setup: Callable[..., None], details: Sequence[Any], job: str, argv: Sequence[str]) -> None:
    setup(*details)
    train_in_child(job, argv)


def kill(job: str, argv: list[str], setup: Callable[..., None], *details: Any, code: int = -signal.SIGKILL) -> None:
    """Run a training program in a process of its own after `setup(*details)`, which has to end it."""
    process = processes().Process(target=train_after, args=(setup, details, job, argv))
    process.start()
    process.join(timeout=120)
    assert process.exitcode == code


def kill_in_step(job: str, step: int, argv: list[str]) -> None:
    kill(job, argv, die_in_step, step)


# Half the rows per process; without dropout, whose draws cannot agree.
ALONE = "--set", "dropout=0"
HALVED = *ALONE, "--per_device_train_batch_size", "4"
Setup = Callable[[int, Path], None]


def train_as_rank(job: str, rank: int, count: int, port: int, argv: Sequence[str], setups: Sequence[Setup]) -> None:
    """Run a training program as one of several processes, as torchrun starts them, after `setup(rank, folder)`."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count), LOCAL_WORLD_SIZE=str(count))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), VANILLAFORMER_REMOTE_CODE="off")  # it takes long
    for setup in setups:
        setup(rank, Path(argv[argv.index("--output_dir") + 1]))
    train_in_child(job, argv)


def start_ranks(job: str, argv: list[str], count: int, setups: Sequence[Setup] = ()) -> list[Any]:
    """Start a training program in several processes, and return them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start = processes().Process
    ranks = [start(target=train_as_rank, args=(job, rank, count, port, argv, setups)) for rank in range(count)]
    for process in ranks:
        process.start()
    return ranks


def train_together(
    job: str, folder: Path, *options: str, count: int = 2, setups: Sequence[Setup] = (), exitcode: int = 0
) -> None:
    """Run a training program in several processes."""
    ranks = start_ranks(job, arguments(job, folder, *HALVED, *options), count, setups)
    for process in ranks:
        process.join(timeout=200)
    assert [process.exitcode for process in ranks] == [exitcode] * count


def nan_loss(*steps: int) -> Any:
    """Return a context in which the loss of these steps is NaN."""
    compute = RunTrainer.compute_loss

    def spoiled(trainer: RunTrainer, model: Any, *details: Any, **keywords: Any) -> Any:
        loss = compute(trainer, model, *details, **keywords)
        return loss * float("nan") if model.training and trainer.state.global_step + 1 in steps else loss

    return mock.patch.object(RunTrainer, "compute_loss", spoiled)


def other_seed(rank: int, folder: Path) -> None:
    """Let the second process have been started with another seed."""
    parse = runs.parse_arguments

    def changed(program: str, argv: Sequence[str]) -> Any:
        found = parse(program, argv)
        found.training_args.seed += rank
        return found

    runs.parse_arguments = changed


def other_rows(rank: int, folder: Path) -> None:
    """Let the second process find other data, as on another machine whose files are older."""
    load = runs.load_data

    def changed(data_args: Any, *details: Any) -> Any:
        data_args.max_train_samples -= rank
        return load(data_args, *details)

    runs.load_data = changed


def nan_in_second(rank: int, folder: Path) -> None:
    """Let the loss of the second process be no number at step 3."""
    if rank == 1:
        nan_loss(3).start()


def note_dropped_layers(rank: int, folder: Path) -> None:
    """Draw random numbers of its own, and leave behind the weights and which layers were not skipped."""
    passed, choose = [], LayerDrop.forward

    def chosen(drop: LayerDrop, layers: Any) -> Any:
        kept = choose(drop, layers)
        if drop.training:
            passed.append([layer is not drop.skipped for layer in kept])
        return kept

    class OwnNumbers(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            torch.manual_seed(rank)

        def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            wait = torch.distributed.group.WORLD._get_backend(torch.device("cpu")).options._timeout.seconds
            torch.save({"passed": passed, "weights": model.state_dict(), "wait": wait}, folder / f"rank_{rank}.pt")

    LayerDrop.forward, runs.replace_callbacks = chosen, adding(OwnNumbers())  # type: ignore[method-assign]


def clock_of_its_own(rank: int, folder: Path) -> None:
    """Let steps take 1 and 8 s, and leave the learning rates behind."""
    rates: list[float] = []

    class Rates(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, lr_scheduler: Any = None, **kwargs: Any) -> None:
            rates.append(lr_scheduler.get_last_lr()[0])

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            (folder / f"rates_{rank}.json").write_text(json.dumps(rates))

    runs.replace_callbacks = adding(Rates(), clock=1.0 + 7 * rank)


def as_accelerators(rank: int, folder: Path) -> None:
    """Let CPUs pass for accelerators, without which accelerate refuses tensor parallelism."""
    begin = PartialState.__init__

    def changed(state: PartialState, *details: Any, **keywords: Any) -> None:
        begin(state, *details, **keywords)
        if state.distributed_type == DistributedType.MULTI_CPU:
            state.distributed_type = DistributedType.MULTI_GPU

    PartialState.__init__ = changed  # type: ignore[method-assign]


def own_parts(rank: int, folder: Path) -> None:
    """Have runs of this process fail if the memory of a part of a weight holds more of it."""

    class Look(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            for name, parameter in model.named_parameters():
                part = parameter.to_local() if isinstance(parameter, DTensor) else parameter
                row = part.element_size() * parameter.numel() // len(parameter)
                assert part.untyped_storage().nbytes() <= part.nbytes + row, name  # of padding

    runs.replace_callbacks = adding(Look())


def read_by_first(rank: int, folder: Path) -> None:
    """Have runs of this process fail if it reads weights, as only the first process does."""

    def refuse(path: Any, *details: Any, **keywords: Any) -> None:
        raise AssertionError(f"process {rank} reads {path}")

    if rank > 0:
        modeling_utils.safe_open = safetensors.torch.load_file = refuse  # type: ignore[assignment]
        parallel.load_file = averaging.load_file = refuse  # type: ignore[assignment]


def die_after_four(rank: int, folder: Path) -> None:
    die_in_step(4)
