"""The files of a run: their names, writing them as a whole, moving them aside for another run, and checkpoints."""

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from safetensors import SafetensorError, safe_open

from vanillaformer.hub.atomic_files import flush
from vanillaformer.hub.file_names import CARD, CONFIG, GENERATION, INDEX, SHARDS, TOKENIZERS, WEIGHTS, saved_code

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

RECORD = "run.json"
SAMPLES = "samples.jsonl"
EXAMPLE = "example.png"  # an image to try a model with, which is not published
ADAPTER = "adapter"
NAMES = (
    *(RECORD, CARD, "all_results.json", "trainer_state.json", "training_args.bin"),
    *("predictions_validation.jsonl", "predictions_test.jsonl", SAMPLES),
    *("loss_curve.png", "confusion_matrix.png", EXAMPLE),
    *(CONFIG, GENERATION, WEIGHTS, INDEX, SHARDS, *TOKENIZERS),
    *(f"{ADAPTER}/{name}" for name in ("adapter_config.json", "adapter_model.safetensors", CARD)),
    "runs/*/events.out.tfevents.*",
)
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
EXTRA = ".extra"  # marks a checkpoint, before it is written, as one that a run has only because it was stopped
# Folders of unfinished work; after a kill the next run deletes them or restores their files
SAVING = ".saving"
PREVIOUS = ".previous_run"
DISCARDED = ".discarded_run"
LOCK = ".lock"


def files_of_run(folder: Path) -> list[Path]:
    """Return the files and folders in a folder that a run writes, and nothing that a person put there."""
    found = [path for name in NAMES for path in folder.glob(name) if path.is_file()]
    found += [path for path in folder.glob("checkpoint-*") if path.is_dir() and CHECKPOINT.fullmatch(path.name)]
    return [*found, *saved_code(folder)]  # code by its content, not by its name


def write_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as stream:
        for record in records:
            print(json.dumps(record, ensure_ascii=False), file=stream)


def flush_all(folder: Path) -> None:
    """Flush everything in a folder to the disk."""
    for path in folder.rglob("*"):
        flush(path)
    flush(folder)
    flush(folder.parent)


@contextmanager
def written_aside(folder: Path, name: str = "", *, writes: bool = True) -> Iterator[Path]:
    """Let files be written into an empty folder, and put them into `folder / name` once all of them are on the disk.

    With `writes=False` another process writes.
    """
    part = folder / SAVING
    if not writes:
        yield part / name
        return
    shutil.rmtree(part, ignore_errors=True)
    (part / name).mkdir(parents=True)
    yield part / name
    flush_all(part)
    names = [path.relative_to(part).as_posix() for path in part.rglob("*") if path.is_file()]
    for name in sorted(names, key=lambda name: (name == CONFIG, name)):  # the config last: it makes the folder a model
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(part / name, folder / name)
    stale = {path for name in (WEIGHTS, INDEX, SHARDS) for path in folder.glob(name) if path.name not in names}
    if {WEIGHTS, INDEX} & set(names):
        for path in stale:  # of a model in other shards
            path.unlink()
    flush(folder)
    shutil.rmtree(part)


def move_aside(folder: Path) -> Path:
    """Move the files of a run into a folder in its folder; the record, moved last, shows that all are there."""
    aside = folder / PREVIOUS
    aside.mkdir()
    _move([path for path in files_of_run(folder) if path.name != RECORD or path.parent != folder], folder, aside)
    _move([folder / RECORD], folder, aside)
    return aside


def put_back(folder: Path) -> bool:
    """Undo `move_aside`, finished or not, deleting the files of a new run; return whether there was a run aside."""
    aside = folder / PREVIOUS
    if not aside.is_dir():
        return False
    if (aside / RECORD).is_file():
        for path in files_of_run(folder):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        _move([aside / RECORD], aside, folder)  # first: from now on the folder's files are the earlier run's
    _move(files_of_run(aside), aside, folder)
    shutil.rmtree(aside)
    return True


def _move(paths: list[Path], source: Path, target: Path) -> None:
    for path in paths:
        new = target / path.relative_to(source)
        new.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, new)
        parent = path.parent
        while parent != source:  # a folder that is empty now
            with suppress(OSError):
                parent.rmdir()
            parent = parent.parent
    flush(target)
    flush(source)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder of a run; the system releases the lock of a process that dies, however it dies.

    If another process holds it, this raises ValueError. On a file system without locks, or in a folder that cannot be
    written to, nothing is locked.
    """
    path, new = folder / LOCK, not folder.exists()
    with suppress(OSError):  # `make_writable` has a better message
        folder.mkdir(parents=True, exist_ok=True)
    stream = _lock(path)
    try:
        yield
    finally:
        if stream is not None:
            path.unlink(missing_ok=True)
            stream.close()
        with suppress(OSError):  # it is not empty
            if new:
                folder.rmdir()


def _lock(path: Path) -> Any:
    while fcntl is not None:
        try:
            stream = path.open("ab+", buffering=0)
        except OSError:
            return None
        try:
            fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            stream.seek(0)
            holder = stream.read().decode("ascii", "replace").strip()
            stream.close()
            if not isinstance(error, BlockingIOError | PermissionError):
                return None
            raise ValueError(
                f"--output_dir {path.parent} is in use by another process{f' ({holder})' if holder else ''}: "
                "wait for it to end, or choose another folder"
            ) from None
        if path.exists() and os.path.samestat(os.fstat(stream.fileno()), path.stat()):  # not deleted meanwhile
            with suppress(OSError):  # a full disk
                stream.truncate(0)
                stream.write(f"process {os.getpid()}".encode())
            return stream
        stream.close()
    return None


# --------------------------------------------------------------------------------------------------------- checkpoints
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
    """Return the checkpoints that a run has only because it was stopped: the next one replaces them."""
    return {path.parent for path in folder.glob(f"checkpoint-*/{EXTRA}")}


def is_complete(checkpoint: Path) -> bool:
    """Return whether a checkpoint is complete: the Trainer's state, which comes last, and each file whole."""
    try:
        if "global_step" not in json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8")):
            return False
        parts = checkpoint / "optimizer"  # of a divided model, complete with their table
        return all(map(_is_whole, checkpoint.iterdir())) and (not parts.is_dir() or (parts / ".metadata").is_file())
    except (OSError, ValueError, SafetensorError):
        return False


def has_optimizer(checkpoint: Path) -> bool:
    """Return whether a checkpoint has the state of the optimizer (or has no weights either)."""
    names = [path.name for path in checkpoint.iterdir()]
    weights = any(name.endswith(".safetensors") for name in names)
    return not weights or any(name.startswith(("optimizer", "global_step")) for name in names)


def _is_whole(path: Path) -> bool:
    """Return whether the end of a file is there: a power failure can leave its name without its content."""
    if path.suffix == ".safetensors":
        with safe_open(path, framework="numpy"):  # which compares the size with that in its header
            return True
    if path.suffix == ".json":
        json.loads(path.read_text(encoding="utf-8"))
    return path.suffix not in (".pt", ".pth", ".bin") or is_zipfile(path)  # a zip file ends with its directory
