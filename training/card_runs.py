"""The card of a run: the facts that it knows, and the file, in which a person's edits stay."""

import os
from pathlib import Path
from typing import Any

from vanillaformer.configuration import BlockConfig
from vanillaformer.modeling.file_names import PICTURES
from vanillaformer.modeling.remote_code import OFF, SWITCH

from .arguments import DataArguments
from .card_edits import merged_card
from .card_facts import CardFacts, hardware
from .card_sources import data_source
from .cards import model_card
from .models import HEADS, Job
from .run_folder import CARD, Run, keep_edited_card
from .trainers import RunTrainer


def write_card(run: Run, facts: CardFacts) -> Path:
    """Write the card of a run into its folder; what a person wrote in one that is there stays."""
    path = run.folder / CARD
    try:
        old = path.read_text(encoding="utf-8") if path.exists() else None
    except UnicodeDecodeError:  # what stands there can be kept, but nothing can be taken over
        old = None
        keep_edited_card(run.folder)
    part = path.with_suffix(".part")
    part.write_text(merged_card(model_card(facts), old), encoding="utf-8")
    os.replace(part, path)  # in one piece: a person's words are in it
    return path


def run_facts(
    run: Run,
    job: Job,
    trainer: RunTrainer,
    data: DataArguments,
    *,
    source: str,
    example: str,
    separate_target: bool,
) -> CardFacts:
    """Return what a finished run knows about its model.

    Args:
        run: The run.
        job: What the model does.
        trainer: The trainer, done.
        data: The data arguments.
        source: What to call the data.
        example: An input for the model.
        separate_target: Whether the target has a tokenizer of its own.
    """
    model: Any = trainer.model
    args, state = trainer.args, trainer.state
    repo = (getattr(trainer, "hub_model_id", None) or args.hub_model_id) if args.push_to_hub else None
    choices = {name: dict(run.settings.get(name, {})) for name in ("model", "data", "tokenizer", "training")}
    choices["training"] = args.to_dict() | choices["training"]
    if choices["model"].get("model_name_or_path") is None and choices["model"].get("preset") is None:
        choices["model"]["preset"] = HEADS[job].preset
    return CardFacts(
        job=job,
        config=model.config,
        model_class=type(getattr(model, "get_base_model", lambda: model)()).__name__,
        parameters=_parameters(model),
        name=repo.rpartition("/")[2] if repo else run.folder.resolve().name,
        place=repo or str(run.folder),
        command=run.command,
        example=example,
        source=data_source(data, job, source),
        data=run.details.get("data", {}),
        rows=run.details.get("rows", {}),
        choices=choices,
        metrics=run.metrics,
        signatures=run.details.get("signatures", {}),
        steps=state.global_step,
        epochs=None if "sampled rows" in run.details.get("data", {}).get("train", {}) else state.epoch,
        resumed=run.checkpoint.name if run.checkpoint else None,
        hardware=hardware(args.world_size, args.device),
        separate_target=separate_target,
        pictures=tuple(name for name in PICTURES if (run.folder / name).exists()),
        license=args.license,
        has_code=isinstance(model.config, BlockConfig) and os.environ.get(SWITCH, "").lower() not in OFF,
    )


def _parameters(model: Any) -> int:
    """Return the parameters of the model that is saved: low-rank adapters are merged into it."""
    added = ("lora_", "original_module")
    return sum(
        parameter.numel() for name, parameter in model.named_parameters() if not any(word in name for word in added)
    )
