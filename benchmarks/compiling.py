"""Our models with `torch.compile` beside themselves without: what it takes to compile, and what it saves then.

    python benchmarks/compiling.py --threads 1
    python benchmarks/compiling.py --tasks classifier --repeats 9

Training steps are those of `table.py` (forward, backward, AdamW), on batches of one shape; the forward pass of
`generate` is compiled for any length. `after` is the number of calls whose savings pay for compiling.
"""

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import compare
import table
import torch
from measuring import Call, measure
from transformers import HfArgumentParser
from weights import Size, pair

Pair = tuple[Call, Call]


def trained(model: Any, batch: dict[str, torch.Tensor], **options: Any) -> Pair:
    """Return a training step, plain and compiled."""
    other = copy.deepcopy(model)
    compiled: Any = torch.compile(other)
    return (
        table.step(model, lambda: model(**batch, **options).loss),
        table.step(other, lambda: compiled(**batch, **options).loss),
    )


def language_model() -> Pair:
    """6 layers of width 384, 4 rows of 256 tokens."""
    model = pair("gpt2", Size(layers=6, width=384, heads=6, vocab=256))["ours"]
    return trained(model, compare.texts(4, 256, 256), return_logits=False)


def translation() -> Pair:
    """4 + 4 layers of width 256, 64 pairs of 20 tokens a side."""
    model = pair("marian", Size(vocab=10_000, max_length=64))["ours"]
    batch = {"input_ids": compare.words(64, 20, 10_000), "labels": compare.words(64, 20, 10_000)}
    return trained(model, batch, labeled_only=True, return_logits=False, use_cache=False)


def classifier() -> Pair:
    """One layer of width 32, 64 texts of 200 tokens."""
    size = Size(layers=1, width=32, heads=2, vocab=20_000, max_length=200, dropout=0.1)
    batch = {"input_ids": compare.words(64, 200, size.vocab), "labels": torch.randint(4, (64,))}
    return trained(pair("bert", size)["ours"], batch)


def continuation() -> Pair:
    """Prompts of 32 tokens, 128 more, batch 1."""
    size = Size(layers=6, width=384, heads=6, vocab=10_000)
    model = table.endless(pair("gpt2", size)["ours"])
    other: Any = copy.deepcopy(model)
    other.forward = torch.compile(other.forward, dynamic=True)
    batch = table.as_batch(table.texts([32], size.vocab))
    return lambda: model.generate(**batch, max_new_tokens=128), lambda: other.generate(**batch, max_new_tokens=128)


TASKS: dict[str, Callable[[], Pair]] = {
    "language_model": language_model,
    "translation": translation,
    "classifier": classifier,
    "continuation": continuation,
}


@dataclass
class Options:
    """What is timed, and how often."""

    tasks: list[str] = field(default_factory=lambda: list(TASKS), metadata={"help": "Which tasks."})
    repeats: int = field(default=5, metadata={"help": "Repetitions; the median of their ratios is reported."})
    seconds: float = field(default=0.2, metadata={"help": "Shortest sample in seconds; calls are repeated."})
    threads: int = field(default=torch.get_num_threads(), metadata={"help": "CPU threads of torch."})


def main(argv: list[str] | None = None) -> None:
    (options,) = HfArgumentParser(Options, description=__doc__).parse_args_into_dataclasses(argv)
    if unknown := set(options.tasks) - set(TASKS):
        raise SystemExit(f"--tasks {' '.join(sorted(unknown))}: known are {', '.join(TASKS)}")
    torch.set_num_threads(options.threads)
    print("| task | ms | compiled | speed | [min, max] | first call, s | after |\n|---|---|---|---|---|---|---|")
    for name in options.tasks:
        torch.manual_seed(0)
        plain, compiled = TASKS[name]()
        start = time.perf_counter()
        compiled()
        first = time.perf_counter() - start
        samples = measure({"plain": plain, "compiled": compiled}, options.repeats, options.seconds, "cpu", 0.0)
        speeds = [mine.seconds / other.seconds for mine, other in samples]
        times = [statistics.median(row[side].seconds for row in samples) for side in (0, 1)]
        after = f"{first / (times[0] - times[1]):,.0f}" if times[1] < times[0] else "never"
        cells = [name, f"{1e3 * times[0]:.0f}", f"{1e3 * times[1]:.0f}", f"{statistics.median(speeds):.2f}"]
        cells += [f"[{min(speeds):.2f}, {max(speeds):.2f}]", f"{first:.0f}", after]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
