"""The cost of a training step against length, width, depth, batch, vocabulary and processes, with fitted exponents.

    python benchmarks/scaling.py                       # prints the tables, writes scaling.json and scaling.png
    python benchmarks/scaling.py --axes length width --repeats 9

A GPT of 4 layers of width 256, 8 rows of 128 tokens, a vocabulary of 8,000, AdamW, float32; one size changes at once.
Beside the time stands what is counted without computing: operations in matrix products, three times those of a forward
pass, and memory (`training_memory`). An exponent is the slope of a straight line through the points in a double-
logarithmic plot. Processes share the gradients (DDP) and have 8 rows and one thread each.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from matplotlib.figure import Figure
from measuring import sample
from torch import nn

from vanillaformer import VanillaDecoderForCausalLM, preset
from vanillaformer.console.drawing import save_figure
from vanillaformer.modeling.counts import count_flops
from vanillaformer.modeling.memory import training_memory
from vanillaformer.training.machine import keep_freed_memory

BASE = {"length": 128, "width": 256, "depth": 4, "batch": 8, "vocabulary": 8000, "processes": 1}
AXES = {
    "length": [64, 128, 256, 512, 1024],
    "width": [64, 128, 256, 512],
    "depth": [2, 4, 8, 16],
    "batch": [1, 2, 4, 8, 16, 32],
    "vocabulary": [500, 2000, 8000, 32000],
    "processes": [1, 2],
}
MEASURES = {"seconds": "seconds", "operations": "operations (10⁹)", "memory": "memory (MiB)"}
HEAD = 64
COLUMNS = 3  # of the picture


def config_of(size: dict[str, int]) -> Any:
    return preset(
        "gpt-tiny",
        hidden_size=size["width"],
        num_hidden_layers=size["depth"],
        num_attention_heads=size["width"] // HEAD,
        vocab_size=size["vocabulary"],
        max_position_embeddings=size["length"],
        dropout=0.0,
    )


def step_of(size: dict[str, int]) -> Any:
    """Return a training step."""
    torch.manual_seed(0)
    model: nn.Module = VanillaDecoderForCausalLM(config_of(size)).train()
    if dist.is_initialized():
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ids = torch.randint(size["vocabulary"], (size["batch"], size["length"]))

    def step() -> None:
        model(input_ids=ids, labels=ids, return_logits=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def seconds(size: dict[str, int], repeats: int, threads: int) -> float:
    """Return the median time of a step."""
    if size["processes"] > 1:
        address = f"tcp://127.0.0.1:{29400 + os.getpid() % 500}"
        with mp.Manager() as manager:
            times = manager.list()
            mp.spawn(worker, (size, repeats, address, times), nprocs=size["processes"])
            return statistics.median(times)
    torch.set_num_threads(threads)
    step = step_of(size)
    step()
    return statistics.median(sample(step).seconds for _ in range(repeats))


def worker(rank: int, size: dict[str, int], repeats: int, address: str, times: Any) -> None:
    """Time steps as one of several processes; the first one tells."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size["processes"])
    step = step_of(size)
    step()
    for _ in range(repeats):
        dist.barrier()
        start = time.perf_counter()
        step()
        if rank == 0:
            times.append(time.perf_counter() - start)
    dist.destroy_process_group()


def point(axis: str, value: int, repeats: int, threads: int) -> dict[str, float]:
    """Return what a step costs at one size."""
    size = BASE | {axis: value}
    config = config_of(size)
    operations = 3 * sum(count_flops(config, size["batch"], size["length"]).values()) * size["processes"]
    found = seconds(size, repeats, 1 if axis == "processes" else threads)
    memory = training_memory(config, size["batch"], size["length"]).peak / 2**20
    return {axis: value, "seconds": found, "operations": operations / 1e9, "memory": memory}


def exponent(axis: str, points: list[dict[str, float]], measure: str) -> float:
    """Return the slope of a straight line through the points, both logarithmic."""
    x, y = (np.log([one[name] for one in points]) for name in (axis, measure))
    return round(float(np.polyfit(x, y, 1)[0]), 2) + 0.0  # which makes -0 a 0


def print_axis(axis: str, points: list[dict[str, float]]) -> None:
    print(f"\n| {axis} | {' | '.join(f'{one[axis]:,}' for one in points)} | exponent |")
    print("|---|" + "---|" * (len(points) + 1))
    for measure, name in MEASURES.items():
        cells = " | ".join(f"{one[measure]:.3g}" if one[measure] < 1000 else f"{one[measure]:,.0f}" for one in points)
        print(f"| {name} | {cells} | {exponent(axis, points, measure):.2f} |", flush=True)


def plot(results: dict[str, list[dict[str, float]]], path: Path) -> None:
    """Draw each measure against each size, the first point being 1."""
    rows = -(-len(results) // COLUMNS)
    drawn = Figure(figsize=(4 * COLUMNS, 3.4 * rows), layout="constrained")
    for place, (axis, points) in enumerate(results.items(), start=1):
        panel = drawn.add_subplot(rows, COLUMNS, place)
        for measure, name in MEASURES.items():
            label = f"{name.split(' (')[0]}, exponent {exponent(axis, points, measure):.2f}"
            values = [one[measure] / points[0][measure] for one in points]
            panel.loglog([one[axis] for one in points], values, marker="o", label=label)
        panel.minorticks_off()
        panel.set_xticks([one[axis] for one in points], [f"{one[axis]:,}" for one in points])
        panel.set_xlabel(axis)
        panel.set_ylabel("cost, first point = 1")
        panel.legend(fontsize="small")
    save_figure(drawn, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axes", nargs="+", choices=AXES, default=list(AXES), help="what changes")
    parser.add_argument("--repeats", type=int, default=5, help="steps that are timed, of which the median counts")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of torch")
    parser.add_argument("--out", type=Path, default=Path("runs/scaling"), help="folder for the results")
    arguments = parser.parse_args()
    keep_freed_memory()
    results = {}
    for axis in arguments.axes:
        results[axis] = [point(axis, value, arguments.repeats, arguments.threads) for value in AXES[axis]]
        print_axis(axis, results[axis])
    arguments.out.mkdir(parents=True, exist_ok=True)
    record = {"torch": torch.__version__, "threads": arguments.threads, "results": results}
    (arguments.out / "scaling.json").write_text(json.dumps(record, indent=1) + "\n")
    plot(results, arguments.out / "scaling.png")
    print(f"\nwritten: {arguments.out / 'scaling.json'}, {arguments.out / 'scaling.png'}")


if __name__ == "__main__":
    main()
