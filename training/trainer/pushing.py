"""A `Trainer` that pushes what belongs on the Hub while it trains and at its end, and loses nothing if it cannot."""

import os
import shlex
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from transformers import Trainer
from transformers.trainer_utils import HubStrategy
from transformers.utils.hub import PushInProgress

from vanillaformer.console.reporting import report
from vanillaformer.hub.pushing import Pushed, api_for, check_name, claim, files_to_push, push_folder

from ..run_folder.files import PUSHING

# Holds the arguments as they are in memory, the token too
NEVER = "training_args.bin"


def check_pushing(training: Any) -> None:
    """Make sure, before any work is done, that the model can be pushed; set `hub_model_id` to its whole name.

    Raises:
        HubError: There is no token, or one without the right to write; the name cannot be one, or is somebody else's.
    """
    repo = training.hub_model_id or Path(training.output_dir).resolve().name
    check_name(repo)
    training.hub_model_id = claim(api_for(training.hub_token), repo, training.hub_private_repo)
    report(f"The model will be pushed to {training.hub_model_id}.")


class PushingTrainer(Trainer):
    """A `Trainer` whose pushes exclude what belongs to this machine, and whose failed ones do not end the run."""

    args: Any
    push_in_progress: Any = None
    hub_model_id: Any = None
    _queue: ThreadPoolExecutor | None = None

    def init_hf_repo(self, *arguments: Any, **keywords: Any) -> None:
        if self.args.hub_model_id is None or "/" not in self.args.hub_model_id:  # not checked by `check_pushing`
            super().init_hf_repo(*arguments, **keywords)
        else:
            self.hub_model_id = self.args.hub_model_id
        if self.is_world_process_zero():  # of a run that was killed
            shutil.rmtree(Path(self.args.output_dir, PUSHING), ignore_errors=True)

    def push_to_hub(self, commit_message: str | None = "End of training", *arguments: Any, **keywords: Any) -> Any:
        """Push the run's folder, in which the model has been saved; say how to do it again if that fails."""
        self._finish_current_push()
        return push_run(self.args, commit_message) if self.is_world_process_zero() else None

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if not self.is_world_process_zero() or self.args.hub_strategy == HubStrategy.END:
            return
        if self.args.lora_rank:  # its checkpoints are adapters; the model is there at the end
            return
        busy = self.push_in_progress is not None and not self.push_in_progress.is_done()
        if busy and not self.args.hub_always_push:
            return
        if not busy:
            self._finish_current_push()  # says what has become of it
        self.push_in_progress = self.push_in_progress or PushInProgress([])  # type: ignore[arg-type]  # it wants a list, whatever it says
        try:
            staged = stage(Path(checkpoint_folder), self.args.hub_strategy)
        except (ValueError, OSError) as error:  # no reason to end the training
            report(f"{checkpoint_folder} could not be pushed to {self.hub_model_id}: {error}")
            return
        if self._queue is None:
            self._queue = ThreadPoolExecutor(max_workers=1)  # one after the other: each follows the last commit
        message = f"Training in progress, step {self.state.global_step}"
        job = self._queue.submit(push_staged, staged, self.hub_model_id, message, **_where(self.args))
        self.push_in_progress.jobs.append(job)

    def _finish_current_push(self) -> None:
        super()._finish_current_push()
        if self.push_in_progress is None:
            return
        for job in self.push_in_progress.jobs:
            if job.done() and job.exception() is not None:
                report(f"A checkpoint could not be pushed to {self.hub_model_id}: {job.exception()}")
        self.push_in_progress = None
        shutil.rmtree(Path(self.args.output_dir, PUSHING), ignore_errors=True)


def push_run(training: Any, message: str | None = None) -> Pushed | None:
    """Push the folder of a run whose right to do so has been checked; say how to do it again if that fails."""
    folder, repo = Path(training.output_dir), training.hub_model_id
    again = shlex.join(["vanillaformer", "push", str(folder), str(repo), *_branch(training)])
    try:
        done = push_folder(folder, repo, message=message or "Model save", **_where(training))
    except (ValueError, OSError) as error:
        report(f"The model could not be pushed to {repo}: {error}\nIt is saved in {folder}; to push it: {again}")
        return None
    report(f"Pushed to {repo}: {done.url}")
    return done


def _where(args: Any) -> dict[str, Any]:
    return {"token": args.hub_token, "revision": args.hub_revision, "claimed": True}


def _branch(args: Any) -> list[str]:
    options = ["--revision", args.hub_revision] if args.hub_revision else []
    return [*options, *(["--private"] if args.hub_private_repo else [])]


def stage(checkpoint: Path, strategy: HubStrategy) -> Path:
    """Return a folder with what is pushed of a checkpoint, which training may delete meanwhile: links, not copies."""
    staged = checkpoint.parent / PUSHING / checkpoint.name
    shutil.rmtree(staged, ignore_errors=True)
    files = files_to_push(checkpoint)
    if strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
        there = "last-checkpoint" if strategy == HubStrategy.CHECKPOINT else checkpoint.name
        whole = [path for path in checkpoint.rglob("*") if path.is_file() and path.name != NEVER]
        files |= {f"{there}/{path.relative_to(checkpoint).as_posix()}": path for path in whole}
    for name, path in files.items():
        (staged / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, staged / name)
        except OSError:  # a file system without links
            shutil.copyfile(path, staged / name)
    return staged


def push_staged(staged: Path, repo: str, message: str, **where: Any) -> None:
    """Push a staged folder as it is, and delete it."""
    files = {path.relative_to(staged).as_posix(): path for path in sorted(staged.rglob("*")) if path.is_file()}
    try:
        push_folder(staged, repo, message=message, files=files, **where)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
