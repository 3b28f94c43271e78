"""Heads that were removed from a model, by their names."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

NAME = re.compile(r"(encoder|decoder|cross)\.(0|[1-9]\d*)\.(0|[1-9]\d*)", re.ASCII)


class Head(NamedTuple):
    """A query head.

    Attributes:
        kind: Its attention: the self-attention of a stack, `encoder` or `decoder`, or `cross`, of the decoder to the
            encoder.
        layer: Index of the layer.
        number: Its number in the layer, among those before any was removed.
    """

    kind: str
    layer: int
    number: int

    def __str__(self) -> str:
        return f"{self.kind}.{self.layer}.{self.number}"


def find_head(name: str, heads_by_layer: Mapping[str, Sequence[int]]) -> Head:
    """Return the head of a name such as "encoder.0.3".

    Args:
        name: The name.
        heads_by_layer: The number of heads of each layer by kind of attention.

    Raises:
        ValueError: The model has no such head.
    """
    if match := NAME.fullmatch(name):
        head = Head(match[1], int(match[2]), int(match[3]))
        counts = heads_by_layer.get(head.kind, ())
        if head.layer < len(counts) and head.number < counts[head.layer]:
            return head
    layers = ", ".join(f"{kind} 0 to {len(counts) - 1}" for kind, counts in heads_by_layer.items())
    heads = max(count for counts in heads_by_layer.values() for count in counts)
    raise ValueError(
        f"a head is named 'kind.layer.number', of the layers {layers} and the numbers 0 to {heads - 1}, got {name!r}"
    )


def check_pruned(pruned: Iterable[Head], heads_by_layer: Mapping[str, Sequence[int]], sharing: int) -> None:
    """Raise ValueError if a layer lost all its heads, or only some of the `sharing` heads that share keys."""
    by_layer: dict[tuple[str, int], set[int]] = {}
    for head in pruned:
        by_layer.setdefault((head.kind, head.layer), set()).add(head.number)
    for (kind, layer), numbers in by_layer.items():
        if len(numbers) == heads_by_layer[kind][layer]:
            raise ValueError(f"one head of each layer must remain, got all of {kind}.{layer}")
        if len(numbers) != sharing * len({number // sharing for number in numbers}):
            raise ValueError(
                f"heads that share keys and values are pruned together, {sharing} in a row from a multiple of "
                f"{sharing}, got {sorted(numbers)} of {kind}.{layer}"
            )


def remaining_heads(config: Any, kind: str, layer_idx: int) -> list[int]:
    """Return the numbers of the query heads that a layer has, by the kind of its attention."""
    pruned = config.pruned_heads or ()
    return [number for number in range(config.num_attention_heads) if str(Head(kind, layer_idx, number)) not in pruned]
