"""The embedded image corpus: handwritten digits, which come with scikit-learn."""

import io
from functools import partial
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image

from ..images import pillow
from .corpus import Corpus

NAMES = [str(number) for number in range(10)]
BRIGHTEST = 16


def digits_corpus(data_args: Any) -> Corpus:
    """Describe the corpus that the data arguments ask for."""
    return Corpus(
        name="handwritten digits of scikit-learn",
        identifier="scikit-learn-digits",
        description=(
            '1,797 handwritten digits of 43 people, scaled to 8 by 8 pixels: the test part of "Optical Recognition of '
            'Handwritten Digits" (Alpaydin and Kaynak, UCI 1998), as scikit-learn has it.'
        ),
        license="CC BY 4.0",
        languages=[],
        limits="It has seen only white digits on black, 8 by 8 pixels large.",
        load=partial(digits, seed=data_args.split_seed),
    )


def digits(*, seed: int = 0) -> DatasetDict:
    """Return the digits with their classes: columns `image` and `label`; a tenth is validation, a tenth test data.

    Args:
        seed: The same seed gives the same splits.
    """
    from sklearn.datasets import load_digits  # only here: most runs need it not

    found = load_digits()
    order = np.random.default_rng(seed).permutation(len(found.target))
    tenth = len(order) // 10
    parts = {"train": order[2 * tenth :], "validation": order[:tenth], "test": order[tenth : 2 * tenth]}
    features = Features({"image": Image(), "label": ClassLabel(names=NAMES)})
    return DatasetDict(
        {
            name: Dataset.from_dict(
                {
                    "image": [{"bytes": _png(found.images[row]), "path": f"{row}.png"} for row in rows.tolist()],
                    "label": found.target[rows].tolist(),
                },
                features=features,
            )
            for name, rows in parts.items()
        }
    )


def _png(image: np.ndarray) -> bytes:
    stream = io.BytesIO()
    pillow().fromarray((image * 255 / BRIGHTEST).round().astype(np.uint8)).save(stream, "PNG")
    return stream.getvalue()
