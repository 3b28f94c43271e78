"""The pairs of PyTorch's tutorial on translation with attention, out of a file of English and French sentences.

python benchmarks/tutorial_pairs.py eng-fra.parquet folder

Both sides are ASCII letters and `.`, `!`, `?` in lower case, shorter than 10 words, and the English one begins with
"i am", "he is" and so on. The folder gets `train.parquet` and `test.parquet`: every 20th English sentence is held out,
with all its translations, which the tutorial has among its training pairs.
"""

import re
import sys
import unicodedata
from pathlib import Path

from datasets import Dataset

BEGINNINGS = (
    *("i am ", "i m ", "he is", "he s ", "she is", "she s ", "you are", "you re ", "we are", "we re ", "they are"),
    "they re ",  # as there, with and without a space: "he isn t" begins with one of them
)
LONGEST = 9


def normalized(text: str) -> str:
    """Return the words of a text without accents and case, punctuation apart.

    >>> normalized("Je suis désolé!")
    'je suis desole !'
    """
    letters = (sign for sign in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(sign) != "Mn")
    return re.sub(r"[^a-z.!?]+", " ", re.sub(r"([.!?])", r" \1", "".join(letters))).strip()


def main() -> None:
    """Filter and split."""
    source, folder = sys.argv[1], Path(sys.argv[2])
    rows = Dataset.from_parquet(source).map(lambda row: {name: normalized(row[name]) for name in ("en", "fr")})
    short = rows.filter(lambda row: all(len(row[name].split()) <= LONGEST for name in ("en", "fr")))
    kept = short.filter(lambda row: row["en"].startswith(BEGINNINGS))
    number = {text: number for number, text in enumerate(dict.fromkeys(kept["en"]))}
    folder.mkdir(parents=True, exist_ok=True)
    for name, is_test in (("train", False), ("test", True)):
        part = kept.filter(lambda row, is_test=is_test: (number[row["en"]] % 20 == 19) == is_test)
        part.to_parquet(folder / f"{name}.parquet")
    words = [len({word for text in kept[name] for word in text.split()}) for name in ("fr", "en")]
    print(f"{len(kept):,} pairs, {words[0]:,} French and {words[1]:,} English words")


if __name__ == "__main__":
    main()
