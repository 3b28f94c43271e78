"""Metrics as `evaluate` modules that are part of this package: `evaluate.load` would ask the network for them."""

import math
from typing import Any

import datasets
import evaluate
from sacrebleu.metrics import BLEU, CHRF, TER
from sklearn.metrics import accuracy_score, f1_score

BLEU_TOKENIZERS = ("13a", "intl", "zh", "char", "none")


class _Module(evaluate.Metric):
    """An `evaluate.Metric` that keeps what it is given in memory, and describes itself by its docstring."""

    features: Any

    def __init__(self, **kwargs: Any):
        super().__init__(**{"keep_in_memory": True, **kwargs})

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=self.__doc__, citation="", inputs_description=self.__doc__, features=self._features()
        )

    def _features(self) -> Any:
        raise NotImplementedError


class _TextModule(_Module):
    """Compares texts; each may have one reference or a list of them."""

    def _features(self) -> list[datasets.Features]:
        text = datasets.Value("string")
        references = (text, datasets.Sequence(text))
        return [datasets.Features({"predictions": text, "references": each}) for each in references]


class Bleu(_TextModule):
    """Corpus BLEU in percent, by sacrebleu (Post, 2018): {"bleu": 27.3}.

    Args:
        tokenize: sacrebleu's tokenization: 13a, intl, zh, char or none.
        lowercase: Take no notice of case. With tokenize="none", on texts that are tokenised already, this is the
            tokenised lower-cased BLEU that many papers give.
    """

    def __init__(self, tokenize: str = "13a", lowercase: bool = False, **kwargs: Any):
        if tokenize not in BLEU_TOKENIZERS:
            raise ValueError(f"bleu_tokenize={tokenize!r}: choose from {', '.join(BLEU_TOKENIZERS)}")
        super().__init__(**kwargs)
        self.scorer = BLEU(tokenize=tokenize, lowercase=lowercase, force=tokenize == "none")  # no advice to detokenise

    def _compute(self, predictions: list[str], references: list[Any]) -> dict[str, float]:
        return {"bleu": self.scorer.corpus_score(predictions, _by_position(references)).score}


class Chrf(_TextModule):
    """Corpus chrF2 in percent, by sacrebleu (Popović, 2015): {"chrf": 51.8}."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.scorer = CHRF()

    def _compute(self, predictions: list[str], references: list[Any]) -> dict[str, float]:
        return {"chrf": self.scorer.corpus_score(predictions, _by_position(references)).score}


class Ter(_TextModule):
    """Corpus TER in percent, by sacrebleu (Snover et al., 2006): edits per reference word, the fewer the better.

    {"ter": 38.9}; words are parted by white space and compared without case, as sacrebleu does.
    """

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.scorer = TER()

    def _compute(self, predictions: list[str], references: list[Any]) -> dict[str, float]:
        return {"ter": self.scorer.corpus_score(predictions, _by_position(references)).score}


class ExactMatch(_TextModule):
    """How many predictions are, letter for letter, (one of) their references, in percent: {"exact_match": 99.1}."""

    def _compute(self, predictions: list[str], references: list[Any]) -> dict[str, float]:
        hits = [
            text in ([wanted] if isinstance(wanted, str) else wanted) for text, wanted in zip(predictions, references)
        ]
        return {"exact_match": 100 * sum(hits) / len(hits)}


class _ClassModule(_Module):
    """Compares ids of classes or of tokens."""

    def _features(self) -> datasets.Features:
        return datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})


class Accuracy(_ClassModule):
    """The share of predictions that equal their references, between 0 and 1: {"accuracy": 0.93}."""

    def _compute(self, predictions: list[int], references: list[int]) -> dict[str, float]:
        return {"accuracy": float(accuracy_score(references, predictions))}


class F1(_ClassModule):
    """The mean of the classes' F1 scores (macro-F1), between 0 and 1, by scikit-learn: {"f1": 0.91}."""

    def _compute(self, predictions: list[int], references: list[int]) -> dict[str, float]:
        return {"f1": float(f1_score(references, predictions, average="macro", zero_division=0))}


class Perplexity(_Module):
    """exp(sum of losses / number of tokens); predictions: summed losses, references: the tokens each sum is over."""

    def _features(self) -> datasets.Features:
        return datasets.Features({"predictions": datasets.Value("float64"), "references": datasets.Value("int64")})

    def _compute(self, predictions: list[float], references: list[int]) -> dict[str, float]:
        return {"perplexity": perplexity(math.fsum(predictions) / sum(references))}


def perplexity(loss: float) -> float:
    """Return exp(loss), infinity where that is too large for a float."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def sacrebleu_signatures(bleu_tokenize: str = "13a", bleu_lowercase: bool = False) -> dict[str, str]:
    """Return what sacrebleu asks to be cited with its scores: version, tokenization, case, smoothing."""
    signatures = {}
    scorers = {"bleu": BLEU(tokenize=bleu_tokenize, lowercase=bleu_lowercase), "chrf": CHRF(), "ter": TER()}
    for name, scorer in scorers.items():
        scorer.corpus_score(["a"], [["a"]])  # the signature names the number of references, known after a score
        signatures[name] = str(scorer.get_signature())
    return signatures


def _by_position(references: list[Any]) -> list[list[str]]:
    """Return references as sacrebleu takes them: all first ones, all second ones, ..."""
    lists = [[each] if isinstance(each, str) else list(each) for each in references]
    if len({len(each) for each in lists}) > 1:
        raise ValueError("references: every prediction must have the same number of them")
    return [list(position) for position in zip(*lists)]
