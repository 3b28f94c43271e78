"""Running trainings, each in a process and a folder of its own: finished ones are skipped, others resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import psutil
import yaml

from vanillaformer.hub.atomic_files import write_text
from vanillaformer.hub.reporting import report
from vanillaformer.training.trainer.time_budget import in_short

State = Literal["finished", "diverged", "failed"]
DIVERGED = ("NaN", "infinite", "not finite")
"""Words of the program's error on a loss that is not a number."""
MEBI = 2**20


@dataclass(frozen=True)
class Job:
    """A training to be run.

    Attributes:
        name: The name of its folder, settings and log.
        options: The options of the program, with the folder.
    """

    name: str
    options: dict[str, Any]


@dataclass
class Outcome:
    """How a training ended.

    Attributes:
        state: Finished, diverged (a loss that is not finite) or failed.
        message: The last line of its log, if it did not finish.
        seconds: Its duration, start of the program included.
        memory: The most memory that it had, in MiB; of a run that was resumed, of its last part.
    """

    state: State
    message: str
    seconds: float
    memory: float


class Runner:
    """Runs the trainings of a comparison.

    Args:
        program: The training program.
        folder: The folder of the comparison.
        workers: How many run at once; they share the cores.
    """

    command = (sys.executable, "-m", "vanillaformer")

    def __init__(self, program: str, folder: Path, workers: int):
        self.program, self.folder, self.workers = program, folder, workers
        self.processes: set[subprocess.Popen] = set()
        self.stopped = False

    def settings(self, job: Job) -> Path:
        """Return the settings file of a job, written if it is not there."""
        path = self.folder / "settings" / f"{job.name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(job.options, sort_keys=False, allow_unicode=True)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            self._outcome(job).unlink(missing_ok=True)  # of other settings
            write_text(path, text)
        return path

    def ended(self, job: Job) -> Outcome | None:
        """Return how a job ended, if it has and would end in the same way again."""
        self.settings(job)
        place = self._outcome(job)
        earlier = Outcome(**json.loads(place.read_text(encoding="utf-8"))) if place.is_file() else None
        if earlier is None or earlier.state == "failed":
            return None
        return earlier if earlier.state == "diverged" or is_finished(Path(job.options["output_dir"])) else None

    def _outcome(self, job: Job) -> Path:
        return self.folder / "outcomes" / f"{job.name}.json"

    def run(self, jobs: Sequence[Job]) -> dict[str, Outcome]:
        """Run jobs in their order, and return how each ended; those that did not finish do not stop the others.

        Raises:
            KeyboardInterrupt: It was interrupted; the runs have made checkpoints.
        """
        outcomes = {job.name: outcome for job in jobs if (outcome := self.ended(job)) is not None}
        left, start = [job for job in jobs if job.name not in outcomes], time.monotonic()
        if outcomes:
            report(f"{len(outcomes)} of {len(jobs)} trainings have ended before.")
        with ThreadPoolExecutor(self.workers) as pool:
            waiting = {pool.submit(self._job, job): job for job in left}
            try:
                while waiting:
                    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                        job, outcome = waiting.pop(future), future.result()
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

    def _job(self, job: Job) -> Outcome:
        """Run a job and note how it ended."""
        if self.stopped:
            return Outcome("failed", "not started", 0.0, 0.0)
        settings, place = self.settings(job), self._outcome(job)
        end_orphan(settings)
        outcome = self._run(job, settings)
        place.parent.mkdir(parents=True, exist_ok=True)
        write_text(place, json.dumps(asdict(outcome)) + "\n")
        return outcome

    def _run(self, job: Job, settings: Path) -> Outcome:
        log = self.folder / "logs" / f"{job.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        threads = max(1, (os.cpu_count() or 1) // self.workers)
        environment = {"OMP_NUM_THREADS": str(threads)} | os.environ
        start = time.monotonic()
        with log.open("a", encoding="utf-8") as output:
            process = subprocess.Popen(
                [*self.command, self.program, str(settings)],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            )
            self.processes.add(process)
            try:
                _, status, used = os.wait4(process.pid, 0)
            finally:
                self.processes.discard(process)
            process.returncode = os.waitstatus_to_exitcode(status)
        memory = used.ru_maxrss / (MEBI if sys.platform == "darwin" else 1024)
        message = "" if process.returncode == 0 else last_line(log)
        state: State = "finished"
        if process.returncode:
            state = "diverged" if any(word in message for word in DIVERGED) else "failed"
        return Outcome(state, message, time.monotonic() - start, memory)


def is_finished(folder: Path) -> bool:
    """Tell whether a folder holds a finished run."""
    record = folder / "run.json"
    return record.is_file() and bool(json.loads(record.read_text(encoding="utf-8"))["finished"])


def end_orphan(settings: Path) -> None:
    """End a training with these settings whose comparison was killed: two cannot work in one folder."""
    for process in psutil.process_iter():
        try:
            if str(settings) in process.cmdline() and process.pid != os.getpid():
                process.terminate()
                process.wait(60)
        except (psutil.Error, OSError):
            continue


def last_line(log: Path) -> str:
    """Return the last line of a log that is not empty."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def interleaved(variants: Sequence[str], seeds: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Yield each variant once per seed, seed by seed: a machine that slows down does so for all variants."""
    for seed in seeds:
        for variant in variants:
            yield variant, seed
