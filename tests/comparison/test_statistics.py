"""Intervals and tests of a comparison: against scipy on known numbers, and on scores of which the truth is known."""

import math

import numpy as np
import pytest
from scipy import stats

from vanillaformer.comparison import statistics
from vanillaformer.comparison.report import interval_of_mean
from vanillaformer.comparison.statistics import against_baseline, critical_value, dunnett, interval, outlying
from vanillaformer.training.metrics.scores import SCORES

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


@pytest.mark.parametrize(("name", "scores", "low", "high"), [
    ("pearson", (-0.1, -0.2, -0.3), -0.448, 0.048), ("pearson", (-0.9, -0.5), -1, 1), ("mse", (0.1, 0.5), 0, 2.841),
    ("accuracy", (0.9, 0.99), 0.373, 1),
])  # fmt: skip
def test_interval_of_a_score_keeps_to_its_values(name, scores, low, high):
    """A correlation may be negative, as of models that have learned little."""
    assert interval_of_mean(SCORES[name], scores) == pytest.approx((low, high), abs=1e-3)
    assert all(map(math.isnan, interval_of_mean(SCORES[name], scores[:1])))


DRAWN = np.random.default_rng(1)
UNEQUAL = {str(number): DRAWN.normal(number / 2, 1, size).tolist() for number, size in enumerate((3, 5, 2, 4, 3))}


@pytest.mark.parametrize("groups", [BLOOD, UNEQUAL], ids=["paper", "unequal"])
def test_dunnett_is_scipys(groups):
    """Whose own integration is at random."""
    control, *others = groups.values()
    expected = stats.dunnett(*others, control=control, rng=np.random.default_rng(0))
    found = dunnett(dict(zip([*groups][1:], others)), control, len(others)).values()
    assert [test.p for test in found] == pytest.approx(expected.pvalue, abs=1e-3)
    assert [test.found for test in found] == [p < 0.05 for p in expected.pvalue]
    ends = expected.confidence_interval(0.95)
    assert [test.low for test in found] == pytest.approx(ends.low, abs=0.01)
    assert [test.high for test in found] == pytest.approx(ends.high, abs=0.01)


@pytest.mark.parametrize("freedom", [2, 4, 8])
def test_of_one_variant_it_is_students_test_at_any_level(freedom):
    """As small as those of an early look at one of many proposals."""
    for level in (0.05, 1e-3, 1e-5):
        critical = stats.t.isf(level / 2, freedom)
        assert critical_value(level, (0.5**0.5,), freedom) == pytest.approx(critical, rel=1e-4)
        assert statistics.largest_above(critical, np.array([0.5**0.5]), freedom) == pytest.approx(level, rel=1e-3)


def test_a_difference_is_one_by_both_tests_and_what_cannot_be_tested_is_not():
    control, b = BLOOD["control"], BLOOD["b"]
    own = stats.ttest_ind(b, control, equal_var=False)
    freedom = math.floor(own.df)
    test = against_baseline(BLOOD, "control")["b"]
    assert test.p == pytest.approx(math.sqrt(2) * 2 * stats.t.sf(abs(own.statistic), freedom))
    half = stats.t.isf(0.025 / math.sqrt(2), freedom) * (np.mean(b) - np.mean(control)) / own.statistic
    assert (test.low, test.high) == pytest.approx((test.difference - half, test.difference + half))
    assert test.found == (test.low > 0)
    assert against_baseline({"control": [1.0], "a": [2.0, 3.0]}, "control") == {}
    assert against_baseline({"control": [1.0, 1.0], "a": [1.0, 1.0]}, "control") == {}
    assert set(against_baseline({"control": [1.0, 1.1], "a": [2.0], "b": [2.0, 2.1]}, "control")) == {"b"}


def test_one_unstable_variant_hides_no_difference_and_equal_variances_are_not_outlying():
    rng = np.random.default_rng(0)
    scores = {name: rng.normal(shift, 0.01, 3).tolist() for name, shift in (("base", 2), ("better", 1.8), ("same", 2))}
    found = against_baseline(scores | {"unstable": [3.4, 3.3, 2.2]}, "base")
    assert [name for name, test in found.items() if test.alone] == ["unstable"]
    assert list(found) == ["better", "same", "unstable"]
    assert found["better"].found
    assert not found["same"].found
    assert found["better"].resolution < 0.1 < 1 < found["unstable"].resolution
    calm = against_baseline(scores, "base")["better"]
    assert calm.resolution < found["better"].resolution < 1.5 * calm.resolution  # it has a part of the 5 %
    # Of 300 families of 12 equal variants, at most one in fifty has an outlying one; ten times as wide is found
    rng = np.random.default_rng(0)
    families = [{str(number): rng.normal(0, 1, 3) for number in range(12)} for _ in range(300)]
    assert np.mean([bool(outlying(family)) for family in families]) <= 0.02
    assert np.mean([outlying(family | {"0": 30 * family["0"]}) == {"0"} for family in families]) >= 0.8


def test_an_outlying_variant_is_tested_as_by_welch_and_all_are_with_an_unstable_baseline():
    base, wide = [1.0, 1.01, 0.99], [5.0, 9.0, 7.5]
    test = against_baseline({"base": base, "wide": wide, "near": [1.0, 1.02, 1.01]}, "base")["wide"]
    expected = stats.ttest_ind(wide, base, equal_var=False)
    assert test.p == pytest.approx(2 * 2 * stats.t.sf(expected.statistic, math.floor(expected.df)))
    half = stats.t.isf(0.05 / 4, math.floor(expected.df)) * (test.difference / expected.statistic)
    assert (test.low, test.high) == pytest.approx((test.difference - half, test.difference + half))
    assert test.alone
    scores = {"base": [3.4, 3.3, 2.2], "a": [1.0, 1.01, 0.99], "b": [1.0, 1.02, 1.01]}
    assert all(test.alone for test in against_baseline(scores, "base").values())


def drawn(rng: np.random.Generator, kind: str, variants: int, seeds: int) -> dict[str, list[float]]:
    """Scores of variants that do not differ in the mean; `kind` says how they spread."""
    widths = np.ones(variants)
    if kind in ("wide", "very wide"):
        widths[-1] = 4 if kind == "wide" else 20
    elif kind == "wide baseline":
        widths[0] = 4
    values = rng.standard_t(2, (variants, seeds)) if kind == "heavy tails" else rng.normal(size=(variants, seeds))
    return {str(number): row.tolist() for number, row in enumerate(widths[:, None] * values)}


@pytest.mark.parametrize(("kind", "variants", "seeds"), [
    ("equal", 3, 3), ("wide", 3, 5), ("wide", 6, 3), ("very wide", 2, 3), ("wide baseline", 3, 5),
    ("wide baseline", 6, 3), ("heavy tails", 6, 3),
])  # fmt: skip
def test_one_family_in_twenty_has_a_false_difference(kind, variants, seeds):
    """By p and by the intervals; of 100 families, 11 would be more than 5 % by chance once in eighty times."""
    rng = np.random.default_rng(3)
    families = [against_baseline(drawn(rng, kind, variants, seeds), "0").values() for _ in range(100)]
    assert sum(any(test.found for test in tests) for tests in families) <= 10
    assert sum(any(test.low > 0 or test.high < 0 for test in tests) for tests in families) <= 10
