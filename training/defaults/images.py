"""Defaults of a new classifier of images that follow how many there are, their size and the time to train."""

from .choices import Default

MOST_EPOCHS, FEWEST_EPOCHS = 60, 10
"""Passes over few and over many images."""
SMALL = 20
"""Pixels of a side below which a shift by one changes too much."""
IMAGES_SEEN = 30_000
"""Images, each as often as there are passes, after which a small model of few images is as good as it gets."""


def image_defaults(rows: int, size: int) -> list[Default]:
    """Return the defaults of a new classifier of images.

    Args:
        rows: Number of training images.
        size: Their height and width in pixels.
    """
    epochs = max(FEWEST_EPOCHS, min(MOST_EPOCHS, round(IMAGES_SEEN / rows)))
    return [
        *([Default("shift", round(size / 14), "a shifted image has the same class")] if size >= SMALL else []),
        Default("label_smoothing_factor", 0.1, "less sure of itself"),
        Default("per_device_train_batch_size", 32 if rows < 5_000 else 64, f"{rows:,} images"),
        Default("max_epochs", epochs, f"{rows:,} images"),
    ]
