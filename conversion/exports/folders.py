"""Exporting a saved model: the model of a folder or Hub id, with its tokenizers or image processor, for an engine."""

from pathlib import Path
from typing import Any

import torch

import vanillaformer.modeling as modeling
from vanillaformer.hub.file_names import CARD, IMAGE_PROCESSOR
from vanillaformer.hub.loading import open_config, open_image_processor, open_model, saved_folder
from vanillaformer.hub.tokenizers import open_tokenizers

from ..convert import from_native
from ..folders import carried_files
from . import export


def export_folder(
    source: str,
    target: str | Path,
    engine: str,
    *,
    quantization: str | None = None,
    revision: str | None = None,
    transformers_js: str | Path | None = None,
) -> str:
    """Export the model saved in `source`, with its tokenizers or image processor, and return what was done in words.

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
