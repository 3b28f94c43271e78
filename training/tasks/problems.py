"""What a classifier of texts is asked for: a class, several labels or a number for each text."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset, DatasetDict

from vanillaformer.data.rows import label_names
from vanillaformer.data.tasks import TaskName

from ..metrics import ComputeMetrics, classification_metrics
from ..metrics.scores import compute_scores
from ..report.baselines import LINEAR, MAJORITY, Baseline, BaselineData, Scorer, text_features
from ..report.classes import class_records, labels_and_predictions
from ..run_folder.run import Run

TARGETS = "label_ids"
"""Column of numbers or of labels, which transformers' collators give to the model as `labels`."""
RIDGE = 1.0


class Problem:
    """One class for each text.

    Attributes:
        task: What a model does.
        option: The option that names the column, by which a command asks for it.
        kind: The name in transformers' configs, by which the loss and pipelines go; None where that is the usual one.
        score: The score that chooses the best checkpoint.
    """

    task: ClassVar[TaskName] = "classification"
    option: ClassVar[str] = "label_column"
    kind: ClassVar[str | None] = None
    score: ClassVar[str] = "accuracy"
    baselines: tuple[Baseline, ...] = (MAJORITY,)
    trained_baselines: tuple[Baseline, ...] = (LINEAR,)

    def labels(self, splits: DatasetDict) -> list[str]:
        """Return the names of what the model has outputs for."""
        return label_names(splits)

    def with_targets(self, splits: DatasetDict) -> DatasetDict:
        """Return texts with what the model has to predict."""
        return splits

    def metrics(self) -> ComputeMetrics:
        """Return what turns predictions into scores."""
        return classification_metrics()

    def records(self, run: Run, names: Any, texts: Sequence[str], output: Any, split: str) -> Iterator[dict[str, Any]]:
        """Yield input, reference and prediction of each row."""
        return class_records(run, names, ("text", texts), output, split)


class Several(Problem):
    """Any number of labels for each text: each is a yes or no of its own."""

    task, option, kind, score = "multi_label_classification", "labels_column", "multi_label_classification", "micro_f1"

    def __init__(self) -> None:
        usual = "each label that more than half of the training texts have, for every row"
        linear = "a linear support vector machine for each label on the TF-IDF of words and pairs of words"
        self.baselines = (Baseline("usual labels", usual, self.usual),)
        self.trained_baselines = (Baseline("linear classifiers", linear, self.linear),)

    def labels(self, splits: DatasetDict) -> list[str]:
        """Return the labels of the training data; raise ValueError for others in held-out data, or fewer than two."""
        found = {
            split: {name for text in rows["labels"] for name in json.loads(text)} for split, rows in splits.items()
        }
        names = sorted(found["train"])
        for split, here in found.items():
            if unknown := sorted(here.difference(names)):
                raise ValueError(
                    f"{split} data: the label {unknown[0]!r} does not occur in the training data, which has "
                    f"{', '.join(names[:20])}"
                )
        if len(names) < 2:
            raise ValueError(f"the training data has {len(names)} labels: nothing to choose from")
        return names

    def with_targets(self, splits: DatasetDict) -> DatasetDict:
        self.names = self.labels(splits)
        return DatasetDict(
            {split: rows.add_column(TARGETS, self.indicators(rows).tolist()) for split, rows in splits.items()}
        )

    def indicators(self, rows: Dataset) -> np.ndarray:
        """Return 1 for each label that a text has, 0 for others (N, C)."""
        numbers = {name: number for number, name in enumerate(self.names)}
        found = np.zeros((len(rows), len(numbers)), dtype=np.float32)
        for row, text in enumerate(rows["labels"]):
            found[row, [numbers[name] for name in json.loads(text)]] = 1
        return found

    def metrics(self) -> ComputeMetrics:
        def compute(prediction: Any) -> dict[str, float]:
            labels, logits = labels_and_predictions(prediction)
            return compute_scores("labels", "ids", (logits > 0).astype(int), labels.astype(int))

        return compute

    def records(self, run: Run, names: Any, texts: Sequence[str], output: Any, split: str) -> Iterator[dict[str, Any]]:
        labels, logits = labels_and_predictions(output)
        for text, wanted, found in zip(texts, labels > 0, logits > 0):
            reference, prediction = ([names[number] for number in np.flatnonzero(each)] for each in (wanted, found))
            yield {"text": text, "reference": reference, "prediction": prediction}

    def usual(self, data: BaselineData) -> Scorer:
        """Predict the labels that most training texts have."""
        often = (self.indicators_of(data.texts).mean(axis=0) > 0.5).astype(int)
        return lambda rows: self.scored(np.tile(often, (len(rows), 1)), rows)

    def linear(self, data: BaselineData) -> Scorer:
        """Train a support vector machine for each label."""
        from sklearn.multiclass import OneVsRestClassifier
        from sklearn.svm import LinearSVC

        texts = list(data.texts["text"])
        features = text_features(texts)
        model = OneVsRestClassifier(LinearSVC(random_state=0))
        model.fit(features.fit_transform(texts), self.indicators_of(data.texts).astype(int))
        return lambda rows: self.scored(model.predict(features.transform(list(rows["text"]))), rows)

    def indicators_of(self, rows: Dataset) -> np.ndarray:
        """Return the indicators of raw training rows, whose labels are those of the model."""
        self.names = getattr(self, "names", None) or self.labels(DatasetDict(train=rows))
        return self.indicators(rows)

    def scored(self, predictions: np.ndarray, rows: Dataset) -> dict[str, float]:
        """Return the scores of predictions for held-out rows."""
        wanted = np.asarray(rows[TARGETS]) if TARGETS in rows.column_names else self.indicators(rows)
        return compute_scores("labels", "ids", predictions, wanted.astype(int))


