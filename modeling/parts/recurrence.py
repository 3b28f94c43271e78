"""Recurrent layers that padding does not touch: torch's own, with their fused kernels and their weights' names.

Shape letters: B batch, T length, E input width, D width of a state, L layers times directions.
"""

from typing import Any, cast

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

States = tuple[torch.Tensor, ...]
"""Tensors (B, ...) that a step passes to the next one."""


class Recurrence(nn.RNNBase):
    """Mixin of torch's recurrent layers: one form of state for all cells, (B, L, D) each, and masks."""

    num_states = 1

    def run(
        self, x: torch.Tensor, states: States | None = None, mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, States]:
        """Return the outputs (B, T, directions * D) and the states after the last token of each row.

        Padding (0 in the mask (B, T)) may stand anywhere; it leaves states unchanged, and its outputs are 0.
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
        empty = (lengths == 0)[:, None, None]  # of which one token was read all the same
        old = states or (x.new_zeros(()),) * self.num_states
        return outputs, tuple(torch.where(empty, was, now) for was, now in zip(old, self.separate(after)))

    def joined(self, states: States | None) -> Any:
        """Return states (L, B, D) as torch's layer takes them."""
        return None if states is None else states[0]

    def separate(self, states: Any) -> States:
        """Return the states (B, L, D) of those that torch's layer returns."""
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
    """Return the states at which the directions end, (B, S, directions * D) → (B, directions * D).

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
