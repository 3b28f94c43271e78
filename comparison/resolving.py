"""The options of variants as their training program resolves them: errors, tokenizers, rows."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import redirect_stderr
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from vanillaformer.data.arguments import COLUMNS
from vanillaformer.data.caching import Prints, fingerprints
from vanillaformer.data.loading import load_data
from vanillaformer.data.preprocessing.batching import order_seed
from vanillaformer.data.tasks import TASKS
from vanillaformer.hub.file_names import TOKENIZER
from vanillaformer.training.arguments import Arguments
from vanillaformer.training.metrics.scores import scores_of
from vanillaformer.training.models import check_model
from vanillaformer.training.run import parse_arguments
from vanillaformer.training.tasks import task_of

from .plan import Options, Plan


def parsed(program: str, options: Options, source: str) -> Arguments:
    """Return options as the program reads them from a settings file; raise ValueError for one it refuses."""
    with TemporaryDirectory() as folder, redirect_stderr(StringIO()) as printed:
        path = Path(folder) / "settings.yaml"
        path.write_text(yaml.safe_dump(options, sort_keys=False, allow_unicode=True), encoding="utf-8")
        try:
            if (args := parse_arguments(program, [str(path)])).model_args.model_name_or_path is None:  # a new model
                check_model(task_of(program).name_of(options), args.model_args, length=0)
            return args
        except SystemExit:
            message = printed.getvalue().strip().rpartition("error: ")[2]
        except ValueError as error:
            message = str(error)
    raise ValueError(f"{source}: {message.removeprefix(f'{path}: ')}")


def check_variants(plan: Plan) -> None:
    """Raise ValueError if runs are impossible or not comparable.

    That is, if a variant or one of its choices in the tuning has an unknown option or an invalid value, or if the
    tokenizers or the scored targets differ.
    """
    tokenizers: dict[str, str] = {}
    targets: dict[str, Options] = {}
    task = plan.task
    for name in dict.fromkeys((plan.baseline, *plan.variants)):
        for choice in plan.grid():
            tuned = ", ".join(f"{option}={value}" for option, value in choice.items())
            label = f"variant {name}{f' with {tuned}' if tuned else ''}"
            args = parsed(plan.program, plan.options(name, choice, plan.length, {"seed": plan.seeds[0]}), label)
            if plan.equal and name != plan.baseline and args.model_args.model_name_or_path is not None:
                raise ValueError(
                    f"{label}: model_name_or_path: a saved model's size is fixed; `equal` is for new ones"
                )
            # The options that decide which targets of the held-out rows are scored
            options = vars(args.data_args) | vars(args.training_args)
            scoring = ["mlm_probability", "mask_ratio", "noise_density", "mean_span_length", "noise"]
            scoring += ["max_target_length"] * plan.score.per_token + ["max_length"] * (task == "token_classification")
            scoring += ["bleu_tokenize", "bleu_lowercase"] * (plan.score.name == "bleu")
            if options.get("long_texts") == "skip":
                scoring += ["long_texts", "max_length", "max_source_length", "max_target_length"]
            targets[label] = {option: options[option] for option in scoring if option in options}
            if task == "masked_image":  # the size of hidden patches; None: it follows the images
                model = args.model_args
                known = model.preset or model.model_name_or_path or "patch_size" in model.config_overrides()
                targets[label]["patch_size"] = check_model(task, model, length=0).patch_size if known else None
            first = next(iter(targets))
            if changed := sorted(set(targets[first].items()) ^ set(targets[label].items()), key=str):
                raise ValueError(
                    f"{label}: {changed[0][0]}: it decides what is scored and differs from that of {first}: scores of "
                    "different targets are not comparable"
                )
            if args.tokenizer_args is not None:
                tokenizers[label] = json.dumps(asdict(args.tokenizer_args), sort_keys=True)
    check_tokenizers(plan, tokenizers)


def check_tokenizers(plan: Plan, tokenizers: Mapping[str, str]) -> None:
    """Raise ValueError if the score is a mean over tokens, and the tokenizers of variants or runs differ."""
    first = next(iter(tokenizers), None)
    other = next((name for name, tokenizer in tokenizers.items() if tokenizer != tokenizers.get(first or "")), None)
    if other is None or not plan.score.per_token or {"tokens", "texts"}.isdisjoint(TASKS[plan.task].predicts):
        return
    fair = [each.name for each in scores_of(plan.task) if each.greater_is_better is not None and not each.per_token]
    instead = f"choose {', '.join(fair)}, " if fair else ""
    raise ValueError(
        f"score: {plan.score.name} is a mean over tokens, but the tokenizers of {first} and {other} differ: "
        f"{instead}or give all variants one tokenizer"
    )


def tokenizer_print(folder: Path) -> str:
    """Return a hash of how the tokenizers in a folder encode a text, regardless of truncation and padding."""
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


def rows_now(plan: Plan, options: Options, known: dict[str, Prints]) -> Prints:
    """Return the fingerprints of the rows that a run with these options would read now, cached in `known`."""
    args = parsed(plan.program, options, "settings")
    seed = order_seed(args.training_args) if args.data_args.streaming else 0
    key = json.dumps([asdict(args.data_args), seed], default=str)
    if key not in known:
        task = task_of(plan.program)(args)
        task.fit_to_model()
        data = load_data(task.data_args, task.name, order_seed(task.training_args))
        known[key] = fingerprints(data.splits.select_columns(list(COLUMNS[plan.task])))
    return known[key]
