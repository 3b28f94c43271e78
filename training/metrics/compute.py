"""The functions that a Trainer calls to turn token ids or logits into named scores."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from tokenizers import decoders
from transformers import EvalPrediction, PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.trainer_utils import PredictionOutput

from vanillaformer.modeling.heads import IGNORE_INDEX

from .scores import accuracy, added_scores, compute_scores, perplexity

BYTES = {character: byte for byte, character in bytes_to_unicode().items()}  # by their byte-level characters
ComputeMetrics = Callable[..., dict[str, float]]


def translation_metrics(
    tokenizer: PreTrainedTokenizerBase, added: Sequence[str] = (), **bleu_options: Any
) -> ComputeMetrics:
    """Return `compute_metrics` for a Seq2SeqTrainer that predicts with generate.

    The scores are bleu, chrf, ter, exact_match (all in percent) and gen_len, the mean number of generated tokens
    up to and including the first </s>. Predictions, decoded without special tokens, are compared with the texts that
    the function is given as `references`, as by `TranslationTrainer`; without any, with the decoded labels, which may
    be cut, normalized or lack characters. `added` names further scores; with `groups`, one of each row, all are also
    computed for each, as `bleu_GROUP`.
    """

    def compute_metrics(
        prediction: EvalPrediction, references: Sequence[str] | None = None, groups: Sequence[str] = ()
    ) -> dict[str, float]:
        outputs = np.asarray(first_output(prediction.predictions))
        if references is None:
            references = decoded(prediction.label_ids)
        # Without the start token and what follows </s>; rows are filled up with padding, by beam search also with </s>
        ids = outputs[:, 1:] if np.isin(outputs[:, 0], tokenizer.all_special_ids).all() else outputs
        ends = ids == tokenizer.eos_token_id
        filled = ((ids != tokenizer.pad_token_id) & (ids != IGNORE_INDEX)).sum(axis=1)
        lengths = np.where(ends.any(axis=1), ends.argmax(axis=1) + 1, filled)
        predictions = decoded(outputs)
        scores = scores_of_texts(predictions, references) | {"gen_len": float(lengths.mean())}
        for group in sorted({*groups}):
            rows = [row for row, name in enumerate(groups) if name == group]
            found = scores_of_texts([predictions[row] for row in rows], [references[row] for row in rows])
            scores |= {f"{name}_{group}": value for name, value in found.items()}
        return scores

    def scores_of_texts(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        scores = compute_scores("texts", "texts", predictions, references, bleu=bleu_options)
        return scores | added_scores(added, predictions, references)

    def decoded(ids: Any) -> Any:
        real = np.where(ids == IGNORE_INDEX, tokenizer.pad_token_id, ids)
        return tokenizer.batch_decode(real, skip_special_tokens=True)

    return compute_metrics


def classification_metrics(prediction: EvalPrediction) -> dict[str, float]:
    """A `compute_metrics` for a classifier: accuracy and f1 (macro), from logits (N, classes)."""
    return compute_scores("classes", "ids", first_output(prediction.predictions).argmax(axis=-1), prediction.label_ids)


def language_model_metrics(tokenizer: PreTrainedTokenizerBase | None = None) -> ComputeMetrics:
    """Return `compute_metrics` for a language model: perplexity, and accuracy of the tokens predicted.

    With the `tokenizer` of a causal model also perplexity_per_character, perplexity_per_byte and bits_per_byte, by
    which models of different vocabularies can be compared. The sum of losses is that of all tokens predicted, </s> and
    other special tokens included; it is divided by the characters, or UTF-8 bytes, of the text that these tokens
    stand for (`TextSizes`), in which special tokens have none. A row's first token, which is not predicted, counts in
    neither. If no token is predicted, there are no scores.

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
        characters, size = (0, 0) if sizes is None else sizes(labels, counted)
        per_text = {}
        if characters:
            per_text = {
                "perplexity_per_character": perplexity(float(total) / characters),
                "perplexity_per_byte": perplexity(float(total) / size),
                "bits_per_byte": float(total) / size / math.log(2),
            }
        return {
            **compute_scores("tokens", "losses", [total], [tokens]),
            **compute_scores("tokens", "ids", predicted[counted], labels[counted]),
            **per_text,
        }

    return compute_metrics


