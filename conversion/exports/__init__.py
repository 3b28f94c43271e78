"""Our models on other engines: exported, checked against the original, and run there.

`vanillaformer.hub.engines` is the table of engines, each with a folder of its name here. `exporter.py` has the steps
and refusals that all exports share, `engine.py` the requests that every engine answers, `checks.py` the comparison
with the model.
"""

import importlib
import os
from pathlib import Path
from typing import Any

import torch
from transformers import BaseImageProcessor, PreTrainedTokenizerBase

import vanillaformer.modeling as modeling
from vanillaformer.configuration import VanillaConfig
from vanillaformer.hub.engines import ENGINES
from vanillaformer.hub.file_names import CARD, IMAGE_PROCESSOR
from vanillaformer.hub.loading import open_config, open_image_processor, open_model, open_tokenizers, saved_folder

from ..convert import from_native, native_architectures
from ..folders import carried_files
from ..mapping.architecture import OUR_CLASSES, main_head
from .engine import Engine, EngineModel, read_record
from .exporter import Exporter, ExportJob

EXPORTERS: dict[str, Exporter] = {
    name: importlib.import_module(f"{__name__}.{name}.exporter").EXPORTER for name in ENGINES
}

__all__ = [
    "EXPORTERS", "Engine", "EngineModel", "ExportJob", "Exporter", "export", "export_folder", "load_engine",
    "read_record", "targets",
]  # fmt: skip


def targets(config: VanillaConfig) -> dict[str, list[str]]:
    """Return the `native` architectures of a config's language model or image classifier, and engines' obstacles."""
    model_class = OUR_CLASSES[type(config)][main_head(type(config))]
    engines = {name: exporter.obstacles(model_class, config) for name, exporter in EXPORTERS.items()}
    return {"native": native_architectures(config)} | engines


def export(
    model: Any,
    folder: str | os.PathLike[str],
    engine: str,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    target_tokenizer: PreTrainedTokenizerBase | None = None,
    image_processor: BaseImageProcessor | None = None,
    quantization: str | None = None,
    card: str = "",
    transformers_js: str | os.PathLike[str] | None = None,
) -> str:
    """Write a model for another engine into a new folder, compare the two, and return the result.

    Args:
        model: One of our models with a head.
        folder: A folder that does not exist or is empty.
        engine: A name in `EXPORTERS`.
        tokenizer: Its tokenizer, or that of the source; saved with it.
        target_tokenizer: The tokenizer of the target, if it is a different one.
        image_processor: The image processor of a classifier of images; saved with it.
        quantization: How the weights are stored, one of the exporter's `quantizations`. Default: the first of them.
        card: The model card, for a page that describes the model.
        transformers_js: A folder in which npm has installed `@huggingface/transformers`, to be copied for a page.

    Raises:
        ValueError: An unknown engine, a model that it cannot run (naming the fields that stand in the way), a folder
            that is not empty, or answers that differ from the model's; then nothing is written.
        ImportError: The engine is not installed.
    """
    exporter, folder = exporter_of(engine), Path(folder)
    if transformers_js is not None and engine != "web":
        raise ValueError(f"transformers_js={str(transformers_js)!r} is for engine='web', got engine={engine!r}")
    inputs = (tokenizer, target_tokenizer, image_processor)
    library = None if transformers_js is None else Path(transformers_js)
    quantization = quantization or exporter.quantizations[0]
    return exporter.export(ExportJob(model, folder, quantization, *inputs, folder.resolve().name, card, library))


def export_folder(
    source: str,
    target: str | Path,
    engine: str,
    *,
    quantization: str | None = None,
    revision: str | None = None,
    transformers_js: str | Path | None = None,
) -> str:
    """Export the model saved in `source`, with its tokenizers or image processor, and return the result in words.

    Arguments and errors are those of `export`; `source` is a folder or Hub id of one of our models, or of a native one
    that converts to ours, and none of its files may be a link out of it.
    """
    folder, source_name = saved_folder(source, revision, "SRC"), f"SRC {source}"
    architecture = next(iter(open_config(folder).architectures or []), "none")
    if model_class := getattr(modeling, architecture, None):
        model = open_model(model_class, folder, source_name, dtype=torch.float32).eval()
    else:
        model = from_native(folder).float().eval()
    card = carried_files(folder).get(CARD)
    inputs: dict[str, Any] = {}
    reads_images = model.main_input_name == "pixel_values"
    if reads_images and (folder / IMAGE_PROCESSOR).is_file():
        inputs = {"image_processor": open_image_processor(folder, source_name)}
    elif not reads_images and (folder / "tokenizer_config.json").is_file():
        inputs = dict(zip(("tokenizer", "target_tokenizer"), open_tokenizers(folder, model.config, source_name)))
    text = card.read_text(encoding="utf-8", errors="replace") if card else ""
    checked = export(
        model, target, engine, **inputs, quantization=quantization, card=text, transformers_js=transformers_js
    )
    without = "" if inputs else f", without {'an image processor' if reads_images else 'a tokenizer'}"
    return f"{target}: {type(model).__name__} for {engine}{without}; checked: {checked}"


def exporter_of(engine: str) -> Exporter:
    """Return the exporter of an engine; raise ValueError for an unknown name."""
    if engine not in EXPORTERS:
        raise ValueError(f"engine must be one of {', '.join(EXPORTERS)}, got {engine!r}")
    return EXPORTERS[engine]


def load_engine(folder: str | os.PathLike[str], device: str = "cpu") -> Engine:
    """Load an exported model on the engine that it was written for."""
    return exporter_of(read_record(folder)["engine"]).load(Path(folder), device)
