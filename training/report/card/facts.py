"""The facts on a run that its model card states."""

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import torch

from vanillaformer.configuration import VanillaConfig
from vanillaformer.data.tasks import TASKS, TaskName

from ...metrics.scores import SCORES
from .sources import Source

PACKAGES = ("vanillaformer", "transformers", "torch", "tokenizers", "datasets")
CPU_INFO = Path("/proc/cpuinfo")


@dataclass
class CardFacts:
    """The facts on a run.

    Attributes:
        task: What the model does.
        config: The model's config.
        model_class: Name of the model's class.
        parameters: Number of parameters.
        name: Name of the model.
        place: Where it is: a folder or a Hub id.
        command: The command line that made it.
        example: An input for it.
        source: What is known about the data.
        data: Statistics of the data by split, from `describe_data`.
        rows: Rows by split.
        choices: Settings of model, data and tokenizer by group, and of the training.
        metrics: Scores, named as the Trainer names them (`eval_bleu`, `test_accuracy`).
        baselines: Scores of baselines by their names, named as those of the model.
        classes: Precision, recall, F1 and rows of each class of a classifier, from the last split that is scored.
        calibration: Temperature and reliability of a classifier, from `calibrate`.
        diagnosis: Sentences on how the training went.
        signatures: sacrebleu's signatures by score.
        steps: Optimizer steps.
        epochs: Passes over the data.
        resumed: The checkpoint that the last part of the training began with, None if the run was never interrupted.
        consumed: What the training consumed, from `Account`; records of earlier versions lack it.
        hardware: What it was trained on, by heading.
        separate_target: Whether the target has a tokenizer of its own.
        pictures: Names of pictures next to the card.
        samples: Texts that a causal language model wrote.
        license: License of the model, as the Hub writes it.
        has_code: Whether the model's code is stored with it.
    """

    task: TaskName
    config: Any
    model_class: str
    parameters: int
    name: str
    place: str
    command: str
    example: str
    source: Source
    data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    choices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    baselines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    classes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    calibration: Mapping[str, Any] = field(default_factory=dict)
    diagnosis: tuple[str, ...] = ()
    signatures: Mapping[str, str] = field(default_factory=dict)
    steps: int = 0
    epochs: float | None = None
    resumed: str | None = None
    consumed: Mapping[str, Any] = field(default_factory=dict)
    hardware: Mapping[str, str] = field(default_factory=dict)
    separate_target: bool = False
    pictures: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    license: str | None = None
    has_code: bool = True

    def choice(self, group: str, name: str, default: Any = None) -> Any:
        """Return a setting, `default` if it is not known or none."""
        value = self.choices.get(group, {}).get(name)
        return default if value is None else value

    @property
    def classifies(self) -> bool:
        """Whether the model has classes in place of a language model's output layer."""
        return "classes" in TASKS[self.task].predicts

    @property
    def chats(self) -> bool:
        """Whether the model answers in dialogues."""
        return self.choice("data", "turns_column") is not None

    @property
    def is_ours(self) -> bool:
        """Whether the model is one of this package, and not one of transformers that training began with."""
        return isinstance(self.config, VanillaConfig)

    @property
    def started_from(self) -> str | None:
        """The saved model that training began with."""
        return self.choice("model", "model_name_or_path")

    @property
    def scores(self) -> dict[str, float]:
        """The metrics that say how good the model is."""
        known = {f"{prefix}_{name}" for prefix in ("eval", "test") for name in SCORES}
        return {key: value for key, value in self.metrics.items() if key in known}

    @property
    def train_tokens(self) -> int | None:
        """Tokens of the training data, source and target together; None of a stream, which has no end."""
        stats = self.data.get("train", {})
        means = [value for name, value in stats.items() if name.endswith("mean length")]
        return round(stats["rows"] * sum(means)) if means and "rows" in stats else None

    @property
    def tokens_seen(self) -> int | None:
        """How many tokens the training went through, those of an ensemble's models too, or about how many."""
        if self.consumed:
            return self.consumed["tokens"]
        tokens = self.train_tokens
        return None if tokens is None or not self.epochs else round(tokens * self.epochs)


def hardware(processes: int, device: torch.device) -> dict[str, str]:
    """Return the hardware that this process runs on.

    Args:
        processes: How many processes train.
        device: Where the model is.
    """
    found = {}
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
        found["GPU"] = f"{torch.cuda.get_device_name(device)}, {memory / 2**30:.0f} GiB"
        found["GPU memory used"] = f"{torch.cuda.max_memory_allocated(device) / 2**30:.2f} GiB at most"
    elif device.type != "cpu":
        found["device"] = device.type
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    found["CPU"] = f"{_cpu_name()}, {cores} core{'s' if cores > 1 else ''}"
    found["memory"] = f"{psutil.virtual_memory().total / 2**30:.0f} GiB"
    found["processes"] = (
        f"{processes}, of {torch.get_num_threads()} thread{'s' if torch.get_num_threads() > 1 else ''}"
    )
    return found


def software() -> str:
    """Return the versions of the packages that trained the model."""
    python = ".".join(map(str, sys.version_info[:3]))
    return ", ".join([f"Python {python}", *(f"{package} {version(package)}" for package in PACKAGES)])


def _cpu_name() -> str:
    if CPU_INFO.exists():
        for line in CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine()
