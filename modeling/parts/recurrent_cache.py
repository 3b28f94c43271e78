"""The cache of a recurrent decoder: states that each token replaces."""

from collections.abc import Callable
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


class RecurrentLayer(CacheLayerMixin):
    """States of a recurrent decoder after the last token, and the keys of the source; all of them (B, ...)."""

    supports_early_init = False

    def __init__(self) -> None:
        super().__init__()
        self.states: tuple[torch.Tensor, ...] = ()
        self.source_keys: torch.Tensor | None = None
        self.length = 0

    def store(self, states: tuple[torch.Tensor, ...], source_keys: torch.Tensor, tokens: int) -> None:
        """Replace the states by those after `tokens` more tokens."""
        self.states, self.source_keys, self.length = states, source_keys, self.length + tokens

    def map_rows(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Change the rows of all tensors alike."""
        self.states = tuple(map(change, self.states))
        self.source_keys = None if self.source_keys is None else change(self.source_keys)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: the first token makes the states."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("a recurrent decoder has no keys and values to append")

    def get_seq_length(self) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_max_length(self) -> int:
        return -1  # no limit

    def reset(self) -> None:
        self.states, self.source_keys, self.length = (), None, 0

    def crop(self, tokens_to_remove: int) -> None:
        raise NotImplementedError("the cache of a recurrent decoder cannot go back by tokens")

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self.map_rows(lambda tensor: tensor.index_select(0, indices.to(tensor.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.map_rows(lambda tensor: tensor.repeat_interleave(repeats, dim=0))


def recurrent_layer(cache: Cache | None) -> RecurrentLayer:
    """Return the layer of a recurrent decoder's cache, a new one without a cache.

    Raises:
        ValueError: The cache is one of keys and values.
    """
    layer = RecurrentLayer() if cache is None else cache.layers[0] if len(getattr(cache, "layers", ())) == 1 else cache
    if not isinstance(layer, RecurrentLayer):
        raise ValueError(f"a recurrent decoder needs a cache of states, got a {type(cache).__name__}")
    return layer
