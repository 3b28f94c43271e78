"""The record in an exported folder: which model it was, for which engine, and how the export was checked."""

import json
import os
from pathlib import Path
from typing import Any

from transformers import GenerationConfig

import vanillaformer.modeling as modeling
from vanillaformer.hub.file_names import EXPORT, GENERATION


def read_record(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the record of an exported folder.

    Raises:
        ValueError: The folder holds no export, or a damaged one.
    """
    path = Path(folder) / EXPORT
    if not path.is_file():
        raise ValueError(f"{folder} holds no exported model: it has no {EXPORT}")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        _ = model_class_of(record), record["engine"]  # which every record has
        return record
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from error


def model_class_of(record: dict[str, Any]) -> Any:
    """Return the class of the model that was exported."""
    return getattr(modeling, record["architecture"])


def config_of(record: dict[str, Any]) -> Any:
    """Return the config of the model that was exported."""
    return model_class_of(record).config_class.from_dict(record["config"])


def exported_model(folder: Path) -> tuple[str, Any, GenerationConfig]:
    """Return what an `Engine` knows of its model: class name, config and generation config."""
    record = read_record(folder)
    has_defaults = (folder / GENERATION).is_file()
    generation_config = GenerationConfig.from_pretrained(folder) if has_defaults else GenerationConfig()
    return record["architecture"], config_of(record), generation_config
