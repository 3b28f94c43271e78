"""The last steps of a run, which a finished one takes again when a command asks for something else of them."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig, GenerationConfig

from vanillaformer.console.reporting import optional, report
from vanillaformer.data.arguments import DataArguments
from vanillaformer.data.tasks import TaskName

from .programs import Arguments
from .report.card.examples import card_example
from .report.card.run_card import card_options, run_facts, update_card
from .run_folder.checkpoints import drop_extra
from .run_folder.files import CARD, written_aside
from .run_folder.run import Run, discard
from .trainer.pushing import push_run

# What a generation config that lacks a field means by it
SEARCH = {"num_beams": 1, "length_penalty": 1.0, "early_stopping": False}


def finish(run: Run, task: TaskName, args: Arguments, *, source: str, example: str, changed: bool = False) -> None:
    """Write search settings, card and record where they differ from those in the folder, and push if asked to.

    Args:
        run: The run, whose model is saved and scored.
        task: What the model does.
        args: The arguments.
        source: What to call the data.
        example: An input from the data.
        changed: Whether there is more to record of a finished run.
    """
    _, data_args, _, training_args = args
    if searches_otherwise(run.folder, training_args):
        _change_search(run.folder, training_args)
    options = _card_options(run, training_args, data_args)
    if not run.finished or run.new_test or changed or options != run.details.get("card", options):
        if "training" in run.details:
            run.details["card"] = options
            with optional(CARD, run.failed):
                config = AutoConfig.from_pretrained(run.folder, trust_remote_code=False)
                text = card_example(data_args, task, example)
                facts = run_facts(run, task, training_args, data_args, config=config, source=source, example=text)
                update_card(run, facts)
        else:
            report(f"{CARD} stays as it is: an earlier version made the run, and recorded less than a card says.")
        run.finished = True
        run.write()
    discard(run.folder)
    drop_extra(run.folder)
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
