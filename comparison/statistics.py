"""Statistics for few seeds: intervals of a mean by Student's t, and variants against a baseline by Dunnett's test.

With three to five seeds a bootstrap's "95 %" interval contains the mean 75 to 83 times in 100, and five uncorrected
tests find a false difference in one comparison out of five; t intervals and Dunnett's test keep their levels.

Dunnett's test assumes one variance for all variants. A variant that trains well with some seeds and badly with others
would hide every difference between the rest, so those with a significantly wider spread are tested separately. For a
moderately wider spread three seeds are too few: Dunnett's test would find a false difference in one comparison out of
eight, so Welch's test, with the variances of the two variants, has to find it too.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
from scipy import optimize, stats

CONFIDENCE = 0.95
TINY = float(np.finfo(np.float64).tiny)
SPENDING = 1.5  # exponent: 1 spends evenly, 3 nearly all at the end; in between, most is found with fewest runs
OUTLYING = 0.01  # probability, among as many equal variances, below which a variance is outlying


@dataclass(frozen=True)
class Test:
    """The test of a variant against the baseline."""

    difference: float  # the variant's mean minus the baseline's
    low: float  # lower end of the difference's interval; the intervals of all variants hold together
    high: float  # its upper end
    p: float  # probability of so large a difference, in any variant, if there is none
    level: float = 1 - CONFIDENCE  # allowed probability of a false difference, of the interval too
    alone: bool = False  # whether it was tested with its own variance, as an outlier

    @property
    def resolution(self) -> float:
        """The smallest difference that can be detected: half the width of the interval."""
        return (self.high - self.low) / 2

    @property
    def found(self) -> bool:
        return self.p < self.level


def interval(values: Sequence[float]) -> float:
    """Return half the width of a mean's interval by Student's t; NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan
    deviation = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * deviation


def against_baseline(
    scores: Mapping[str, Sequence[float]], baseline: str, *, family: int | None = None, level: float = 1 - CONFIDENCE
) -> dict[str, Test]:
    """Test every variant against the baseline (Dunnett 1955): all intervals hold together with 95 %, or 1 - `level`.

    `family` is the number of variants that share the level, by default those tested.

    The variance is that of all runs around their variant's mean, except for `outlying` variants, which are tested with
    their own (Welch 1947, Bonferroni's correction); all are if the baseline is one of them. The others share the rest
    of the level, and a difference has to be found by Welch's test too, corrected by the square root of the number of
    tests: in simulations with unequal variances and heavy tails a family then keeps its level. A variant
    """
    control = scores.get(baseline, ())
    tested = {name: values for name, values in scores.items() if name != baseline and len(values) > 1}
    if len(control) < 2 or not tested:
        return {}
    if not any(np.ptp(values) > 0 for values in (control, *tested.values())):
        return {}  # without any spread a difference cannot be tested
    apart = outlying(tested | {baseline: control})
    alone = {name: values for name, values in tested.items() if name in apart or baseline in apart}
    together = {name: values for name, values in tested.items() if name not in alone}
    family = len(tested) if family is None else family
    found = {name: welch(values, control, family, level, alone=True) for name, values in alone.items()}
    if any(np.ptp(values) > 0 for values in (control, *together.values())) and together:
        for name, test in dunnett(together, control, family, level).items():
            single = welch(together[name], control, math.sqrt(family), level)
            low, high, p = min(test.low, single.low), max(test.high, single.high), max(test.p, single.p)
            found[name] = Test(test.difference, low, high, p, level)
    return {name: found[name] for name in tested if name in found}


def dunnett(
    tested: Mapping[str, Sequence[float]], control: Sequence[float], tests: int, level: float = 1 - CONFIDENCE
) -> dict[str, Test]:
    """Test variants of equal variance against a control (Dunnett 1955), with their share of the level."""
    groups = [control, *tested.values()]
    freedom, correction = sum(len(values) - 1 for values in groups), tests / len(tested)
    deviation = math.sqrt(sum(float(np.var(values, ddof=1)) * (len(values) - 1) for values in groups) / freedom)
    shares = np.array([math.sqrt(len(values) / (len(values) + len(control))) for values in tested.values()])
    critical = critical_value(level / correction, tuple(shares), freedom)
    found = {}
    for name, values in tested.items():
        difference = float(np.mean(values) - np.mean(control))
        error = deviation * math.sqrt(1 / len(values) + 1 / len(control))
        p = min(1.0, correction * largest_above(abs(difference) / error, shares, freedom))
        found[name] = Test(difference, difference - critical * error, difference + critical * error, p, level)
    return found


