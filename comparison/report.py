"""The report of a comparison: a table, what differs, figures, and how to run it again."""

import shlex
from pathlib import Path
from statistics import mean
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from vanillaformer import __version__
from vanillaformer.console.drawing import embedded
from vanillaformer.hub.atomic_files import write_text

from .charts import AXES, curve_figure, interval_of_mean, score_figure, tuning_figure
from .comparing import Comparison
from .results import VariantResult
from .statistics import Test, against_baseline

NOTHING = "-"
ENGINE = Environment(
    loader=PackageLoader("vanillaformer.comparison", "."),
    undefined=StrictUndefined,
    autoescape=lambda name: str(name).endswith(".html.jinja"),
    trim_blocks=True,
    lstrip_blocks=True,
)


def write_report(comparison: Comparison, folder: Path) -> str:
    """Write report.html, report.md, and the figures with their numbers; return the table and what it says as text."""
    figures = folder / "figures"
    drawn = [("Scores", score_figure(comparison, figures))]
    drawn += [(f"Validation over {AXES[axis][0]}", curve_figure(comparison, figures, axis)) for axis in AXES]
    if comparison.tuning:
        drawn.append(("Tuning", tuning_figure(comparison, figures)))
    pictures = [{"title": title, "name": names[1], "data": embedded(figures / names[0])} for title, names in drawn]
    content = facts(comparison)
    for name in ("report.html", "report.md"):
        text = ENGINE.get_template(f"{name}.jinja").render(pictures=pictures, **content)
        write_text(folder / name, text.rstrip() + "\n")
    return ENGINE.get_template("table.md.jinja").render(**content)


def facts(comparison: Comparison) -> dict[str, Any]:
    """Return what the templates print."""
    plan = comparison.plan
    tests = against_baseline({name: found.scores for name, found in comparison.variants.items()}, plan.baseline)
    return {
        "plan": plan,
        "score": plan.score,
        "rows": [row(found, tests.get(name), plan) for name, found in comparison.variants.items()],
        "sentences": sentences(comparison, tests),
        "differences": {name: differences(found, comparison) for name, found in comparison.variants.items()},
        "tuning": comparison.tuning,
        "version": __version__,
        "command": shlex.join(["vanillaformer", plan.program, "settings/runs-VARIANT-SEED.yaml"]),
    }


def row(found: VariantResult, test: Test | None, plan: Any) -> dict[str, Any]:
    """Return a variant's row of the table."""
    center, states = NOTHING, [outcome.state for outcome in found.lost.values()]
    if found.scores:
        low, high = interval_of_mean(plan.score, found.scores)
        center = f"{mean(found.scores):.4g}" + (f" ({low:.4g} to {high:.4g})" if low == low else "")
    return {
        "name": found.name,
        "is_baseline": found.name == plan.baseline,
        "score": center,
        "each": ", ".join(f"{score:.4g}" for score in found.scores),
        "difference": "" if test is None else f"{test.difference:+.3g} ({test.low:+.3g} to {test.high:+.3g})",
        "p": "" if test is None else ("< 0.001" if test.p < 0.001 else f"{test.p:.3f}"),
        "found": test is not None and test.found,
        "parameters": f"{found.parameters:,}" if found.parameters else NOTHING,
        "flops_per_token": f"{found.flops_per_token:.3g}" if found.flops_per_token else NOTHING,
        "tokens_per_second": f"{found.speed:,.0f}" if found.speed else NOTHING,
        "memory": f"{max(run.memory for run in found.runs):,.0f}" if found.runs else NOTHING,
        "lost": ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)),
    }


def sentences(comparison: Comparison, tests: dict[str, Test]) -> list[str]:
    """Return what the table says, and what it cannot say."""
    plan, found = comparison.plan, []
    direction = 1 if plan.score.greater_is_better else -1
    for title, sign in (("Better", 1), ("Worse", -1)):
        names = [name for name, test in tests.items() if test.found and sign * direction * test.difference > 0]
        found.append(f"{title} than {plan.baseline}: {', '.join(names) or 'none'}.")
    rest = [name for name, test in tests.items() if not test.found]
    if rest:
        found.append(f"No detectable difference from {plan.baseline}: {', '.join(rest)}.")
    if tests:
        if together := [test.resolution for test in tests.values() if not test.alone]:
            least = max(together)
            found.append(
                f"With these runs, differences below {least:.2g} cannot be detected (Dunnett and Welch, 95 %)."
            )
        if alone := [name for name, test in tests.items() if test.alone]:
            found.append(
                f"Spread wider than the others, and tested with their own variance (Welch): {', '.join(alone)}."
            )
    for name, variant in comparison.variants.items():
        if variant.lost:
            total = len(variant.lost) + len(variant.runs)
            why = "; ".join(f"seed {seed} {lost.state}: {lost.message}" for seed, lost in variant.lost.items())
            found.append(f"{name}: {len(variant.lost)} of {total} runs are lost, and in no mean ({why}).")
        if ends := variant.rises():
            found.append(
                f"{name}: the validation loss rises from {ends[0]:.4g} to {ends[1]:.4g} at the end, in every run "
                "(overfitting): the last weights are compared, not the best."
            )
    untested = [name for name in comparison.variants if name not in tests and name != plan.baseline]
    if untested:
        found.append(
            f"Not tested, for want of two runs that count on both sides, or of any spread: {', '.join(untested)}."
        )
    if len(plan.seeds) < 5:
        found.append(f"{len(plan.seeds)} seeds show large differences only; a claim deserves 5.")
    found.append("The intervals are of seeds (weights and order of the data), not of the validation rows.")
    if not plan.tune:
        found.append("Nothing was tuned: the common settings may suit one variant better than another (--tune).")
    return found


def differences(found: VariantResult, comparison: Comparison) -> str:
    """Return a variant's options and in which fields its config differs from the baseline's."""
    baseline, words = comparison.variants[comparison.plan.baseline], []
    options = {name: value for name, value in found.options.items() if name != "overrides"}
    words += [f"--{name} {value}" for name, value in options.items()]
    configs = [variant.config for variant in (baseline, found)]
    for name in sorted(configs[0].keys() | configs[1].keys()) if all(configs) else ():
        old, new = (config.get(name, "default") for config in configs)
        if old != new:
            words.append(f"{name}: {old} → {new}")
    return "; ".join(words) or ("the baseline" if found is baseline else "no difference")
