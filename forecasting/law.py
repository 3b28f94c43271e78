"""The law L = E + A N^-α + B D^-β of the loss of N parameters after D tokens (Hoffmann et al. 2022, section 3.3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.optimize import least_squares
from scipy.special import logsumexp
from scipy.stats import f as fisher

DELTA = 1e-3  # difference of logarithms beyond which Huber's loss is linear
EXPONENTS = (0.2, 0.5, 1.0)
RESAMPLED = 200
QUANTILES = (0.05, 0.95)
FREE = 5  # constants of the law
BOUNDS = [-20.0, -20.0, -20.0, 0.01, 0.01], [10.0, 40.0, 40.0, 3.0, 3.0]


@dataclass(frozen=True)
class Points:
    """Runs: their parameters, tokens and losses."""

    parameters: np.ndarray
    tokens: np.ndarray
    losses: np.ndarray


@dataclass(frozen=True)
class Law:
    """The constants of the law; E, A and B as natural logarithms."""

    e: float
    a: float
    b: float
    alpha: float
    beta: float

    def loss(self, parameters: np.ndarray | float, tokens: np.ndarray | float) -> np.ndarray:
        """Return the predicted loss for these numbers of parameters and training tokens."""
        terms = [self.a - self.alpha * np.log(parameters), self.b - self.beta * np.log(tokens)]
        return np.exp(logsumexp(np.stack(np.broadcast_arrays(self.e, *terms)), axis=0))

    def undetermined(self, points: Points) -> list[str]:
        """Return which of N and D runs leave open: the term varies less than noise, or its exponent is at a bound."""
        losses, low, high = self.loss(points.parameters, points.tokens), BOUNDS[0][-1], BOUNDS[1][-1]
        noise = np.median(losses) * max(DELTA, 2 * np.std(np.log(points.losses / losses)))
        terms = {"N": (self.a, self.alpha, points.parameters), "D": (self.b, self.beta, points.tokens)}
        span = {name: np.ptp(np.exp(scale - power * np.log(counts))) for name, (scale, power, counts) in terms.items()}
        return [name for name in terms if span[name] < noise or not 1.01 * low < terms[name][1] < 0.99 * high]

    def best(self, flops: float, per: float) -> tuple[float, float]:
        """Return the parameters and tokens with the lowest loss for a budget of FLOPs, `per` · N · D."""
        size = (self.alpha / self.beta) * np.exp(self.a - self.b)
        parameters = (size * (flops / per) ** self.beta) ** (1 / (self.alpha + self.beta))
        return float(parameters), float(flops / per / parameters)


def fit(points: Points, start: Law | None = None) -> Law:
    """Return the law with the smallest Huber loss of the logarithms, from a grid of starts or from one."""
    target, parameters, tokens = np.log(points.losses), np.log(points.parameters), np.log(points.tokens)

    def errors(law: np.ndarray) -> np.ndarray:
        e, a, b, alpha, beta = law
        return logsumexp([np.full_like(target, e), a - alpha * parameters, b - beta * tokens], axis=0) - target

    starts = [(start.e, start.a, start.b, start.alpha, start.beta)] if start else []
    for share, alpha, beta in product((0.3, 0.8), EXPONENTS, EXPONENTS) if start is None else ():
        left = np.log((1 - share) / 2 * points.losses.min())  # two terms of this size
        starts.append((target.min() + np.log(share), left + alpha * parameters.mean(), left + beta * tokens.mean(),
                       alpha, beta))  # fmt: skip
    options = {"loss": "huber", "f_scale": DELTA, "bounds": BOUNDS, "x_scale": "jac", "max_nfev": 2000}
    found = [least_squares(errors, np.clip(each, *BOUNDS), **options) for each in starts]
    return Law(*map(float, min(found, key=lambda each: each.cost).x))


def resampled(points: Points, law: Law) -> tuple[list[Law], np.ndarray]:
    """Return laws fitted to bootstraps of the residuals, and these (runs, seeds), widened for the fitted constants."""
    expected, rng = law.loss(points.parameters, points.tokens), np.random.default_rng(0)
    residuals = np.log(points.losses / expected)
    runs = np.unique([points.parameters, points.tokens], axis=1, return_inverse=True)[1].ravel()
    order = np.argsort(runs, kind="stable").reshape(runs.max() + 1, -1)  # seeds of a run share the law's error
    residuals = (residuals - residuals.mean()) * (len(order) / max(1, len(order) - FREE)) ** 0.5
    laws = []
    for _ in range(RESAMPLED):
        drawn = expected.copy()
        drawn[order] *= np.exp(residuals[order[rng.choice(len(order), len(order))]])
        laws.append(fit(Points(points.parameters, points.tokens, drawn), law))
    return laws, residuals[order]


def lack_of_fit(residuals: np.ndarray) -> float:
    """Return the p value of lack of fit by residuals (runs, seeds): do means miss it by more than seeds scatter?"""
    (runs, seeds), means = residuals.shape, residuals.mean(axis=1)
    noise = residuals.var(axis=1, ddof=1).mean() if seeds > 1 else np.inf  # one seed cannot tell
    return float(fisher.sf(seeds * (means**2).sum() / (runs - FREE) / noise, runs - FREE, runs * max(1, seeds - 1)))


def interval(laws: Sequence[Law], residuals: np.ndarray, parameters: float, tokens: float) -> tuple[float, float]:
    """Return the 90 % interval of a run's loss, by the predictions of the laws and the residuals of runs."""
    losses = np.array([float(law.loss(parameters, tokens)) for law in laws])
    low, high = np.quantile(np.multiply.outer(losses, np.exp(residuals)), QUANTILES)
    return float(low), float(high)


def iso_flop(points: Points, flops: np.ndarray, levels: Sequence[float]) -> list[tuple[float, float]]:
    """Return, for budgets of FLOPs, the parameters with the lowest loss, by a parabola over log N (approach 2).

    Losses between the runs of one size are interpolated over the logarithm of the FLOPs; budgets that lie between the
    runs of fewer than three sizes, or whose best size is not between theirs, are left out.
    """
    found = []
    for level in levels:
        sizes, losses = [], []
        for size in np.unique(points.parameters):
            lengths = np.unique(points.tokens[points.parameters == size])  # each may have several seeds
            runs = [(points.parameters == size) & (points.tokens == length) for length in lengths]
            cost, loss = (np.log([each[run].mean() for run in runs]) for each in (flops, points.losses))
            if cost[0] <= np.log(level) <= cost[-1]:
                sizes.append(np.log(size))
                losses.append(np.interp(np.log(level), cost, loss))
        if len(sizes) >= 3:
            curve = np.polynomial.Polynomial.fit(sizes, losses, 2)
            roots = curve.deriv().roots()
            if len(roots) and sizes[0] < roots[0] < sizes[-1] and curve.deriv(2)(0) > 0:
                found.append((level, float(np.exp(roots[0]))))
    return found
