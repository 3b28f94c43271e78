"""The plan of a run, which `--dry_run` prints instead of training."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from vanillaformer.configuration import VanillaConfig, VanillaRecurrentEncoderDecoderConfig
from vanillaformer.console.reporting import report
from vanillaformer.data.preprocessing.batching import row_lengths
from vanillaformer.data.preprocessing.denoising import DENOISING
from vanillaformer.data.tasks import TASKS
from vanillaformer.hub.loading import open_config
from vanillaformer.modeling.counts import polynomial_terms, text_flops

from .hardware import memory_of_process
from .memory import FLOAT32, TrainingMemory, training_memory
from .trainer.account import WITH_GRADIENT, from_all
from .trainer.budget import budget_option
from .trainer.parallel import AUTO, parallel_sizes

PEAK, SHARE = 989e12, 0.4
"""Operations per second of an H100 in bfloat16, and the share of them that the training of large models reaches."""
OPTIMIZER_VALUES = {"muon": 1, "sgd": 0, "adafactor": 0}
"""Values that optimizers keep per weight, if not two; Adafactor keeps few."""
USABLE = 0.9  # of the memory; libraries, fragments and communication need the rest
LAYOUTS = (1, 2, 4, 8, 16, 32, 64)


def print_plan(task: Any, build: Callable[[], Any], rows: Any) -> None:
    """Print what a run takes: parameters, rows and steps, operations and time, memory in several layouts, checkpoints.

    `build` makes a new model, `rows` are those of the training data, or the first of a stream; the memory is that of a
    batch of the longest.
    """
    args, saved = task.training_args, task.model_args.saved
    with torch.device("meta"):
        config: Any = open_config(saved) if saved else build().config
    if args.parallel == AUTO:
        args.parallel = chosen_layout(task, config, rows)
    sizes = parallel_sizes(args.parallel)
    processes = math.prod(sizes.values()) if sizes else args.world_size
    parts = processes // sizes.get("tp", 1)
    lengths = row_lengths(rows)
    step = args.train_batch_size * args.gradient_accumulation_steps * parts
    target, source = sides(task, config, rows)
    if args.tokens_per_batch is not None:
        step = max(1, round(args.tokens_per_batch / lengths.sum(axis=1).mean()))
    with torch.device("meta"):
        model = TASKS[task.name].auto_class.from_config(config)
    share = 1.0 if config.is_encoder_decoder else task.predicted_share()  # of the positions with an output
    read, labeled = (polynomial_terms(np.stack([each, source])).mean(axis=1) for each in (target, share * target))
    passes = WITH_GRADIENT * (1 + bool(args.r_drop)) + (args.scheduled_sampling != "none")
    weights, flops = model.num_parameters(), passes * step * text_flops(model).of(read, labeled)
    steps, budget = args.max_steps, budget_option(args)
    epoch = math.ceil(len(rows) / step)
    if budget is not None:
        spent = {"max_tokens": step * lengths.sum(axis=1).mean(), "max_flops": flops}
        steps = math.ceil(getattr(args, budget) / spent[budget]) if budget in spent else 0
        if steps and args.max_epochs is not None and not task.data_args.streaming:
            steps = min(steps, math.ceil(args.max_epochs * epoch))
    elif steps <= 0:
        steps = math.ceil(args.num_train_epochs * epoch)
    report(f"Model: {config.model_type}, {weights:,} parameters")
    tokens = f", {step * lengths.sum(axis=1).mean():,.0f} tokens" if "input_ids" in rows.column_names else ""
    length = f"{steps:,} steps" if steps else f"until --{budget} {getattr(args, str(budget))} is spent"
    report(f"Steps: {step:,} rows{tokens} and {flops:.3g} operations each, {length}")
    if steps:
        seconds = flops * steps / (processes * SHARE * PEAK)
        time = f"{seconds / 3600:,.1f} h" if seconds >= 3600 else f"{seconds:.2g} s"
        report(f"Time: {time} on {processes} x {SHARE:.0%} of {PEAK / 1e12:.0f} TFLOP/s (an H100 in bfloat16)")
    report(f"Checkpoint: {_bytes(weights * FLOAT32 * (1 + OPTIMIZER_VALUES.get(args.optim, 2)))}")
    report(f"{'memory of a process':24}{'weights':>12}{'optimizer':>12}{'activations':>13}{'peak':>12}")
    memory = step_memory(task, config, rows, parts)
    for devices in sorted({*LAYOUTS[: 4 if processes == 1 else 7], sizes.get("fsdp", 1)}):
        found = memory(devices)
        name = "one, or DDP" if devices == 1 else f"fsdp={devices}"
        name += " (yours)" if devices == sizes.get("fsdp", 1) else ""
        columns = found.weights + found.gradients, found.optimizer, found.activations + found.workspace, found.peak
        report(f"{name:24}" + "".join(f"{_bytes(each):>{width}}" for each, width in zip(columns, (12, 12, 13, 12))))
    if sizes.get("tp", 1) > 1:
        report("tp divides weights, optimizer and most activations of layers further; this is not counted.")


def check_counted(config: Any, option: str) -> None:
    """Raise ValueError, naming the option, for models whose memory is not counted."""
    if not isinstance(config, VanillaConfig) or isinstance(config, VanillaRecurrentEncoderDecoderConfig):
        raise ValueError(f"{option}: the memory of models of type {config.model_type!r} is not counted")


def sides(task: Any, config: Any, rows: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of target tokens and of source tokens of the rows, 0 without sources."""
    lengths = row_lengths(rows)
    target, source = lengths[:, -1], lengths[:, 0] * bool(config.is_encoder_decoder)
    if task.name in DENOISING:
        target = np.ceil(source * DENOISING[task.name].predicted).astype(int)
    return target, source


