"""Intervals and tests of a comparison: against scipy on known numbers, and on scores of which the truth is known."""

import math

import numpy as np
import pytest
from scipy import stats

from vanillaformer.comparison.statistics import against_baseline, interval, seed_correlation

# Dunnett (1955): hematology of animals under a control and two drugs, as in scipy's documentation
BLOOD = {
    "control": [7.40, 8.50, 7.20, 8.24, 9.84, 8.32],
    "a": [9.76, 8.80, 7.68, 9.36],
    "b": [12.80, 9.68, 12.16, 9.20, 10.55],
}


def test_interval_is_that_of_students_t():
    low, high = stats.t.interval(0.95, 5, loc=np.mean(BLOOD["control"]), scale=stats.sem(BLOOD["control"]))
    assert interval(BLOOD["control"]) == pytest.approx((high - low) / 2, rel=1e-12)
    assert math.isnan(interval([1.0]))


def test_numbers_of_the_paper():
    """Its drug b differs from the control, its drug a does not; the joint intervals are those of its table."""
    found = against_baseline(BLOOD, "control")
    assert not found["a"].found
    assert found["b"].found
    assert found["a"].p == pytest.approx(0.62004941, abs=1e-3)
    assert found["b"].p == pytest.approx(0.0059035, abs=1e-3)
    assert found["a"].difference == pytest.approx(0.65, abs=0.01)
    assert (found["b"].low, found["b"].high) == pytest.approx((0.8, 4.4), abs=0.1)
    assert found["b"].resolution == pytest.approx((found["b"].high - found["b"].low) / 2)


def test_what_cannot_be_tested_is_not():
    assert against_baseline({"control": [1.0], "a": [2.0, 3.0]}, "control") == {}
    assert against_baseline({"control": [1.0, 1.0], "a": [1.0, 1.0]}, "control") == {}
    assert set(against_baseline({"control": [1.0, 1.1], "a": [2.0], "b": [2.0, 2.1]}, "control")) == {"b"}


def test_a_planted_difference_is_found_and_none_is_not():
    """Of 200 comparisons of five seeds: four deviations are found in 95 % or more, nothing in 95 % or more."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(200):
        scores = {name: rng.normal(shift, 1.0, 5).tolist() for name, shift in (("base", 0), ("same", 0), ("far", 4))}
        tests = against_baseline(scores, "base")
        found.append((tests["far"].found, tests["same"].found))
    planted, false = np.mean(found, axis=0)
    assert planted >= 0.95
    assert false <= 0.05


def test_correlation_over_seeds():
    both = {"a": {1: 1.0, 2: 2.0, 3: 4.0}, "b": {1: 2.0, 2: 4.0, 3: 8.0, 4: 0.0}}
    assert seed_correlation(both) == pytest.approx(1.0)
    assert math.isnan(seed_correlation({"a": {1: 1.0, 2: 2.0}, "b": {1: 1.0, 2: 2.0}}))
    assert math.isnan(seed_correlation({"a": {1: 1.0, 2: 1.0, 3: 1.0}, "b": both["b"]}))
