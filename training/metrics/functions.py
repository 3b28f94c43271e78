"""The scores as plain functions of predictions and references; `scores.py` describes each."""

import math
from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics import BLEU, CHRF, TER
from sklearn.metrics import accuracy_score, f1_score

BLEU_TOKENIZERS = ("13a", "intl", "zh", "char", "none")
References = Sequence[str] | Sequence[Sequence[str]]
"""One reference for each prediction, or the same number of them for each."""


def bleu(
    predictions: Sequence[str], references: References, *, tokenize: str = "13a", lowercase: bool = False
) -> float:
    """Corpus BLEU in percent, by sacrebleu (Post, 2018).

    Args:
        predictions: The texts.
        references: What they should be.
        tokenize: sacrebleu's tokenization: 13a, intl, zh, char or none.
        lowercase: Ignore case. With tokenize="none", on tokenized texts, this is the tokenized lower-cased BLEU that
            many papers give.
    """
    scorer = bleu_scorer(tokenize, lowercase)
    return scorer.corpus_score(predictions, by_position(references)).score


def chrf(predictions: Sequence[str], references: References) -> float:
    """Corpus chrF2 in percent, by sacrebleu (Popović, 2015)."""
    return CHRF().corpus_score(predictions, by_position(references)).score


def ter(predictions: Sequence[str], references: References) -> float:
    """Corpus TER in percent, by sacrebleu (Snover et al., 2006): edits per reference word, the fewer the better.

    Words are separated by white space and compared without case, as sacrebleu does.
    """
    return TER().corpus_score(predictions, by_position(references)).score


def exact_match(predictions: Sequence[str], references: References) -> float:
    """How many predictions are, letter for letter, (one of) their references, in percent."""
    wanted = ([each] if isinstance(each, str) else each for each in references)
    return 100 * sum(text in each for text, each in zip(predictions, wanted)) / len(predictions)


def bleu_scorer(tokenize: str, lowercase: bool) -> BLEU:
    """Return sacrebleu's BLEU; raise ValueError for a tokenization that it does not have."""
    if tokenize not in BLEU_TOKENIZERS:
        raise ValueError(f"bleu_tokenize={tokenize!r}: choose from {', '.join(BLEU_TOKENIZERS)}")
    return BLEU(tokenize=tokenize, lowercase=lowercase, force=tokenize == "none")  # no advice to detokenize


def sacrebleu_signatures(bleu_tokenize: str = "13a", bleu_lowercase: bool = False) -> dict[str, str]:
    """Return what sacrebleu asks to be cited with its scores: version, tokenization, case, smoothing."""
    signatures = {}
    scorers = {"bleu": bleu_scorer(bleu_tokenize, bleu_lowercase), "chrf": CHRF(), "ter": TER()}
    for name, scorer in scorers.items():
        scorer.corpus_score(["a"], [["a"]])  # the signature names the number of references, known after a score
        signatures[name] = str(scorer.get_signature())
    return signatures


def by_position(references: References) -> list[list[str]]:
    """Return references as sacrebleu takes them: all first ones, all second ones, ..."""
    lists = [[each] if isinstance(each, str) else list(each) for each in references]
    if len({len(each) for each in lists}) > 1:
        raise ValueError("references: every prediction must have the same number of them")
    return [list(position) for position in zip(*lists)]


def accuracy(predictions: Any, references: Any) -> float:
    """The share of predictions that equal their references, between 0 and 1."""
    return float(accuracy_score(references, predictions))


def f1(predictions: Any, references: Any) -> float:
    """The mean of the classes' F1 scores (macro-F1), between 0 and 1, by scikit-learn."""
    return float(f1_score(references, predictions, average="macro", zero_division=0))


def corpus_perplexity(predictions: Sequence[float], references: Sequence[int]) -> float:
    """exp(sum of losses / number of tokens); predictions: summed losses, references: the tokens each sum is over."""
    return perplexity(math.fsum(predictions) / sum(references))


def perplexity(loss: float) -> float:
    """Return exp(loss), infinity where that is too large for a float."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
