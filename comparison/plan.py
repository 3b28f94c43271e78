"""The plan of a comparison: a training program, its arguments, the variants, the seeds and one budget for all."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from vanillaformer.console.limits import SEED
from vanillaformer.console.parsing import read_settings, yaml_value
from vanillaformer.data.tasks import TASKS, TaskName
from vanillaformer.hub.atomic_files import write_text
from vanillaformer.training.metrics.scores import Score, ranking_score
from vanillaformer.training.tasks import PROGRAMS, task_of
from vanillaformer.training.trainer.budget import LENGTHS

Options = dict[str, Any]
KEYS = (
    *("program", "arguments", "variants", "seeds", "budget", "baseline", "score", "equal", "tune", "tuning_seeds"),
    *("extend", "sequential", "family", "ladder"),
)
BUDGETS = {
    "tokens": "tokens of the training data that are read",
    "flops": "floating-point operations of training",
    "seconds": "seconds, data and evaluations included",
    "steps": "steps of the optimizer",
}
OPTION_OF = {"tokens": "max_tokens", "flops": "max_flops", "seconds": "max_time", "steps": "max_steps"}
"""The training option that limits a run, and its schedule, to each kind of budget."""
EQUAL = ("parameters", "flops")
ADDED = "added.yaml"
# Settings of every run: the last weights are scored, as the best ones look better the more often they are evaluated
FIXED: Options = {
    "load_best_model_at_end": False, "early_stopping_patience": 0, "max_epochs": None, "save_total_limit": 1,
    "disable_tqdm": True,
}  # fmt: skip
RESERVED = {
    "output_dir", "overwrite_output_dir", "resume_from_checkpoint", "seed", *LENGTHS, *OPTION_OF.values(), *FIXED,
}  # fmt: skip
MODEL_OPTIONS = ("overrides", "set", "preset", "model_", "tokenizer_")  # prefixes of those that change a model's size
SEEDS, SEQUENTIAL_SEEDS = (1, 2, 3), tuple(range(1, 9))
TUNING_SEEDS = (101,)
WORD = re.compile(r"\d+\.?\d*[eE][+-]?\d+")  # a number such as 1e-3, which YAML reads as a string


@dataclass(frozen=True)
class Plan:
    """A comparison to be run."""

    program: str
    arguments: Options  # options of the program in every run
    variants: dict[str, Options]  # options that each variant adds, by name
    budget: str  # the unit of `BUDGETS` of which all runs get the same amount
    amount: float
    baseline: str  # the variant that the others are tested against
    score: Score  # the score that decides
    seeds: tuple[int, ...] = SEEDS  # of weights and data order; each variant is trained with each
    # The quantity that `intermediate_size` matches to the baseline's: parameters, flops or nothing
    equal: str | None = None
    tune: dict[str, list[Any]] = field(default_factory=dict)  # options and their values to tune each variant over
    tuning_seeds: tuple[int, ...] = TUNING_SEEDS
    extend: bool = False  # whether to try values beyond the tuning's for a variant whose best one is at an end
    # Whether to begin with two seeds and train only undecided variants with more
    sequential: bool = False
    family: int | None = None  # number of variants that will be tested in all; None: those of the plan
    widths: tuple[int, ...] = ()  # widths at which each variant is tuned, in place of a comparison
    added: tuple[str, ...] = ()  # variants that were added to a finished plan, in this order

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of seeds after which the variants are tested."""
        return tuple(range(2, len(self.seeds) + 1)) if self.sequential else (len(self.seeds),)

    @property
    def tests(self) -> int:
        """The number of variants that share the 5 % probability of a false difference."""
        return self.family or len(self.variants) - 1

    @property
    def task(self) -> TaskName:
        return task_of(self.program).name_of(self.arguments)

    @property
    def length(self) -> Options:
        """The option that limits a run, and its schedule, to the budget."""
        amount = f"{self.amount:g}s" if self.budget == "seconds" else self.amount
        return {OPTION_OF[self.budget]: int(amount) if self.budget in ("tokens", "steps") else amount}

    def options(self, variant: str, *more: Mapping[str, Any]) -> Options:
        """Return the options of a variant's runs; later ones win.

        With a budget in seconds, a new model gets the task's preset: its size would otherwise be chosen by the data,
        for each variant separately.
        """
        found = merged(self.arguments, self.variants[variant], *more, FIXED)
        named = {"preset", "model_name_or_path"} & found.keys()
        return found if named or self.budget != "seconds" else {"preset": TASKS[self.task].preset, **found}

    def grid(self) -> list[Options]:
        """Return the combinations of tuned values; a single empty one if nothing is tuned."""
        return [dict(zip(self.tune, values)) for values in product(*self.tune.values())]

    def beyond(self, grid: Sequence[Options], best: Options) -> Options:
        """Return the next value beyond the end of a grid of one number if the best one is there, otherwise nothing."""
        values = sorted({value for options in grid for value in options.values() if type(value) in (int, float)})
        whole = all(type(value) is int for value in values)  # options that only take integers
        if len(self.tune) > 1 or len(values) < max(2, len(grid)) or values[0] <= 0:
            return {}
        ((name, value),) = best.items()
        ends = {values[-1]: values[-1] / values[-2], values[0]: values[0] / values[1]}
        further = round(value * ends.get(value, 1)) if whole else float(f"{value * ends.get(value, 1):.3g}")
        return {name: further} if further and further not in values else {}


