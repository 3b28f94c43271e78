"""Defaults of a new classifier that follow its texts, its classes and the time to train."""

from collections.abc import Sequence
from typing import NamedTuple

from .choices import Default, Machine

TOKENS_PER_CORE_SECOND = 50_000
"""Tokens that a processor core trains a model of width 64 on, in a second; it is about linear in the width."""
PARAMETERS_PER_CORE_SECOND = 150_000_000
"""Parameters of embeddings that it updates in a second, at every step."""
UNKNOWN_WORDS = 0.35
"""Share of held-out words without which words are no good tokens."""
CHARACTERS = ("character", "chinese_character")
"""Algorithms of tokenizers without words."""
VOCABULARY = {True: 20_000, False: 4_000}
"""Largest vocabulary of words, and of characters."""
LONG_TEXT = 100
"""Mean words of texts of which half are enough to tell the class."""
FEW_ROWS = 4_000
STEPS = 1_000
"""Steps after which a model of few classes is as good as it gets."""
MANY_CLASSES = 10
BIGRAMS = 2_000_000
"""Training words from which on pairs of words have vectors of their own."""
FEW_HELD_OUT = 2_000
"""Validation texts below which the loss chooses the best checkpoint."""
STUDENT = 2
"""Passes of a student for each pass of its teachers."""
ENSEMBLES = (4, 2)
ENSEMBLE_SHARE = 0.25
"""Largest part of the compute that an ensemble and its student take: beside a linear classifier they gain little."""


class TextFacts(NamedTuple):
    """What is known of the texts of a classifier.

    Attributes:
        rows: Number of training texts.
        classes: Number of classes.
        words: Mean words of a text.
        mean_characters: Mean characters of a text.
        unknown: Share of the validation data's words that the training data lacks.
        held_out: Number of validation texts.
    """

    rows: int
    classes: int
    words: float
    mean_characters: float
    unknown: float
    held_out: int


def text_facts(
    texts: Sequence[str], validation: Sequence[str], *, rows: int, classes: int, held_out: int
) -> TextFacts:
    """Return the facts on texts, from samples of the training and validation data."""
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


