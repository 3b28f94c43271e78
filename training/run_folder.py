"""The folder of a training run: what it holds, whether that can be continued, and the record kept in it."""

import itertools
import json
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vanillaformer.modeling.remote_code import saved_code

from .card_edits import is_edited
from .reporting import report

RECORD = "run.json"
CARD = "README.md"
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
# What a run leaves in its folder, and all that starting anew may delete there besides the model's code.
PRODUCTS = (
    *(
        "checkpoint-*",
        "target_tokenizer",
        ".pushing",
        "adapter",
        RECORD,
        CARD,
        "all_results.json",
        "predictions_*.jsonl",
        "samples.jsonl",
        "runs/*/events.out.tfevents.*",  # and no more of a folder of that name
        "*.png",
        "training_args.bin",
    ),
    *("config.json", "generation_config.json", "model*.safetensors*", "trainer_state.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"),
)
LENGTH = ("num_train_epochs", "max_steps")
Settings = dict[str, dict[str, Any]]


@dataclass
class Run:
    """A training run: its folder, what it was asked to do and how far it is.

    Attributes:
        folder: Where everything is written.
        command: The command line that does it again.
        settings: What was asked for, by group: `program`, `model`, `data`, `tokenizer`, `training`.
        checkpoint: Where training goes on from; None for the beginning.
        finished: Whether there is nothing left to train.
        metrics: The scores of the finished run.
        details: Other facts on the finished run (sizes, time).
        defaults: What settings are if nobody gives them: records made before there was a setting lack it.
    """

    folder: Path
    command: str
    settings: Settings
    checkpoint: Path | None = None
    finished: bool = False
    metrics: dict[str, float] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    defaults: Settings = field(default_factory=dict)

    def write(self) -> None:
        """Write the record, in one piece even if the power fails."""
        keys = ("command", "settings", "finished", "metrics", "details")
        text = json.dumps({key: getattr(self, key) for key in keys}, indent=2, ensure_ascii=False)
        part = self.folder / f"{RECORD}.part"
        part.write_text(text + "\n", encoding="utf-8")
        os.replace(part, self.folder / RECORD)


def open_folder(run: Run, *, overwrite: bool = False, resume_from: str | None = None) -> Run:
    """Find out what the folder of a run holds, and set `checkpoint` and `finished` accordingly.

    Args:
        run: The run that is asked for.
        overwrite: Delete what an earlier run has left.
        resume_from: A checkpoint chosen by hand.

    Raises:
        ValueError: The folder holds another run, or a model that is none, or the chosen checkpoint is no complete one.
    """
    if run.folder.exists() and not run.folder.is_dir():
        raise ValueError(f"--output_dir {run.folder} is a file, not a folder")
    if resume_from is not None and not is_complete(Path(resume_from)):
        raise ValueError(f"--resume_from_checkpoint {resume_from} is not a complete checkpoint folder")
    if resume_from is not None and overwrite and run.folder.resolve() in Path(resume_from).resolve().parents:
        raise ValueError(
            f"--overwrite_output_dir would delete --resume_from_checkpoint {resume_from}: give one of them"
        )
    if overwrite:
        clear(run.folder)
    earlier = _read_record(run.folder)
    checkpoint = last_checkpoint(run.folder)
    if earlier is None and (checkpoint or (run.folder / "config.json").exists()):
        raise ValueError(
            f"--output_dir {run.folder} holds a model, but no record ({RECORD}) of the run that made it: "
            "choose another folder, or delete it with --overwrite_output_dir"
        )
    if earlier is not None:
        _compare(run, earlier, checkpoint)
    run.checkpoint = Path(resume_from) if resume_from is not None else checkpoint
    return run


def last_checkpoint(folder: Path) -> Path | None:
    """Return the latest checkpoint that was written to its end, or None."""
    return next((path for _, path in sorted(checkpoints(folder).items(), reverse=True)), None)