def merged(*parts: Mapping[str, Any]) -> Options:
    """Return options merged by name: later ones win, and `overrides` are merged field by field."""
    together: Options = {}
    for part in parts:
        options = {"overrides" if name == "set" else str(name).replace("-", "_"): part[name] for name in part}
        if len(options) < len(part):
            raise ValueError(f"an option is given twice in {', '.join(map(str, part))}")
        overrides = fields_of(together.get("overrides")) | fields_of(options.get("overrides"))
        together |= options | ({"overrides": overrides} if overrides else {})
    return together


def fields_of(overrides: Any) -> Options:
    """Return config fields, given as a mapping or as a list of `name=value`."""
    if overrides is None or isinstance(overrides, Mapping):
        return dict(overrides or {})
    words = map(str, overrides if isinstance(overrides, list) else [overrides])
    return {word.partition("=")[0]: yaml_value(f"--set {word!r}", word.partition("=")[2]) for word in words}


def read_plan(path: Path, added: Mapping[str, Any] | None = None, **replaced: Any) -> Plan:
    """Return the plan of a YAML or JSON file with the keys `KEYS`, and the variants added to it.

    Values of `replaced` other than None replace the file's.
    """
    content = read_settings(path) | {name: value for name, value in replaced.items() if value is not None}
    for key in content:
        if key not in KEYS:
            raise ValueError(f"{path}: unknown key {key!r}; choose from {', '.join(KEYS)}")
    program = one_of(path, "program", content.get("program"), PROGRAMS)
    variants = _variants(path, content.get("variants"), added := dict(added or {}))
    arguments = merged(mapping(path, "arguments", content.get("arguments")))
    tune = mapping(path, "tune", content.get("tune"))
    for name, values in tune.items():
        if not isinstance(values, list) or len(values) < 2:
            raise ValueError(f"{path}: tune: {name}: {values!r}; it must be a list of two values or more")
        tune[name] = [float(value) if WORD.fullmatch(str(value)) else value for value in values]
    for key in ("sequential", "extend"):
        if not isinstance(content.setdefault(key, False), bool):
            raise ValueError(f"{path}: {key}: {content[key]!r}; choose from true, false")
    if content["extend"] and len(tune) != 1:
        raise ValueError(f"{path}: extend: it goes beyond the list of exactly one tuned option, got {len(tune)}")
    seeds = _seeds(path, "seeds", content.get("seeds", SEQUENTIAL_SEEDS if content["sequential"] else SEEDS))
    if content["sequential"] and len(seeds) < 3:
        raise ValueError(f"{path}: seeds: {list(seeds)}; `sequential` begins with two seeds and needs more")
    tuning_seeds = _seeds(path, "tuning_seeds", content.get("tuning_seeds", TUNING_SEEDS))
    if tune and set(seeds) & set(tuning_seeds):
        raise ValueError(
            f"{path}: tuning_seeds: {list(tuning_seeds)}; none of them may be among the seeds {list(seeds)}"
        )
    for section, options in {"arguments": arguments, **variants, "tune": tune}.items():
        _check_names(path, section, options, equal=content.get("equal"))
    unit, amount = _budget(path, content.get("budget"))
    equal, score = content.get("equal"), str(content.get("score", "loss"))
    given = [name for name in variants if name not in added]  # a new baseline would overturn earlier verdicts
    tasks, task = task_of(program).tasks(), task_of(program).name_of(arguments)
    try:
        found = ranking_score(score, task if task in tasks else tasks[0])
    except ValueError as error:
        raise ValueError(f"{path}: score: {str(error).removeprefix('--metric_for_best_model ')}") from None
    if found.optional:
        asked = arguments.get("metrics") or []
        arguments["metrics"] = list(dict.fromkeys([*([asked] if isinstance(asked, str) else asked), found.name]))
    return Plan(
        program=program,
        arguments=arguments,
        variants=variants,
        budget=unit,
        amount=amount,
        baseline=one_of(path, "baseline", str(content.get("baseline", given[0])), given),
        score=found,
        seeds=seeds,
        equal=None if equal is None else one_of(path, "equal", equal, EQUAL),
        tune=tune,
        tuning_seeds=tuning_seeds,
        extend=content["extend"],
        sequential=content["sequential"],
        family=_family(path, content.get("family"), list(variants), len(added)),
        added=tuple(added),
    )


