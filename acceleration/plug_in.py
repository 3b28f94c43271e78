"""The list of all that takes the place of plain computations, with the conditions and the reasons.

| what | when | why |
|---|---|---|
| `linear.py` | float32 products on a CPU, not small, if measured to be faster | oneDNN has up to twice MKL's speed |
| `gemv.py` | search loops on a CPU, 4 rows or 2 in bfloat16, if measured to be faster | weights are read faster |
| `attention.py` | SDPA on a CPU: dropout, windows, bfloat16 if measured to be faster | fewer random bits and scores |
| `unfinished_rows.py` | sampling or greedy search of rows on a CPU | what follows an end is not computed |
| `shared_sources.py` | our translators: beams, samples, sources of unequal length | a source is computed once |
| `length_buckets.py` | our encoders: packed texts on a CPU, by SDPA | no scores between texts |
| `chunked_loss.py` | our language models, asked for a loss without logits | never all logits in memory |

The first four work for any model of transformers that `speed_up` was called with, the others for ours. A layer or
model that is not as it was made, by hooks, adapters, quantizers, compilers, or processors of the caller's, is computed
plainly: `plain.py` has the questions.

`int8.py` rounds weights and is none of these: `to_int8(model)` asks for it.

What has no hook in `modeling/acceleration.py` stands in the libraries, in `nn.Linear`, `Conv1D`, `GenerationMixin`
and transformers' `sdpa`, and does nothing for modules without the mark that `speed_up` leaves. Instances stay
unchanged: copies, replicas, layers of another class and quantizers find what torch made.
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
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # the names are malloc.h's
LARGEST = 2**31 - 1  # bytes; mallopt takes an int


def speed_up(model: Model) -> Model:
    """Let a model of transformers compute its linear layers, attention and `generate` faster on a CPU, and return it.

    The models of this package are so from the start.
    """
    for module in model.modules():
        setattr(module, MARK, True)
    return model


def sample(plain: Callable[..., Any], model: Any, input_ids: Any, **options: Any) -> Any:
    from .unfinished_rows import drop_finished  # which training does not need

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
"""Of `modeling/acceleration.py`."""
METHODS: dict[str, Callable[..., Any]] = {
    "_sample": sample,
    "_beam_search": search_beams,
    "_assisted_decoding": decode_with_assistant,
    "_prepare_text_encoder_decoder_kwargs_for_generation": encode_in_buckets,
}
"""Of `GenerationMixin`: functions that take the method which they stand for, and its arguments."""


def in_place_of(plain: Callable[..., Any], faster: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that is `faster(plain, ...)` for marked modules."""

    @wraps(plain)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return faster(plain, self, *args, **kwargs) if is_marked(self) else plain(self, *args, **kwargs)

    return method


PLAIN = {name: getattr(GenerationMixin, name) for name in METHODS}
FASTER = {name: in_place_of(PLAIN[name], method) for name, method in METHODS.items()}


def plug_in() -> None:
    """Install all of it."""
    vars(acceleration).update(HOOKS)
    nn.Linear.forward = faster_forward  # type: ignore[method-assign]
    Conv1D.forward = faster_conv1d  # type: ignore[method-assign]
    if ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward:  # and no function of the caller's
        ALL_ATTENTION_FUNCTIONS.register("sdpa", faster_attention)
    for name, method in FASTER.items():
        setattr(GenerationMixin, name, method)


@contextmanager
def switched_off() -> Iterator[None]:
    """Compute all plainly until the end."""
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
    """Let tensors on the CPU reuse the memory of those before them, and return whether the C library can do that.

    glibc gives a large block back as soon as it is freed and takes a new one, page by page, for the next tensor: for
    logits of 50 MB the page faults take as long as the arithmetic. A user's own settings (`MALLOC_...`,
    `GLIBC_TUNABLES`) stay unchanged.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST) and mallopt(M_TRIM_THRESHOLD, LARGEST))
