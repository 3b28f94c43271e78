"""Verdicts on variants (better or worse than the baseline, or undecided) that hold however often one looks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .plan import Plan
from .statistics import CONFIDENCE, Test, against_baseline, levels_of_looks

SPENT = 0.85  # share of the 5 % for looks: with unequal variances, small samples find more than normal scores
Word = Literal["better", "worse", "cannot tell", "lost"]
Scores = Mapping[str, Mapping[int, float]]  # by variant and seed


@dataclass(frozen=True)
class Verdict:
    """The verdict on a variant."""

    word: Word
    test: Test | None  # the one that decided, or the last one; None if it could not be tested
    seeds: tuple[int, ...]  # seeds of the tested runs

    @property
    def decided(self) -> bool:
        return self.word != "cannot tell"


def judge(plan: Plan, scores: Scores, count: int | None = None) -> dict[str, Verdict]:
    """Return the verdicts after `count` seeds of the plan (default: all), for each variant but the baseline.

    At each of the plan's looks, undecided variants and the baseline are tested on their runs with the first
    seeds; the looks together keep to 5 % false differences in a family. A verdict does not change when
    variants are added: each is tested together with those that were there before it.
    """
    looks = [look for look in plan.looks if count is None or look <= count]
    share = SPENT if plan.sequential else 1.0
    levels = levels_of_looks(plan.looks, share * (1 - CONFIDENCE) / plan.tests)
    first = [name for name in plan.variants if name not in (plan.baseline, *plan.added)]
    batches = [first, *([name] for name in plan.added)]
    verdicts: dict[str, Verdict] = {}
    for look, level in zip(looks, levels):
        seeds = plan.seeds[:look]
        drawn = {name: {seed: runs[seed] for seed in seeds if seed in runs} for name, runs in scores.items()}
        known = [plan.baseline]
        for batch in batches:
            batch = [name for name in batch if name not in verdicts or not verdicts[name].decided]
            known += batch
            values = {name: list(drawn.get(name, {}).values()) for name in known}
            tests = against_baseline(values, plan.baseline, family=plan.tests, level=plan.tests * level)
            for name in batch:
                test, runs = tests.get(name), drawn.get(name, {})
                word: Word = "cannot tell" if runs else "lost"
                if runs and test is not None and test.found:
                    word = "better" if (test.difference > 0) == plan.score.greater_is_better else "worse"
                verdicts[name] = Verdict(word, test, tuple(runs))
    return verdicts
