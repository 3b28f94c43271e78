"""Table 1 of "Attention Is All You Need", measured: time and memory of self-attention against length and width.

python benchmarks/complexity.py                        # prints the tables, writes complexity.json and complexity.png
python benchmarks/complexity.py --lengths 256 512 1024 --widths 64 128 --no_flex

Measured is what the table speaks of, from queries, keys and values to the output, without the projections around it:
full self-attention through each implementation, and restricted self-attention (a window of r tokens) through a dense
mask and through flex attention's block mask, which alone skips what lies outside the window. Of the recurrent layer, a
whole layer of GRUs is measured; the convolutional one stands beside them as a formula. The exponents are slopes in the
double-logarithmic plot.
"""

import argparse
import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import matplotlib
import measuring
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from vanillaformer import VanillaDecoderConfig
from vanillaformer.modeling.parts.attention import Attention, eager_attention
from vanillaformer.modeling.parts.positions import no_rotation
from vanillaformer.modeling.parts.recurrence import CELLS
from vanillaformer.modeling.stack import CAUSAL_MASKS

matplotlib.use("Agg")

HEAD = 64

# Vaswani et al. 2017, table 1: layer, operations, steps one after the other, longest path between two tokens
TABLE = [
    ("self-attention", "O(n² d)", "O(1)", "O(1)", lambda n, d, r, k: n * n * d),
    ("recurrent", "O(n d²)", "O(n)", "O(n)", lambda n, d, r, k: n * d * d),
    ("convolutional", "O(k n d²)", "O(1)", "O(log_k n)", lambda n, d, r, k: k * n * d * d),
    ("restricted", "O(r n d)", "O(1)", "O(n / r)", lambda n, d, r, k: r * n * d),
]


def main() -> None:
    """Measure, print, plot."""
    arguments = parse()
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    print_table(max(arguments.lengths), arguments.width, arguments.window)
    variants = {name: make for name, make in VARIANTS.items() if not (arguments.no_flex and "flex" in name)}
    results = {
        "length": sweep(variants, [(length, arguments.width) for length in arguments.lengths], arguments),
        "width": sweep(variants, [(arguments.length, width) for width in arguments.widths], arguments),
    }
    for axis, points in results.items():
        print_sweep(axis, points)
    arguments.out.mkdir(parents=True, exist_ok=True)
    settings = {key: value for key, value in vars(arguments).items() if key != "out"}
    record = {"torch": torch.__version__, "device": arguments.device, "settings": settings, "results": results}
    (arguments.out / "complexity.json").write_text(json.dumps(record, indent=1) + "\n")
    plot(results, arguments.out / "complexity.png")
    print(f"\nwritten: {arguments.out / 'complexity.json'}, {arguments.out / 'complexity.png'}")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096], help="n, at --width")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256, 512, 1024], help="d, at --length")
    parser.add_argument("--length", type=int, default=1024, help="n while d varies (default 1024)")
    parser.add_argument("--width", type=int, default=256, help="d while n varies (default 256)")
    parser.add_argument("--window", type=int, default=128, help="r of the restricted layer (default 128)")
    parser.add_argument("--repeats", type=int, default=5, help="samples per point, of which the median counts")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of torch")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no_flex", action="store_true", help="leave flex attention out (it has to be compiled)")
    parser.add_argument("--out", type=Path, default=Path("runs/complexity"), help="folder for the results")
    arguments = parser.parse_args()
    for width in [arguments.width, *arguments.widths]:
        if width % HEAD:
            parser.error(f"--width and --widths are multiples of the head width {HEAD}, got {width}")
    return arguments


