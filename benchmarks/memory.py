"""Memory of a training step: predicted and measured here, and what fits on machines that are not here.

    python benchmarks/memory.py
    python benchmarks/memory.py --processes 2      # a step of models that FSDP2 divides, in each of them
    python benchmarks/memory.py --fits_only

The prediction is that of `training/memory.py`; measured is by how much a process of its own grows from before the
model is made, at most, in two steps. What fits is computed from the prediction alone: the most rows on a device,
weights in float32, activations in float32 on a CPU and in bfloat16 on a card, AdamW; nobody has run it.
"""

import os
import socket
from argparse import ArgumentParser
from pathlib import Path
from typing import Any, NamedTuple

import compare
import torch
from measuring import peak_memory
from weights import PEERS

from vanillaformer import preset
from vanillaformer.modeling.counts import count_parameters
from vanillaformer.training.memory import training_memory
from vanillaformer.training.trainer.parallel import divided

GIB = 2**30
RESERVED = 0.9  # of a device's memory; libraries, fragments and communication need the rest
GPT_384 = {"layers": 6, "width": 384, "heads": 6, "batch": 8, "length": 256}
STEPS: list[tuple[str, str, dict[str, Any]]] = [
    ("lm_train", "gpt2", GPT_384 | {"vocab": 50257}),
    ("lm_train", "gpt2", GPT_384 | {"vocab": 256}),
    ("lm_train", "gpt2", GPT_384 | {"vocab": 8000, "dropout": 0.1}),
    ("lm_train", "gpt2", {"layers": 12, "batch": 16, "length": 256}),
    ("lm_train", "gpt2", {"layers": 2, "batch": 2, "length": 64}),
    ("lm_train", "llama", GPT_384 | {"batch": 4, "length": 512}),
    ("translation_train", "marian", {"vocab": 10000, "batch": 64, "length": 60}),
]


class Machine(NamedTuple):
    """Where a model is trained: memory of a device, and how many devices its weights are divided among."""

    name: str
    gib: int
    devices: int
    device: str
    checkpointing: bool


MACHINES = [
    Machine("CPU, 24 GiB", 24, 1, "cpu", False),
    Machine("80 GiB card", 80, 1, "cuda", False),
    Machine("the same, checkpointing", 80, 1, "cuda", True),
    Machine("8 cards, FSDP", 80, 8, "cuda", False),
    Machine("the same, checkpointing", 80, 8, "cuda", True),
]
# Width, layers and heads, shaped as Llama with its 32,000 tokens
MODELS = [(768, 12, 12), (1024, 24, 16), (2048, 24, 32), (4096, 32, 32), (5120, 40, 40)]
CONTEXTS = [1024, 4096, 16384]


def measured(name: str, peer: str, sizes: dict[str, Any]) -> tuple[float, float]:
    """Return the MiB of a step that were predicted and measured."""
    options = compare.Options(**sizes)
    task = options.task(name)
    config: Any = PEERS[peer].ours(options.size(task)).config
    predicted = training_memory(config, task.batch, task.length).peak / 2**20
    with compare.fresh_processes() as processes:
        found = processes.submit(compare.weigh, name, peer, "ours", options).result()
    return predicted, found if found is not None else float("nan")


def measured_in_parts(name: str, peer: str, sizes: dict[str, Any], processes: int) -> tuple[float, float]:
    """Return the MiB of a step of a divided model that were predicted, and the most that a process took."""
    options = compare.Options(**sizes)
    task = options.task(name)
    config: Any = PEERS[peer].ours(options.size(task)).config
    predicted = training_memory(config, task.batch, task.length, devices=processes).peak / 2**20
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with torch.multiprocessing.get_context("spawn").Manager() as manager:
        found = manager.list()
        torch.multiprocessing.spawn(take_part, (processes, port, name, peer, options, found), nprocs=processes)
        return predicted, max(found)


def take_part(rank: int, processes: int, port: int, name: str, peer: str, options: Any, found: Any) -> None:
    """Make two steps as one of several processes, and add the MiB that they took."""
    names = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": processes,
        "LOCAL_WORLD_SIZE": processes,
        "MASTER_PORT": port,
    }
    os.environ.update({"MASTER_ADDR": "127.0.0.1"} | {key: str(value) for key, value in names.items()})
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    task = options.task(name)
    batch = task.inputs(task.batch, task.length, options.vocab)

    def steps() -> None:
        model = divided(PEERS[peer].ours(options.size(task)), f"fsdp={processes}").train()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        Path("/proc/self/clear_refs").write_text("5")  # forget the whole model
        for _ in range(2):
            model(**batch, return_logits=False).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    found.append(peak_memory(steps, "cpu"))
    torch.distributed.destroy_process_group()


def llama(width: int, layers: int, heads: int, context: int) -> Any:
    return preset(
        "llama-tiny",
        vocab_size=32_000,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        intermediate_size=64 * round(width * 8 / 3 / 64),
        max_position_embeddings=context,
    )


def most_rows(config: Any, context: int, machine: Machine) -> int:
    """Return the most rows of a length on each device: memory grows by the same amount with each."""
    dtype = torch.float32 if machine.device == "cpu" else torch.bfloat16
    options: dict[str, Any] = {"dtype": dtype, "devices": machine.devices, "device": machine.device}
    options["gradient_checkpointing"] = machine.checkpointing
    one, two = (training_memory(config, rows, context, **options) for rows in (1, 2))
    fixed, room = one.weights + one.optimizer + one.workspace, RESERVED * machine.gib * GIB
    if fixed + max(one.activations, one.gradients) > room:
        return 0
    return 1 + int((room - fixed - one.activations) // (two.activations - one.activations))


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fits_only", action="store_true", help="Measure nothing.")
    parser.add_argument("--processes", type=int, default=1, help="That the model is divided among.")
    arguments = parser.parse_args()
    if not arguments.fits_only:
        print("| step | sizes | predicted MiB | measured MiB | ratio |\n|---|---|---|---|---|")
        for name, peer, sizes in STEPS:
            if arguments.processes > 1:
                predicted, found = measured_in_parts(name, peer, sizes, arguments.processes)
            else:
                predicted, found = measured(name, peer, sizes)
            text = ", ".join(f"{key} {value}" for key, value in sizes.items())
            print(f"| {name}, {peer} | {text} | {predicted:.0f} | {found:.0f} | {predicted / found:.2f} |", flush=True)
    if arguments.processes > 1:
        return
    print(f"\n| parameters | tokens in a row | {' | '.join(machine.name for machine in MACHINES)} |")
    print("|---|---|" + "---|" * len(MACHINES))
    for width, layers, heads in MODELS:
        for context in CONTEXTS:
            config = llama(width, layers, heads, context)
            size = sum(count_parameters(config).values())
            rows = " | ".join(f"{most_rows(config, context, machine):,}" for machine in MACHINES)
            print(f"| {size / 1e6:,.0f} million | {context:,} | {rows} |", flush=True)


if __name__ == "__main__":
    main()
