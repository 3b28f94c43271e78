"""Products of weights with a few rows, on a CPU in float32 or bfloat16: what a model generates one text with.

Such a product takes as long as reading the weights. MKL and oneDNN read them at a quarter to a third of the speed of
the memory. torch's embedding bag, which sums rows of a table, reads two to three times as fast as MKL, and
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
"""Environment variable: 0 for never, 1 for always; otherwise it is measured which is faster."""
MAX_ROWS = {torch.float32: 4, torch.bfloat16: 2}  # with more rows, libraries that multiply matrices are as fast
NAMES = {torch.float32: "few rows", torch.bfloat16: "few rows, bfloat16"}
MIN_WEIGHTS = 2**16  # of a layer: fewer are read in no time
MIN_BYTES = 2**24  # of all layers: fewer stay in the processor's caches, from which every way reads fast
WARMUP_CALLS = 6  # products with a layer until its weights are copied: copying takes as long as some products
MAX_BYTES = 2**31  # of copies: with larger models only the first layers have one
BLOCKS = {torch.float32: 64, torch.bfloat16: 2**31}
"""Inputs that are summed one after the other, in float32; the sums of blocks are added then: errors stay small."""

Layer = nn.Linear | Conv1D


class TransposedWeights:
    """Weights of layers that few rows are multiplied with again and again, stored by inputs (D, E)."""

    def __init__(self) -> None:
        self.calls: Counter[nn.Module] = Counter()
        self.tables: dict[nn.Module, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self.bytes_left = MAX_BYTES

    def table(self, layer: Layer) -> torch.Tensor | None:
        """Return a layer's weights stored by inputs, `None` if they are not, not yet, or no longer the same."""
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
    """Return whether a layer's weights are plain, of a type that can be faster, on the CPU, and not few."""
    on_cpu = is_plain(layer, torch.empty(0, device="cpu"))
    return on_cpu and layer.weight.dtype in MAX_ROWS and layer.weight.numel() >= MIN_WEIGHTS


TRANSPOSED: ContextVar[TransposedWeights | None] = ContextVar("TRANSPOSED", default=None)
"""Those of the call of `generate` that is under way."""


@contextmanager
def transposed_weights(model: nn.Module) -> Iterator[None]:
    """Keep copies of the weights of layers that are used for few rows, where that is faster, until the end."""
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
    """Return a plain layer's output for a few rows, (..., D) → (..., E), or `None` if its weights have no copy."""
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
    factors, numbers, starts, order = x.reshape(-1), *blocks(inputs, rows, BLOCKS[table.dtype])
    if rows > 1:
        factors = factors.index_select(0, order)
    sums = torch.embedding_bag(table, numbers, starts, per_sample_weights=factors)[0]  # (P M, E)
    total = (sums if len(sums) == rows else sums.view(-1, rows * outputs).sum(0)).view(*x.shape[:-1], outputs)
    return total if bias is None else total.add_(bias)


@lru_cache(maxsize=256)
def blocks(inputs: int, rows: int, block: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the inputs that are summed, where each sum starts, and the indices (M D) of the factors in the rows.

    The rows take turns, block by block: what one has read of the weights is near when the next one needs it.
    """
    indices = torch.arange(rows * inputs, device="cpu").view(rows, inputs)
    pieces = [piece.reshape(-1) for part in indices.split(block, dim=1) for piece in part]
    order, sizes = torch.cat(pieces), torch.tensor([0, *map(len, pieces[:-1])], device="cpu")
    return (order % inputs).int(), sizes.cumsum(0).int(), order


def speed(dtype: torch.dtype = torch.float32) -> float:
    """Return how many times as fast as by `torch.nn.functional.linear` a row is multiplied with some layers."""
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(0), dtype=dtype, device="cpu")
    x, *weights = (draw(rows, 768) for rows in (1, *[768] * 16))
    tables = [weight.t().contiguous() for weight in weights]
    with torch.inference_mode():
        usual, ours = partial(linear, x), partial(sum_of_rows, x, bias=None)
        return speedup(lambda: [*map(usual, weights)], lambda: [*map(ours, tables)], 11)
