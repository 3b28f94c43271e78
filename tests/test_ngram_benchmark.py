"""The n-gram model of `benchmarks/ngram.py` against its formula, counted by hand."""

import runpy
from pathlib import Path

import numpy as np
import pytest

NGRAM = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "ngram.py"), run_name="ngram")
END, symbols, probabilities = NGRAM["END"], NGRAM["symbols"], NGRAM["probabilities"]
TRAIN, HELD_OUT = ["abracadabra", "bananas and cabs"], ["banana cabra", "x añd"]


def by_counting(train, history, symbol, order):
    probability = 1 / (END + 1)
    for length in range(min(order, len(history) + 1)):
        wanted = history[len(history) - length :]
        after = [train[i + length] for i in range(len(train) - length) if train[i : i + length] == wanted]
        if after:
            types = len(set(after))
            probability = (after.count(symbol) + types * probability) / (len(after) + types)
    return probability


def test_equal_to_counting():
    train, held_out = symbols(TRAIN).tolist(), symbols(HELD_OUT).tolist()
    expected = [by_counting(train, held_out[:i], held_out[i], 4) for i in range(1, len(held_out))]
    assert probabilities(np.array(train), np.array(held_out), 4) == pytest.approx(expected, rel=1e-12)


def test_bits_are_of_utf_8_bytes():
    text, other = ["ab" * 50], ["äb"]
    bits = -np.log2(probabilities(symbols(text), symbols(other), 3)).sum()
    assert NGRAM["bits_per_byte"](text, other, 3) == pytest.approx(bits / 3)