@cache
def critical_value(level: float, shares: tuple[float, ...], freedom: int) -> float:
    """Return the value that the largest statistic exceeds with a probability of `level` (`largest_above`)."""
    found = optimize.brentq(lambda value: largest_above(value, np.array(shares), freedom) - level, 0.0, 1e4, rtol=1e-6)
    return float(found)


def largest_above(value: float, shares: np.ndarray, freedom: int) -> float:
    """Return the probability that the largest of t statistics with a common control and variance exceeds a value.

    `shares` (K): for each variant, the square root of its runs' share of the control's and its own; `freedom`: degrees
    of freedom of the variance. `scipy.stats.dunnett` integrates at random, and its search for the interval does not
    always converge.
    """
    nodes, weights = np.polynomial.legendre.leggauss(100)
    scale = np.sqrt(stats.chi2.ppf((nodes / 2 + 0.5) ** 4, freedom) / freedom)[:, None, None]  # dense where t is large
    shared, density = np.polynomial.hermite_e.hermegauss(40)
    rest = np.sqrt(1 - shares**2)
    common = shared[:, None] * shares
    within = stats.norm.cdf((common + value * scale) / rest) - stats.norm.cdf((common - value * scale) / rest)
    return 1 - float((nodes + 1) ** 3 / 4 * weights @ within.prod(-1) @ (density / density.sum()))


def welch(
    values: Sequence[float], control: Sequence[float], correction: float, level: float, *, alone: bool = False
) -> Test:
    """Test a variant against a control, each with its own variance (Welch 1947).

    The degrees of freedom are rounded down: with three seeds the approximation would find too much.
    """
    difference = float(np.mean(values) - np.mean(control))
    parts = [(float(np.var(each, ddof=1)) / len(each), len(each) - 1) for each in (values, control)]
    error = max(TINY, sum(variance for variance, _ in parts)) ** 0.5
    freedom = math.floor(error**4 / max(TINY, sum(variance**2 / count for variance, count in parts)) + 1e-9) or 1
    p = min(1.0, 2 * correction * float(stats.t.sf(abs(difference) / error, freedom)))
    half = float(stats.t.isf(level / 2 / correction, freedom)) * error
    return Test(difference, difference - half, difference + half, p, level, alone)


def outlying(scores: Mapping[str, Sequence[float]]) -> set[str]:
    """Return the variants whose runs spread significantly wider than all others' (Cochran 1941; 't Lam 2010).

    The widest is compared with the others' common variance by an F test, corrected for the number of variants; then
    the next one, until no variance is outlying.
    """
    left = {name: (float(np.var(values, ddof=1)), len(values) - 1) for name, values in scores.items()}
    found: set[str] = set()
    while len(left) > 1:
        widest = max(left, key=lambda name: left[name][0])
        variance, freedom = left.pop(widest)
        others = sum(count for _, count in left.values())
        common = sum(other * count for other, count in left.values()) / others
        if variance == 0 or (len(left) + 1) * stats.f.sf(variance / max(common, TINY), freedom, others) > OUTLYING:
            break
        found.add(widest)
    return found


@cache
def levels_of_looks(counts: tuple[int, ...], level: float) -> tuple[float, ...]:
    """Return the level of each of several looks at growing numbers of runs, which together keep `level`.

    At a share t of the last look's runs, level · t^1.5 is spent (Lan & DeMets 1983; Kim & DeMets 1987); the bound of a
    look follows from the joint distribution of the looks, integrated numerically (Armitage, McPherson & Rowe 1969),
    for normal scores: tests by Student's t use its levels, not its bounds (Jennison & Turnbull 2000, 3.8).
    """
    nodes, weights = np.polynomial.legendre.leggauss(80)
    sums, density, found = np.zeros(1), np.ones(1), []  # sums of scores, if no look has found anything
    for before, count in pairwise((0, *counts)):
        spread = math.sqrt(count - before)
        due = level * ((count / counts[-1]) ** SPENDING - (before / counts[-1]) ** SPENDING)
        bound = optimize.brentq(_beyond, 0.0, 50 * math.sqrt(count), (sums, density, spread, due), xtol=1e-12)
        found.append(2 * float(stats.norm.sf(bound / math.sqrt(count))))
        steps = stats.norm.pdf((bound * nodes[:, None] - sums) / spread) / spread
        sums, density = bound * nodes, bound * weights * (steps @ density)
    return tuple(found)


def _beyond(bound: float, sums: np.ndarray, density: np.ndarray, spread: float, due: float) -> float:
    """Return how far the probability of a step from the sums beyond a bound exceeds the one due."""
    outside = stats.norm.sf((bound - sums) / spread) + stats.norm.cdf((-bound - sums) / spread)
    return float(density @ outside) - due
