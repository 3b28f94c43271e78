"""The folder of a training run: its content, whether the run can be resumed, and the record kept in it."""

import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vanillaformer.console.limits import BUDGETS
from vanillaformer.console.reporting import report
from vanillaformer.data.caching import Prints, changed_splits
from vanillaformer.hub.atomic_files import write_text

from . import files
from .files import RECORD

Settings = dict[str, dict[str, Any]]
Changes = dict[str, tuple[Any, Any]]

BY_DATA = "by the data"
"""The setting of an option whose default follows the data; the details of the record have the value."""
LENGTH = ("num_train_epochs", "max_steps", *BUDGETS, "max_epochs")
# Fields without influence on the weights and scores of a run: all others are compared. Rows per step are compared as
# their product, test data by its content, the search as it is saved with the model, options of numerical precision not
# at all.
NOT_COMPARED = frozenset(Path(__file__).with_name("not_compared.txt").read_text(encoding="utf-8").split())
REMEDY = "choose another folder, or --overwrite_output_dir to replace that run"
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """The signals SIGINT and SIGTERM: they end a run at once, or during training after a checkpoint.

    Child processes handle their own signals.
    """

    def __init__(self) -> None:
        self.training = False  # during which the signal is only noted
        self.number = 0  # the first signal; a second one ends the process at once
        self.process = os.getpid()

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
        """Receive SIGINT and SIGTERM while this lasts, if this is the main thread; no other thread can."""
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
    command: str  # the command line that repeats it
    settings: Settings  # of the command, by group: `program`, `model`, `data`, `tokenizer`, `training`
    checkpoint: Path | None = None  # where training resumes from; None for the beginning
    finished: bool = False
    is_extension: bool = False  # whether the folder holds the same run, finished after fewer steps
    overwrites: bool = False  # whether the folder holds another run, which is moved aside when training begins
    metrics: dict[str, float] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)  # other facts about the finished run (sizes, time)
    data: Prints = field(default_factory=dict)  # fingerprints of the data by split
    # Files that could not be made after training; the same command makes them again, from the last checkpoint
    failed: list[str] = field(default_factory=list)
    search_changed: bool = False  # whether the finished run's model is saved with other search settings
    needs_test: bool = False  # whether the finished run has no scores of its test data, or from another search
    stopping: Stopping = field(default_factory=Stopping)  # the signals that end it

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
                f"{self.checkpoint or f'--output_dir {self.folder}'} is of a run on other data than there is now "
                f"under the same names ({differences}): put the data back as it was, {REMEDY}"
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
        if not files.is_complete(chosen):
            raise ValueError(f"{option} is not a complete checkpoint folder")
        if not files.has_optimizer(chosen):
            raise ValueError(f"{option} has no state of an optimizer to resume from")
        if overwrite and run.folder.resolve() in chosen.resolve().parents:
            raise ValueError(f"--overwrite_output_dir would delete {option}: give one of them")
        _check_chosen(run, chosen, option)
    earlier, present = _read_record(run.folder), files.files_of_run(run.folder)
    models = [path.name for path in present if files.CHECKPOINT.fullmatch(path.name) or path.name == "config.json"]
    if earlier is None and (models or (overwrite and present)):
        names = ", ".join(path.relative_to(run.folder).as_posix() for path in present[:5])
        raise ValueError(
            f"--output_dir {run.folder} holds files that a run would replace ({names}), but no record ({RECORD}) of "
            "a run that made them: choose another folder, or move or delete them by hand"
        )
    run.overwrites = overwrite and earlier is not None
    checkpoint = None if run.overwrites else files.last_checkpoint(run.folder)
    if earlier is not None and not run.overwrites:
        _compare(run, earlier, checkpoint)
    run.checkpoint = Path(resume_from) if resume_from is not None else checkpoint
    return run


