"""The last steps of a run, which a finished one takes again when a command asks for something else of them."""

import shlex
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, GenerationConfig

from vanillaformer.console.reporting import optional, report
from vanillaformer.data.arguments import DataArguments
from vanillaformer.data.embedded import embedded_corpus
from vanillaformer.data.preprocessing.statistics import shortfalls
from vanillaformer.data.tasks import TASKS, TaskName

from .report.calibration import accepted_in_words
from .report.card.examples import card_example, terminal_example
from .report.card.facts import card_options, run_facts
from .report.card.writing import update_card
from .report.classes import PREFIXES, report_classes
from .report.predictions import print_samples
from .run_folder.files import CARD, extra_checkpoints, written_aside
from .run_folder.run import Run, discard
from .tasks.base import TrainingTask
from .trainer.callbacks import scores_text
from .trainer.saving import push_run
from .trainer.trainer import RunTrainer

# What a generation config that lacks a field means by it
SEARCH = {"num_beams": 1, "length_penalty": 1.0, "early_stopping": False}


def finish(run: Run, task: TrainingTask, *, source: str, example: str, changed: bool = False) -> None:
    """Write search settings, card and record where they differ from those in the folder, and push if asked to.

    Args:
        run: The run, whose model is saved and scored.
        task: What the model does.
        source: What to call the data.
        example: An input from the data.
        changed: Whether there is more to record of a finished run.
    """
    data_args, training_args = task.data_args, task.training_args
    if searches_otherwise(run.folder, training_args):
        _change_search(run.folder, training_args)
    options = _card_options(run, training_args, data_args)
    if not run.finished or run.needs_test or changed or options != run.details.get("card", options):
        if "training" in run.details:
            run.details["card"] = options
            with optional(CARD, run.failed):
                config = AutoConfig.from_pretrained(run.folder, trust_remote_code=False)
                text = card_example(data_args, task.name, example)
                facts = run_facts(run, task.name, training_args, data_args, config=config, source=source, example=text)
                update_card(run, facts)
        else:
            report(f"{CARD} stays as it is: an earlier version made the run, and recorded less than a card says.")
        run.finished = True
        run.write()
    discard(run.folder)
    for path in extra_checkpoints(run.folder):
        shutil.rmtree(path, ignore_errors=True)
    if training_args.push_to_hub:
        push_run(training_args)


def searches_otherwise(folder: Path, training_args: Any) -> bool:
    """Tell whether the model in a folder is saved with another search than a command asks for."""
    if not hasattr(training_args, "search"):
        return False
    saved = GenerationConfig.from_pretrained(folder)
    found = {name: getattr(saved, name, None) for name in SEARCH}
    return {name: SEARCH[name] if value is None else value for name, value in found.items()} != training_args.search()


def _change_search(folder: Path, training_args: Any) -> None:
    saved = GenerationConfig.from_pretrained(folder)
    saved.update(**training_args.search())
    with written_aside(folder) as part:
        saved.save_pretrained(part)
    report("generation_config.json: " + ", ".join(f"{name} {value}" for name, value in training_args.search().items()))


def _card_options(run: Run, training_args: Any, data_args: DataArguments) -> dict[str, Any]:
    """Return the options of the card: those given now, or else those given before, which are set anew."""
    now = card_options(training_args, data_args)
    options = run.details.get("card", {}) if run.finished else {}
    options = {name: options.get(name) if value is None else value for name, value in now.items()}
    training_args.license, data_args.data_license = options["license"], options["data_license"]
    data_args.data_description, data_args.card_example = options["data_description"], options["card_example"]
    return options


def print_summary(run: Run, task: TaskName, data_args: DataArguments, *, example: str) -> None:
    """Print the scores of a finished run, where its model is, and how to load it."""
    for split, prefix in PREFIXES.items():
        if scores := scores_text(run.metrics, prefix):
            report(f"{split.capitalize()}: {scores}")
            for name, found in run.details.get("baselines", {}).items():
                if scores := scores_text(found, prefix):
                    report(f"{split.capitalize()}, {name}: {scores}")
            cut = shortfalls(run.details.get("data", {}).get(split, {}))
            if cut and TASKS[task].whole_texts:
                report(f"{split.capitalize()} data: {'; '.join(cut)}")
    if "classes" in TASKS[task].predicts:
        report_classes(run)
    if trained := run.details.get("training_rows"):
        scores = scores_text({f"train_{name}": value for name, value in trained.items()}, "train")
        report(f"Training, {trained['rows']:,} rows: {scores}")
    for name, signature in run.details.get("signatures", {}).items():
        report(f"sacrebleu signature of {name}: {signature}")
    if "calibration" in run.details:
        accepted = accepted_in_words(run.details["calibration"])
        report(f"Validation, labels accepted by probability: {accepted} (generate --reject_below)")
    print_samples(run.folder)
    for sentence in run.details.get("diagnosis") or run.details.get("verdict", ()):
        report(sentence)
    folder, option = shlex.quote(str(run.folder)), TASKS[task].input_option
    if option:
        text = terminal_example(data_args, task, example)
        more = "--chat" if text is None else input_option(text, option)
        report(f"Try it: vanillaformer generate --model {folder} {more}")
    else:
        report(f"Fine-tune it: vanillaformer {TASKS[task].program} --model_name_or_path {folder}")
    report(
        f"The model is in {run.folder}: after `import vanillaformer`, load it with "
        f"{TASKS[task].auto_class.__name__}.from_pretrained({str(run.folder)!r})"
    )


def input_option(text: str, option: str = "text") -> str:
    """Return the option of `generate` with an input, as a shell reads it."""
    return f"--{option}{'=' if text.startswith('-') else ' '}{shlex.quote(text)}"


def data_name(data_args: DataArguments, task: TaskName) -> str:
    """Return the name of the data: its files, its id on the Hub, or what embedded data is made of."""
    if data_args.train_file is not None:
        names = [Path(name).name for name in data_args.train_file]
        return ", ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} more files"
    if data_args.dataset != "embedded":
        return " ".join(filter(None, (data_args.dataset, data_args.dataset_config)))
    return embedded_corpus(data_args, task).name


def report_sizes(trainer: RunTrainer, name: str, sizes: dict[str, int]) -> None:
    """Print what is trained on what."""
    model: Any = trainer.model
    report(f"Data: {name}: " + ", ".join(f"{size:,} {split} rows" for split, size in sizes.items()))
    device, processes = trainer.args.device.type, trainer.args.world_size
    where = f"{device} (processes: {processes}, threads: {torch.get_num_threads()})"
    name = type(getattr(model, "get_base_model", lambda: model)()).__name__
    report(f"Model: {name}, {model.num_parameters():,} parameters, on {where}")
