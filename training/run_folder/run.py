"""The folder of a training run: what it holds, whether that can be continued, and the record kept in it."""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vanillaformer.console.limits import BUDGETS
from vanillaformer.console.reporting import report
from vanillaformer.data.fingerprints import Prints, changed_splits
from vanillaformer.hub.atomic_files import write_text
from vanillaformer.hub.card_merging import keep_edited_card

from .checkpoints import has_optimizer, is_complete, last_checkpoint, spent_of_budget
from .files import (
    CHECKPOINT,
    DISCARDED,
    PREVIOUS,
    PUSHING,
    RECORD,
    SAVING,
    discard_previous,
    files_of_run,
    move_aside,
    put_back,
)
from .settings import LENGTH, Changes, Settings, changed_settings, is_longer, listed, with_defaults
from .stopping import Stopping

ANEW = "choose another folder, or --overwrite_output_dir to replace that run"


@dataclass
class Run:
    """A training run: its folder, its settings and its progress.

    Attributes:
        folder: Where everything is written.
        command: The command line that does it again.
        settings: What was asked for, by group: `program`, `model`, `data`, `tokenizer`, `training`.
        checkpoint: Where training resumes from; None for the beginning.
        finished: Whether there is nothing left to train.
        longer: Whether the folder holds the same run, finished after fewer steps.
        replaces: Whether the folder holds another run, which is moved aside when training begins.
        metrics: The scores of the finished run.
        details: Other facts on the finished run (sizes, time).
        data: Fingerprints of the data by split.
        failed: What could not be made after training; the same command makes it again, from the last checkpoint.
        new_search: Whether the model of the finished run is saved with other search settings than are asked for.
        new_test: Whether the finished run has no scores of its test data, or those of another search.
        defaults: Defaults of settings: records made before there was a setting lack it.
        stopping: The signals that end it.
    """

    folder: Path
    command: str
    settings: Settings
    checkpoint: Path | None = None
    finished: bool = False
    longer: bool = False
    replaces: bool = False
    metrics: dict[str, float] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    data: Prints = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    new_search: bool = False
    new_test: bool = False
    defaults: Settings = field(default_factory=dict)
    stopping: Stopping = field(default_factory=Stopping)

    def write(self) -> None:
        """Write the record, in one piece even if the power fails."""
        keys = ("command", "settings", "finished", "failed", "metrics", "details", "data")
        text = json.dumps({key: getattr(self, key) for key in keys}, indent=2, ensure_ascii=False)
        write_text(self.folder / RECORD, text + "\n")

    @property
    def complete(self) -> bool:
        """Whether there is nothing left to train or to score."""
        return self.finished and not self.new_test

    def check_data(self, prints: Prints) -> None:
        """Note the fingerprints of the data.

        Raises:
            ValueError: The run in the folder was trained or validated on other data.
        """
        changed = changed_splits(self.data, prints) if self.data and (self.finished or self.checkpoint) else {}
        other = changed.pop("test", None) is not None
        self.new_test = self.finished and "test" in prints and (other or self.new_search)
        if changed:
            what = "; ".join(f"{split}: {difference}" for split, difference in changed.items())
            raise ValueError(
                f"--output_dir {self.folder} holds a run on other data than there is now under the same names "
                f"({what}): put the data back as it was, {ANEW}"
            )
        self.data = self.data | prints


def open_folder(run: Run, *, overwrite: bool = False, resume_from: str | None = None) -> Run:
    """Find out what the folder of a run holds, without changing it, and set the fields of the run accordingly.

    Args:
        run: The run that is asked for.
        overwrite: Replace what an earlier run has left, once training begins.
        resume_from: A checkpoint chosen by hand.

    Raises:
        ValueError: The folder holds another run, or files that are not a model, or the checkpoint is not complete.
    """
    if run.folder.exists() and not run.folder.is_dir():
        raise ValueError(f"--output_dir {run.folder} is a file, not a folder")
    if resume_from is not None and not is_complete(Path(resume_from)):
        raise ValueError(f"--resume_from_checkpoint {resume_from} is not a complete checkpoint folder")
    if resume_from is not None and not has_optimizer(Path(resume_from)):
        raise ValueError(f"--resume_from_checkpoint {resume_from} has no state of an optimizer to resume from")
    if resume_from is not None and overwrite and run.folder.resolve() in Path(resume_from).resolve().parents:
        raise ValueError(
            f"--overwrite_output_dir would delete --resume_from_checkpoint {resume_from}: give one of them"
        )
    earlier, files = _read_record(run.folder), files_of_run(run.folder)
    models = [path.name for path in files if CHECKPOINT.fullmatch(path.name) or path.name == "config.json"]
    if earlier is None and (models or (overwrite and files)):
        names = ", ".join(path.relative_to(run.folder).as_posix() for path in files[:5])
        raise ValueError(
            f"--output_dir {run.folder} holds files that a run would replace ({names}), but no record ({RECORD}) of "
            "a run that made them: choose another folder, or move or delete them by hand"
        )
    run.replaces = overwrite and earlier is not None
    checkpoint = None if run.replaces else last_checkpoint(run.folder)
    if earlier is not None and not run.replaces:
        _compare(run, earlier, checkpoint)
    run.checkpoint = Path(resume_from) if resume_from is not None else checkpoint
    return run


