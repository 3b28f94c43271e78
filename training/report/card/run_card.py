"""The card of a run: its facts from the record, and the file, in which a person's edits stay."""

import os
from pathlib import Path
from typing import Any

from vanillaformer.configuration import VanillaConfig
from vanillaformer.data.arguments import DataArguments
from vanillaformer.data.tasks import TASKS, TaskName
from vanillaformer.hub.card_merging import merged_card, write_card
from vanillaformer.hub.file_names import DATA_PICTURES, PICTURES
from vanillaformer.hub.remote_code import OFF, SWITCH

from ...run_folder.files import CARD
from ...run_folder.run import Run
from ...run_folder.settings import BY_DATA
from ...trainer.trainer import RunTrainer
from ..samples import read_samples
from .facts import CardFacts, hardware
from .sources import data_source
from .writing import model_card


def update_card(run: Run, facts: CardFacts) -> Path:
    """Write the card of a run into its folder; a person's edits of an earlier one stay."""
    path = run.folder / CARD
    try:
        old = path.read_text(encoding="utf-8") if path.exists() else None
    except UnicodeDecodeError:  # it cannot be merged: `write_card` keeps it next to the new one
        old = None
    write_card(path, merged_card(model_card(facts), old))
    return path


def training_facts(run: Run, trainer: RunTrainer) -> dict[str, Any]:
    """Return the facts that are known only after training, for the record and the card."""
    model: Any = trainer.model
    return {
        "model_class": type(getattr(model, "get_base_model", lambda: model)()).__name__,
        "parameters": _parameters(model),
        "epochs": trainer.state.epoch,
        "resumed": run.checkpoint.name if run.checkpoint else None,
        "hardware": hardware(trainer.args.world_size, trainer.args.device),
        "separate_target": trainer.target_tokenizer is not None,
    }


def card_options(training_args: Any, data_args: DataArguments) -> dict[str, Any]:
    """Return the options that change only the card."""
    repo = training_args.hub_model_id if training_args.push_to_hub else None
    return {
        "license": training_args.license,
        "data_license": data_args.data_license,
        "data_description": data_args.data_description,
        "card_example": data_args.card_example,
        "repository": repo,
    }


def run_facts(
    run: Run, task: TaskName, training_args: Any, data_args: DataArguments, *, config: Any, source: str, example: str
) -> CardFacts:
    """Return the facts on a finished run and its model.

    Args:
        run: The run, whose details hold `training_facts`.
        task: What the model does.
        training_args: The training arguments.
        data_args: The data arguments.
        config: The model's config.
        source: What to call the data.
        example: An input for the model.
    """
    trained, repo = run.details["training"], run.details["card"]["repository"]
    choices = {name: dict(run.settings.get(name, {})) for name in ("model", "data", "tokenizer", "training")}
    choices["training"] = training_args.to_dict() | choices["training"]
    chosen = {option: value for option, value, _ in run.details.get("defaults", ())}
    rows = training_args.train_batch_size * training_args.gradient_accumulation_steps * training_args.world_size
    others = {
        "training": {**training_args.to_dict(), "rows_per_step": None if training_args.tokens_per_batch else rows},
        "data": vars(data_args),
    }
    for group, values in choices.items():  # an option may be left as it is by the rule for the data
        known = {**others.get(group, {}), **chosen}
        values |= {name: known[name] for name, value in values.items() if value == BY_DATA and name in known}
    choices["training"]["temperature"] = run.details.get("calibration", {}).get("temperature")
    if choices["model"].get("model_name_or_path") is None and choices["model"].get("preset") is None:
        choices["model"]["preset"] = TASKS[task].preset
    of_data = () if data_args.train_file is not None else DATA_PICTURES  # a user's own stay private
    return CardFacts(
        task=task,
        config=config,
        model_class=trained["model_class"],
        parameters=trained["parameters"],
        name=repo.rpartition("/")[2] if repo else run.folder.resolve().name,
        place=repo or str(run.folder),
        command=run.command,
        example=example,
        source=data_source(data_args, task, source),
        data=run.details.get("data", {}),
        rows=run.details.get("rows", {}),
        choices=choices,
        metrics=run.metrics,
        baselines=run.details.get("baselines", {}),
        classes=run.details.get("classes", {}),
        calibration=run.details.get("calibration", {}),
        diagnosis=tuple(run.details.get("diagnosis") or run.details.get("verdict", ())),
        signatures=run.details.get("signatures", {}),
        steps=run.details["steps"],
        epochs=None if "sampled rows" in run.details.get("data", {}).get("train", {}) else trained["epochs"],
        resumed=trained["resumed"],
        consumed=run.details.get("consumed", {}),
        hardware=trained["hardware"],
        separate_target=trained["separate_target"],
        pictures=tuple(name for name in (*PICTURES, *of_data) if (run.folder / name).exists()),
        license=training_args.license,
        samples=() if data_args.turns_column else tuple(each["prediction"] for each in read_samples(run.folder)),
        has_code=isinstance(config, VanillaConfig) and os.environ.get(SWITCH, "").lower() not in OFF,
    )


def _parameters(model: Any) -> int:
    """Return the parameters of the model that is saved: low-rank adapters are merged into it."""
    added = ("lora_", "original_module")
    return sum(
        parameter.numel() for name, parameter in model.named_parameters() if not any(word in name for word in added)
    )
