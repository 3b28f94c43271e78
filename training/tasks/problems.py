"""Problem types of text classifiers: a class, several labels or a number for each text."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset, DatasetDict
from sklearn.linear_model import Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import MultiLabelBinarizer

from vanillaformer.data.rows import label_names
from vanillaformer.data.tasks import Prediction, TaskName

from ..metrics.compute import ComputeMetrics, classification_metrics, labels_and_predictions
from ..metrics.scores import Inputs, compute_scores
from ..report.baselines import LINEAR, MAJORITY, Baseline, BaselineData, Scorer, Scores, linear_model, new_svm
from ..report.classes import class_records
from ..run_folder.run import Run
from .base import names_of_training

TARGETS = "label_ids"
"""Column of numbers or of labels, which transformers' collators pass to the model as `labels`."""


class Problem:
    """One class for each text."""

    task: ClassVar[TaskName] = "classification"
    option: ClassVar[str] = "label_column"  # names the column, and selects the problem
    kind: ClassVar[str | None] = None  # `problem_type` of the config, which selects the loss; None for classes
    score: ClassVar[str] = "accuracy"  # which chooses the best checkpoint
    baselines: tuple[Baseline, ...] = (MAJORITY,)
    trained_baselines: tuple[Baseline, ...] = (LINEAR,)

    def labels(self, splits: DatasetDict) -> list[str]:
        """Return the names of the model's outputs."""
        return label_names(splits)

    def with_targets(self, splits: DatasetDict) -> DatasetDict:
        """Return the splits with the column that the model has to predict."""
        return splits

    def metrics(self) -> ComputeMetrics:
        """Return the function that turns predictions into scores."""
        return classification_metrics

    def records(self, run: Run, names: Any, texts: Sequence[str], output: Any, split: str) -> Iterator[dict[str, Any]]:
        """Yield input, reference and prediction of each row."""
        return class_records(run, names, ("text", texts), output, split)


class NumericProblem(Problem):
    """Numbers for each text, with which a model's outputs are compared one by one."""

    compared: ClassVar[tuple[Prediction, Inputs]]  # the kind of predictions, and their form in scores

    read: Callable[[Dataset], Any]  # the numbers of raw rows (N, ...)
    answers: Callable[[Any], np.ndarray]  # outputs or targets in the form of scores
    words: Callable[[Any, Mapping[int, str]], Any]  # an answer in the form of written predictions

    def targets(self, rows: Dataset) -> np.ndarray:
        """Return the targets of raw or prepared rows."""
        return np.asarray(rows[TARGETS] if TARGETS in rows.column_names else self.read(rows), np.float32)

    def with_targets(self, splits: DatasetDict) -> DatasetDict:
        self.labels(splits)  # checks them
        return DatasetDict(
            {split: rows.add_column(TARGETS, self.targets(rows).tolist()) for split, rows in splits.items()}
        )

    def scores(self, predictions: Any, references: Any) -> Scores:
        return compute_scores(*self.compared, self.answers(predictions), self.answers(references))

    def metrics(self) -> ComputeMetrics:
        return lambda prediction: self.scores(*reversed(labels_and_predictions(prediction)))

    def records(self, run: Run, names: Any, texts: Sequence[str], output: Any, split: str) -> Iterator[dict[str, Any]]:
        for text, *both in zip(texts, *map(self.answers, labels_and_predictions(output))):
            reference, prediction = (self.words(each, names) for each in both)
            yield {"text": text, "reference": reference, "prediction": prediction}

    def constant(self, value: Callable[[np.ndarray], Any]) -> Callable[[BaselineData], Scorer]:
        """Return a baseline that predicts the same for every row: a value of the training targets."""

        def fit(data: BaselineData) -> Scorer:
            found = value(self.targets(data.rows))
            return lambda rows: self.scores(np.stack([found] * len(rows)), self.targets(rows))

        return fit

    def linear(self, build: Callable[[], Any]) -> Callable[[BaselineData], Scorer]:
        return linear_model(build, lambda rows: self.answers(self.targets(rows)), self.scores)


class Several(NumericProblem):
    """Any number of labels for each text, as indicators 1 and 0 (N, C)."""

    task, option, kind, score = "multi_label_classification", "labels_column", "multi_label_classification", "micro_f1"
    compared = "labels", "ids"

    def __init__(self) -> None:
        self.names: list[str] = []
        self.baselines = (Baseline("usual labels", self.constant(lambda targets: targets.mean(axis=0) > 0.5)),)
        linear = self.linear(lambda: OneVsRestClassifier(new_svm()))
        self.trained_baselines = (Baseline("linear classifiers", linear),)

    def labels(self, splits: DatasetDict) -> list[str]:
        """Return the labels of the training data; raise ValueError for others in held-out data, or fewer than two."""
        found = {
            split: {name for text in rows["labels"] for name in json.loads(text)} for split, rows in splits.items()
        }
        self.names = names_of_training(found, "label")
        if len(self.names) < 2:
            raise ValueError(f"the training data has only the labels {self.names}: at least two are needed")
        return self.names

    def read(self, rows: Dataset) -> np.ndarray:
        names = self.names or self.labels(DatasetDict(train=rows))
        return MultiLabelBinarizer(classes=names).fit_transform([json.loads(text) for text in rows["labels"]])

    def answers(self, values: Any) -> np.ndarray:
        return (np.asarray(values) > 0).astype(int)

    def words(self, answer: Any, names: Mapping[int, str]) -> list[str]:
        return [names[number] for number in np.flatnonzero(answer).tolist()]


class Numbers(NumericProblem):
    """A number for each text."""

    task, option, kind, score = "regression", "score_column", "regression", "pearson"
    compared = "values", "values"

    def __init__(self, column: str) -> None:
        self.column = column
        self.baselines = (Baseline("mean", self.constant(np.mean)),)
        self.trained_baselines = (Baseline("ridge regression", self.linear(lambda: Ridge(random_state=0))),)

    def labels(self, splits: DatasetDict) -> list[str]:
        return [self.column]

    def read(self, rows: Dataset) -> list[float]:
        return list(map(float, rows["score"]))

    def answers(self, values: Any) -> np.ndarray:
        return np.ravel(values).astype(float)

    def words(self, answer: Any, names: Mapping[int, str]) -> float:
        return float(answer)


def problem_of(options: Mapping[str, Any]) -> Problem:
    """Return the problem whose column the options name; raise ValueError for two columns."""
    given = [name for name in ("labels_column", "score_column") if options.get(name) is not None]
    if len(given) > 1:
        raise ValueError(f"--{given[0]} and --{given[1]}: a model predicts one of them")
    if not given:
        return Problem()
    return Several() if given[0] == "labels_column" else Numbers(options["score_column"])