class Numbers(Problem):
    """A number for each text."""

    task, option, kind, score = "regression", "score_column", "regression", "pearson"

    def __init__(self, column: str) -> None:
        self.column = column
        mean = "the mean of the training data, for every row"
        ridge = "ridge regression on the TF-IDF of words and pairs of words, trained on the same texts"
        self.baselines = (Baseline("mean", mean, self.mean),)
        self.trained_baselines = (Baseline("ridge regression", ridge, self.ridge),)

    def labels(self, splits: DatasetDict) -> list[str]:
        return [self.column]

    def with_targets(self, splits: DatasetDict) -> DatasetDict:
        return DatasetDict({split: rows.add_column(TARGETS, self.numbers(rows)) for split, rows in splits.items()})

    def numbers(self, rows: Dataset) -> np.ndarray:
        """Return the numbers of rows (N)."""
        return np.array(rows[TARGETS] if TARGETS in rows.column_names else list(map(float, rows["score"])), np.float32)

    def metrics(self) -> ComputeMetrics:
        def compute(prediction: Any) -> dict[str, float]:
            labels, numbers = labels_and_predictions(prediction)
            return compute_scores("values", "values", *(np.ravel(each).astype(float) for each in (numbers, labels)))

        return compute

    def records(self, run: Run, names: Any, texts: Sequence[str], output: Any, split: str) -> Iterator[dict[str, Any]]:
        labels, numbers = labels_and_predictions(output)
        for text, wanted, found in zip(texts, np.ravel(labels).tolist(), np.ravel(numbers).tolist()):
            yield {"text": text, "reference": wanted, "prediction": found}

    def mean(self, data: BaselineData) -> Scorer:
        """Predict the mean."""
        mean = float(self.numbers(data.texts).mean())
        return lambda rows: self.scored(np.full(len(rows), mean), rows)

    def ridge(self, data: BaselineData) -> Scorer:
        """Train a ridge regression."""
        from sklearn.linear_model import Ridge

        texts = list(data.texts["text"])
        features = text_features(texts)
        model = Ridge(alpha=RIDGE, random_state=0).fit(features.fit_transform(texts), self.numbers(data.texts))
        return lambda rows: self.scored(model.predict(features.transform(list(rows["text"]))), rows)

    def scored(self, predictions: np.ndarray, rows: Dataset) -> dict[str, float]:
        """Return the scores of predictions for held-out rows."""
        return compute_scores("values", "values", predictions, self.numbers(rows))


def problem_of(options: Mapping[str, Any]) -> Problem:
    """Return what options ask for by the column that they name; raise ValueError for two of them."""
    given = [name for name in ("labels_column", "score_column") if options.get(name) is not None]
    if len(given) > 1:
        raise ValueError(f"--{given[0]} and --{given[1]}: a model predicts one of them")
    if not given:
        return Problem()
    return Several() if given[0] == "labels_column" else Numbers(options["score_column"])
