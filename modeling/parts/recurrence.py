"""Recurrent layers that ignore padding: torch's own, with their fused kernels and their weights' names.

Also their initialization (`RECURRENT_INITIALIZATIONS` is the list of choices), and the cache of a decoder.

Shape letters: B batch, T length, E input width, D width of a state, L layers times directions.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import initialization as init
from transformers.cache_utils import Cache, CacheLayerMixin

States = tuple[torch.Tensor, ...]
"""Tensors (B, ...) that a step passes to the next one."""


class Recurrence(nn.RNNBase):
    """Mixin of torch's recurrent layers: one form of state for all cells, (B, L, D) each, and masks."""

    num_states = 1

    def run(
        self, x: torch.Tensor, states: States | None = None, mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, States]:
        """Return the outputs (B, T, directions * D) and the states after the last token of each row.

        Padding (0 in the mask (B, T)) may be anywhere; it leaves states unchanged, and its outputs are 0.
        """
        before = None if states is None else tuple(state.to(x.dtype).transpose(0, 1).contiguous() for state in states)
        if mask is None:
            outputs, after = self(x, self.joined(before))
            return outputs, self.separate(after)
        tokens = mask.bool()
        lengths = tokens.sum(1)
        # A packed sequence has its tokens first
        order = (~tokens).int().argsort(dim=1, stable=True)[..., None]
        inputs = pack_padded_sequence(
            x.gather(1, order.expand_as(x)), lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False
        )
        packed, after = self(inputs, self.joined(before))
        outputs, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])
        outputs = torch.zeros_like(outputs).scatter(1, order.expand_as(outputs), outputs) * tokens[..., None]
        empty = (lengths == 0)[:, None, None]  # rows of which one token was read anyway
        old = states or (x.new_zeros(()),) * self.num_states
        return outputs, tuple(torch.where(empty, was, now) for was, now in zip(old, self.separate(after)))

    def joined(self, states: States | None) -> Any:
        """Return states (L, B, D) as torch's layer takes them."""
        return None if states is None else states[0]

    def separate(self, states: Any) -> States:
        """Return the states that torch's layer returns as (B, L, D)."""
        return (states.transpose(0, 1),)


class RNN(Recurrence, nn.RNN):
    """Elman's cell (1990), `h' = tanh(W x + b + U h + c)`."""


class GRU(Recurrence, nn.GRU):
    """The gated recurrent unit (Cho et al. 2014), `h' = (1 - z) n + z h` with `n = tanh(W x + b + r (U h + c))`."""


class LSTM(Recurrence, nn.LSTM):
    """The long short-term memory (Hochreiter and Schmidhuber 1997), `h' = o tanh(c')` with `c' = f c + i g`."""

    num_states = 2

    def joined(self, states: States | None) -> Any:
        return states

    def separate(self, states: Any) -> States:
        return tuple(state.transpose(0, 1) for state in states)


CELLS: dict[str, type[Recurrence]] = {"rnn": RNN, "lstm": LSTM, "gru": GRU}


def build_recurrence(
    cell: str, input_size: int, hidden_size: int, layers: int, dropout: float, bidirectional: bool = False
) -> Recurrence:
    """Return recurrent layers, with dropout between them."""
    between = float(dropout) if layers > 1 else 0.0  # torch warns of dropout in a single layer
    sizes: Any = (input_size, hidden_size, layers)
    return CELLS[cell](*sizes, batch_first=True, dropout=between, bidirectional=bidirectional)


def edge_states(outputs: torch.Tensor, mask: torch.Tensor | None, directions: int) -> torch.Tensor:
    """Return the last state of each direction, (B, S, directions * D) → (B, directions * D).

    The first direction ends at the last token of a row, the second one at the first.
    """
    if mask is None:
        mask = torch.ones(outputs.shape[:2], device=outputs.device)
    rows, tokens = torch.arange(len(outputs), device=outputs.device), mask.int()
    ends = (mask.shape[1] - 1 - tokens.flip(1).argmax(1), tokens.argmax(1))
    return torch.cat([part[rows, end] for part, end in zip(outputs.chunk(directions, dim=-1), ends)], dim=-1)


def padding_mask(mask: torch.Tensor | None, length: int) -> torch.Tensor | None:
    """Return the mask (B, T) of the last `length` tokens, `None` if there is no padding among them.

    Raises:
        ValueError: The mask is not (B, T).
    """
    if mask is None:
        return None
    if mask.ndim != 2:
        raise ValueError(
            f"recurrent models need an attention_mask of shape (batch, length), got {tuple(cast(Any, mask.shape))}"
        )
    recent = mask[:, -length:]
    return None if recent.device.type == "meta" or bool(recent.all()) else recent


def uniform(module: nn.Module) -> None:
    """Draw weights as `torch.nn` does: maps from U(±1/√fan in), cells from U(±1/√D), embeddings from N(0, 1)."""
    if isinstance(module, nn.Embedding):
        init.normal_(module.weight)
    elif isinstance(module, nn.Linear | nn.RNNBase):
        bound = (module.in_features if isinstance(module, nn.Linear) else module.hidden_size) ** -0.5
        for parameter in module.parameters(recurse=False):
            init.uniform_(parameter, -bound, bound)


def orthogonal(module: nn.Module) -> None:
    """Draw orthogonal recurrent matrices (Saxe et al. 2014) and all others from U(±√(6 / (fan in + fan out))).

    Biases start at 0, those of an LSTM's forget gate at 1 (Jozefowicz et al. 2015), embeddings are N(0, 1/D).
    """
    if isinstance(module, nn.Embedding):
        init.normal_(module.weight, std=module.embedding_dim**-0.5)
    elif isinstance(module, nn.Linear):
        init.xavier_uniform_(module.weight)
        if module.bias is not None:
            init.zeros_(module.bias)
    elif isinstance(module, nn.RNNBase):
        width = module.hidden_size
        for name, parameter in module.named_parameters(recurse=False):  # each gate separately
            if name.startswith("weight_ih"):
                bound = (6 / (parameter.shape[1] + width)) ** 0.5
                init.uniform_(parameter, -bound, bound)
            elif name.startswith("weight_hh") and not parameter.is_meta:
                gates = [nn.init.orthogonal_(torch.empty(width, width)) for _ in range(len(parameter) // width)]
                init.copy_(parameter, torch.cat(gates))
            elif name.startswith("bias"):
                bias = torch.zeros(len(parameter))
                bias[width : 2 * width] = float(isinstance(module, LSTM) and name.startswith("bias_ih"))
                init.copy_(parameter, bias)


RECURRENT_INITIALIZATIONS: dict[str, Callable[[nn.Module], None]] = {"orthogonal": orthogonal, "uniform": uniform}


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
