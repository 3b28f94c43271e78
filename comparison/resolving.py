"""The options of variants as their training program resolves them: errors, defaults, tokenizers, rows."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from copy import copy
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from vanillaformer.data.arguments import COLUMNS
from vanillaformer.data.caching import Prints, fingerprints
from vanillaformer.data.loading import TaskData, load_data
from vanillaformer.data.preprocessing.batching import order_seed
from vanillaformer.data.tasks import TASKS
from vanillaformer.hub.file_names import TOKENIZER
from vanillaformer.training.arguments import Arguments
from vanillaformer.training.auto_defaults import INSTEAD, OPTIONS, hardware_facts, set_defaults
from vanillaformer.training.metrics.scores import scores_of
from vanillaformer.training.run import parse_arguments
from vanillaformer.training.run_folder.run import Run
from vanillaformer.training.tasks import TrainingTask, task_of
from vanillaformer.training.tasks.base import Default
from vanillaformer.training.tokenizers import prepare_tokenizers

from .plan import FIXED, Options, Plan, fields_of


def parsed(program: str, options: Options, source: str) -> Arguments:
    """Return options as the program reads them from a settings file; raise ValueError for one that it refuses."""
    with TemporaryDirectory() as folder, redirect_stderr(StringIO()) as printed:
        path = Path(folder) / "settings.yaml"
        path.write_text(yaml.safe_dump(options, sort_keys=False, allow_unicode=True), encoding="utf-8")
        try:
            return parse_arguments(program, [str(path)])
        except SystemExit:
            message = printed.getvalue().strip().rpartition("error: ")[2]
        except ValueError as error:
            message = str(error)
    raise ValueError(f"{source}: {message.removeprefix(f'{path}: ')}")


def checked(plan: Plan) -> dict[str, Arguments]:
    """Return the arguments of each variant, as its program reads them, the baseline's first.

    Raises:
        ValueError: A variant, or one of its choices in the tuning, has an option that is unknown or a value that it
            cannot have; or the score cannot be compared, for tokenizers differ.
    """
    found: dict[str, Arguments] = {}
    tokenizers: dict[str, str] = {}
    targets: dict[str, Options] = {}
    for name in dict.fromkeys((plan.baseline, *plan.variants)):
        for choice in plan.grid():
            tuned = ", ".join(f"{option}={value}" for option, value in choice.items())
            label = f"variant {name}{f' with {tuned}' if tuned else ''}"
            args = parsed(plan.program, plan.options(name, choice, plan.length, {"seed": plan.seeds[0]}), label)
            found.setdefault(name, args)
            if plan.equal and name != plan.baseline and args.model_args.model_name_or_path is not None:
                raise ValueError(f"{label}: model_name_or_path: a saved model has its size; `equal` is for new ones")
            # The options that decide which targets of the held-out rows are scored
            options = vars(args.data_args) | vars(args.training_args)
            scoring = ["mlm_probability", "mask_ratio"] + ["max_target_length"] * plan.score.per_token
            if options.get("long_texts") == "skip":
                scoring += ["long_texts", "max_length", "max_source_length", "max_target_length"]
            targets[label] = {option: options[option] for option in scoring if option in options}
            first = next(iter(targets))
            if changed := sorted(set(targets[first].items()) ^ set(targets[label].items())):
                raise ValueError(
                    f"{label}: {changed[0][0]}: it decides what is scored, and differs from that of {first}: scores "
                    "of other targets do not compare"
                )
            if args.tokenizer_args is not None:
                tokenizers[label] = json.dumps(asdict(args.tokenizer_args), sort_keys=True)
    check_tokenizers(plan, tokenizers)
    return found


def check_tokenizers(plan: Plan, tokenizers: Mapping[str, str]) -> None:
    """Raise ValueError if the score is a mean over tokens, and the tokenizers of variants or runs differ."""
    first = next(iter(tokenizers), None)
    other = next((name for name, tokenizer in tokenizers.items() if tokenizer != tokenizers.get(first or "")), None)
    if other is None or not plan.score.per_token or {"tokens", "texts"}.isdisjoint(TASKS[plan.task].predicts):
        return
    rankings = [score for score in scores_of(plan.task) if score.greater_is_better is not None]
    fair = [score.name for score in rankings if not score.per_token]
    instead = f"choose {', '.join(fair)}, " if fair else ""
    raise ValueError(
        f"score: {plan.score.name} is a mean over tokens, and does not compare the tokenizers of {first} and {other}: "
        f"{instead}or give all variants one tokenizer"
    )


def tokenizer_print(folder: Path) -> str:
    """Return a hash of what the tokenizers in a folder make of a text; cutting and padding have no part in it."""
    found = hashlib.sha256()
    for path in sorted(path for each in (folder, folder / "target_tokenizer") for path in each.glob("*")):
        if path.name not in TOKENIZER or path.suffix == ".jinja" or path.name.endswith("_config.json"):
            continue
        content = path.read_bytes()
        if path.name == "tokenizer.json":
            steps = {name: step for name, step in json.loads(content).items() if name not in ("truncation", "padding")}
            content = json.dumps(steps, sort_keys=True).encode()
        found.update(f"{path.relative_to(folder)}:{hashlib.sha256(content).hexdigest()};".encode())
    return found.hexdigest()


def shared_defaults(plan: Plan, arguments: Mapping[str, Arguments]) -> dict[str, Options]:
    """Choose the options that follow the data once, and return them for each variant but for those that it gives.

    The first variant decides, the baseline if it follows the data. A variant with a model of its own takes no fields
    of this one, nor one with saved weights its tokenizer; lengths are for the variants with its tokenizer.
    """
    tasks = [task_of(plan.program)(args) for args in arguments.values()]
    task = next((task for task in tasks if task.uses_auto_defaults), None)
    if task is None:
        return {}
    first = task.args
    data = read_rows(task)
    found_for_data = task.defaults(data, hardware_facts(task.training_args.max_time))
    entries = [entry for entry in found_for_data if entry.option not in FIXED]
    lengths = _lengths(task_of(plan.program)(Arguments(*map(copy, first))), data, entries)
    chosen = {entry.option: entry.value for entry in entries} | lengths
    fields = fields_of(chosen.pop("overrides", None))
    found: dict[str, Options] = {}
    for name, args in arguments.items():
        given = frozenset[str]().union(*(getattr(group, "given", ()) for group in args))
        model: Any = args.model_args
        if model.model_name_or_path is not None:
            given |= {*OPTIONS["tokenizer"], *lengths}
        elif args.tokenizer_args != first.tokenizer_args:
            given |= {*lengths}
        options = {
            option: value for option, value in chosen.items() if given.isdisjoint((option, *INSTEAD.get(option, ())))
        }
        found[name] = options if model.preset or model.model_name_or_path else options | {"overrides": fields}
    return found


def _lengths(task: TrainingTask, data: TaskData, entries: Sequence[Default]) -> Options:
    """Return the lengths that follow the tokens of a run with the tokenizer of some defaults."""
    if task.lengths is None:
        return {}
    set_defaults(task.args, entries)
    with TemporaryDirectory() as folder:
        run = Run(Path(folder), "", {}, details={"defaults": []})
        prepare_tokenizers(run, task, *task.columns(data))
    return {option: value for option, value, _ in run.details["defaults"] if option in task.lengths.texts}


def read_rows(task: TrainingTask) -> TaskData:
    task.fit_to_model()
    return load_data(task.data_args, task.name, order_seed(task.training_args))


def rows_now(plan: Plan, options: Options, known: dict[str, Prints]) -> Prints:
    """Return the fingerprints of the rows that a run with these options would read now, looked up in what is known."""
    args = parsed(plan.program, options, "settings")
    seed = order_seed(args.training_args) if args.data_args.streaming else 0
    key = json.dumps([asdict(args.data_args), seed], default=str)
    if key not in known:
        data = read_rows(task_of(plan.program)(args))
        known[key] = fingerprints(data.splits.select_columns(list(COLUMNS[plan.task])))
    return known[key]
