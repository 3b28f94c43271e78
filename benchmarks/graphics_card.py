"""A language model on a graphics card: training and generation beside GPT-2 and nanoGPT's way, and the card's limits.

    python benchmarks/graphics_card.py --peak_tflops 989 --peak_gb 4800       # GPT-2 with 124M parameters on an H200
    python benchmarks/graphics_card.py --device cpu --layers 2 --width 64 --heads 2 --vocab 256 --batch 2 --length 32 \
        --rows 1 2 --new_tokens 8 --repeats 2 --seconds 0.01                  # that it runs

Training steps (forward, backward, fused AdamW; float32 weights, products in `dtype`) are timed as they are and
compiled. Their share of the peak counts 6 operations for each weight and token, and 12 L D T for attention (Chowdhery
et al. 2022, appendix B). Generation, in `dtype`, is timed with a cache that grows and with a static one, for which
transformers compiles the forward pass to graphs on a card; its share of the peak is that of the memory, by one reading
of the weights for each token. Ours and transformers' models have equal weights.
"""

import copy
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import compare
import torch
from measuring import Call, measure
from plain import PlainGPT
from table import Batch, endless
from torch import nn
from transformers import HfArgumentParser
from weights import Size, pair


@dataclass
class Options:
    """The model, the batch and the card."""

    device: str = field(default="cuda", metadata={"help": "Where the models run.", "choices": ["cuda", "cpu"]})
    dtype: str = field(default="bfloat16", metadata={"help": "Type of products, and of weights in generation."})
    layers: int = field(default=12, metadata={"help": "Layers."})
    width: int = field(default=768, metadata={"help": "Width."})
    heads: int = field(default=12, metadata={"help": "Attention heads."})
    vocab: int = field(default=50_304, metadata={"help": "Tokens in the vocabulary."})
    batch: int = field(default=16, metadata={"help": "Rows of a training batch."})
    length: int = field(default=1024, metadata={"help": "Tokens in a row, and in the prompt with the new tokens."})
    rows: list[int] = field(default_factory=lambda: [1, 32], metadata={"help": "Rows that are generated at once."})
    train: bool = field(default=True, metadata={"help": "Time training too."})
    static: bool = field(default=True, metadata={"help": "Time generation with a static cache too."})
    new_tokens: int = field(default=256, metadata={"help": "Tokens to generate."})
    attention: str = field(default="sdpa", metadata={"help": "Any attn_implementation of transformers."})
    peak_tflops: float | None = field(default=None, metadata={"help": "The card's peak in `dtype`, dense."})
    peak_gb: float | None = field(default=None, metadata={"help": "GB a second that the card's memory gives."})
    repeats: int = field(default=5, metadata={"help": "Repetitions; medians are reported."})
    seconds: float = field(default=1.0, metadata={"help": "Shortest sample in seconds; calls are repeated."})

    @property
    def size(self) -> Size:
        return Size(self.layers, self.width, self.heads, self.vocab, self.length, attention=self.attention)


def training(options: Options) -> tuple[dict[str, Call], int, float]:
    """Return training steps, the tokens of one and the operations for a token."""
    models: dict[str, Any] = pair("gpt2", options.size) | {"plain": PlainGPT(options.size)}
    batch = {
        key: value.to(options.device)
        for key, value in compare.texts(options.batch, options.length, options.vocab).items()
    }
    losses: dict[str, tuple[str, Callable[..., torch.Tensor]]] = {
        "GPT-2": ("theirs", lambda model: model(**batch, use_cache=False).loss),
        "nanoGPT's way": ("plain", lambda model: model(**batch)),
        "ours": ("ours", lambda model: model(**batch, return_logits=False).loss),
    }
    calls = {}
    for name, (side, loss) in losses.items():
        for suffix, wrap in (("", lambda model: model), (", compiled", torch.compile)):
            model = copy.deepcopy(models[side]).to(options.device)
            calls[name + suffix] = step(model, partial(loss, wrap(model)), options)
    weights = sum(value.numel() for value in models["plain"].parameters()) - options.length * options.width
    operations = 6 * weights + 12 * options.layers * options.width * options.length
    return calls, options.batch * options.length, operations


def step(model: nn.Module, loss: Callable[[], torch.Tensor], options: Options) -> Call:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    dtype = getattr(torch, options.dtype)

    def call() -> None:
        with torch.autocast(options.device, dtype, enabled=dtype != torch.float32):
            value = loss()
        value.backward()
        optimizer.step()
        optimizer.zero_grad()

    return call


def generation(options: Options, rows: int) -> tuple[dict[str, Call], int, int]:
    """Return calls of `generate`, the tokens of one and the bytes of weights."""
    models = {side: endless(model) for side, model in pair("gpt2", options.size).items()}
    prompts: Batch = compare.prompts(rows, options.length - options.new_tokens, options.vocab)
    batch = {key: value.to(options.device) for key, value in prompts.items()}
    calls: dict[str, Call] = {}
    for name, side in (("GPT-2", "theirs"), ("ours", "ours")):
        model: Any = models[side].to(options.device, getattr(torch, options.dtype))
        search = {"max_new_tokens": options.new_tokens}
        calls[name] = partial(model.generate, **batch, **search)
        if options.static:
            calls[f"{name}, static cache"] = partial(model.generate, **batch, **search, cache_implementation="static")
    size = sum(value.nbytes for value in model.parameters())
    return calls, rows * options.new_tokens, size


def main(argv: list[str] | None = None) -> None:
    (options,) = HfArgumentParser(Options, description=__doc__).parse_args_into_dataclasses(argv)
    if options.new_tokens >= options.length:
        raise SystemExit(
            f"--new_tokens {options.new_tokens}: must leave room for a prompt in --length {options.length}"
        )
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}\n{options}\n")
    print("| work | | tokens a second | speed | [min, max] | share of the peak |\n|---|---|---|---|---|---|")

    def report(work: str, calls: dict[str, Call], tokens: int, need: float, peak: float | None) -> None:
        samples = measure(calls, options.repeats, options.seconds, options.device, 0.0)
        for number, name in enumerate(calls):
            seconds = statistics.median(row[number].seconds for row in samples)
            speeds = [row[0].seconds / row[number].seconds for row in samples]
            cells = [work, name, f"{tokens / seconds:,.0f}", f"{statistics.median(speeds):.2f}"]
            cells += [f"[{min(speeds):.2f}, {max(speeds):.2f}]", f"{need / seconds / peak:.0%}" if peak else ""]
            print(f"| {' | '.join(cells)} |", flush=True)

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    if options.train:
        calls, tokens, operations = training(options)
        report("training", calls, tokens, tokens * operations, options.peak_tflops and 1e12 * options.peak_tflops)
        del calls
    for rows in options.rows:
        calls, tokens, size = generation(options, rows)
        peak = options.peak_gb and 1e9 * options.peak_gb
        report(f"generation, {rows} rows", calls, tokens, options.new_tokens * size, peak)


if __name__ == "__main__":
    main()