def attention_call(implementation: str, restricted: bool, n: int, d: int, r: int, device: str) -> Callable[[], object]:
    """Return a call of one layer's attention, from queries, keys and values (1, H, n, 64) to the output."""
    window = {"sliding_window": r} if restricted else {}
    config = VanillaDecoderConfig(
        hidden_size=d, num_attention_heads=d // HEAD, num_hidden_layers=1, attn_implementation=implementation, **window
    )
    module = Attention(config, 0, is_causal=True, rotate=no_rotation).eval()
    query, key, value = (torch.randn(1, d // HEAD, n, HEAD, device=device) for _ in range(3))
    states = torch.empty(1, n, d, device=device)
    mask = CAUSAL_MASKS["sliding_attention" if restricted else "full_attention"](config, states, None, None)
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention)
    return lambda: attend(module, query, key, value, mask, scaling=module.scaling)


def recurrent_call(n: int, d: int, r: int, device: str) -> Callable[[], object]:
    """Return a call of one layer of GRUs, (1, n, d) to the same."""
    layer, x = CELLS["gru"](d, d, batch_first=True).to(device).eval(), torch.randn(1, n, d, device=device)
    return lambda: layer.run(x)


VARIANTS = {
    "self-attention, eager": partial(attention_call, "eager", False),
    "self-attention, sdpa": partial(attention_call, "sdpa", False),
    "restricted, sdpa with a dense mask": partial(attention_call, "sdpa", True),
    "restricted, flex with a block mask": partial(attention_call, "flex_attention", True),
    "recurrent, GRU": recurrent_call,
}
"""What makes a call from n, d, r and the device, by name."""


def sweep(variants: dict, points: list[tuple[int, int]], arguments: argparse.Namespace) -> list[dict]:
    """Return seconds and MiB of each variant at each (n, d)."""
    measured = []
    for n, d in points:
        calls = {name: make(n, d, arguments.window, arguments.device) for name, make in variants.items()}
        with torch.no_grad():
            samples = measuring.measure(calls, arguments.repeats, 0.05, arguments.device, patience=1.0)
            memory = {name: measuring.peak_memory(call, arguments.device) for name, call in calls.items()}
        seconds = {
            name: sorted(repetition[number].seconds for repetition in samples)[len(samples) // 2]
            for number, name in enumerate(calls)
        }
        measured.append({"length": n, "width": d, "seconds": seconds, "mebibytes": memory})
    return measured


def exponent(points: list[dict], axis: str, name: str) -> float:
    """Return the slope of log time against log n or d over the larger half of the points."""
    tail = points[len(points) // 2 :] if len(points) > 2 else points
    xs, ys = [math.log(point[axis]) for point in tail], [math.log(point["seconds"][name]) for point in tail]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((one - x) ** 2 for one in xs)
    return sum((one - x) * (other - y) for one, other in zip(xs, ys)) / spread if spread else math.nan


def print_table(n: int, d: int, r: int, k: int = 3) -> None:
    """Print the paper's table, with the operations for the longest n."""
    print(f"{'layer':16} {'operations':12} {'sequential':11} {'path':11} n = {n}, d = {d}, r = {r}, k = {k}")
    for layer, operations, sequential, path, formula in TABLE:
        print(f"{layer:16} {operations:12} {sequential:11} {path:11} {formula(n, d, r, k):.2e}")


def print_sweep(axis: str, points: list[dict]) -> None:
    """Print milliseconds and MiB against n or d, and the measured exponents."""
    letter = {"length": "n", "width": "d"}[axis]
    fixed = next(other for other in ("length", "width") if other != axis)
    print(f"\nmilliseconds (MiB at the peak) against {letter}, at a {fixed} of {points[0][fixed]}")
    print(f"{'':36}" + "".join(f"{letter} = {point[axis]:<14}" for point in points) + f"time ~ {letter}^")
    for name in points[0]["seconds"]:
        cells = [f"{1e3 * point['seconds'][name]:.2f} ({point['mebibytes'][name] or 0:.0f})" for point in points]
        print(f"{name:36}" + "".join(f"{cell:18}" for cell in cells) + f"{exponent(points, axis, name):.2f}")


def plot(results: dict[str, list[dict]], path: Path) -> None:
    """Draw time and memory against n and against d."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(11, 8), constrained_layout=True)
    for column, (axis, points) in enumerate(results.items()):
        for row, (quantity, label) in enumerate((("seconds", "time (s)"), ("mebibytes", "peak memory (MiB)"))):
            drawn = axes[row][column]
            for name in points[0]["seconds"]:
                kept = [(point[axis], point[quantity][name]) for point in points if (point[quantity][name] or 0) > 0]
                drawn.loglog(*zip(*kept), marker="o", label=name) if kept else None
            drawn.set_xlabel({"length": "length n", "width": "width d"}[axis])
            drawn.set_ylabel(label)
            drawn.grid(alpha=0.3)
    axes[0][0].legend(fontsize=8)
    figure.suptitle("Self-attention and restricted self-attention, one layer, forward")
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
