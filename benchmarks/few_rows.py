"""How fast weights are read when a few rows are multiplied with them, as in generation, by each way that torch has.

    python benchmarks/few_rows.py
    python benchmarks/few_rows.py --rows 1 2 4 8 16 --threads 1

The weights are those of a language model's layers, one after the other: more than the caches hold. Printed are the GB
of weights that a pass reads in a second, beside the sum of one vector of as many numbers, and the error against
float64.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from measuring import Call, measure
from torch.nn.functional import linear
from transformers import HfArgumentParser

from vanillaformer.modeling.parts.few_rows import sum_of_rows


@dataclass
class Options:
    """The sizes, and how often is measured."""

    layers: int = field(default=6, metadata={"help": "Layers of the model."})
    width: int = field(default=384, metadata={"help": "Width of the model."})
    vocab: int = field(default=10_000, metadata={"help": "Size of the vocabulary."})
    rows: list[int] = field(default_factory=lambda: [1, 2, 4, 8], metadata={"help": "Rows: texts times beams."})
    repeats: int = field(default=9, metadata={"help": "Repetitions; the median of their times is reported."})
    threads: int = field(default=torch.get_num_threads(), metadata={"help": "CPU threads of torch."})


def by_onednn(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return linear(x.to_mkldnn(), weight).to_dense()


def by_inputs(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, table)


def as_sum(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return sum_of_rows(x, table, None)


WAYS: dict[str, tuple[Callable[..., torch.Tensor], bool]] = {
    "`linear`, by MKL": (linear, False),
    "`linear`, by oneDNN": (by_onednn, False),
    "`mm`, weights by inputs": (by_inputs, True),
    "sum of rows of the weights": (as_sum, True),
}
"""How a row is multiplied, and whether with weights that are stored by inputs."""


def main(argv: list[str] | None = None) -> None:
    (options,) = HfArgumentParser(Options, description=__doc__).parse_args_into_dataclasses(argv)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    width = options.width
    shapes = options.layers * [*[(width, width)] * 4, (4 * width, width), (width, 4 * width)] + [
        (options.vocab, width)
    ]
    weights = [torch.randn(shape) for shape in shapes]
    tables = [weight.t().contiguous() for weight in weights]
    whole = torch.cat([weight.flatten() for weight in weights])
    print(f"{whole.nbytes / 2**20:.0f} MiB, {options.threads} threads, {torch.backends.cpu.get_cpu_capability()}")
    print("| rows | | GB/s | error |\n|---|---|---|---|")

    def row(name: str, rows: int | str, seconds: list[float], error: float | None) -> None:
        speed = whole.nbytes / statistics.median(seconds) / 1e9
        print(f"| {rows} | {name} | {speed:.0f} | {'' if error is None else f'{error:.1e}'} |", flush=True)

    def all_of(
        function: Callable[..., torch.Tensor], inputs: dict[int, torch.Tensor], stored: list[torch.Tensor]
    ) -> None:
        for (_, size), weight in zip(shapes, stored):
            function(inputs[size], weight)

    with torch.inference_mode():
        times = measure({"sum": whole.sum}, options.repeats, 0.05, "cpu", 0)
        row("reading: the sum of a vector", "", [samples[0].seconds for samples in times], None)
        for rows in options.rows:
            inputs = {size: torch.randn(rows, size) for size in (width, 4 * width)}
            calls: dict[str, Call] = {
                name: partial(all_of, way, inputs, tables if turned else weights)
                for name, (way, turned) in WAYS.items()
            }
            times = measure(calls, options.repeats, 0.05, "cpu", 0)
            exact = linear(inputs[4 * width].double(), weights[5].double())
            for number, (name, (way, turned)) in enumerate(WAYS.items()):
                error = way(inputs[4 * width], (tables if turned else weights)[5]) - exact
                seconds = [samples[number].seconds for samples in times]
                row(name, rows, seconds, float(error.norm() / exact.norm()))


if __name__ == "__main__":
    main()
