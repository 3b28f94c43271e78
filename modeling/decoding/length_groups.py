"""Sources of similar length encoded and attended to together, so that little padding is computed.

Shape letters: B batch, S length of the source, D model width.
"""

from collections.abc import Callable
from typing import Any

import torch

ROWS = 8
"""Rows in a group at least: fewer leave a processor's matrix units idle."""
PARTS = 8
"""Groups at most."""
WORTHWHILE = 0.75
"""Part of the computation that may remain."""


def length_groups(mask: torch.Tensor | None) -> list[tuple[torch.Tensor, int]]:
    """Return the rows of a padding mask (B, S) in groups of similar length, with the longest; none if it does not pay.

    A graphics card computes all rows at once, so that groups are for the CPU; padding has to be on the right.
    """
    if mask is None or mask.ndim != 2 or mask.device.type != "cpu" or len(mask) <= ROWS:
        return []
    lengths = mask.sum(dim=1)
    if not torch.equal(mask.bool(), torch.arange(mask.shape[1]) < lengths[:, None]):
        return []
    rows = lengths.argsort().split(max(ROWS, -(-len(mask) // PARTS)))
    groups = [(some, max(1, int(lengths[some].max()))) for some in rows]
    computed = sum(len(some) * longest for some, longest in groups)
    return groups if computed <= WORTHWHILE * mask.numel() else []


def encode_in_groups(encode: Callable[..., dict[str, Any]], inputs: torch.Tensor, values: dict[str, Any]) -> Any:
    """Return the output of an encoder, whose states (B, S, D) are 0 on padding; None where groups do not pay.

    Args:
        encode: Puts the output for `inputs_tensor` and `model_kwargs` among the latter, as `encoder_outputs`.
        inputs: Tokens (B, S) or their embeddings (B, S, D).
        values: The other inputs, of which tensors (B, S, ...) go with the rows.
    """
    mask = values.get("attention_mask")
    states, outputs = torch.empty(0), None
    for rows, longest in length_groups(mask):
        assert mask is not None
        part = rows, slice(longest)
        padded = {key: x for key, x in values.items() if isinstance(x, torch.Tensor) and x.shape[:2] == mask.shape}
        own = {key: x[part] for key, x in padded.items()}
        outputs = encode(inputs_tensor=inputs[part], model_kwargs=values | own)["encoder_outputs"]
        if not len(states):
            states = outputs[0].new_zeros(*mask.shape, outputs[0].shape[-1])
        states[part] = outputs[0]
    if outputs is not None:
        outputs.last_hidden_state = states
    return outputs
