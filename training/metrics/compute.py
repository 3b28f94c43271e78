"""The functions that a Trainer calls to turn token ids or logits into named scores."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import evaluate
import numpy as np
import torch
from transformers import EvalPrediction, PreTrainedTokenizerBase

from vanillaformer.data.tasks import TASKS, Prediction, TaskName
from vanillaformer.modeling.heads import IGNORE_INDEX

from .functions import accuracy, perplexity
from .modules import Metric
from .scores import Inputs, functions_of
from .text_sizes import TextSizes

ComputeMetrics = Callable[..., dict[str, float]]


def metrics(
    task: TaskName, *, bleu_tokenize: str = "13a", bleu_lowercase: bool = False
) -> evaluate.CombinedEvaluations:
    """Return a task's scores as one `evaluate` metric: `.compute(predictions=..., references=...)`.

    translation (texts): bleu, chrf, ter, exact_match, in percent. classification (ids): accuracy, f1.
    """
    kinds: dict[Prediction, Inputs] = {"texts": "texts", "classes": "ids"}
    names = [name for kind in TASKS[task].predicts if kind in kinds for name in functions_of(kind, kinds[kind])]
    options = {"bleu": {"tokenize": bleu_tokenize, "lowercase": bleu_lowercase}}
    return evaluate.combine([Metric(name, **options.get(name, {})) for name in names])


def translation_metrics(
    tokenizer: PreTrainedTokenizerBase, *, bleu_tokenize: str = "13a", bleu_lowercase: bool = False
) -> ComputeMetrics:
    """Return `compute_metrics` for a Seq2SeqTrainer that predicts with generate.

    The scores are bleu, chrf, ter, exact_match (all in percent) and gen_len, the mean number of generated tokens
    up to and including the first </s>.
    Predictions are decoded with the target `tokenizer`, without special tokens. They are compared with the texts that
    the function is given as `references`, in the order of the predictions, as `TranslationTrainer` gives it the raw
    targets; without any, with the decoded labels, which may be cut, normalized or lack characters.
    """
    suite = metrics("translation", bleu_tokenize=bleu_tokenize, bleu_lowercase=bleu_lowercase)

    def compute_metrics(prediction: EvalPrediction, references: Sequence[str] | None = None) -> dict[str, float]:
        outputs = np.asarray(_first(prediction.predictions))
        generated = _without_ignored(outputs, tokenizer)
        if references is None:
            labels = _without_ignored(prediction.label_ids, tokenizer)
            references = tokenizer.batch_decode(labels, skip_special_tokens=True)
        texts = tokenizer.batch_decode(generated, skip_special_tokens=True)
        lengths = _generated_lengths(outputs, tokenizer)
        return {**suite.compute(predictions=texts, references=references), "gen_len": float(lengths.mean())}

    return compute_metrics


def _generated_lengths(ids: np.ndarray, tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """Return how many tokens of each row (N, T) were generated, without the start token and what follows </s>.

    Rows are filled up with padding, by beam search also with </s>.
    """
    if np.isin(ids[:, 0], tokenizer.all_special_ids).all():
        ids = ids[:, 1:]
    ends = ids == tokenizer.eos_token_id
    filled = ((ids != tokenizer.pad_token_id) & (ids != IGNORE_INDEX)).sum(axis=1)
    return np.where(ends.any(axis=1), ends.argmax(axis=1) + 1, filled)


def classification_metrics() -> ComputeMetrics:
    """Return `compute_metrics` for a classifier: accuracy and f1 (macro), from logits (N, classes)."""
    suite = metrics("classification")

    def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
        chosen = _first(prediction.predictions).argmax(axis=-1)
        return suite.compute(predictions=chosen, references=prediction.label_ids)

    return compute_metrics


def language_model_metrics(tokenizer: PreTrainedTokenizerBase | None = None) -> ComputeMetrics:
    """Return `compute_metrics` for a language model: perplexity, and accuracy of the tokens predicted.

    With the `tokenizer` of a causal model also perplexity_per_character, perplexity_per_byte and bits_per_byte, which
    models of different vocabularies can be compared by. The sum of losses is that of all tokens predicted, </s> and
    other special tokens included; it is divided by the characters, or UTF-8 bytes, of the text that these tokens
    stand for (`TextSizes`), in which special tokens have none. What is only read, a row's first token, counts in
    neither. Where no token is predicted there are no scores.

    Goes with `preprocess_logits_for_metrics=token_scores(...)`, which keeps the logits from being collected.
    """
    sizes = None if tokenizer is None else TextSizes(tokenizer)

    def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
        scores: Any = prediction.predictions  # what token_scores returned
        (predicted, losses), labels = scores, prediction.label_ids
        counted = (labels != IGNORE_INDEX) & (predicted != IGNORE_INDEX)
        total, tokens = losses[counted].sum(dtype=np.float64), counted.sum()
        if not tokens:
            return {}
        return {
            **{name: score([total], [tokens]) for name, score in functions_of("tokens", "losses").items()},
            **{
                name: score(predicted[counted], labels[counted])
                for name, score in functions_of("tokens", "ids").items()
            },
            **({} if sizes is None else _per_text(float(total), *sizes(labels, counted))),
        }

    return compute_metrics


def _per_text(total: float, characters: int, size: int) -> dict[str, float]:
    """Return a sum of losses divided by the characters and bytes of the text; nothing for an empty text."""
    if not characters:
        return {}
    return {
        "perplexity_per_character": perplexity(total / characters),
        "perplexity_per_byte": perplexity(total / size),
        "bits_per_byte": total / size / math.log(2),
    }


def pretraining_metrics() -> ComputeMetrics:
    """Return `compute_metrics` for masked tokens and pairs: perplexity, accuracy, next_sentence_accuracy.

    Goes with `preprocess_logits_for_metrics=pretraining_scores`; the first two are a language model's.
    """
    of_tokens = language_model_metrics()

    def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
        scores: Any = prediction.predictions  # what pretraining_scores returned
        labels: Any = prediction.label_ids
        found = of_tokens(EvalPrediction(predictions=scores[:2], label_ids=labels[0]))
        return {**found, "next_sentence_accuracy": accuracy(scores[2], labels[1])}

    return compute_metrics


def pretraining_scores(logits: Any, labels: Any) -> tuple[torch.Tensor, ...]:
    """A `preprocess_logits_for_metrics`: keep what `token_scores` does, and the class chosen for each pair (B)."""
    return (*token_scores(causal=False)(logits[0], labels[0]), logits[1].argmax(dim=-1))


def token_scores(*, causal: bool) -> Callable[[Any, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Return a `preprocess_logits_for_metrics` that keeps little: predicted ids (B, T) and losses (B, T).

    Args:
        causal: Position t predicts token t + 1; otherwise (a masked language model) its own token.
    """

    def scores(logits: Any, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = _first(logits)  # (B, T, V)
        if causal:
            logits, labels = logits[:, :-1], labels[:, 1:]
        predicted = logits.argmax(dim=-1)
        losses = torch.nn.functional.cross_entropy(
            logits.float().transpose(1, 2), labels, ignore_index=IGNORE_INDEX, reduction="none"
        )
        if causal:  # back to the labels' positions; nothing predicts the first token
            predicted = torch.nn.functional.pad(predicted, (1, 0), value=IGNORE_INDEX)
            losses = torch.nn.functional.pad(losses, (1, 0))
        return predicted, losses

    return scores


def _first(outputs: Any) -> Any:
    """Return the logits (or ids) of a model with several outputs."""
    return outputs[0] if isinstance(outputs, tuple) else outputs


def _without_ignored(ids: Any, tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    return np.where(ids == IGNORE_INDEX, tokenizer.pad_token_id, ids)