def step_memory(task: Any, config: Any, rows: Any, parts: int) -> Callable[[int], TrainingMemory]:
    """Return a function that counts the memory of a step of the longest rows, by how many processes share weights."""
    args, (target, source) = task.training_args, sides(task, config, rows)
    batch = args.train_batch_size
    if args.tokens_per_batch is not None:
        longest = row_lengths(rows).sum(axis=1).max()
        batch = math.ceil(args.tokens_per_batch / args.gradient_accumulation_steps / parts / longest)
    return lambda devices: training_memory(
        config,
        max(1, batch) * (1 + bool(args.r_drop)),  # which reads each row twice
        int(target.max()),
        int(source.max()) or None,
        devices=devices,
        optimizer_values=OPTIMIZER_VALUES.get(args.optim, 2),
        gradient_checkpointing=args.gradient_checkpointing,
        dtype=torch.bfloat16 if args.bf16 else torch.float32,
        device=args.device.type,
    )


def chosen_layout(task: Any, config: Any, rows: Any) -> str | None:
    """Return the layout of `--parallel auto`, which divides weights among as few processes as possible."""
    check_counted(config, f"--parallel {AUTO}")
    args = task.training_args
    memory, room = step_memory(task, config, rows, args.world_size), USABLE * memory_of_process(args.device)
    numbers = [number for number in range(1, args.world_size + 1) if args.world_size % number == 0]
    fitting = next((number for number in numbers if memory(number).peak <= room), args.world_size)
    devices = max(from_all(fitting, args.device))  # hosts may differ
    need = memory(devices).peak
    layout = f"fsdp={devices},replicate={args.world_size // devices}" if devices > 1 else None
    words = f"--parallel {layout}" if layout else "every process has the whole model"
    report(f"Layout: {words}: a step takes {_bytes(need)} of {_bytes(room)}{'' if need <= room else ', too much'}")
    return layout


def _bytes(number: float) -> str:
    return f"{number / 2**30:,.2f} GiB"
