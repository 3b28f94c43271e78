"""Saving of checkpoints and models: complete or not at all, of whole or divided models; ranking and pushing."""

import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy, deepcopy
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch.utils._pytree import tree_map
from transformers import PreTrainedTokenizerBase
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import HubStrategy, rotate_checkpoints

from vanillaformer.console.reporting import report
from vanillaformer.data.streaming import StreamedRows
from vanillaformer.hub.atomic_files import flush
from vanillaformer.tokenization.pairs import TARGET_SUBFOLDER

from ..metrics.scores import SCORES, evaluations, is_better
from ..run_folder.files import EXTRA, SAVING, extra_checkpoints, flush_all, last_checkpoint, written_aside
from .account import from_all
from .averaging import TRAINING_WEIGHTS, MovingAverage
from .parallel import ParallelTrainer, whole


@contextmanager
def temporarily(arguments: Any, **values: Any) -> Iterator[None]:
    """Set attributes of training arguments, or of another object, while this lasts."""
    given = {name: getattr(arguments, name) for name in values}
    vars(arguments).update(values)
    try:
        yield
    finally:
        vars(arguments).update(given)


# ----------------------------------------------------------------------------------------------------- safe writing
def make_writable(folder: Path) -> None:
    """Create a run's folder if it is missing; raise ValueError if it cannot be created or written to."""
    probe = folder / ".writable"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_text("probe")
        probe.unlink()
    except OSError as error:
        raise ValueError(f"--output_dir {folder} cannot be written to ({error})") from error


@contextmanager
def reporting_write_errors(folder: Path, content: str) -> Iterator[None]:
    """Turn an error of writing into one that names the content and the last checkpoint.

    Unfinished files are deleted, because they take space.
    """
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:  # from Python, torch and safetensors
        run = folder.parent if folder.name.startswith("checkpoint-") else folder
        shutil.rmtree(run / SAVING, ignore_errors=True)
        last = last_checkpoint(run)
        point = f"the last checkpoint is {last}, from which the same command resumes"
        point = point if last else "there is no checkpoint yet, so the same command starts over"
        raise OSError(f"{content} could not be written to {folder} ({error}); {point}") from error


# ---------------------------------------------------------------------------------------------------------- pushing
def check_pushing(training: Any) -> None:
    """Make sure, before any work is done, that the model can be pushed; set `hub_model_id` to its whole name."""
    from vanillaformer.hub.pushing import api_for, check_name, claim  # which other runs do not need

    repo = training.hub_model_id or Path(training.output_dir).resolve().name
    check_name(repo)
    training.hub_model_id = claim(api_for(training.hub_token), repo, training.hub_private_repo)
    report(f"The model will be pushed to {training.hub_model_id}.")


def push_run(training: Any) -> None:
    """Push the folder of a run after `check_pushing`; if that fails, report the command to push it later."""
    from vanillaformer.hub.pushing import push_folder

    folder, repo = Path(training.output_dir), training.hub_model_id
    revision = ["--revision", training.hub_revision] if training.hub_revision else []
    private = ["--private"] if training.hub_private_repo else []
    again = shlex.join(["vanillaformer", "push", str(folder), str(repo), *revision, *private])
    where = {"token": training.hub_token, "revision": training.hub_revision, "claimed": True}
    try:
        done = push_folder(folder, repo, message="Model save", **where)
    except (ValueError, OSError) as error:
        report(f"The model could not be pushed to {repo}: {error}\nIt is saved in {folder}; to push it: {again}")
    else:
        report(f"Pushed to {repo}: {done.url}")


# --------------------------------------------------------------------- checkpoints written while training continues
def on_host(values: Any) -> Any:
    """Return a nested structure with a copy of each tensor in host memory."""
    return tree_map(
        lambda value: value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value, values
    )