def recover(folder: Path) -> None:
    """Put back the run that a new one was to replace, if that has come to no checkpoint; or else delete it."""
    for name in (SAVING, PUSHING, DISCARDED):
        shutil.rmtree(folder / name, ignore_errors=True)
    if not (folder / PREVIOUS).is_dir():
        return
    moved = (folder / PREVIOUS / RECORD).is_file()  # or else only some of its files were
    if moved and (last_checkpoint(folder) or (_read_record(folder) or {}).get("finished")):
        discard(folder)
    elif put_back(folder):
        report(f"{folder} holds the earlier run as it was: the one that was to replace it came to no checkpoint.")


def replace(folder: Path) -> None:
    """Move the run in a folder aside, until `discard` or `recover`."""
    aside = move_aside(folder)
    report(f"The earlier run is in {aside} until the new one has its first checkpoint.")


def discard(folder: Path) -> None:
    """Delete the run that was moved aside; a card that a person has edited stays, by another name."""
    if (folder / PREVIOUS).is_dir():
        keep_edited_card(folder / PREVIOUS, folder)
    discard_previous(folder)


def _read_record(folder: Path) -> dict[str, Any] | None:
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        if not {"settings", "finished"} <= record.keys():
            raise ValueError("it has no settings")
        return record
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, AttributeError) as error:
        raise ValueError(
            f"{folder / RECORD} is damaged ({error}): choose another folder, or delete {RECORD} and the model beside "
            "it by hand"
        ) from error


def _compare(run: Run, earlier: dict[str, Any], checkpoint: Path | None) -> None:
    """Accept the run that the folder holds, unfinished, finished or to be made longer, or raise ValueError."""
    finished = bool(earlier["finished"])
    failed = earlier.get("failed", []) if finished and checkpoint is not None else []
    if not finished and checkpoint is None:
        return  # it did not get far enough for anything to be lost
    chosen = {option: value for option, value, _ in earlier.get("details", {}).get("defaults", ())}
    settings = with_defaults(earlier["settings"], chosen, run.settings)
    changes = changed_settings(settings, run.settings, run.defaults)
    training = {key: change for key, change in changes.items() if key.startswith("training.")}
    run.longer = finished and is_longer(changes)
    if (finished and changes and not run.longer) or len(training) < len(changes):
        state = "a finished" if finished else "an unfinished"
        raise ValueError(
            f"--output_dir {run.folder} holds {state} run with other settings ({listed(changes)}){_why(changes)}: "
            f"the same settings, {ANEW}"
        )
    if checkpoint is not None and not finished:
        _check_length(run, checkpoint, changes)
    if failed:
        report(f"Made again, because it failed: {', '.join(failed)}.")
    if training:
        report(f"Going on with changed settings: {listed(training)}.")
    run.finished, run.data = finished and not changes and not failed, earlier.get("data", {})
    kept = finished and not failed
    run.details = {name: value for name, value in earlier.get("details", {}).items() if kept or name == "defaults"}
    if finished:
        run.metrics = earlier["metrics"]
    if run.finished:
        run.failed = list(earlier.get("failed", []))


def _why(changes: Changes) -> str:
    """Return why a run of another length is another run."""
    lengths = changes.keys() & {f"training.{name}" for name in LENGTH}
    if not lengths or len(lengths) < len(changes):
        return ""
    return "; a run can be made longer, not shorter, and counts epochs, steps, time, tokens or FLOPs"


def _check_length(run: Run, checkpoint: Path, changes: Changes) -> None:
    """Raise ValueError when a run has been trained for longer already than is asked for."""
    state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    lengths = {name: run.settings["training"].get(name) or 0 for name in LENGTH}
    unit = next((name for name in ("max_steps", *BUDGETS) if lengths[name] > 0), "num_train_epochs")
    done, wanted = state.get("epoch") or 0, lengths[unit]
    if unit == "max_steps":
        done = state["global_step"]
    elif unit in BUDGETS:
        done = spent_of_budget(checkpoint)
    if wanted < done and changes.keys() & {f"training.{name}" for name in LENGTH}:
        raise ValueError(f"--{unit} {wanted}: the run in {run.folder} has come to {done:g} already; {ANEW}")
