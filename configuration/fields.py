"""Validated kinds of field: which numbers and names a config accepts."""

from typing import TYPE_CHECKING, Annotated, TypeVar, Union

from huggingface_hub.dataclasses import as_validated_field
from transformers.activations import ACT2FN

T = TypeVar("T")
if TYPE_CHECKING:
    Derived = Annotated[T, "derived"]
else:
    Derived = Union[T, None]  # noqa: UP007 - subscripted below, which `|` of a variable cannot be
"""Type of a field that is derived from others if it is left at `None`; after construction it is never `None`."""


@as_validated_field
def positive(value: int | None = None) -> None:
    """Field of a count of at least 1 (`None` for a derived value)."""
    if value is not None and (isinstance(value, bool) or value < 1):
        raise ValueError(f"must be an integer of at least 1, got {value!r}")


@as_validated_field
def non_negative(value: int | float | None = None) -> None:
    """Field of a number of at least 0."""
    if value is not None and not 0 <= value < float("inf"):
        raise ValueError(f"must be a finite number of at least 0, got {value!r}")


@as_validated_field
def above_zero(value: int | float | None = None) -> None:
    """Field of a factor or a cap that must be greater than 0 (`None` for none)."""
    if value is not None and not 0 < value < float("inf"):
        raise ValueError(f"must be a finite number greater than 0, got {value!r}")


@as_validated_field
def probability(value: float | int | None = None) -> None:
    """Field of a dropout rate: at least 0 and less than 1."""
    if value is not None and not 0 <= value < 1:
        raise ValueError(f"must be at least 0 and less than 1, got {value!r}")


@as_validated_field
def activation(value: str | None = None) -> None:
    """Field of an activation function known to transformers."""
    if value is not None and value not in ACT2FN:
        raise ValueError(f"must be one of {', '.join(sorted(ACT2FN))}, got {value!r}")


PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


@as_validated_field
def projections(value: bool | list[str] | None = None) -> None:
    """Field that is true for all projections of attention, for none, or for those in a list."""
    wrong = [name for name in value if name not in PROJECTIONS] if isinstance(value, list) else []
    if wrong or (isinstance(value, list) and len(set(value)) < len(value)):
        raise ValueError(
            f"must be true, false or a list of different names out of {', '.join(PROJECTIONS)}, got {value!r}"
        )
