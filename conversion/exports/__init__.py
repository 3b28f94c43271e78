"""Our models on other engines: exported, checked against the model they were made from, and run there.

`exporter.py` has the steps that all share, `engine.py` what every engine can be asked, `checks.py` the comparison;
each `to_...` file has one engine: what stands in its way, how it is written and how it is run.
"""

import os
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from .ctranslate2.exporter import CTranslate2Exporter
from .engine import Engine, EngineModel
from .exporter import RECORD, Exporter, read_record
from .gguf.exporter import GgufExporter
from .onnx.exporter import OnnxExporter

EXPORTERS: dict[str, Exporter] = {
    exporter.name: exporter for exporter in (CTranslate2Exporter(), OnnxExporter(), GgufExporter())
}

__all__ = [
    "EXPORTERS",
    "Engine",
    "EngineModel",
    "Exporter",
    "export",
    "is_export",
    "load_engine",
    "read_record",
]


def export(
    model: Any,
    folder: str | os.PathLike[str],
    engine: str,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    target_tokenizer: PreTrainedTokenizerBase | None = None,
    quantization: str | None = None,
) -> str:
    """Write a model for another engine into a new folder, compare the two, and return what was found.

    Args:
        model: One of our models with a head.
        folder: A folder that does not exist or is empty.
        engine: A name in `EXPORTERS`.
        tokenizer: Its tokenizer, or that of the source; saved beside it.
        target_tokenizer: That of the target, where it is another one.
        quantization: How the weights are stored, one of the exporter's `quantizations`; by default as they are.

    Raises:
        ValueError: An unknown engine, a model that it cannot run (naming the fields that stand in the way), a folder
            with something in it, or answers that differ from the model's; nothing is left behind.
        ImportError: The engine is not installed.
    """
    exporter = exporter_of(engine)
    return exporter.export(
        model, folder, tokenizer=tokenizer, target_tokenizer=target_tokenizer, quantization=quantization
    )


def exporter_of(engine: str) -> Exporter:
    """Return the exporter of a name.

    Raises:
        ValueError: There is none.
    """
    if engine not in EXPORTERS:
        raise ValueError(f"engine={engine!r} is none of {', '.join(EXPORTERS)}")
    return EXPORTERS[engine]


def is_export(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds an exported model."""
    return (Path(folder) / RECORD).is_file()


def load_engine(folder: str | os.PathLike[str], device: str = "cpu") -> Engine:
    """Load an exported model on the engine that it was written for.

    Raises:
        ValueError: The folder holds no export.
        ImportError: The engine is not installed.
    """
    return exporter_of(read_record(folder)["engine"]).load(Path(folder), device)