def recover(folder: Path) -> None:
    """Restore the run that a new one was to replace, if the new one has no checkpoint; otherwise delete it."""
    for name in (files.SAVING, ".pushing", files.DISCARDED):  # the second of an earlier version
        shutil.rmtree(folder / name, ignore_errors=True)
    moved = (folder / files.PREVIOUS / RECORD).is_file()  # otherwise only some of its files were
    if moved and (files.last_checkpoint(folder) or (_read_record(folder) or {}).get("finished")):
        discard(folder)
    elif files.put_back(folder):
        report(f"{folder} holds the earlier run unchanged: the one that was to replace it has no checkpoint.")


def discard(folder: Path) -> None:
    """Delete the run that was moved aside; a card that a person has edited stays, by another name."""
    previous, discarded = folder / files.PREVIOUS, folder / files.DISCARDED
    shutil.rmtree(discarded, ignore_errors=True)
    if previous.is_dir():
        from vanillaformer.hub.card_merging import keep_edited_card  # after an earlier run only

        keep_edited_card(previous, folder)
        os.replace(previous, discarded)  # first, so that half of it cannot be restored after a kill
        shutil.rmtree(discarded)


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
    """Accept the run in the folder, unfinished, finished or to be extended, or raise ValueError."""
    finished = bool(earlier["finished"])
    failed = earlier.get("failed", []) if finished and checkpoint is not None else []
    if not finished and checkpoint is None:
        return  # it did not get far enough for anything to be lost
    changes = _changes(run, earlier)
    training = {key: change for key, change in changes.items() if key.startswith("training.")}
    lengths = changes.keys() & {f"training.{name}" for name in LENGTH}
    run.is_extension = finished and is_longer(changes)
    if (finished and changes and not run.is_extension) or len(training) < len(changes):
        state = "a finished" if finished else "an unfinished"
        hint = "; a run can be made longer, not shorter, and counts epochs, steps, time, tokens or FLOPs"
        raise ValueError(
            f"--output_dir {run.folder} holds {state} run with other settings ({listed(changes)})"
            f"{hint if lengths and len(lengths) == len(changes) else ''}: use the same settings, {REMEDY}"
        )
    if checkpoint is not None and not finished and lengths:  # it may have been trained for longer already
        asked = {name: run.settings["training"].get(name) or 0 for name in LENGTH}
        unit = next((name for name in ("max_steps", *BUDGETS) if asked[name] > 0), "num_train_epochs")
        state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        done = state["global_step"] if unit == "max_steps" else state.get("epoch") or 0
        done = files.spent_of_budget(checkpoint) if unit in BUDGETS else done
        if asked[unit] < done:
            raise ValueError(f"--{unit} {asked[unit]}: the run in {run.folder} has reached {done:g} already; {REMEDY}")
    if failed:
        report(f"Repeated, because it failed: {', '.join(failed)}.")
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


def _check_chosen(run: Run, checkpoint: Path, option: str) -> None:
    """Raise ValueError for a checkpoint of another folder's run that has another model, vocabulary or data."""
    earlier = _read_record(checkpoint.resolve().parent)
    if earlier is None or checkpoint.resolve().parent == run.folder.resolve():
        return
    if changes := {key: change for key, change in _changes(run, earlier).items() if not key.startswith("training.")}:
        raise ValueError(
            f"{option} is of a run with other settings ({listed(changes)}): use the same settings, or "
            f"--model_name_or_path {checkpoint} to start only from its weights"
        )
    run.data = earlier.get("data", {})


def _changes(run: Run, earlier: dict[str, Any]) -> Changes:
    """Return how the settings of a run differ from those of a recorded one.

    An option that is given now, and was chosen by the data there, is compared with the chosen value.
    """
    chosen = {option: value for option, value, _ in earlier.get("details", {}).get("defaults", ())}
    settings = {
        group: {
            name: chosen.get(name, value) if BY_DATA == value != run.settings.get(group, {}).get(name) else value
            for name, value in values.items()
        }
        for group, values in earlier["settings"].items()
    }
    return changed_settings(settings, run.settings)