class Plan(NamedTuple):
    """What a classifier reads and how large it is.

    Attributes:
        by_words: Whether its tokens are words, or else characters.
        tokens: Tokens of all training rows.
        classes: The number of classes.
        many: Whether these are many.
        long: Whether half of a text is enough to tell its class.
        ngram: The longest n-gram with a vector.
        batch: Rows in a batch.
        epochs: Passes over the texts of a model on its own.
    """

    by_words: bool
    tokens: float
    classes: int
    many: bool
    long: bool
    ngram: int
    batch: int
    epochs: int

    @property
    def width(self) -> int:
        """The hidden size."""
        return 128 if self.many else 64

    @property
    def buckets(self) -> int:
        """Vectors of the n-grams of one length."""
        return min(2**17, max(2**12, 2 ** round(self.tokens).bit_length() // (8 if self.by_words else 16)))

    @property
    def wide_ngram(self) -> int:
        """The longest n-gram of the linear classifier beside the stack."""
        return 2 if self.by_words else 4

    @property
    def wide_buckets(self) -> int:
        """Rows of its table: many more than the texts have n-grams, so that few share one."""
        wanted = 2 ** round(8 * self.tokens * self.wide_ngram).bit_length()
        return max(2**12, min(wanted, 2**20, 2**23 // 2 ** (self.classes - 1).bit_length()))

    def core_seconds(self, rows: int) -> float:
        """Return the time of one epoch over `rows` texts on one core, in seconds."""
        table = (
            VOCABULARY[self.by_words] / 4 + (self.ngram - 1) * self.buckets
        )  # rows; a word vocabulary is about a quarter full
        read = self.tokens * self.width / 64 / TOKENS_PER_CORE_SECOND
        return read + rows / self.batch * table * self.width / PARAMETERS_PER_CORE_SECOND


def plan(facts: TextFacts, length: int, algorithm: str | None = None) -> Plan:
    """Return what a classifier of texts reads, and how large it is.

    Args:
        facts: What is known of the texts.
        length: The longest row in tokens, at most.
        algorithm: The algorithm of the tokenizer, if it was given.
    """
    by_words = algorithm not in CHARACTERS and (algorithm == "word" or facts.unknown < UNKNOWN_WORDS)
    many = facts.classes > MANY_CLASSES
    tokens = facts.rows * min(length, facts.words if by_words else facts.mean_characters)
    batch = 64 if many else 16 if facts.rows < FEW_ROWS else 32
    bigrams = 2 if many or tokens >= BIGRAMS else 1
    return Plan(
        by_words=by_words,
        tokens=tokens,
        classes=facts.classes,
        many=many,
        long=facts.words >= LONG_TEXT,
        ngram=bigrams if by_words else 4,
        batch=batch,
        epochs=10 if many else round(max(4, min(12, STEPS * batch / facts.rows))),
    )


def classifier_defaults(
    facts: TextFacts, machine: Machine, length: int, algorithm: str | None = None
) -> list[Default]:
    """Return the defaults of a new classifier; docs/training.md has them as a table.

    Args:
        facts: What is known of its texts.
        machine: What there is to compute with.
        length: The longest row in tokens, at most.
        algorithm: The algorithm of the tokenizer, if it was given.
    """
    chosen = plan(facts, length, algorithm)
    size = f"{facts.rows:,} texts in {facts.classes} classes"
    kind = f"{facts.words:.0f} words in a text, {facts.classes} classes"
    unknown = f"{facts.unknown:.0%} of the words in the validation data are unknown"
    number, epochs = ensemble(chosen.core_seconds(facts.rows), chosen.epochs, machine)
    hidden = 0.1 if chosen.many else 0.5 if chosen.long else 0.3
    found = [
        Default("tokenizer_algorithm", "word" if chosen.by_words else "character", unknown),
        Default("tokenizer_vocab_size", VOCABULARY[chosen.by_words], "a table that these texts fill"),
        Default("tokenizer_min_frequency", 1 if chosen.tokens < BIGRAMS else 2, "in few texts rare words count"),
        Default("lowercase", chosen.by_words, "a word at the beginning of a sentence is the same"),
        Default("overrides", _fields(chosen), size),
        Default("per_device_train_batch_size", chosen.batch, "many small steps"),
        Default("learning_rate", 4e-3 if chosen.many else 1.5e-3, "a small model"),
        Default("lr_scheduler_type", "cosine", "best at its end"),
        Default("weight_decay", 0.1, "little data"),
        Default("label_smoothing_factor", 0.1, "little data"),
        Default("token_dropout", hidden, kind),
        Default("max_epochs", epochs, size),
        Default("early_stopping_patience", 5, "more passes than are needed"),
    ]
    if facts.held_out < FEW_HELD_OUT:
        found += [
            Default("metric_for_best_model", "loss", f"steadier than the accuracy on {facts.held_out:,} texts"),
            Default("greater_is_better", False, "a loss"),
        ]
    if chosen.by_words and chosen.long:
        found.append(Default("strip_punctuation", True, "the words of a long text say enough"))
    if number:
        found.append(Default("ensemble", number, "there is time, and a mean errs less than one model"))
    return found


def _fields(chosen: Plan) -> list[str]:
    fields = {
        "hidden_size": chosen.width,
        "num_hidden_layers": 1,
        "num_attention_heads": chosen.width // 32,
        "intermediate_size": 4 * chosen.width,
        "max_ngram": chosen.ngram,
        "ngram_buckets": chosen.buckets,
        "classifier_pooling": "mean",
        "dropout": 0.3 if chosen.long else 0.2,
        "wide_max_ngram": chosen.wide_ngram,
        "wide_buckets": chosen.wide_buckets,
    }
    return [f"{name}={value}" for name, value in fields.items() if name != "ngram_buckets" or chosen.ngram > 1]


def ensemble(second: float, epochs: int, machine: Machine) -> tuple[int, float]:
    """Return how many models to distill into one, and the passes of that one: as many as the time allows.

    A teacher's pass costs the student a third: it goes forward only.

    Args:
        second: Seconds of a core for a pass over the texts.
        epochs: Passes of a model on its own.
        machine: What there is to compute with.
    """
    for number in ENSEMBLES:
        cost = number * epochs + STUDENT * epochs * (1 + number / 3)
        if second * cost <= ENSEMBLE_SHARE * machine.core_seconds:
            return number, STUDENT * epochs
    return 0, epochs
