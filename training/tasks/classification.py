"""Train a classifier of texts: an encoder or a decoder, from scratch or from the weights of a language model.

Without arguments: a small encoder that tells the language of a name (countries, languages, currencies) in 20 locales.

Examples:
  vanillaformer train-classifier --train_file reviews.csv --text_column review --label_column stars
  vanillaformer train-classifier --dataset imdb --preset bert-base --max_length 512
  vanillaformer train-classifier --model_name_or_path runs/masked --train_file reviews.csv
  vanillaformer train-classifier --train_file nli.csv --text_pair_column hypothesis
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from datasets import DatasetDict
from transformers import DataCollatorWithPadding, PreTrainedModel, TrainingArguments

from vanillaformer.console.limits import option
from vanillaformer.console.parsing import was_given
from vanillaformer.data.arguments import ClassifierDataArguments
from vanillaformer.data.caching import TextColumn
from vanillaformer.data.loading import TaskData
from vanillaformer.data.preprocessing.packing import fit_packing
from vanillaformer.data.preprocessing.tokenizing import classification_rows, encode_texts, set_truncation_side
from vanillaformer.data.rows import label_names
from vanillaformer.data.streaming import StreamedRows, TextStream
from vanillaformer.data.tasks import TaskName
from vanillaformer.tokenization.passages import PAIR

from ..arguments import ModelArguments, TokenizerArguments
from ..metrics.scores import ranking_names, ranking_score
from ..report.calibration import fit_ngram_svm, fit_outputs
from ..report.facts import WIDTH, example_row, first_words
from ..run_folder.run import Run
from ..trainer.losses import TokenDropoutArguments
from ..training_arguments import EVALUATION, OUTPUT, SAMPLING_STRATEGIES, TRAINING, RunDefaults, best_checkpoint_help
from .base import Default, HardwareFacts, LengthRule, TrainingTask
from .problems import problem_of

UNKNOWN_WORDS = 0.35  # share of unknown held-out words from which on words are poor tokens
CHARACTERS = ("character", "chinese_character")  # tokenizer algorithms without words
VOCABULARY = {True: 20_000, False: 4_000}  # largest vocabulary of words, and of characters
LONG_TEXT = 100  # mean words per text from which on half of a text is enough to tell its class
FEW_ROWS, FEW_HELD_OUT, MANY_CLASSES = 4_000, 2_000, 10
"""Bounds of small data: training texts, validation texts (below it the loss chooses the checkpoint), classes."""
STEPS = 1_000  # steps after which a model of few classes is as good as it gets
BIGRAMS = 2_000_000  # training words from which on pairs of words have embeddings too
TASKS_OF_TEXTS: tuple[TaskName, ...] = ("classification", "multi_label_classification", "regression")
LENGTHS = LengthRule({"max_length": "texts"}, longest=1024, readable=512)


@dataclass
class ClassifierTrainingArguments(TokenDropoutArguments, RunDefaults, TrainingArguments):  # type: ignore[misc]
    """Training arguments of `train-classifier`."""

    HELP_GROUP = TRAINING

    output_dir: str | None = option("runs/classifier", "Folder of the run, resumed if unfinished", OUTPUT)
    metric_for_best_model: str | None = option(
        "accuracy", f"{best_checkpoint_help(*TASKS_OF_TEXTS)} (else micro_f1, pearson)", EVALUATION
    )
    baseline: bool = option(False, "Score a linear classifier on the same rows", EVALUATION)
    calibrate: bool = option(True, "Calibrate probabilities on validation data", EVALUATION)
    train_sampling_strategy: str = option("group_by_length", "Order of the rows", choices=SAMPLING_STRATEGIES)

    def __post_init__(self) -> None:
        name = str(self.metric_for_best_model).removeprefix("eval_")
        self.choose_by(next((task for task in TASKS_OF_TEXTS if name in ranking_names(task)), "classification"))
        super().__post_init__()


class Classification(TrainingTask):
    """Texts, or pairs of them, with a class, several labels or a number, for an encoder or a decoder."""

    program = "train-classifier"
    arguments = (ModelArguments, ClassifierDataArguments, TokenizerArguments, ClassifierTrainingArguments)
    auto_defaults = ("classification",)
    follow = "tokenizer, length, sizes, learning rate and passes (classes)"
    lengths = LENGTHS

    @classmethod
    def name_of(cls, options: Mapping[str, Any]) -> TaskName:
        return problem_of(options).task

    def check(self) -> None:
        self.problem = problem_of(vars(self.data_args))
        self.baselines, self.trained_baselines = self.problem.baselines, self.problem.trained_baselines
        args, data_args = self.training_args, self.data_args
        if not was_given(args, "metric_for_best_model"):
            args.metric_for_best_model = self.problem.score  # same direction as the default
        ranking_score(str(args.metric_for_best_model), self.name)
        pairs, several = data_args.text_pair_column is not None, self.problem.kind is not None
        option = "text_pair_column" if pairs else self.problem.option
        for name in ("streaming", "packing") if pairs or several else ():
            if getattr(data_args, name):
                raise ValueError(f"--{name} does not go with --{option} {getattr(data_args, option)}")
        data_args.packing = False if pairs or several else data_args.packing
        for name in ("label_smoothing_factor", "r_drop") if several else ():
            if value := getattr(args, name):
                raise ValueError(f"--{name} {value} is for single labels, not for --{option}")
        if several:
            args.calibrate = False

    def labels(self, data: TaskData) -> list[str]:
        return self.problem.labels(data.splits)

    def defaults(self, data: TaskData, hardware: HardwareFacts) -> list[Default]:
        texts, held_out = (TextColumn(data.splits[split], "text").sample() for split in ("train", "validation"))
        sizes = {"rows": len(data.splits["train"]), "held_out": len(data.splits["validation"])}
        facts = text_facts(texts, held_out, classes=len(label_names(data.splits)), **sizes)
        given, tokenizer_args = self.data_args, self.tokenizer_args
        assert tokenizer_args is not None
        limit = self.model_args.config_overrides().get("max_position_embeddings", LENGTHS.longest)
        length = given.max_length if was_given(given, "max_length") else limit
        chosen = was_given(tokenizer_args, "tokenizer_algorithm")
        found = classifier_defaults(facts, length, tokenizer_args.tokenizer_algorithm if chosen else None)
        return [entry for entry in found if data.stream is None or entry.option != "max_epochs"]

    def example(self, run: Run, data: TaskData) -> str:
        sides = example_row(data.splits["validation"], "text").split(PAIR)
        return PAIR.join(first_words(side, WIDTH) for side in sides)

    def columns(self, data: TaskData) -> list[Any]:
        separator = None if self.data_args.text_pair_column is None else PAIR
        return [TextColumn(data.splits["train"], "text", separator)]

    def rows(self, data: TaskData) -> DatasetDict:
        set_truncation_side(self.tokenizers[0], self.data_args.truncation_side)
        if self.data_args.text_pair_column is not None and self.tokenizers[0].sep_token is None:
            raise ValueError(
                f"--text_pair_column {self.data_args.text_pair_column}: the tokenizer has no token to put between two "
                "texts; train an encoder"
            )
        return classification_rows(self.problem.with_targets(data.splits), self.tokenizers[0], self.data_args)

    def stream(self, texts: TextStream) -> StreamedRows:
        encode = encode_texts(self.tokenizers[0], self.length)
        return StreamedRows(texts, encode, long_texts=self.data_args.long_texts)

    def fit_model(self, model: PreTrainedModel, run: Run) -> None:
        model.config.problem_type = self.problem.kind  # type: ignore[assignment]

    def collator(self, model: PreTrainedModel, rows: DatasetDict) -> Any:
        typed = "token_type_ids" in rows["train"].column_names and getattr(model.config, "type_vocab_size", 2) == 1
        if typed and self.data_args.text_pair_column is not None:
            raise ValueError(
                f"--text_pair_column {self.data_args.text_pair_column}: the model has type_vocab_size=1, but a pair "
                "has two types of tokens: --set type_vocab_size=2"
            )
        padded = DataCollatorWithPadding(self.tokenizers[0])
        return fit_packing(model, self.data_args.packing, rows["train"], self.training_args, padded)

    def scoring(self, run: Run) -> dict[str, Any]:
        return {"processing_class": self.tokenizers[0], "compute_metrics": self.problem.metrics()}

    def before_training(self, trainer: Any) -> None:
        self.svm = fit_ngram_svm(trainer)
        super().before_training(trainer)

    def after_training(self, run: Run, trainer: Any, rows: Any) -> None:
        fit_outputs(run, trainer, rows, self.svm)

    def records(self, run: Run, trainer: Any, rows: Any, output: Any, split: str) -> Any:
        texts = [text.replace(PAIR, "\t") for text in rows["text"]]
        return self.problem.records(run, trainer.model.config.id2label, texts, output, split)


class TextFacts(NamedTuple):
    """Statistics of the texts of a classifier."""

    rows: int  # training texts
    classes: int
    words: float  # mean number in a text
    mean_characters: float
    unknown: float  # share of the validation data's words that the training data lacks
    held_out: int  # validation texts


def text_facts(
    texts: Sequence[str], validation: Sequence[str], *, rows: int, classes: int, held_out: int
) -> TextFacts:
    """Return the facts about texts, from samples of the training and validation data."""
    known = {word for text in texts for word in text.lower().split()}
    new = [word for text in validation for word in text.lower().split()]
    return TextFacts(
        rows=rows,
        classes=classes,
        words=sum(len(text.split()) for text in texts) / len(texts),
        mean_characters=sum(map(len, texts)) / len(texts),
        unknown=sum(word not in known for word in new) / max(1, len(new)),
        held_out=held_out,
    )


def classifier_defaults(facts: TextFacts, length: int, algorithm: str | None = None) -> list[Default]:
    """Return the defaults of a new classifier; docs/training.md has them as a table.

    `length` is the maximum number of tokens in a row, `algorithm` the tokenizer's, if it was given.
    """
    by_words = algorithm not in CHARACTERS and (algorithm == "word" or facts.unknown < UNKNOWN_WORDS)
    many, long = facts.classes > MANY_CLASSES, facts.words >= LONG_TEXT
    tokens = facts.rows * min(length, facts.words if by_words else facts.mean_characters)
    batch = 64 if many else 16 if facts.rows < FEW_ROWS else 32
    fields = classifier_fields(facts.classes, tokens, by_words=by_words, many=many, long=long)
    epochs = 10 if many else round(max(4, min(12, STEPS * batch / facts.rows)))
    size = f"{facts.rows:,} texts in {facts.classes} classes"
    kind = f"{facts.words:.0f} words in a text, {facts.classes} classes"
    unknown = f"{facts.unknown:.0%} of the words in the validation data are unknown"
    found = [
        Default("tokenizer_algorithm", "word" if by_words else "character", unknown),
        Default("tokenizer_vocab_size", VOCABULARY[by_words], "a table that these texts fill"),
        Default("tokenizer_min_frequency", 1 if tokens < BIGRAMS else 2, "rare words count only in few texts"),
        Default("lowercase", by_words, "words are equal in either case" if by_words else "case tells names apart"),
        Default("overrides", [f"{name}={value}" for name, value in fields.items()], size),
        Default("per_device_train_batch_size", batch, "many small steps"),
        Default("learning_rate", 4e-3 if many else 1.5e-3, "a small model"),
        Default("lr_scheduler_type", "cosine", "best at its end"),
        Default("weight_decay", 0.1, "little data"),
        Default("label_smoothing_factor", 0.1, "little data"),
        Default("token_dropout", 0.1 if many else 0.5 if long else 0.3, kind),
        Default("max_epochs", epochs, size),
        Default("early_stopping_patience", 5, "more passes than are needed"),
    ]
    if facts.held_out < FEW_HELD_OUT:
        found += [
            Default("metric_for_best_model", "loss", f"steadier than the accuracy on {facts.held_out:,} texts"),
            Default("greater_is_better", False, "a loss"),
        ]
    if by_words and long:
        found.append(Default("strip_punctuation", True, "the words of a long text say enough"))
    return found


def classifier_fields(classes: int, tokens: float, *, by_words: bool, many: bool, long: bool) -> dict[str, Any]:
    """Return the config fields of a new classifier for a number of training tokens, either words or characters.

    `many` tells whether there are many classes, `long` whether half of a text is enough to tell its class.
    """
    width = 128 if many else 64
    ngram = (2 if many or tokens >= BIGRAMS else 1) if by_words else 4
    wide_ngram = 2 if by_words else 4
    # The linear classifier's table has many more rows than the texts have n-grams, so that few of them share a row
    wanted = 2 ** round(8 * tokens * wide_ngram).bit_length()
    buckets = min(2**17, max(2**12, 2 ** round(tokens).bit_length() // (8 if by_words else 16)))
    return {
        "hidden_size": width,
        "num_hidden_layers": 1,
        "num_attention_heads": width // 32,
        "intermediate_size": 4 * width,
        "max_ngram": ngram,
        **({"ngram_buckets": buckets} if ngram > 1 else {}),
        "classifier_pooling": "mean",
        "dropout": 0.3 if long else 0.2,
        "wide_max_ngram": wide_ngram,
        "wide_buckets": max(2**12, min(wanted, 2**20, 2**23 // 2 ** (classes - 1).bit_length())),
    }
