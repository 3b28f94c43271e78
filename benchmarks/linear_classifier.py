"""What a linear classifier of words reaches on the same data: a support vector machine on TF-IDF.

python benchmarks/linear_classifier.py --train_file reviews.parquet --split_column split
python benchmarks/linear_classifier.py --train_file reviews.parquet --split_column split --last_words 200 --ngrams 1

The data options are those of `train_classifier`, so the rows of each split are the same.
"""

from dataclasses import dataclass, field

from datasets import Dataset

from vanillaformer.console.parsing import parse
from vanillaformer.data.arguments import ClassifierDataArguments
from vanillaformer.data.loading import load_data
from vanillaformer.training.report.baselines import linear_classifier


@dataclass
class LinearArguments:
    """The classifier."""

    last_words: int | None = field(default=None, metadata={"help": "Use only so many words at the end of a text."})
    ngrams: int = field(default=2, metadata={"help": "Longest sequence of words that is a feature."})
    c: float = field(default=1.0, metadata={"help": "C of the machine: smaller regularises more."})
    score_test: bool = field(default=False, metadata={"help": "Score the test split too, if there is one."})


def texts_of(rows: Dataset, last_words: int | None) -> list[str]:
    """Return texts, cut to their last words."""
    return (
        list(rows["text"]) if last_words is None else [" ".join(text.split()[-last_words:]) for text in rows["text"]]
    )


def main() -> None:
    """Train, and print the accuracy on the held-out splits."""
    data, linear = parse((ClassifierDataArguments, LinearArguments), description=__doc__)
    rows = load_data(data, "classification").splits
    texts = texts_of(rows["train"], linear.last_words)
    model = linear_classifier(texts, list(rows["train"]["label"]), ngrams=linear.ngrams, c=linear.c)
    for split in ("validation", "test") if linear.score_test else ("validation",):
        if split in rows:
            accuracy = model.score(texts_of(rows[split], linear.last_words), list(rows[split]["label"]))
            print(f"{split}: {accuracy:.2%} of {len(rows[split]):,} rows")


if __name__ == "__main__":
    main()
