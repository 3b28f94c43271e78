"""What every exporter does: refuse what the engine lacks, write, check the engine's answers, and only then be done."""

import importlib
import importlib.metadata
import json
import os
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

import vanillaformer.modeling as modeling
from vanillaformer.hub.new_folder import check_free, new_folder
from vanillaformer.tokenization import save_pair

from .checks import check
from .engine import Engine

RECORD = "vanillaformer_export.json"


class Exporter:
    """Writes our models for one engine and loads them there; the base of all.

    `name` is what users call the format, `runtime` the engine that runs it, `extra` what to install. The first of
    `quantizations` is the default; those in `exact` keep the weights as they are.
    """

    name: str
    runtime: str
    extra: str
    packages: tuple[str, ...] = ()
    quantizations: tuple[str, ...] = ("float32",)
    exact: tuple[str, ...] = ("float32",)

    def obstacles(self, model_class: type, config: Any) -> list[str]:
        """Return what stands in the way of a model: field, value, and what the engine has instead."""
        raise NotImplementedError

    def write(
        self,
        model: Any,
        folder: Path,
        quantization: str,
        tokenizer: PreTrainedTokenizerBase | None = None,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
    ) -> None:
        """Write the engine's files into an existing folder."""
        raise NotImplementedError

    def load(self, folder: Path, device: str = "cpu") -> Engine:
        """Return the engine that runs what `write` has written."""
        raise NotImplementedError

    def export(
        self,
        model: Any,
        folder: str | os.PathLike[str],
        *,
        tokenizer: PreTrainedTokenizerBase | None = None,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
        quantization: str | None = None,
    ) -> str:
        """Export a model into a new or empty folder, and say what was checked.

        The folder appears when all is written and checked; until then there is nothing.

        Raises:
            ValueError: The model cannot be exported, the folder has something in it, or the engine's answers differ.
            ImportError: The engine is not installed.
        """
        target = Path(folder)
        quantization = self.quantizations[0] if quantization is None else quantization
        self.refuse(model, target, quantization)
        self.require()
        with new_folder(target) as work:
            if tokenizer is not None:
                save_pair(tokenizer, target_tokenizer or tokenizer, work)
            self.write(model, work, quantization, tokenizer, target_tokenizer or tokenizer)
            if getattr(model, "generation_config", None) is not None:
                model.generation_config.save_pretrained(work)
            self.write_record(model, work, quantization)
            checked = self.compare(model, work, exact=quantization in self.exact)
            self.write_record(model, work, quantization, checked)
        return checked

    def compare(self, model: Any, folder: Path, exact: bool) -> str:
        """Compare what was written with the model, and say what was found.

        Raises:
            ValueError: They answer differently.
        """
        return check(model, self.load(folder), exact)

    def refuse(self, model: Any, target: Path, quantization: str) -> None:
        """Raise for what cannot be done, before anything is."""
        if quantization not in self.quantizations:
            raise ValueError(
                f"quantization={quantization!r}: {self.name} has {', '.join(map(repr, self.quantizations))}"
            )
        if obstacles := self.obstacles(type(model), model.config):
            raise ValueError(f"{type(model).__name__} cannot be exported to {self.name}: {'; '.join(obstacles)}")
        check_free(target)

    def require(self) -> list[Any]:
        """Return the engine's Python modules.

        Raises:
            ImportError: They are not installed.
        """
        try:
            return [importlib.import_module(package) for package in self.packages]
        except ImportError as error:
            raise ImportError(
                f"{self.name} needs {', '.join(self.packages)}: pip install 'vanillaformer[{self.extra}]'"
            ) from error

    def write_record(self, model: Any, folder: Path, quantization: str, checked: str | None = None) -> None:
        """Write what `load` needs to know besides the engine's own files, and what the comparison has found."""
        versions = {module.__name__: getattr(module, "__version__", None) for module in self.require()}
        record = {
            "engine": self.name,
            "architecture": type(model).__name__,
            "quantization": quantization,
            "checked": checked,
            "versions": {"vanillaformer": importlib.metadata.version("vanillaformer"), **versions},
            "config": model.config.to_dict(),
        }
        (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def read_record(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the record of an exported folder.

    Raises:
        ValueError: The folder holds no export, or a damaged one.
    """
    path = Path(folder) / RECORD
    if not path.is_file():
        raise ValueError(f"{folder} holds no exported model: it has no {RECORD}")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        _ = model_class_of(record), record["engine"]  # which every record has
        return record
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from error


def model_class_of(record: dict[str, Any]) -> Any:
    """Return the class of ours that an exported model was."""
    return getattr(modeling, record["architecture"])


def config_of(record: dict[str, Any]) -> Any:
    """Return the config that an exported model had."""
    return model_class_of(record).config_class.from_dict(record["config"])
