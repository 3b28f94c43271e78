"""The engines that models are exported to, by name: what each runs, what it needs and which files it writes.

An engine is an entry here and a folder `conversion/exports/NAME`, whose `exporter.py` ends in an `EXPORTER`; `--help`,
refusals, docs/deploy.md and the files that are pushed are read from the entry.
"""

import importlib
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True)
class Extra:
    """Packages that are installed with `pip install 'vanillaformer[NAME]'`, and a note after that command."""

    name: str
    modules: tuple[str, ...]
    note: str = ""

    def load(self) -> list[ModuleType]:
        """Import and return the modules; raise ImportError if one of them is not installed."""
        try:
            return [importlib.import_module(module) for module in self.modules]
        except ImportError as error:
            command = f"pip install 'vanillaformer[{self.name}]'{self.note}"
            raise ImportError(f"{self.name} needs {', '.join(self.modules)}: {command}") from error


@dataclass(frozen=True)
class EngineInfo:
    """Facts about an engine that are known without loading it."""

    name: str  # of the format: `--engine` of the export
    runtime: str  # the program that runs it: `--engine` of `generate`
    models: str  # the models that it takes, in words
    files: tuple[str, ...]  # its files in an exported folder
    writer: Extra  # the packages that write them
    runner: Extra


CTRANSLATE2 = Extra("ctranslate2", ("ctranslate2",))
ONNX, ONNX_RUNTIME = Extra("onnx", ("onnxruntime", "onnx", "onnxscript")), Extra("onnx", ("onnxruntime",))
ENGINES = {
    engine.name: engine
    for engine in (
        EngineInfo(
            "ctranslate2", "ctranslate2", writer=CTRANSLATE2, runner=CTRANSLATE2,
            models="all three model types of texts with a head",
            files=(
                *("model.bin", "head.safetensors", "vocabulary.json"),
                *("shared_vocabulary.json", "source_vocabulary.json", "target_vocabulary.json"),
            ),
        ),
        EngineInfo(
            "onnx", "onnxruntime", writer=ONNX, runner=ONNX_RUNTIME,
            models="all three model types of texts with a head, and image classifiers",
            files=("onnx/*.onnx", "onnx/*.onnx_data"),
        ),
        EngineInfo(
            "web", "onnxruntime", writer=ONNX, runner=ONNX_RUNTIME,
            models="translators, language models, and classifiers of texts and images: a page for a browser",
            files=("index.html", "transformers.js/*"),
        ),
        EngineInfo(
            "gguf", "llama.cpp", writer=Extra("gguf", ("gguf",)),
            runner=Extra("llama-cpp", ("llama_cpp",), ", which compiles it: minutes, and a C++ compiler"),
            models="language models shaped like Llama or GPT-2",
            files=("model.gguf",),
        ),
    )
}  # fmt: skip
EXPORTED_FILES = tuple(file for engine in ENGINES.values() for file in engine.files)
