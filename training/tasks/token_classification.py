"""Train a classifier of tokens: an encoder that finds names, dates, amounts or parts of speech in texts.

Without arguments: a small encoder that finds dates, numbers, amounts, countries and languages in English phrases.

Examples:
  vanillaformer train-token-classifier --train_file train.conll --validation_file dev.conll
  vanillaformer train-token-classifier --train_file rows.jsonl --tags_column pos
  vanillaformer train-token-classifier --model_name_or_path runs/masked --train_file train.conll
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict
from transformers import DataCollatorForTokenClassification, PreTrainedModel, TrainingArguments

from vanillaformer.console.limits import option
from vanillaformer.data.arguments import TokenDataArguments
from vanillaformer.data.caching import TextColumn
from vanillaformer.data.loading import TaskData
from vanillaformer.data.preprocessing.tokenizing import tokenized_rows
from vanillaformer.data.tasks import seqeval_tag
from vanillaformer.modeling.heads import IGNORE_INDEX
from vanillaformer.tokenization import TokenizerAlgorithm
from vanillaformer.tokenization.passages import first_pieces, text_tokenizer

from ..arguments import ModelArguments, TokenizerArguments
from ..metrics.compute import first_output
from ..metrics.scores import compute_scores, seqeval
from ..report.baselines import Baseline, BaselineData, Scorer
from ..report.classes import scores_of_class
from ..report.facts import WIDTH, example_row, first_words
from ..run_folder.run import Run
from ..training_arguments import EPOCHS, EVALUATION, OUTPUT, SAMPLING_STRATEGIES, RunDefaults, best_checkpoint_help
from .base import Default, HardwareFacts, TrainingTask, names_of_training

OUTSIDE = "O"  # the tag of words that are part of no entity
PREFIXES = ("B-", "I-", "E-", "S-", "L-", "U-")
"""Prefixes of tags that mark where in an entity a word is."""
ROWS_SEEN = 40_000
"""Texts seen, over all passes, after which a small model of few texts is as good as it gets."""
TAG_IDS = "label_ids"
"""Column of the tags of the pieces; Trainer keeps it, and does not take it for a target text."""


@dataclass
class TokenTokenizerArguments(TokenizerArguments):
    """A tokenizer whose pieces tell pipelines where words begin."""

    tokenizer_algorithm: TokenizerAlgorithm = option("wordpiece", "Algorithm of a new tokenizer", "Tokenizer")


@dataclass
class TokenTrainingArguments(RunDefaults, TrainingArguments):  # type: ignore[misc]
    """Training arguments of `train-token-classifier`."""

    output_dir: str | None = option("runs/token_classifier", "Folder of the run, resumed if unfinished", OUTPUT)
    num_train_epochs: float = option(5.0, EPOCHS)
    per_device_train_batch_size: int = option(32, "Rows per batch and process")
    metric_for_best_model: str | None = option("entity_f1", best_checkpoint_help("token_classification"), EVALUATION)
    train_sampling_strategy: str = option("group_by_length", "Order of the rows", choices=SAMPLING_STRATEGIES)

    def __post_init__(self) -> None:
        self.choose_by("token_classification")
        super().__post_init__()


class TokenClassification(TrainingTask):
    """Texts with a tag for each token, for an encoder."""

    program = "train-token-classifier"
    arguments = (ModelArguments, TokenDataArguments, TokenTokenizerArguments, TokenTrainingArguments)
    auto_defaults = ("token_classification",)
    follow = "passes over the data"

    def check(self) -> None:
        self.baselines = (TAG_OF_THE_WORD,)
        if self.data_args.streaming:
            raise ValueError("--streaming: the tags of all rows must be known before training begins")

    def defaults(self, data: TaskData, hardware: HardwareFacts) -> list[Default]:
        rows = len(data.splits["train"])
        return [
            Default("max_epochs", max(3, min(30, round(ROWS_SEEN / rows))), f"{rows:,} texts"),
            Default("early_stopping_patience", 5, "more passes than are needed"),
        ]

    def example(self, run: Run, data: TaskData) -> str:
        return first_words(example_row(data.splits["validation"], "tokens"), WIDTH)

    def labels(self, data: TaskData) -> list[str]:
        """Return the tags of the training data; raise ValueError for others in held-out data."""
        tags = {split: set(" ".join(rows["tags"]).split(" ")) for split, rows in data.splits.items()}
        names = sorted(names_of_training(tags, "tag"), key=lambda tag: tag != OUTSIDE)
        if len(names) < 2:
            raise ValueError(f"all tags of the training data are {names[0]!r}: nothing to find")
        return names

    def columns(self, data: TaskData) -> list[Any]:
        return [TextColumn(data.splits["train"], "tokens")]

    def rows(self, data: TaskData) -> DatasetDict:
        tokenizer = text_tokenizer(self.tokenizers[0])
        if not tokenizer.is_fast:
            raise ValueError("the tokenizer must be a fast one, which knows the position of each token in a text")
        encode = partial(tagged_pieces, tokenizer=tokenizer, names=self.labels(data), length=self.length)
        return tokenized_rows(data.splits, encode, {"tokens": self.length}, self.data_args)

    def collator(self, model: PreTrainedModel, rows: DatasetDict) -> Any:
        return partial(collate, padded=DataCollatorForTokenClassification(self.tokenizers[0]))

    def scoring(self, run: Run) -> dict[str, Any]:
        return {
            "processing_class": self.tokenizers[0],
            "compute_metrics": lambda prediction: tag_scores(*zip(*self.tags_of(prediction))),
            # Only the most likely tag of each piece is kept (B, T)
            "preprocess_logits_for_metrics": lambda logits, _: first_output(logits).argmax(-1),
        }

    def fit_model(self, model: PreTrainedModel, run: Run) -> None:
        names: Mapping[int, str] = model.config.id2label  # type: ignore[assignment]
        self.names = np.array([names[number] for number in range(len(names))])

    def tags_of(self, prediction: Any) -> Iterator[tuple[list[str], list[str]]]:
        """Yield the predicted and the true tags of each text, for the words that the model has read."""
        for chosen, labels in zip(prediction.predictions, prediction.label_ids):
            known = labels != IGNORE_INDEX
            yield self.names[chosen[known]].tolist(), self.names[labels[known]].tolist()

    def records(self, run: Run, trainer: Any, rows: Dataset, output: Any, split: str) -> Iterator[dict[str, Any]]:
        predictions, references = zip(*self.tags_of(output))
        options: dict[str, Any] = {"output_dict": True, "zero_division": 0}
        found = seqeval().classification_report(*entities(references, predictions), **options)
        run.details["classes"] = {
            name: scores_of_class(*scores.values()) for name, scores in found.items() if not name.endswith(" avg")
        }
        for text, reference, prediction in zip(rows["tokens"], references, predictions):
            yield {"text": text, "reference": reference, "prediction": prediction}


def tagged_pieces(batch: Mapping[str, Any], *, tokenizer: Any, names: Sequence[str], length: int) -> dict[str, Any]:
    """Return the rows of texts: a tag on the first piece of each word, -100 on others (Devlin et al. 2019).

    Words are found by the offsets of the pieces, so that a model sees the same pieces in training and in use.
    """
    encoded = tokenizer(batch["tokens"], truncation=True, max_length=length, return_offsets_mapping=True)
    numbers, rows = {name: number for number, name in enumerate(names)}, []
    for text, tags, offsets in zip(batch["tokens"], batch["tags"], encoded.pop("offset_mapping")):
        of_words = [numbers.get(tag, IGNORE_INDEX) for tag in tags.split(" ")]
        rows.append([IGNORE_INDEX if word is None else of_words[word] for word in first_pieces(text, offsets)])
    cut = [bool(encoding.overflowing) for encoding in encoded.encodings or []]
    return {**encoded, TAG_IDS: rows, "tokens_cut": cut}


def collate(rows: Sequence[Mapping[str, Any]], *, padded: DataCollatorForTokenClassification) -> Any:
    return padded([{"labels" if name == TAG_IDS else name: row[name] for name in row} for row in rows])


def entities(*sides: Sequence[Sequence[str]]) -> list[list[list[str]]]:
    """Return tags as seqeval reads them: if none has a prefix, like parts of speech, each word is an entity."""
    if any(tag.startswith(PREFIXES) for side in sides for row in side for tag in row):
        return [[[seqeval_tag(tag) for tag in row] for row in side] for side in sides]
    return [[[tag if tag == OUTSIDE else f"B-{tag}" for tag in row] for row in side] for side in sides]


def tag_scores(predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return the scores of the tags of texts: of entities, and the accuracy of single tags."""
    single = [[tag for row in side for tag in row] for side in (predictions, references)]
    return {
        **compute_scores("tags", "tags", *entities(predictions, references)),
        **compute_scores("tags", "ids", *single),
    }


def tag_of_the_word(data: BaselineData) -> Scorer:
    """Give each word its most frequent tag in the training data."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for text, tags in zip(data.texts["tokens"], data.texts["tags"]):
        for word, tag in zip(text.split(" "), tags.split(" ")):
            counts[word][tag] += 1
    known = {word: found.most_common(1)[0][0] for word, found in counts.items()}
    usual = sum(counts.values(), Counter()).most_common(1)[0][0]

    def score(rows: Dataset) -> dict[str, float]:
        predictions = [[known.get(word, usual) for word in text.split(" ")] for text in rows["tokens"]]
        return tag_scores(predictions, [tags.split(" ") for tags in rows["tags"]])

    return score


TAG_OF_THE_WORD = Baseline("tag of the word", tag_of_the_word)