# ----------------------------------------------------------------------------------- the settings that identify a run
def compared_settings(program: str, training: Any, groups: Mapping[str, Any]) -> Settings:
    """Return the settings of a run that are compared with those of an earlier one, by group of arguments."""
    chosen = {group: asdict(values) for group, values in groups.items() if values is not None}
    chosen["training"] = training.to_dict()
    settings = {
        group: {name: value for name, value in values.items() if name not in NOT_COMPARED}
        for group, values in chosen.items()
    }
    settings["training"]["rows_per_step"] = None if training.tokens_per_batch is not None else training.step_rows
    settings["training"]["processes"] = training.data_processes
    return json.loads(json.dumps({"program": {"name": program}, **settings}, default=str))


def keep_rows_per_step(folder: Path, training: Any) -> None:
    """Divide the batches of an unfinished run anew if the number of processes has changed.

    Raises ValueError if the rows of a step cannot be divided among them.
    """
    record = {} if training.overwrite_output_dir else _read_record(folder) or {}
    before = record.get("settings", {}).get("training", {})
    rows, processes = before.get("rows_per_step"), before.get("processes")
    asked, now = training.train_batch_size * training.gradient_accumulation_steps, training.data_processes
    if record.get("finished") or not rows or processes in (None, now) or asked * processes != rows:
        return  # or the command asks for other batches
    if rows % now:
        raise ValueError(
            f"the run in {folder} has {rows} rows per step, which {now} processes cannot divide among them; give "
            f"--per_device_train_batch_size, or a number of processes that divides {rows}"
        )
    share = rows // now
    size = max(size for size in range(1, training.train_batch_size + 1) if share % size == 0)
    training.per_device_train_batch_size, training.gradient_accumulation_steps = size, share // size
    report(f"{rows} rows per step, as on {processes} processes: {now} x {size} rows x {share // size} batches.")


def changed_settings(old: Settings, new: Settings) -> Changes:
    """Return the differences, as `group.name` → (old, new), of the settings that both have."""
    was, now = _flat(old), _flat(new)
    names = sorted(name for name in was.keys() & now.keys() if name.split(".", 1)[1] not in NOT_COMPARED)
    changes = {name: (was[name], now[name]) for name in names if not _same(name, was[name], now[name])}
    if all(settings.get("training.max_steps", 0) > 0 for settings in (was, now)):  # epochs do not matter then
        changes.pop("training.num_train_epochs", None)
    return changes


def is_longer(changes: Changes) -> bool:
    """Return whether a run with these changes is the same one, trained for more steps, epochs or time."""
    return bool(changes) and all(
        name.removeprefix("training.") in LENGTH and BY_DATA not in change and 0 < (change[0] or 0) < (change[1] or 0)
        for name, change in changes.items()
    )


def listed(changes: Changes) -> str:
    return ", ".join(f"{name.split('.', 1)[1]}: {old!r} there, {new!r} now" for name, (old, new) in changes.items())


def _flat(settings: Settings) -> dict[str, Any]:
    """Return settings by `group.name`; a list of one as its item, because old records have some options as items."""
    flat = {f"{group}.{name}": value for group, values in settings.items() for name, value in values.items()}
    return {name: value[0] if isinstance(value, list) and len(value) == 1 else value for name, value in flat.items()}


def _same(name: str, old: Any, new: Any) -> bool:
    if name.endswith(("_file", "_name_or_path")):  # a path can be written in many ways
        names = [value if isinstance(value, list) else [value] for value in (old, new)]
        old, new = ([Path(name).resolve() if isinstance(name, str) else name for name in part] for part in names)
    if name.endswith(".optim"):  # equal but for speed and rounding
        old, new = (str(value).removesuffix("_fused") for value in (old, new))
    return old == new
