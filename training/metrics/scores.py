"""The scores of held-out data: functions of predictions and references, and a table that describes each.

A new score is an entry of `scores.yaml` and one function, which `FUNCTIONS` names.
"""

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from importlib.resources import files
from numbers import Real
from operator import eq
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import yaml
from sacrebleu.metrics import BLEU, CHRF, TER
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, mean_squared_error

from vanillaformer.data.tasks import TASKS, Prediction, TaskName

Inputs = Literal["texts", "ids", "losses", "tags", "values"]
PREFIXES = {"validation": "eval", "test": "test"}  # of the scores of each split, as the Trainer names them
BLEU_TOKENIZERS = ("13a", "intl", "zh", "char", "none")


def bleu(
    predictions: Sequence[str], references: Sequence[str], *, tokenize: str = "13a", lowercase: bool = False
) -> float:
    """Corpus BLEU in percent, by sacrebleu (Post, 2018), with its tokenization 13a, intl, zh, char or none.

    With tokenize="none" and lowercase, on tokenized texts, it is the tokenized lower-cased BLEU that many papers give.
    """
    return bleu_scorer(tokenize, lowercase).corpus_score(predictions, [references]).score


def exact_match(predictions: Sequence[str], references: Sequence[str]) -> float:
    """Percentage of predictions that equal their references, letter for letter."""
    return 100 * sum(map(eq, predictions, references)) / len(predictions)


def rouge(kind: str) -> Callable[[Sequence[str], Sequence[str]], float]:
    """Return ROUGE of a kind (Lin 2004): rouge_score's F1 in percent, the mean over texts, without stemming.

    Words are letters and digits of any script, whereas rouge_score by itself keeps only a to z and 0 to 9; the
    sentences of rougeLsum are separated by line breaks.
    """

    def mean(predictions: Sequence[str], references: Sequence[str]) -> float:
        from rouge_score.rouge_scorer import RougeScorer  # which only these scores need

        words = SimpleNamespace(tokenize=lambda text: re.findall(r"[^\W_]+", text.lower()))
        scorer = RougeScorer([kind], tokenizer=words)
        scores = [scorer.score(*pair)[kind].fmeasure for pair in zip(references, predictions)]
        return 100 * math.fsum(scores) / len(scores)

    return mean


@cache
def load_metric(name: str) -> Any:
    """Load a metric of `evaluate`, by its name on the Hub or the path of its file; raise ValueError if that fails."""
    import evaluate  # slow to load, and only needed for these

    try:
        return evaluate.load(name)
    except Exception as error:  # of the network, the file or its code
        raise ValueError(f"--metrics {name}: not one of our scores, and evaluate cannot load it: {error}") from error


