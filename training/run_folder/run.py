"""The folder of a training run: its content, whether that can be resumed, and the record kept in it."""

import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vanillaformer.console.limits import BUDGETS
from vanillaformer.console.reporting import report
from vanillaformer.data.caching import Prints, changed_splits
from vanillaformer.hub.atomic_files import write_text
from vanillaformer.hub.card_merging import keep_edited_card

from .files import (
    CHECKPOINT,
    DISCARDED,
    PREVIOUS,
    RECORD,
    SAVING,
    discard_previous,
    files_of_run,
    has_optimizer,
    is_complete,
    last_checkpoint,
    put_back,
    spent_of_budget,
)
from .settings import LENGTH, Settings, changed_settings, is_longer, listed, with_defaults

REMEDY = "choose another folder, or --overwrite_output_dir to replace that run"
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """The signals SIGINT and SIGTERM: they end a run at once, or while it is trained after a checkpoint.

    Children handle theirs themselves.

    Attributes:
        training: Whether a training is under way, which then ends itself.
        number: The first signal; 0 for none. A second one ends the process at once.
    """

    def __init__(self) -> None:
        self.training, self.number, self.process = False, 0, os.getpid()

    def __call__(self, number: int, frame: Any) -> None:
        forked = os.getpid() != self.process
        if forked and (self.training or number == signal.SIGINT):
            return  # a terminal sends a signal to all: the parent needs this process to finish, and ends it afterwards
        if forked or self.number:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.number = number
        if not self.training:
            raise KeyboardInterrupt

    @contextmanager
    def handling(self) -> Iterator[None]:
        """Receive SIGINT and SIGTERM while this lasts, if this is the main thread, which alone can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@dataclass
class Run:
    """A training run: its folder, its settings and its progress."""

    folder: Path
    command: str
    """The command line that does it again."""
    settings: Settings
    """The settings of the command, by group: `program`, `model`, `data`, `tokenizer`, `training`."""
    checkpoint: Path | None = None
    """Where training resumes from; None for the beginning."""
    finished: bool = False
    is_extension: bool = False
    """Whether the folder holds the same run, finished after fewer steps."""
    overwrites: bool = False
    """Whether the folder holds another run, which is moved aside when training begins."""
    metrics: dict[str, float] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    """Other facts on the finished run (sizes, time)."""
    data: Prints = field(default_factory=dict)
    """Fingerprints of the data by split."""
    failed: list[str] = field(default_factory=list)
    """Files that could not be made after training; the same command makes them again, from the last checkpoint."""
    search_changed: bool = False
    """Whether the model of the finished run is saved with other search settings than are asked for."""
    needs_test: bool = False
    """Whether the finished run has no scores of its test data, or those of another search."""
    defaults: Settings = field(default_factory=dict)
    """Defaults of settings, which records lack that were made before there was a setting."""
    stopping: Stopping = field(default_factory=Stopping)
    """The signals that end it."""

    def write(self) -> None:
        """Write the record, in one piece even if the power fails."""
        keys = ("command", "settings", "finished", "failed", "metrics", "details", "data")
        text = json.dumps({key: getattr(self, key) for key in keys}, indent=2, ensure_ascii=False)
        write_text(self.folder / RECORD, text + "\n")

    def check_data(self, prints: Prints) -> None:
        """Note the fingerprints of the data; raise ValueError if the run was trained or validated on other data."""
        changed = changed_splits(self.data, prints) if self.data and (self.finished or self.checkpoint) else {}
        other_test = changed.pop("test", None) is not None
        self.needs_test = self.finished and "test" in prints and (other_test or self.search_changed)
        if changed:
            differences = "; ".join(f"{split}: {difference}" for split, difference in changed.items())
            raise ValueError(
                f"--output_dir {self.folder} holds a run on other data than there is now under the same names "
                f"({differences}): put the data back as it was, {REMEDY}"
            )
        self.data = self.data | prints


def open_folder(run: Run, *, overwrite: bool = False, resume_from: str | None = None) -> Run:
    """Read the folder of a run, without changing it, and set the fields of the run accordingly.

    Raises ValueError where it holds another run (which `overwrite` replaces, once training begins) or files that are
    not a run's, or where the checkpoint `resume_from`, chosen by hand, is not complete.
    """
    if run.folder.exists() and not run.folder.is_dir():
        raise ValueError(f"--output_dir {run.folder} is a file, not a folder")
    if resume_from is not None:
        chosen, option = Path(resume_from), f"--resume_from_checkpoint {resume_from}"
        if not is_complete(chosen):
            raise ValueError(f"{option} is not a complete checkpoint folder")
        if not has_optimizer(chosen):
            raise ValueError(f"{option} has no state of an optimizer to resume from")
        if overwrite and run.folder.resolve() in chosen.resolve().parents:
            raise ValueError(f"--overwrite_output_dir would delete {option}: give one of them")
    earlier, files = _read_record(run.folder), files_of_run(run.folder)
    models = [path.name for path in files if CHECKPOINT.fullmatch(path.name) or path.name == "config.json"]
    if earlier is None and (models or (overwrite and files)):
        names = ", ".join(path.relative_to(run.folder).as_posix() for path in files[:5])
        raise ValueError(
            f"--output_dir {run.folder} holds files that a run would replace ({names}), but no record ({RECORD}) of "
            "a run that made them: choose another folder, or move or delete them by hand"
        )
    run.overwrites = overwrite and earlier is not None
    checkpoint = None if run.overwrites else last_checkpoint(run.folder)
    if earlier is not None and not run.overwrites:
        _compare(run, earlier, checkpoint)
    run.checkpoint = Path(resume_from) if resume_from is not None else checkpoint
    return run


def recover(folder: Path) -> None:
    """Put back the run that a new one was to replace, if that has no checkpoint; or else delete it."""
    for name in (SAVING, ".pushing", DISCARDED):  # the second of an earlier version
        shutil.rmtree(folder / name, ignore_errors=True)
    moved = (folder / PREVIOUS / RECORD).is_file()  # or else only some of its files were
    if moved and (last_checkpoint(folder) or (_read_record(folder) or {}).get("finished")):
        discard(folder)
    elif put_back(folder):
        report(f"{folder} holds the earlier run as it was: the one that was to replace it has no checkpoint.")


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
    lengths = changes.keys() & {f"training.{name}" for name in LENGTH}
    run.is_extension = finished and is_longer(changes)
    if (finished and changes and not run.is_extension) or len(training) < len(changes):
        state = "a finished" if finished else "an unfinished"
        hint = "; a run can be made longer, not shorter, and counts epochs, steps, time, tokens or FLOPs"
        raise ValueError(
            f"--output_dir {run.folder} holds {state} run with other settings ({listed(changes)})"
            f"{hint if lengths and len(lengths) == len(changes) else ''}: the same settings, {REMEDY}"
        )
    if checkpoint is not None and not finished and lengths:  # it may have been trained for longer already
        asked = {name: run.settings["training"].get(name) or 0 for name in LENGTH}
        unit = next((name for name in ("max_steps", *BUDGETS) if asked[name] > 0), "num_train_epochs")
        state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        done = state["global_step"] if unit == "max_steps" else state.get("epoch") or 0
        done = spent_of_budget(checkpoint) if unit in BUDGETS else done
        if asked[unit] < done:
            raise ValueError(f"--{unit} {asked[unit]}: the run in {run.folder} has reached {done:g} already; {REMEDY}")
    if failed:
        report(f"Made again, because it failed: {', '.join(failed)}.")
    if training:
        report(f"Resuming with changed settings: {listed(training)}.")
    run.finished, run.data = finished and not changes and not failed, earlier.get("data", {})
    kept = finished and not failed
    always = ("defaults", "acceleration")
    run.details = {name: value for name, value in earlier.get("details", {}).items() if kept or name in always}
    if finished:
        run.metrics = earlier["metrics"]
    if run.finished:
        run.failed = list(earlier.get("failed", []))
