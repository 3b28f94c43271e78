"""Intervals and tests of a comparison: against scipy on known numbers, and on scores of which the truth is known."""

import math

import numpy as np
import pytest
from scipy import stats

from vanillaformer.comparison.statistics import against_baseline, interval, outlying, seed_correlation

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


def test_one_unstable_variant_hides_no_difference():
    rng = np.random.default_rng(0)
    scores = {name: rng.normal(shift, 0.01, 3).tolist() for name, shift in (("base", 2), ("better", 1.8), ("same", 2))}
    found = against_baseline(scores | {"unstable": [3.4, 3.3, 2.2]}, "base")
    assert [name for name, test in found.items() if test.alone] == ["unstable"]
    assert list(found) == ["better", "same", "unstable"]
    assert found["better"].found
    assert not found["same"].found
    assert found["better"].resolution < 0.1 < 1 < found["unstable"].resolution
    assert found["better"] == against_baseline(scores, "base")["better"]


def test_an_outlying_variant_is_tested_as_by_welch():
    base, wide = [1.0, 1.01, 0.99], [5.0, 9.0, 7.5]
    test = against_baseline({"base": base, "wide": wide, "near": [1.0, 1.02, 1.01]}, "base")["wide"]
    expected = stats.ttest_ind(wide, base, equal_var=False)
    assert test.p == pytest.approx(2 * expected.pvalue)
    assert (test.low, test.high) == pytest.approx(tuple(expected.confidence_interval(0.975)))


def test_with_an_unstable_baseline_every_variant_is_tested_by_itself():
    scores = {"base": [3.4, 3.3, 2.2], "a": [1.0, 1.01, 0.99], "b": [1.0, 1.02, 1.01]}
    assert all(test.alone for test in against_baseline(scores, "base").values())


def test_equal_variances_are_not_outlying():
    """Of 300 families of 12 equal variants, at most one in fifty has an outlying one; ten times as wide is found."""
    rng = np.random.default_rng(0)
    families = [{str(number): rng.normal(0, 1, 3) for number in range(12)} for _ in range(300)]
    assert np.mean([bool(outlying(family)) for family in families]) <= 0.02
    assert np.mean([outlying(family | {"0": 30 * family["0"]}) == {"0"} for family in families]) >= 0.8


def test_of_equal_variants_one_family_in_twenty_has_a_false_difference():
    rng = np.random.default_rng(0)
    false = [
        any(test.found for test in against_baseline({str(n): rng.normal(0, 1, 3) for n in range(6)}, "0").values())
        for _ in range(60)
    ]
    assert np.mean(false) <= 0.1
