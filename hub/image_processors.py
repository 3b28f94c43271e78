"""Opening the image processor of a model from somewhere else: no code of its own runs, no image grows huge."""

from pathlib import Path
from typing import Any

from transformers import AutoImageProcessor

from .errors import damage
from .weights import one_line

LARGEST_SIDE = 4_096
"""Pixels of a side that images may be scaled to."""


def open_image_processor(folder: Path, source_name: str = "the model") -> Any:
    """Return the image processor in the folder of a model.

    Args:
        folder: The folder.
        source_name: What the user named the model by.

    Raises:
        ValueError: It cannot be read, or makes too many pixels of an image.
    """
    try:
        processor = AutoImageProcessor.from_pretrained(folder, trust_remote_code=False)
        sides = [side for side in dict(processor.size).values() if side is not None]
    except Exception as error:  # whatever a stranger's file makes transformers stumble over
        raise ValueError(
            f"{source_name}: the image processor cannot be loaded: {one_line(error)}{damage(folder)}"
        ) from error
    if not all(isinstance(side, int) and 0 < side <= LARGEST_SIDE for side in sides):
        raise ValueError(f"{source_name}: its images would be scaled to {sides}, at most {LARGEST_SIDE} are allowed")
    return processor