def _variants(path: Path, given: Any, added: Mapping[str, Any]) -> dict[str, Options]:
    """Return the options of all variants by name: those given, directly or in a file, and those added."""
    named = mapping(path, "variants", read_settings(path.parent / given) if isinstance(given, str) else given)
    named = {str(name): options for name, options in named.items()}  # YAML reads 1 as a number
    if again := [name for name in added if name in named]:
        raise ValueError(f"{path}: variants: {again[0]} exists already; give the added one another name")
    named |= added
    if len(named) < 2:
        raise ValueError(f"{path}: variants: {len(named)} given; a comparison needs two or more")
    for name in named:
        if not name.translate(dict.fromkeys(map(ord, "-_."))).isalnum():
            raise ValueError(f"{path}: variants: {name!r} names folders: letters, digits, '-', '_' and '.' only")
    return {name: merged(mapping(path, f"variants: {name}", value)) for name, value in named.items()}


def _family(path: Path, value: Any, variants: Sequence[str], added: int) -> int | None:
    """Return how many variants will be tested in all, which has to be known before the first one is added."""
    if value is None and not added:
        return None
    if value is None:
        raise ValueError(f"{path}: family: say how many variants will be tested in all, before one is added")
    if type(value) is not int or value < 1:
        raise ValueError(f"{path}: family: {value!r}; it must be a whole number above 0")
    if len(variants) - 1 > value:
        more = f"{variants[-1]} would be number {len(variants) - 1}"
        raise ValueError(f"{path}: family: {value} variants are to be tested, and {more}")
    return value


def _check_names(path: Path, section: str, options: Options, *, equal: str | None) -> None:
    """Raise ValueError for options that a section of a plan must not have."""
    for name in (str(given).replace("-", "_") for given in options):
        if name in RESERVED:
            raise ValueError(f"{path}: {section}: {name} is the comparison's to set (budget, seeds, folder)")
        if name == "objective" and section != "arguments":
            raise ValueError(
                f"{path}: {section}: objective: scores of two objectives are not comparable; give it in arguments"
            )
        if equal and section == "tune" and name.startswith(MODEL_OPTIONS):
            raise ValueError(f"{path}: tune: {name} changes the size that `equal: {equal}` keeps; give one of them")


def one_of(path: Path, key: str, value: Any, allowed: Any) -> str:
    if value not in tuple(allowed):  # it may have no hash
        raise ValueError(f"{path}: {key}: {value!r}; choose from {', '.join(map(str, allowed))}")
    return str(value)


def mapping(path: Path, key: str, value: Any) -> Options:
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{path}: {key}: it must be a mapping of options to values, not {value!r}")
    return dict(value or {})


def _budget(path: Path, value: Any) -> tuple[str, float]:
    budget = mapping(path, "budget", value)
    if len(budget) != 1:
        raise ValueError(f"{path}: budget: give one of {', '.join(BUDGETS)}, such as `budget: {{tokens: 2.0e+6}}`")
    unit, amount = next(iter(budget.items()))
    one_of(path, "budget", unit, BUDGETS)
    whole = unit in ("tokens", "steps")
    try:
        number = 0.0 if isinstance(amount, bool) else float(amount)  # YAML reads 2e6 as a string
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number < float("inf") or (whole and number % 1):
        raise ValueError(f"{path}: budget: {unit}: {amount!r}; it must be a {'whole ' * whole}number above 0")
    return unit, number


def _seeds(path: Path, key: str, value: Any) -> tuple[int, ...]:
    words, allows = SEED
    if not isinstance(value, Sequence) or not value or not all(type(seed) is int and allows(seed) for seed in value):
        raise ValueError(f"{path}: {key}: {value!r}; it must be a list of whole numbers {words}")
    if len(set(value)) < len(value):
        raise ValueError(f"{path}: {key}: {value!r}; a seed is given twice")
    return tuple(value)


def read_added(folder: Path, new: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the variants added to the plan of a folder so far, followed by a new one."""
    known = read_settings(path) if (path := folder / ADDED).exists() else {}
    for name, options in (new or {}).items():
        if merged(known.setdefault(name, options)) != merged(options):
            raise ValueError(f"--add {name}: it exists with other options, {known[name]}: choose another name")
    return known


def keep_added(plan: Plan, folder: Path) -> None:
    """Save the variants that were added to a plan, so that they belong to it from now on."""
    added = {name: plan.variants[name] for name in plan.added}
    if unknown := [name for name in read_added(folder) if name not in added]:
        raise ValueError(f"--add: another process has added {unknown[0]}: give the same command again to include it")
    write_text(folder / ADDED, yaml.safe_dump(added, sort_keys=False, allow_unicode=True))
