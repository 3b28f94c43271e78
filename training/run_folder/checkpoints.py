"""The checkpoints in the folder of a run."""

import json
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from .files import CHECKPOINT

EXTRA = ".extra"
"""Marks a checkpoint, before it is written, as one that a run has only because it was stopped."""


def last_checkpoint(folder: Path) -> Path | None:
    """Return the latest checkpoint that was written to its end and that training can resume from, or None."""
    return next((path for _, path in sorted(checkpoints(folder).items(), reverse=True) if has_optimizer(path)), None)


def resume_point(folder: Path) -> str:
    """Return which checkpoint a run can resume from, in words."""
    checkpoint = last_checkpoint(folder)
    return f"the last checkpoint is {checkpoint}" if checkpoint else "there is no checkpoint yet"


def checkpoints(folder: Path) -> dict[int, Path]:
    """Return the checkpoints that were written to their end, by step."""
    found = {int(match[1]): path for path in folder.glob("checkpoint-*") if (match := CHECKPOINT.fullmatch(path.name))}
    return {step: path for step, path in found.items() if is_complete(path)}


def spent_of_budget(checkpoint: Path) -> float:
    """Return what a run had spent of its budget at a checkpoint; 0 for one without a budget."""
    found = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8")).get("stateful_callbacks") or {}
    state: Any = found.get("TimeBudget") or found.get("CountedBudget") or {"attributes": {}}
    return state["attributes"].get("spent", 0.0)


def extra_checkpoints(folder: Path) -> set[Path]:
    """Return the checkpoints that a run has only because it was stopped: the next one takes their place."""
    return {path.parent for path in folder.glob(f"checkpoint-*/{EXTRA}")}


def is_complete(checkpoint: Path) -> bool:
    """Tell whether a checkpoint was written to its end: the Trainer's state, which comes last, and each file whole."""
    try:
        if "global_step" not in json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8")):
            return False
        return all(map(_is_whole, checkpoint.iterdir()))
    except (OSError, ValueError):
        return False


def has_optimizer(checkpoint: Path) -> bool:
    """Tell whether a checkpoint has the state of its optimizer, or no weights either."""
    names = [path.name for path in checkpoint.iterdir()]
    weights = any(name.endswith(".safetensors") for name in names)
    return not weights or any(name.startswith(("optimizer", "global_step")) for name in names)


def _is_whole(path: Path) -> bool:
    """Tell whether the end of a file is there: a power failure can leave its name without its content."""
    if path.suffix == ".safetensors":
        with path.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
            header.pop("__metadata__", None)
            end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
            return path.stat().st_size == stream.tell() + end
    if path.suffix == ".json":
        json.loads(path.read_text(encoding="utf-8"))
    return path.suffix not in (".pt", ".pth", ".bin") or is_zipfile(path)  # a zip file ends with its directory
