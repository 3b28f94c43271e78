"""Validated fields: the numbers and names that a config accepts."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union

from huggingface_hub.dataclasses import as_validated_field
from transformers.activations import ACT2FN

T = TypeVar("T")
if TYPE_CHECKING:
    Derived = Annotated[T, "derived"]
else:
    Derived = Union[T, None]  # noqa: UP007 - subscripted below, which `|` of a variable cannot be
"""Type of a field that is derived from others if it is left at `None`; after construction it is never `None`."""


def validated(holds: Callable[[Any], bool], allowed: str) -> Callable[..., Any]:
    """Return a function that makes a field whose values, except `None`, pass a test; `allowed` describes them."""

    @as_validated_field
    def check(value: Any = None) -> None:
        if value is not None and not holds(value):
            raise ValueError(f"must be {allowed}, got {value!r}")

    return check


positive = validated(lambda value: not isinstance(value, bool) and value >= 1, "an integer of at least 1")
non_negative = validated(lambda value: 0 <= value < float("inf"), "a finite number of at least 0")
above_zero = validated(lambda value: 0 < value < float("inf"), "a finite number greater than 0")
probability = validated(lambda value: 0 <= value < 1, "at least 0 and less than 1")
activation = validated(lambda value: value in ACT2FN, f"one of {', '.join(sorted(ACT2FN))}")
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


@as_validated_field
def projections(value: bool | list[str] | None = None) -> None:
    """Field that is true for all attention projections, for none, or for those in a list."""
    wrong = [name for name in value if name not in PROJECTIONS] if isinstance(value, list) else []
    if wrong or (isinstance(value, list) and len(set(value)) < len(value)):
        raise ValueError(
            f"must be true, false or a list of different names out of {', '.join(PROJECTIONS)}, got {value!r}"
        )
