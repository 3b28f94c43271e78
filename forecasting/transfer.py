"""How far the best learning rate moves with the width: each variant of a plan is tuned at several widths."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from vanillaformer.comparison.comparing import Tuning
from vanillaformer.comparison.plan import Options, Plan, fields_of, merged
from vanillaformer.configuration import PRESETS
from vanillaformer.console.drawing import save, style
from vanillaformer.data.tasks import TASKS, TaskName
from vanillaformer.hub.atomic_files import write_text

RATE = "learning_rate"
# Config fields that grow with `hidden_size`, so that heads keep their width
SIZES = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
    *("encoder_hidden_size", "encoder_intermediate_size"),
)


def sizes_at(options: Options, task: TaskName, width: int, source: str) -> Options:
    """Return the model sizes given in the options, scaled to another width; raise ValueError if they cannot be."""
    fields = fields_of(options.get("overrides"))
    if fields.get("hidden_size") is None:
        raise ValueError(f"{source}: overrides: other widths need a hidden_size to scale sizes from")
    if fields.get("stage_heads"):
        raise ValueError(
            f"{source}: stage_heads={fields['stage_heads']}: heads that do not double cannot be scaled to other widths"
        )
    given = {size: fields[size] for size in SIZES if fields.get(size) is not None}
    if wrong := [size for size, value in given.items() if type(value) is not int or value < 1]:
        raise ValueError(f"{source}: overrides: {wrong[0]}: {fields[wrong[0]]!r}; it must be a whole number above 0")
    preset = PRESETS.get(str(options.get("preset") or TASKS[task].preset))
    if preset and "intermediate_size" in preset.fields and "intermediate_size" not in fields:
        raise ValueError(f"{source}: overrides: intermediate_size would be the preset's at every width; give it, too")
    sizes = {size: value * width / fields["hidden_size"] for size, value in given.items()}
    for size, value in sizes.items():
        if value % 1 or value < 1:
            raise ValueError(f"{source}: {size}={value:g} at width {width}: give other widths")
    return {size: int(value) for size, value in sizes.items()}


def at_widths(plan: Plan, widths: Sequence[int]) -> Plan:
    """Return a plan whose variants are tuned at each width; raise ValueError if their sizes cannot be scaled."""
    if [*plan.tune] != [RATE] or plan.equal:
        raise ValueError(f"--transfer draws scores over rates: it needs `tune: {{{RATE}: [...]}}` and no `equal`")
    variants: dict[str, Options] = {}
    for name, options in plan.variants.items():
        for width in widths:
            scaled = {"overrides": sizes_at(merged(plan.arguments, options), plan.task, width, f"variant {name}")}
            variants[f"{name}-{width}"] = merged(options, scaled)
    return replace(plan, variants=variants, baseline=next(iter(variants)), widths=tuple(widths), added=(), family=None)


class Best(NamedTuple):
    """The best rate of a variant at one width, and its score."""

    rate: float
    score: float
    inside: bool  # whether rates on both sides of it were tried, even without a score


def best_rate(tried: Sequence[tuple[Options, float | None]], greater_is_better: bool) -> Best:
    """Return the vertex of a parabola through the best rate's score and its neighbors', over the rate's logarithm."""
    known = sorted((options[RATE], score) for options, score in tried if score is not None)
    scores = np.array([score for _, score in known]) * (-1 if greater_is_better else 1)
    index = int(scores.argmin())
    rates = [options[RATE] for options, _ in tried]
    if not 0 < index < len(known) - 1 or np.ptp(scores[index - 1 : index + 2]) == 0:
        return Best(*known[index], min(rates) < known[index][0] < max(rates))
    near = slice(index - 1, index + 2)
    curve = np.polynomial.Polynomial.fit(np.log([rate for rate, _ in known[near]]), scores[near], 2)
    vertex = float(curve.deriv().roots()[0])
    return Best(math.exp(vertex), float(curve(vertex)) * (-1 if greater_is_better else 1), True)


def write_transfer(plan: Plan, tuning: Tuning, folder: Path) -> str:
    """Write transfer.md and the figure with its numbers; return the table and how far best rates move."""
    names = list(dict.fromkeys(name.rpartition("-")[0] for name in tuning))
    figure = Figure(figsize=(4 * len(names), 3.6), layout="constrained")
    panels = figure.subplots(1, len(names), sharex=True, sharey=True, squeeze=False)[0]
    rates = sorted({options[RATE] for tried in tuning.values() for options, _ in tried})
    rows, moves, lines = [], [], [f"| variant | width | best rate | {plan.score.label} |", "| --- | --- | --- | --- |"]
    for panel, name in zip(panels, names):
        panel.set(title=name, xlabel="learning rate", xscale="log", ylabel=plan.score.label)
        found = []
        for number, width in enumerate(plan.widths):
            tried = tuning[f"{name}-{width}"]
            rows += [(name, width, options[RATE], score) for options, score in tried]
            points = sorted((options[RATE], score) for options, score in tried if score is not None)
            panel.plot(*zip(*points), label=str(width), marker="o", markersize=4, **style(number))
            found.append(best_rate(tried, bool(plan.score.greater_is_better)))
            end = "" if found[-1].inside else " (the end of the rates tried)"
            lines.append(f"| {name} | {width} | {found[-1].rate:.2g}{end} | {found[-1].score:.4g} |")
        move, ends = found[-1].rate / found[0].rate, f"{plan.widths[0]} to {plan.widths[-1]}"
        open_end = "" if found[0].inside and found[-1].inside else "; with rates beyond those tried it may differ"
        moves.append(f"- {name}: from width {ends} the best rate changes by a factor of {move:.2f}{open_end}.")
        panel.set_xticks(rates, [f"{rate:g}" for rate in rates], rotation=45)
        panel.minorticks_off()  # a decade has too many
    panels[-1].legend(title="width", frameon=False, fontsize=8)
    save(figure, folder / "figures" / "transfer", ("variant", "width", RATE, plan.score.label), rows)
    text = "\n".join([*lines, "", *moves])
    write_text(folder / "transfer.md", text + "\n")
    return text
