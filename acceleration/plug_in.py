"""Everything that replaces a plain computation, with conditions and reasons.

| what | when | why |
|---|---|---|
| `linear.py` | large float32 products on a CPU, if measured to be faster | oneDNN is up to twice as fast as MKL |
| `gemv.py` | generation on a CPU, at most 4 rows, 2 in bfloat16, if measured to be faster | reads weights faster |
| `attention.py` | SDPA on a CPU: dropout, windows, bfloat16 if measured to be faster | fewer random bits and scores |
| `unfinished_rows.py` | sampling or greedy search of several rows on a CPU | computes nothing after a text's end |
| `shared_sources.py` | our translators: beams, samples, sources of unequal length | computes a source once |
| `length_buckets.py` | our encoders: packed texts on a CPU, with SDPA | no scores between texts |
| `chunked_loss.py` | our language models, asked for a loss without logits | never all logits in memory |

The first four work for any transformers model passed to `speed_up`, the others only for ours. Layers and models that
were modified (by hooks, adapters, quantizers, compilers or the caller's processors) are computed plainly: `plain.py`
has the checks.

`int8.py` is not in the list, as it rounds weights: `to_int8(model)` asks for it.

What has no hook in `modeling/acceleration.py` patches the libraries (`nn.Linear`, `Conv1D`, `GenerationMixin` and
transformers' `sdpa`), and does nothing for modules without the mark that `speed_up` sets. The modules' methods are not
replaced: copies, replicas, layers of other classes and quantizers find what torch made.
"""

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

from torch import nn
from transformers.generation import GenerationMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.pytorch_utils import Conv1D

from vanillaformer.modeling.acceleration import acceleration

from .attention import faster_attention
from .chunked_loss import loss_without_logits
from .gemv import transposed_weights
from .length_buckets import attend, packed_masks
from .linear import PLAIN_CONV1D, PLAIN_FORWARD, faster_conv1d, faster_forward
from .plain import MARK, is_marked
from .shared_sources import cross_attend, encode_in_buckets, share_sources

Model = TypeVar("Model", bound=nn.Module)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # names from malloc.h
LARGEST = 2**31 - 1  # bytes; mallopt takes an int
KERNELS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "128"}
"""Environment variables of oneDNN and of torch's layer above it: how many compiled kernels each of them keeps."""


def speed_up(model: Model) -> Model:
    """Let a transformers model compute its linear layers, attention and `generate` faster on a CPU, and return it.

    The models of this package are marked when they are made.
    """
    for module in model.modules():
        setattr(module, MARK, True)
    return model


def sample(plain: Callable[..., Any], model: Any, input_ids: Any, **options: Any) -> Any:
    from .unfinished_rows import drop_finished  # not needed for training

    options = share_sources(model, options)
    with transposed_weights(model):
        return plain(drop_finished(model, input_ids, options), input_ids, **options)


def search_beams(plain: Callable[..., Any], model: Any, input_ids: Any, **options: Any) -> Any:
    with transposed_weights(model):
        return plain(model, input_ids, **share_sources(model, options))


def decode_with_assistant(plain: Callable[..., Any], model: Any, *args: Any, **options: Any) -> Any:
    with transposed_weights(model):
        return plain(model, *args, **options)


HOOKS: dict[str, Callable[..., Any]] = {
    "prepare": speed_up,
    "packed_masks": packed_masks,
    "attend": attend,
    "cross_attend": cross_attend,
    "loss": loss_without_logits,
}
"""Implementations of the hooks in `modeling/acceleration.py`."""
METHODS: dict[str, Callable[..., Any]] = {
    "_sample": sample,
    "_beam_search": search_beams,
    "_assisted_decoding": decode_with_assistant,
    "_prepare_text_encoder_decoder_kwargs_for_generation": encode_in_buckets,
}
"""Replacements for methods of `GenerationMixin`, which take the original method and its arguments."""


def in_place_of(plain: Callable[..., Any], faster: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that calls `faster(plain, ...)` for marked modules, and `plain(...)` for others."""

    @wraps(plain)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return faster(plain, self, *args, **kwargs) if is_marked(self) else plain(self, *args, **kwargs)

    return method


PLAIN = {name: getattr(GenerationMixin, name) for name in METHODS}
FASTER = {name: in_place_of(PLAIN[name], method) for name, method in METHODS.items()}


def plug_in() -> None:
    """Install all replacements."""
    vars(acceleration).update(HOOKS)
    nn.Linear.forward = faster_forward  # type: ignore[method-assign]
    Conv1D.forward = faster_conv1d  # type: ignore[method-assign]
    if ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward:  # not replaced by the caller
        ALL_ATTENTION_FUNCTIONS.register("sdpa", faster_attention)
    for name, method in FASTER.items():
        setattr(GenerationMixin, name, method)


@contextmanager
def switched_off() -> Iterator[None]:
    """Compute everything plainly inside the `with` block."""
    vars(acceleration).clear()
    nn.Linear.forward = PLAIN_FORWARD  # type: ignore[method-assign]
    Conv1D.forward = PLAIN_CONV1D  # type: ignore[method-assign]
    if ALL_ATTENTION_FUNCTIONS["sdpa"] is faster_attention:
        ALL_ATTENTION_FUNCTIONS.register("sdpa", sdpa_attention_forward)
    for name, method in PLAIN.items():
        setattr(GenerationMixin, name, method)
    try:
        yield
    finally:
        plug_in()


def keep_freed_memory() -> bool:
    """Let tensors on the CPU reuse freed memory, and return whether the C library supports this.

    glibc returns a large block as soon as it is freed, and requests a new one, page by page, for the next tensor: for
    logits of 50 MB the page faults take as long as the arithmetic. A user's own settings (`MALLOC_...`,
    `GLIBC_TUNABLES`) are not changed.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library or system
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST) and mallopt(M_TRIM_THRESHOLD, LARGEST))


def limit_kernels() -> None:
    """Let oneDNN keep the kernels of fewer shapes, if it has not been used yet; a user's limits stay unchanged.

    It compiles one for each shape of a product in bfloat16, up to a megabyte, and keeps 1,024 by default: memory for
    nothing where batches rarely have the same shape twice, as in training. In decoding, the same lengths return.
    """
    for name, number in KERNELS.items():
        os.environ.setdefault(name, number)
