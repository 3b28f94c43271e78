"""Running trainings, each in a separate process and folder: finished ones are skipped, others resumed."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import psutil
import yaml

from vanillaformer import __version__
from vanillaformer.console.parsing import read_settings
from vanillaformer.console.reporting import report
from vanillaformer.data.caching import Prints, changed_splits
from vanillaformer.hub.atomic_files import write_text
from vanillaformer.hub.loading import saved_folder
from vanillaformer.training.run_folder.files import RECORD
from vanillaformer.training.run_folder.run import Stopping
from vanillaformer.training.trainer.budget import in_short

from .claims import Claims
from .plan import Options, Plan
from .resolving import rows_now

State = Literal["finished", "diverged", "failed", "unequal"]
DIVERGED = ("NaN", "infinite", "not finite")  # words in the program's error for a loss that is not finite
found_folder = cache(saved_folder)  # the Hub is asked once
REPLACED = "replaced"
POLL = 1.0  # seconds between checks of another process's work


@dataclass(frozen=True)
class Job:
    """A training to run."""

    name: str  # name of its folder, settings and log
    options: Options  # options of the program, output_dir included

    @property
    def folder(self) -> Path:
        return Path(self.options["output_dir"])


@dataclass
class Outcome:
    """The outcome of a training."""

    # Finished, diverged (its loss is not finite), failed, or unequal (it did not keep the budget)
    state: State
    message: str  # why it does not count; if it did not finish, the last line of its log
    seconds: float  # start of the program included
    memory: float  # peak in MiB; for a resumed run, that of its last part; 0 where another process trained it


class Runner:
    """Runs the trainings of a comparison in its folder, `workers` in parallel, which share the cores.

    With `overwrite`, runs with other settings are moved away. With `shared`, other processes with the same plan
    work in the folder too, and each training is run by the first one that claims it.
    """

    command = (sys.executable, "-m", "vanillaformer")

    def __init__(self, plan: Plan, folder: Path, workers: int, *, overwrite: bool = False, shared: bool = False):
        self.plan, self.folder, self.workers, self.overwrite = plan, folder, workers, overwrite
        self.claims, self.shared = Claims(folder / "claims"), shared
        self.before: dict[str, float | None] = {}
        self.rows: dict[str, Prints] = {}
        self.processes: set[subprocess.Popen] = set()
        self.stopped = False

    def _file(self, kind: str, job: Job) -> Path:
        """Return the path of a job's `settings` (YAML), `logs` (text), `started` or `outcomes` (JSON)."""
        suffix = {"settings": ".yaml", "logs": ".log"}.get(kind, ".json")
        return self.folder / kind / f"{job.name}{suffix}"

    def _read(self, kind: str, job: Job) -> dict[str, Any]:
        return read_settings(path) if (path := self._file(kind, job)).is_file() else {}

    def _write(self, kind: str, job: Job, content: dict[str, Any]) -> None:
        path = self._file(kind, job)
        path.parent.mkdir(parents=True, exist_ok=True)
        as_yaml = path.suffix == ".yaml"
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True) if as_yaml else f"{json.dumps(content)}\n"
        write_text(path, text)

    def run(self, jobs: Sequence[Job], *, disposable: bool = False) -> dict[str, Outcome]:
        """Run jobs and return their outcomes by name. Those that finished or diverged before do not run again.

        Other runs in the folders of `disposable` jobs are deleted; in other folders they raise ValueError, unless
        `overwrite` moves them away. After an interruption the runs are ended, each with a checkpoint.
        """
        busy = self.shared and bool(self.claims.owners())
        with self.claims.holding("folder"):
            self._make_room(jobs, disposable=disposable, busy=busy)
            self.before = {job.name: self._written(job) for job in jobs}
        outcomes: dict[str, Outcome] = {}
        for job in jobs:  # those whose outcome would be the same again
            noted = self._read("outcomes", job)
            state = noted.get("state", "failed")
            if state == "diverged" or (state != "failed" and read_record(job.folder).get("finished")):
                outcomes[job.name] = Outcome(**noted)
        left = [job for job in jobs if job.name not in outcomes]
        start = time.monotonic()
        if outcomes:
            report(f"{len(outcomes)} of {len(jobs)} trainings were finished before.")
        with Stopping().handling(), ThreadPoolExecutor(self.workers) as pool:
            try:  # from the first submission on, an interrupt has to end a training
                waiting = {pool.submit(self._job, job): job for job in left}
                while waiting:
                    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                        job, outcome = waiting.pop(future), future.result()
                        if outcome is None:
                            waiting[pool.submit(self._job, job)] = job
                            continue
                        outcomes[job.name] = outcome
                        done = len(left) - len(waiting)
                        seconds = (time.monotonic() - start) / done * len(waiting)
                        more = f" · about {in_short(seconds)} left" if waiting else ""
                        why = f": {outcome.message}" if outcome.message else ""
                        took = f"{outcome.state} in {in_short(outcome.seconds)}"
                        report(f"{len(outcomes)}/{len(jobs)} · {job.name} {took}{more}{why}")
            except BaseException:
                self.stop()
                raise
        return outcomes

    def stop(self) -> None:
        """End all runs, each with a checkpoint, and start no more."""
        self.stopped = True
        for process in list(self.processes):
            process.send_signal(signal.SIGTERM)

    def _make_room(self, jobs: Sequence[Job], *, disposable: bool, busy: bool) -> None:
        """Write the settings of jobs, and move other runs away if requested and no process is busy."""
        for job in jobs if not self.shared else ():
            self._end_orphan(job)
        changed = {job.name: why for job in jobs if (why := self._changes(job, busy))}
        if changed and (busy or not (self.overwrite or disposable)):
            name, why = next(iter(changed.items()))
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            raise ValueError(
                f"{self.folder} holds runs that are not comparable with those of this plan ({name}{more}: {why}): "
                f"choose another --output_dir, or --overwrite, which moves them to {self.folder / REPLACED}"
            )
        for job in jobs:
            if job.name in changed and disposable:
                shutil.rmtree(job.folder)
            elif job.name in changed:
                aside = self.folder / REPLACED
                aside.mkdir(exist_ok=True)
                os.replace(job.folder, aside / f"{job.name}.{1 + len([*aside.glob(f'{job.name}.*')])}")
            old = self._read("settings", job) | {"output_dir": str(job.folder)}  # the folder may have been moved
            if old != job.options or not job.folder.exists():
                self._file("outcomes", job).unlink(missing_ok=True)  # it belongs to another run
            if old != job.options or not self.shared:  # otherwise another process may be writing them
                self._write("settings", job, job.options)

    def _changes(self, job: Job, begun: bool = False) -> str:
        """Return how the run in a job's folder, recorded or just `begun`, differs from the job; "" if it does not."""
        record, settings = read_record(job.folder), self._read("settings", job)
        if not record and not (begun and settings):
            return ""
        old, new = ({**options, "output_dir": ""} for options in (settings, job.options))
        names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        changes = [f"{name}: {old.get(name)!r} then, {new.get(name)!r} now" for name in names]
        started, weights = self._read("started", job), saved_weights(job.options)
        version = started.get("version", "an earlier version" if record else __version__)
        if version != __version__:
            changes.append(f"vanillaformer: {version} then, {__version__} now")
        if None not in (weights, begun_with := started.get("weights")) and begun_with != weights:
            changes.append(f"model_name_or_path: {job.options['model_name_or_path']!r} has other weights now")
        if not changes and record.get("data"):
            splits = changed_splits(record["data"], rows_now(self.plan, job.options, self.rows))
            changes = [f"{split} data: {what}" for split, what in splits.items() if split != "test"]
        return "; ".join(changes)

    def _end_orphan(self, job: Job) -> None:
        """End the training left behind by a killed comparison: two cannot work in one folder."""
        started = self._read("started", job)
        with suppress(psutil.Error, KeyError):
            process = psutil.Process(started["pid"])
            if process.create_time() == started["created"] and started["settings"] in process.cmdline():
                process.terminate()
                process.wait(60)

    def _written(self, job: Job) -> float | None:
        """Return when the outcome of a job was written, `None` if it was not."""
        return path.stat().st_mtime if (path := self._file("outcomes", job)).is_file() else None

    def _job(self, job: Job) -> Outcome | None:
        """Run a job unless another process does, and return its outcome; None while the other process works."""
        if self.stopped:
            return Outcome("failed", "not started", 0.0, 0.0)
        if not self.claims.take(job.name):
            time.sleep(POLL)
            return None
        try:
            if self._written(job) not in (None, self.before[job.name]):  # another process wrote it
                if why := self._changes(job, begun=True):
                    raise ValueError(f"--share: another process trained {job.name} differently ({why})")
                return Outcome(**self._read("outcomes", job))
            self._end_orphan(job)
            self._write("settings", job, job.options)  # another process may have another path to the folder
            return self._trained(job)
        finally:
            self.claims.release(job.name)

    def _trained(self, job: Job) -> Outcome:
        start, known = time.monotonic(), read_record(job.folder).get("finished")  # a killed comparison left it
        code, memory = self.execute(job, self._file("settings", job).resolve())
        log = self._file("logs", job).read_text(encoding="utf-8", errors="replace") if code else ""
        lines = [line.strip() for line in log.splitlines() if line.strip()] or ["it printed nothing"]
        message = (lines[-1] if code > 0 else f"killed by signal {-code}") if code else ""
        state: State = ("diverged" if any(word in message for word in DIVERGED) else "failed") if code else "finished"
        outcome = Outcome(state, message, time.monotonic() - start, 0.0 if known else memory)
        if state == "finished" or not self.stopped:  # another process can resume an interrupted training
            self._write("outcomes", job, asdict(outcome))
        return outcome

    def execute(self, job: Job, settings: Path) -> tuple[int, float]:
        """Run the program in a separate process; return its exit code and its peak memory in MiB."""
        log = self._file("logs", job)
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // self.workers))} | os.environ
        command = [*self.command, self.plan.program, str(settings)]
        self._note_start(job, settings, 0)  # before the run can write anything
        with log.open("a", encoding="utf-8") as output:
            process = subprocess.Popen(  # the terminal's Ctrl-C must not reach it too: a second signal kills it
                command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
            self.processes.add(process)
            if self.stopped:  # while it was starting
                process.send_signal(signal.SIGTERM)
            try:
                self._note_start(job, settings, process.pid)
                _, status, used = os.wait4(process.pid, 0)
            finally:
                self.processes.discard(process)
            process.returncode = os.waitstatus_to_exitcode(status)
        return process.returncode, used.ru_maxrss / (2**20 if sys.platform == "darwin" else 1024)

    def _note_start(self, job: Job, settings: Path, pid: int) -> None:
        """Record which process works in a folder, 0 for none yet, its version, and the weights that it starts from."""
        created = psutil.Process(pid).create_time() if pid and psutil.pid_exists(pid) else 0.0
        content = {"pid": pid, "created": created, "settings": str(settings), "version": __version__}
        self._write("started", job, content | {"weights": saved_weights(job.options)})


def saved_weights(options: dict[str, Any]) -> list[str] | None:
    """Return hashes of the files of weights that a run starts from; None if it starts from none, or they are gone."""
    try:
        folder = found_folder(options["model_name_or_path"], options.get("model_revision"))
    except (KeyError, ValueError):  # a finished run does not need them
        return None
    return [file_hash(path, path.stat().st_mtime_ns) for path in sorted(folder.glob("*.safetensors"))]


@cache
def file_hash(path: Path, changed: int) -> str:
    """Return a hash of a file, which was last changed at that time."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_record(folder: Path) -> dict[str, Any]:
    """Return the record of the run in a folder, empty if it has none."""
    return read_settings(path) if (path := folder / RECORD).is_file() else {}