def pretraining_metrics(prediction: EvalPrediction) -> dict[str, float]:
    """A `compute_metrics` for masked tokens and pairs: perplexity, accuracy, next_sentence_accuracy.

    Goes with `preprocess_logits_for_metrics=pretraining_scores`; the first two are a language model's.
    """
    scores: Any = prediction.predictions  # what pretraining_scores returned
    labels: Any = prediction.label_ids
    tokens = language_model_metrics()(EvalPrediction(predictions=scores[:2], label_ids=labels[0]))
    return {**tokens, "next_sentence_accuracy": accuracy(scores[2], labels[1])}


def pretraining_scores(logits: Any, labels: Any) -> tuple[torch.Tensor, ...]:
    """A `preprocess_logits_for_metrics`: keep what `token_scores` does, and the class chosen for each pair (B)."""
    return (*token_scores(causal=False)(logits[0], labels[0]), logits[1].argmax(dim=-1))


def token_scores(*, causal: bool) -> Callable[[Any, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Return a `preprocess_logits_for_metrics` that keeps little: predicted ids (B, T) and losses (B, T).

    With `causal` position t predicts token t + 1, otherwise (a masked language model) its own token.
    """

    def scores(logits: Any, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = first_output(logits)  # (B, T, V)
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


def labels_and_predictions(output: PredictionOutput) -> tuple[Any, Any]:
    """Return the labels and predictions (of a classifier, the logits) of an output, without further outputs."""
    return output.label_ids, first_output(output.predictions)


def first_output(outputs: Any) -> Any:
    """Return the logits (or ids) of a model with several outputs."""
    return outputs[0] if isinstance(outputs, tuple) else outputs


class TextSizes:
    """Counts characters and UTF-8 bytes of tokens; special tokens have none.

    A byte-level tokenizer's tokens are bytes, so the counts are exact wherever a row was cut, even within a character:
    a character belongs to the token with its first byte. The tokens of other tokenizers are decoded, text by text
    (special tokens separate texts). Characters that the tokenizer dropped are not counted, and neither is an unknown
    token, which is special.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer, self.special = tokenizer, np.array(sorted(set(tokenizer.all_special_ids)), dtype=np.int64)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        bytewise = backend is not None and isinstance(backend.decoder, decoders.ByteLevel)
        self.table = _byte_table(tokenizer) if bytewise else None

    def __call__(self, labels: Any, counted: Any) -> tuple[int, int]:
        """Return the characters and bytes of the tokens among the labels (N, T) that the model predicted (N, T)."""
        if self.table is not None:
            characters, size = self.table[labels[counted]].sum(axis=0)
            return int(characters), int(size)
        sizes = np.zeros(2, dtype=np.int64)
        for row, predicted in zip(labels, counted):
            real = row != IGNORE_INDEX
            borders = np.flatnonzero(np.isin(row[real], self.special))
            for text, is_predicted in zip(np.split(row[real], borders), np.split(predicted[real], borders)):
                # Not only the size of the predicted tokens: decoders treat the first token of a text differently
                known = 0 if is_predicted.all() else self._size(text[~is_predicted])
                sizes += self._size(text) - known
        return int(sizes[0]), int(sizes[1])

    def _size(self, ids: np.ndarray) -> np.ndarray:
        text = str(self.tokenizer.decode(ids.tolist(), skip_special_tokens=True))
        return np.array([len(text), len(text.encode(errors="replace"))])


def _byte_table(tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """Return the characters and bytes of every token of a byte-level tokenizer."""
    table = np.zeros((len(tokenizer), 2), dtype=np.int64)
    added = tokenizer.get_added_vocab()
    special = set(tokenizer.all_special_ids)
    for token, number in tokenizer.get_vocab().items():
        if number in special:
            continue
        if token in added or not BYTES.keys() >= set(token):
            table[number] = len(token), len(token.encode())
        else:  # a byte 10xxxxxx continues a character
            table[number] = sum(not 0x80 <= BYTES[character] <= 0xBF for character in token), len(token)
    return table