class Background:
    """Writes one checkpoint at a time; the next one, and the end of training, wait for it."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self.pending: Future[None] | None = None
        self.tokenizers: Any = None  # copies: a tokenizer that is in use cannot be saved

    def start(self, write: Callable[[], None]) -> None:
        self.pending = self.thread.submit(write)

    def wait(self) -> None:
        """Wait for the writing to end; raise the error that it failed with."""
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.result()

    def keep(self, trainer: Any, part: Path, *, later: bool) -> Callable[[], None]:
        """Write the small parts of a checkpoint into a folder, and return a function that writes the rest.

        With `later`, the rest is copied to host memory first.
        """
        divided, written, weights = trainer.is_distributed_loading_by_transformers, None, None
        if divided:
            written, weights = trainer.save_parts(part, later=later), trainer.whole_weights()
        trainer._save_rng_state(str(part))
        if not trainer.args.should_save:
            return lambda: written and written.result()
        trainer._save_scaler(str(part))
        save_state(trainer, part)
        then: Any = copy(trainer)  # unchanged by the next steps
        then.is_distributed_loading_by_transformers = False
        then.model = object.__new__(type(trainer.model))  # `copy` would build an FSDP2 model again
        vars(then.model).update(vars(trainer.model))
        then.model.config = deepcopy(trainer.model.config)
        then.model.config.distributed_config = None
        if later:
            self.tokenizers = self.tokenizers or deepcopy((trainer.processing_class, trainer.target_tokenizer))
            then.processing_class, then.target_tokenizer = self.tokenizers
        if later and not divided:
            weights = on_host(trainer.without_ties(trainer.whole_weights()))
            for name in ("optimizer", "lr_scheduler"):
                state = on_host(getattr(trainer, name).state_dict())
                setattr(then, name, SimpleNamespace(state_dict=lambda state=state: state))

        def write() -> None:
            then._save(str(part), weights)
            if not divided:
                then._save_optimizer_and_scheduler(str(part))
            elif written is not None:
                written.result()

        return write


def save_state(trainer: Any, folder: Path) -> None:
    """Save the state of the Trainer and of its callbacks."""
    state = copy(trainer.state)
    vars(state).update(logging_steps=None, eval_steps=None, save_steps=None)  # a resumed run's follow from its options
    each = [one for one in (*trainer.callback_handler.callbacks, trainer.control) if isinstance(one, ExportableState)]
    state.stateful_callbacks = state.stateful_callbacks | {type(one).__name__: one.state() for one in each}
    state.save_to_json(str(folder / "trainer_state.json"))


class SavingTrainer(ParallelTrainer):
    """A `Trainer` that saves whole models and checkpoints, of FSDP2 too, and pushes nothing while it trains."""

    has_checkpoint = False  # whether one has been written
    extra_checkpoint = False  # whether the next checkpoint is one that only a stopped run has
    target_tokenizer: PreTrainedTokenizerBase | None = None  # if it is separate; the Trainer saves the source's
    resumed_from: str | None = None  # the checkpoint
    saved_form: Callable[[Any, Path], AbstractContextManager] = staticmethod(lambda trainer, folder: nullcontext())

    def __init__(self, model: Any, args: Any, *arguments: Any, **keywords: Any):
        self.average, self.background = MovingAverage(self), Background()
        with temporarily(args, save_only_model=args.parallel is not None):  # Trainer demands it of divided models
            super().__init__(model, args, *arguments, **keywords)
        self.accelerator.ddp_handler.gradient_as_bucket_view = True  # no second copy of the gradients

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Find out whether this evaluation is the best of those with a checkpoint; equal scores go by their losses."""
        saved = self.args.save_strategy == "best" or (self.control.should_save and not self.extra_checkpoint)
        if self.args.metric_for_best_model is None or not saved:
            return False
        score, found = SCORES[self.args.metric_for_best_model], evaluations(self.state.log_history)
        best = next((entry for entry in reversed(found) if entry["step"] == self.state.best_global_step), None)
        if best is not None and not is_better(found[-1], best, score):
            return False
        self.state.best_metric = metrics.get(f"eval_{score.name}")
        self.state.best_global_step = self.state.global_step
        return True

    def whole_weights(self) -> dict[str, Any]:
        """Return the weights; those of a divided model whole, in host memory, on the process that saves."""
        if not self.is_distributed_loading_by_transformers:
            return self.model.state_dict()
        if self.args.lora_rank and hasattr(self.model, "peft_config"):  # only the trained ones
            return {name: whole(value).cpu() for name, value in self.model.named_parameters() if value.requires_grad}
        layout, here = self.model.config.distributed_config, {"save_on_this_rank": self.args.should_save}
        return self.model.gather_sharded_state_dict_for_save(self.model, self.model.state_dict(), layout, **here)

    def without_ties(self, weights: dict[str, Any]) -> dict[str, Any]:
        """Return weights with only one name of each tied one."""
        tied = getattr(self.accelerator.unwrap_model(self.model), "all_tied_weights_keys", {})
        return {name: value for name, value in weights.items() if name not in tied}

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        whole: Any = nullcontext()
        if self.is_distributed_loading_by_transformers:
            state_dict = self.whole_weights()
            whole = temporarily(self.model.config, distributed_config=None)  # not to gather the weights again
        with whole:
            # Tied weights that were gathered or copied are separate tensors
            super()._save(output_dir, None if state_dict is None else self.without_ties(state_dict))
        if self.target_tokenizer is not None and self.args.should_save:
            self.target_tokenizer.save_pretrained(Path(output_dir or self.args.output_dir, TARGET_SUBFOLDER))

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        if isinstance(self.train_dataset, StreamedRows):
            self.train_dataset.save(Path(output_dir))
        self.accelerator.wait_for_everyone()  # the first process renames the folder once it has written the rest

    def _save_checkpoint(self, *arguments: Any, **keywords: Any) -> None:
        """Write a checkpoint aside, maybe while training continues, and give it its name once it is complete."""
        self.background.wait()
        self.store_flos()
        # Every process has a sum of its own, and that of the first one is saved
        self._tr_loss.fill_(fmean(from_all(float(self._tr_loss), self.args.device)))
        folder, step, saves = Path(self.args.output_dir), self.state.global_step, self.args.should_save
        checkpoint, content = folder / f"checkpoint-{step}", f"the checkpoint of step {step:,}"
        part, best = folder / SAVING / checkpoint.name, folder / f"checkpoint-{self.state.best_global_step}"
        if best == checkpoint or best.exists():
            self.state.best_model_checkpoint = str(best)
        ends = self.control.should_training_stop or step >= self.state.max_steps
        begins = not self.has_checkpoint and self.resumed_from is None
        later = self.args.async_save and not (begins or ends or self.extra_checkpoint)

        def write_average() -> None:
            if saves and average is not None:
                save_file(average[0], part / TRAINING_WEIGHTS, average[1])

        def finish() -> None:
            with reporting_write_errors(checkpoint, content):
                if later:
                    write()
                    write_average()
                if saves:
                    flush_all(part)
                    shutil.rmtree(checkpoint, ignore_errors=True)  # one that a killed run left unfinished
                    os.replace(part, checkpoint)
                    flush(folder)
            self._delete_older(checkpoint)

        with reporting_write_errors(checkpoint, content):
            if saves:
                shutil.rmtree(part.parent, ignore_errors=True)
                part.mkdir(parents=True)
                if self.extra_checkpoint:
                    (part / EXTRA).touch()
            self.accelerator.wait_for_everyone()
            average = self.average.content()
            if later:
                average = on_host(average)
            else:
                write_average()  # before it is exchanged
            with self.average.exchanged():
                write = self.background.keep(self, part, later=later)
                if not later:
                    write()
        self.has_checkpoint = True
        if later:
            return self.background.start(finish)
        finish()
        self.accelerator.wait_for_everyone()  # others may load the best one next

    def _delete_older(self, checkpoint: Path) -> None:
        """Delete checkpoints that a run no longer needs, now that it has this one."""
        folder, limit = checkpoint.parent, self.args.save_total_limit
        if self.args.should_save:
            for path in extra_checkpoints(folder) - {checkpoint}:
                shutil.rmtree(path, ignore_errors=True)
            more = int(self.extra_checkpoint)
            rotate_checkpoints(str(folder), limit and limit + more, self.state.best_model_checkpoint)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model with its tokenizers, completely or not at all; pushing is another step."""
        if _internal_call:  # for a checkpoint
            return super().save_model(output_dir, _internal_call=True)
        folder = Path(output_dir or self.args.output_dir)
        with reporting_write_errors(folder, "the model"), written_aside(folder, writes=self.args.should_save) as part:
            self.accelerator.wait_for_everyone()  # until the folder is empty
            with self.saved_form(self, part):
                super().save_model(str(part), _internal_call=True)
            self.accelerator.wait_for_everyone()

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # A saved model has each shared tensor once, under one of its names: the others are not missing.
        tied = self.model.all_tied_weights_keys
        load_result.missing_keys[:] = [key for key in load_result.missing_keys if key not in tied]
        super()._issue_warnings_after_load(load_result)

    def init_hf_repo(self, *arguments: Any, **keywords: Any) -> None:
        """Push nothing while the model is trained; `check_pushing` has created the repository."""
        self.args.hub_strategy = HubStrategy.END