def checkpoints(folder: Path) -> dict[int, Path]:
    """Return the checkpoints that were written to their end, by step."""
    found = {int(match[1]): path for path in folder.glob("checkpoint-*") if (match := CHECKPOINT.fullmatch(path.name))}
    return {step: path for step, path in found.items() if is_complete(path)}


def is_complete(checkpoint: Path) -> bool:
    """Tell whether a checkpoint was written to its end: the Trainer writes its state last."""
    try:
        return "global_step" in json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False


def clear(folder: Path) -> None:
    """Delete what a run leaves in its folder, and nothing else; a card that a person has edited gets another name."""
    keep_edited_card(folder)
    for pattern in PRODUCTS:
        for path in folder.glob(pattern):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for path in saved_code(folder):  # known by what is in it: somebody may keep a `modeling_mine.py` there
        path.unlink()


def keep_edited_card(folder: Path) -> Path | None:
    """Rename a model card that holds what a person wrote, and return its new name."""
    card = folder / CARD
    if not card.is_file() or not is_edited(card.read_text(encoding="utf-8", errors="replace")):
        return None
    names = (f"README.edited{number}.md" for number in itertools.chain([""], itertools.count(2)))
    kept = next(folder / name for name in names if not (folder / name).exists())
    card.rename(kept)
    report(f"{card} was edited by hand: it is {kept.name} now.")
    return kept


def _read_record(folder: Path) -> dict[str, Any] | None:
    try:
        return json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise ValueError(f"{folder / RECORD} is damaged ({error}): start anew with --overwrite_output_dir") from error


def _compare(run: Run, earlier: dict[str, Any], checkpoint: Path | None) -> None:
    """Accept the run the folder holds, unfinished, finished or to be made longer, or raise ValueError."""
    finished = bool(earlier["finished"])
    if not finished and checkpoint is None:
        return  # it did not get far enough for anything to be lost
    changes = _changes(earlier["settings"], run.settings, run.defaults)
    training = {key: change for key, change in changes.items() if key.startswith("training.")}
    longer = bool(changes) and all(key.removeprefix("training.") in LENGTH for key in changes)
    if (finished and changes and not (longer and _lasts_longer(changes))) or len(training) < len(changes):
        state = "a finished" if finished else "an unfinished"
        raise ValueError(
            f"--output_dir {run.folder} holds {state} run with other settings ({_listed(changes)}): choose another "
            "folder, the same settings, or --overwrite_output_dir to delete that run"
        )
    if training:
        report(f"Going on with changed settings: {_listed(training)}.")
    run.finished = finished and not changes
    if run.finished:
        run.metrics, run.details = earlier["metrics"], earlier["details"]


def _changes(old: Settings, new: Settings, defaults: Settings) -> dict[str, tuple[Any, Any]]:
    """Return what differs, as `group.name` → (old, new); what the old ones lack is taken to be the default."""
    was, now, default = (_flat(settings) for settings in (old, new, defaults))
    was |= {name: default[name] for name in default.keys() & now.keys() - was.keys()}
    names = sorted(was.keys() | now.keys())
    return {name: (was.get(name), now.get(name)) for name in names if was.get(name) != now.get(name)}


def _flat(settings: Settings) -> dict[str, Any]:
    """Return settings by `group.name`, as they are once they have been written to a file; a list of one as its item.

    Options that take several values have taken a single one in earlier versions.
    """
    flat = {f"{group}.{name}": value for group, values in settings.items() for name, value in values.items()}
    plain = json.loads(json.dumps(flat))
    return {name: value[0] if isinstance(value, list) and len(value) == 1 else value for name, value in plain.items()}


def _lasts_longer(changes: dict[str, tuple[Any, Any]]) -> bool:
    return all(old is not None and new is not None and new > old for old, new in changes.values())


def _listed(changes: dict[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{name.split('.', 1)[1]}: {old!r} there, {new!r} now" for name, (old, new) in changes.items())
