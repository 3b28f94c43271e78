"""Scores as `evaluate` metrics that need no network; training calls the functions themselves."""

from typing import Any

import datasets
import evaluate

from .scores import ENTRIES, SCORES, Inputs

TEXT, ID, LOSS = (datasets.Value(kind) for kind in ("string", "int64", "float64"))
COLUMNS: dict[Inputs, list[tuple[Any, Any]]] = {
    "texts": [(TEXT, TEXT), (TEXT, datasets.Sequence(TEXT))],
    "ids": [(ID, ID)],
    "losses": [(LOSS, ID)],
    "values": [(LOSS, LOSS)],
    "tags": [(datasets.Sequence(TEXT), datasets.Sequence(TEXT))],
}
"""Types of predictions and references."""


class Metric(evaluate.Metric):
    """A score of `SCORES` that has a function, as an `evaluate` metric: `.compute(predictions=..., references=...)`.

    `options` are those of its function: `tokenize` and `lowercase` of bleu.
    """

    def __init__(self, name: str, **options: Any):
        functions = {score.name: score.function for score in ENTRIES if score.function}
        if name not in functions:
            raise ValueError(f"no metric computes {name!r}: choose from {', '.join(functions)}")
        self.score, self.function, self.options = SCORES[name], functions[name], options
        super().__init__(keep_in_memory=True)

    def _info(self) -> evaluate.MetricInfo:
        text = str(self.function.__doc__)
        features = [
            datasets.Features({"predictions": predicted, "references": wanted})
            for predicted, wanted in COLUMNS[self.score.inputs]
        ]
        return evaluate.MetricInfo(
            description=text, citation="", inputs_description=text, features=features if features[1:] else features[0]
        )

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        return {self.score.name: self.function(predictions, references, **self.options)}