def added_scores(names: Sequence[str], predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Return the scores of texts that `--metrics` adds: optional ones of ours, and numbers of `evaluate`'s metrics.

    A number with the name of one of our scores, or of an earlier metric's, gets its metric's name as a prefix.
    """
    scores: dict[str, float] = {}
    for name in names:
        if name in SCORES:
            score = SCORES[name]
            scores |= {name: score.function(predictions, references)} if score.optional and score.function else {}
            continue
        for key, value in load_metric(name).compute(predictions=predictions, references=references).items():
            if isinstance(value, Real) and not isinstance(value, bool):
                taken = key in scores or key in SCORES
                scores[f"{Path(name).stem}_{key}" if taken else key] = float(value)
    return scores


def scores_of_group(metrics: Mapping[str, float], group: str) -> dict[str, float]:
    """Return the metrics of the rows of a group, named like those of all rows."""
    found = {key.removesuffix(f"_{group}"): value for key, value in metrics.items() if key.endswith(f"_{group}")}
    return {key: value for key, value in found.items() if key in metrics}


def bleu_scorer(tokenize: str, lowercase: bool) -> BLEU:
    """Return sacrebleu's BLEU; raise ValueError for a tokenization that it does not have."""
    if tokenize not in BLEU_TOKENIZERS:
        raise ValueError(f"bleu_tokenize={tokenize!r}: choose from {', '.join(BLEU_TOKENIZERS)}")
    return BLEU(tokenize=tokenize, lowercase=lowercase, force=tokenize == "none")  # no advice to detokenize


def sacrebleu_signatures(tokenize: str = "13a", lowercase: bool = False) -> dict[str, str]:
    """Return what sacrebleu asks to be cited with its scores: version, tokenization, case, smoothing."""
    signatures = {}
    scorers = {"bleu": bleu_scorer(tokenize, lowercase), "chrf": CHRF(), "ter": TER()}
    for name, scorer in scorers.items():
        scorer.corpus_score(["a"], [["a"]])  # the signature names the number of references, known after a score
        signatures[name] = str(scorer.get_signature())
    return signatures


def _by_scikit_learn(function: Callable[..., Any], **options: Any) -> Callable[[Any, Any], float]:
    """Return a score between 0 and 1 of predictions and references (mse: from 0 on); where nothing is right, 0."""
    return lambda predictions, references: float(function(references, predictions, **options))


def _correlation(function: Callable[..., Any]) -> Callable[[Any, Any], float]:
    """Return one of SciPy's correlations of numbers; 0 where either side does not vary."""

    def correlation(predictions: Any, references: Any) -> float:
        varies = len(references) > 1 and all(np.ptp(side) > 0 for side in (predictions, references))
        return float(function(predictions, references).statistic) if varies else 0.0

    return correlation


def _of_entities(name: str) -> Callable[[Any, Any], float]:
    """Return one of seqeval's scores of entities, right in begin, end and kind, from lists of tags."""
    return lambda predictions, references: float(getattr(seqeval(), name)(references, predictions, zero_division=0))


def seqeval() -> Any:
    """Return seqeval's metrics, which only tasks of tags load."""
    from seqeval import metrics

    return metrics


def _by_sacrebleu(scorer: Callable[[], Any]) -> Callable[[Any, Any], float]:
    """Return a score of a corpus of texts, in percent."""
    return lambda predictions, references: scorer().corpus_score(predictions, [references]).score


chrf = _by_sacrebleu(CHRF)  # chrF2 (Popović, 2015)
ter = _by_sacrebleu(TER)  # edits by words of the reference, split at white space, without case (Snover et al., 2006)
accuracy = _by_scikit_learn(accuracy_score)


def corpus_perplexity(predictions: Sequence[float], references: Sequence[int]) -> float:
    """exp(sum of losses / number of tokens); predictions: summed losses, references: the tokens each sum is over."""
    return perplexity(math.fsum(predictions) / sum(references))


def perplexity(loss: float) -> float:
    """Return exp(loss), infinity where that is too large for a float."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


@dataclass(frozen=True)
class Score:
    """A score."""

    name: str  # its name among the metrics, without the prefix of the split
    label: str  # its name in cards and pictures
    compares: Sequence[Prediction]  # the kinds of predictions that it is computed for
    greater_is_better: bool | None = True  # None for a description of the output, which ranks no models
    text: str | None = None  # how it is printed while training; None if it is not
    papers: Sequence[str] = ()
    function: Callable[..., float] | None = None  # None where `compute.py` derives it from others
    inputs: Inputs = "texts"  # what the function compares; ids of classes or tokens, losses and numbers of tokens
    on_hub: bool = False  # whether the Hub lists it (https://hf.co/metrics)
    resolution: float = 0.0  # differences up to this say nothing while a model produces little that is right
    drawn: bool = False  # whether it can be drawn with the loss; the first such score of a task is
    optional: bool = False  # whether it is computed only where it is asked for
    per_token: bool = False  # where tokens are predicted, a mean over tokens, which depends on the tokenizer

    @property
    def short_label(self) -> str:
        """Name in a sentence."""
        return self.label if self.text is None else self.text.partition(" {")[0]

    @property
    def unit(self) -> float:
        """Value of perfect predictions, if a greater value is better."""
        return 100.0 if "texts" in self.compares else 1.0

    def format(self, value: float) -> str:
        """Return a value as it is printed while training, without the name."""
        _, brace, form = (self.text or "").partition("{")
        return (brace + form or "{:.4g}").format(value)


FUNCTIONS: dict[str, Callable[..., float]] = {
    "exact_match": exact_match,
    "bleu": bleu,
    "chrf": chrf,
    "ter": ter,
    **{name: rouge(name) for name in ("rouge1", "rouge2", "rougeL", "rougeLsum")},
    "perplexity": corpus_perplexity,
    "entity_f1": _of_entities("f1_score"),
    "entity_precision": _of_entities("precision_score"),
    "entity_recall": _of_entities("recall_score"),
    "pearson": _correlation(pearsonr),
    "spearman": _correlation(spearmanr),
    "mse": _by_scikit_learn(mean_squared_error),
    "micro_f1": _by_scikit_learn(f1_score, average="micro", zero_division=0),  # of all labels, indicators (N, C)
    **dict.fromkeys(("macro_f1", "f1"), _by_scikit_learn(f1_score, average="macro", zero_division=0)),
    "accuracy": accuracy,
}
"""The functions of scores; `compute.py` derives the others."""
TABLE = yaml.safe_load((files(__package__) / "scores.yaml").read_text(encoding="utf-8"))
SCORES = {name: Score(name, **fields, function=FUNCTIONS.get(name)) for name, fields in TABLE.items()}
"""All scores by name, in the order in which they are printed."""


def label(name: str) -> str:
    """Return the label of a score in cards and pictures; scores that are not ours keep their names."""
    return SCORES[name].label if name in SCORES else name.replace("_", " ")


def scores_of(task: TaskName) -> list[Score]:
    return [score for score in SCORES.values() if not set(TASKS[task].predicts).isdisjoint(score.compares)]


def compute_scores(
    kind: Prediction, inputs: Inputs, predictions: Any, references: Any, **options: Mapping[str, Any]
) -> dict[str, float]:
    """Return the scores of a kind of predictions that are computed from these inputs; `options` are by score."""
    return {
        score.name: score.function(predictions, references, **options.get(score.name, {}))
        for score in SCORES.values()
        if score.function and kind in score.compares and score.inputs == inputs and not score.optional
    }


def ranking_names(task: TaskName) -> list[str]:
    return [score.name for score in scores_of(task) if score.greater_is_better is not None]


def ranking_score(name: str, task: TaskName) -> Score:
    """Return the score of the task that `--metric_for_best_model` names, with or without `eval_` before it."""
    allowed = ranking_names(task)
    plain = name.removeprefix("eval_")
    if plain not in allowed:
        near = difflib.get_close_matches(plain, allowed, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"--metric_for_best_model {name}: {hint}choose from {', '.join(allowed)}")
    return SCORES[plain]


Evaluation = Mapping[str, Any]  # an entry of the Trainer's log: `step`, `eval_loss` and the other scores


def evaluations(log_history: Sequence[Evaluation]) -> list[Evaluation]:
    """Return the entries of a log that are evaluations of the validation data."""
    return [entry for entry in log_history if any(key.startswith("eval_") for key in entry)]


def gain(new: Evaluation, old: Evaluation, score: Score) -> float:
    """Return by how much an evaluation's score is better than that of another one, negative if it is worse.

    A score that is missing or not a number is worse than any other.
    """
    first, second = (_value(entry, score) for entry in (new, old))
    return 0.0 if first == second else first - second


def is_better(new: Evaluation, old: Evaluation, score: Score) -> bool:
    """Return whether an evaluation is better than an earlier one: by its score, or with equal scores by its loss.

    If neither has a number, the later one is better, because there is no reason to keep the earlier.
    """
    ranks = [(_value(entry, score), _value(entry, SCORES["loss"])) for entry in (new, old)]
    return ranks[0] > ranks[1] or ranks[0] == ranks[1] == (-math.inf, -math.inf)


def best_of(entries: Sequence[Evaluation], score: Score) -> Evaluation:
    return reduce(lambda best, entry: entry if is_better(entry, best, score) else best, entries)


def _value(entry: Evaluation, score: Score) -> float:
    value = float(entry.get(f"eval_{score.name}", math.nan))
    return -math.inf if math.isnan(value) else value if score.greater_is_better else -value
