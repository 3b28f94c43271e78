# ruff: noqa: RUF001  (Chinese has full-width punctuation)
import random
from functools import cache

import pytest

from vanillaformer.tokenization import train

ENGLISH = "The quick brown fox jumps over 12 lazy dogs and costs 3.50 pounds since 1987 (it's cheap!)"
GERMAN = "Der schnelle braune Fuchs springt über 12 faule Hunde, kostet 3,50 Euro: größer als müde Äpfel?"
CHINESE = "我 爱 自 然 语 言 处 理 ， 用 PyTorch 训 练 模 型 2024 年 。"


def sentences(count: int = 120, seed: int = 0) -> list[str]:
    """The same made-up sentences in three languages each time."""
    generator = random.Random(seed)
    texts = []
    for index in range(count):
        language = (ENGLISH, GERMAN, CHINESE)[index % 3]
        words = generator.choices(language.split(), k=generator.randint(2, 12))
        texts.append(("" if language is CHINESE else " ").join(words))
    return texts


@pytest.fixture(scope="session")
def texts():
    return sentences()


@pytest.fixture(scope="session")
def trained():
    """Train on `sentences()`, once for each set of arguments."""
    return cache(lambda **arguments: train(sentences(), **{"vocab_size": 400, **arguments}))
