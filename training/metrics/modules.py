"""Scores as `evaluate` metrics that are part of this package: `evaluate.load` would ask the network for them."""

from typing import Any

import datasets
import evaluate

from .scores import ENTRIES, SCORES, Inputs

TEXT, ID, LOSS = (datasets.Value(kind) for kind in ("string", "int64", "float64"))
FEATURES: dict[Inputs, list[datasets.Features]] = {
    "texts": [
        datasets.Features({"predictions": TEXT, "references": each}) for each in (TEXT, datasets.Sequence(TEXT))
    ],
    "ids": [datasets.Features({"predictions": ID, "references": ID})],
    "losses": [datasets.Features({"predictions": LOSS, "references": ID})],
}


class Metric(evaluate.Metric):
    """A score of `SCORES` that has a function, as an `evaluate` metric: `.compute(predictions=..., references=...)`.

    Args:
        name: The score's name.
        **options: For its function: `tokenize` and `lowercase` of bleu.

    Raises:
        ValueError: There is no such score, or it is derived from others.
    """

    def __init__(self, name: str, **options: Any):
        functions = {score.name: score.function for score in ENTRIES if score.function}
        if name not in functions:
            raise ValueError(f"no metric computes {name!r}: choose from {', '.join(functions)}")
        self.score, self.function, self.options = SCORES[name], functions[name], options
        super().__init__(keep_in_memory=True)

    def _info(self) -> evaluate.MetricInfo:
        text, features = str(self.function.__doc__), FEATURES[self.score.inputs]
        return evaluate.MetricInfo(
            description=text, citation="", inputs_description=text, features=features if features[1:] else features[0]
        )

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        return {self.score.name: self.function(predictions, references, **self.options)}
