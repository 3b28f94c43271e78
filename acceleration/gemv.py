"""Products of weights with a few rows, on a CPU in float32 or bfloat16, for generating a text or a few.

Such a product takes as long as reading the weights. MKL and oneDNN read them at a quarter to a third of the memory
bandwidth. torch's embedding bag, which sums rows of a table, reads two to three times as fast as MKL, and
`W x = Σ_d x_d W[:, d]` is such a sum once the weights are stored by inputs.

Shape letters: D inputs, E outputs, M rows, P blocks of the inputs.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial

import torch
from torch import nn
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from .autotune import is_faster, speedup
from .plain import is_plain

SWITCH = "VANILLAFORMER_FEW_ROWS"
"""Environment variable: 0 for never, 1 for always; otherwise the faster one is measured."""
MAX_ROWS = {torch.float32: 4, torch.bfloat16: 2}  # with more rows, matrix products are as fast
NAMES = {torch.float32: "few rows", torch.bfloat16: "few rows, bfloat16"}
MIN_WEIGHTS = 2**16  # per layer: smaller ones are read in no time
MIN_BYTES = 2**24  # in all layers: less stays in the processor's caches, where reading is fast anyway
WARMUP_CALLS = 6  # products with a layer before its weights are copied, which takes as long as some products
MAX_BYTES = 2**31  # of copies: in larger models, not all layers have one
BLOCKS = {torch.float32: 64, torch.bfloat16: 2**31}
"""Inputs that are summed one after another in float32, before the sums of blocks are added: errors stay small."""

Layer = nn.Linear | Conv1D


class TransposedWeights:
    """Copies of layers' weights, stored by inputs (D, E), for repeated products with few rows."""

    def __init__(self) -> None:
        self.calls: Counter[nn.Module] = Counter()
        self.tables: dict[nn.Module, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self.bytes_left = MAX_BYTES

    def table(self, layer: Layer) -> torch.Tensor | None:
        """Return a layer's weights stored by inputs, `None` if they were not copied (yet) or have been replaced."""
        if layer not in self.tables:
            self.calls[layer] += 1
            if self.calls[layer] < WARMUP_CALLS:
                return None
            copied = is_large(layer) and layer.weight.nbytes <= self.bytes_left
            self.bytes_left -= layer.weight.nbytes * copied
            by_inputs = layer.weight.detach() if type(layer) is Conv1D else layer.weight.detach().t()
            self.tables[layer] = layer.weight, by_inputs.contiguous() if copied else None
        weight, table = self.tables[layer]
        return table if weight is layer.weight else None


def is_large(layer: Layer) -> bool:
    """Return whether a layer is plain, on the CPU, of a supported dtype and large enough."""
    on_cpu = is_plain(layer, torch.empty(0, device="cpu"))
    return on_cpu and layer.weight.dtype in MAX_ROWS and layer.weight.numel() >= MIN_WEIGHTS


TRANSPOSED: ContextVar[TransposedWeights | None] = ContextVar("TRANSPOSED", default=None)
"""The copies of the current call of `generate`."""


@contextmanager
def transposed_weights(model: nn.Module) -> Iterator[None]:
    """Keep copies of the weights of layers used for few rows inside the `with` block, if that is faster."""
    layers = [layer for layer in model.modules() if isinstance(layer, Layer) and is_large(layer)]
    dtypes = {layer.weight.dtype for layer in layers}
    large = sum(layer.weight.nbytes for layer in layers) >= MIN_BYTES
    if not (large and all(is_faster(NAMES[dtype], SWITCH, partial(speed, dtype)) for dtype in dtypes)):
        yield
        return
    before = TRANSPOSED.set(TransposedWeights())
    try:
        yield
    finally:
        TRANSPOSED.reset(before)


def few_rows_forward(layer: Layer, x: torch.Tensor) -> torch.Tensor | None:
    """Return a plain layer's output for a few rows, (..., D) → (..., E), or `None` if it is computed otherwise."""
    copies = TRANSPOSED.get()
    differs = x.dtype != layer.weight.dtype or torch.is_autocast_enabled("cpu") or torch.is_grad_enabled()
    if copies is None or differs or not 0 < x.numel() <= MAX_ROWS.get(x.dtype, 0) * x.shape[-1]:
        return None
    table = copies.table(layer)
    return None if table is None else sum_of_rows(x, table, layer.bias)


def sum_of_rows(x: torch.Tensor, table: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return `W x + b` for rows (..., D) and weights stored by inputs (D, E): (..., E)."""
    inputs, outputs = table.shape
    rows = x.numel() // inputs
    factors, summed, starts, order = x.reshape(-1), *blocks(inputs, rows, BLOCKS[table.dtype])
    if rows > 1:
        factors = factors.index_select(0, order)
    sums = torch.embedding_bag(table, summed, starts, per_sample_weights=factors)[0]  # (P M, E)
    total = (sums if len(sums) == rows else sums.view(-1, rows * outputs).sum(0)).view(*x.shape[:-1], outputs)
    return total if bias is None else total.add_(bias)


@lru_cache(maxsize=256)
def blocks(inputs: int, rows: int, block: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the indices of the summed inputs, where each sum starts, and the indices (M D) of their factors.

    The rows alternate block by block: the weights read for one row are still in the cache for the next.
    """
    indices = torch.arange(rows * inputs, device="cpu").view(rows, inputs)
    pieces = [piece.reshape(-1) for part in indices.split(block, dim=1) for piece in part]
    order, sizes = torch.cat(pieces), torch.tensor([0, *map(len, pieces[:-1])], device="cpu")
    return (order % inputs).int(), sizes.cumsum(0).int(), order


def speed(dtype: torch.dtype = torch.float32) -> float:
    """Return the speedup over `torch.nn.functional.linear` of products of a row with large layers.

    Not small ones: where this is measured, OpenMP's other threads sleep between products, and waking them takes as
    long as a small layer.
    """
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(0), dtype=dtype, device="cpu")
    x, *weights = (draw(rows, 768) for rows in (1, 6144, 6144))
    tables = [weight.t().contiguous() for weight in weights]
    with torch.inference_mode():
        usual, ours = partial(linear, x), partial(sum_of_rows, x, bias=None)
        return speedup(lambda: [*map(usual, weights)], lambda: [*map(ours, tables)], 11)
