"""What an n-gram model of characters reaches on the same data: interpolated Witten-Bell smoothing.

python benchmarks/ngram.py --train_file input.txt --validation_fraction 0.1
python benchmarks/ngram.py --train_file reviews.parquet --split_column split --order 5 --score_test true

The data options are those of `train_language_model`, so the texts of each split are the same.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from vanillaformer.console.parsing import parse
from vanillaformer.data.arguments import LanguageModelDataArguments
from vanillaformer.data.loading import load_data

END = 0x110000
"""The symbol after each text, which is predicted as a language model predicts its </s>; characters are below it."""


@dataclass
class NgramArguments:
    """The model."""

    order: int = field(default=6, metadata={"help": "Characters of an n-gram, the predicted one included."})
    score_test: bool = field(default=False, metadata={"help": "Score the test split too, if there is one."})


def symbols(texts: Iterable[str]) -> np.ndarray:
    """Return the code points of texts as one array, with END before, between and after them."""
    points = [np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), np.uint32) for text in texts]
    end = np.array([END], np.uint32)
    return np.concatenate([end, *(part for text in points for part in (text, end))]).astype(np.int64)


def probabilities(train: np.ndarray, held_out: np.ndarray, order: int) -> np.ndarray:
    """Return the probability of each symbol of a sequence but the first, given the `order` - 1 before it.

    `p(c | h) = (n(hc) + T(h) p(c | h')) / (n(h) + T(h))` with the number T(h) of symbols seen after the history h, and
    h' without h's first symbol (Witten and Bell 1991; Chen and Goodman 1998, section 2.6); p(c) ends in 1 / (END + 1).
    """
    sequence, last = np.concatenate([train, held_out]), len(train)
    history, result = np.zeros(len(sequence), np.int64), np.full(len(held_out), 1 / (END + 1))
    for _ in range(order):
        histories = history.max() + 1
        grams, gram = np.unique(history * (END + 1) + sequence, return_inverse=True)
        count = np.bincount(gram[:last], minlength=len(grams))
        total = np.bincount(history[:last], minlength=histories)[history[last:]]
        types = np.bincount(grams[count > 0] // (END + 1), minlength=histories)[history[last:]]
        seen = total > 0
        result[seen] = ((count[gram[last:]] + types * result) / np.maximum(total + types, 1))[seen]
        history = np.concatenate([[len(grams)], gram[:-1]])
        history[last] = len(grams) + 1  # neither start has a history, nor do they share one
    return result[1:]


def bits_per_byte(train: Sequence[str], held_out: Sequence[str], order: int) -> float:
    """Return the bits of all characters and ends of texts, divided by the UTF-8 bytes of the texts."""
    bits = -np.log2(probabilities(symbols(train), symbols(held_out), order)).sum()
    return float(bits / sum(len(text.encode(errors="surrogatepass")) for text in held_out))


def main() -> None:
    """Count, and print the bits per byte of the held-out splits."""
    data, model = parse((LanguageModelDataArguments, NgramArguments), description=__doc__)
    data.choose_sampling("causal")
    rows = load_data(data, "causal").splits
    for split in ("validation", "test") if model.score_test else ("validation",):
        if split in rows:
            score = bits_per_byte(rows["train"]["text"], rows[split]["text"], model.order)
            print(f"{split}: {score:.3f} bits per byte, perplexity per byte {math.pow(2, score):.2f}")


if __name__ == "__main__":
    main()
