"""What ends a training before its last step: nothing to gain, a loss that is not finite, a full disk, a signal."""

import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import PartialState
from safetensors import SafetensorError
from transformers import EarlyStoppingCallback, PreTrainedTokenizerBase, Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import SaveStrategy, rotate_checkpoints

from vanillaformer.console.reporting import report
from vanillaformer.tokenization.pairs import TARGET_SUBFOLDER

from ..metrics.scores import SCORES, Evaluation, Score, best_of, evaluations, gain, is_better
from ..run_folder.checkpoints import extra_checkpoints, is_complete, last_checkpoint, mark_extra
from ..run_folder.files import flush_all, written_aside
from ..run_folder.stopping import Stopping

SKIPPED_IN_A_ROW = 10
INTERVALS = ("logging_steps", "eval_steps", "save_steps")


@dataclass
class GuardArguments:
    """When to stop."""

    HELP_GROUP = "Evaluation and checkpoints"

    nan_loss: Literal["stop", "skip"] = field(
        default="stop",
        metadata={"help": "Action on a NaN or infinite loss", "group": "Training"},
    )
    early_stopping_patience: int = field(
        default=0, metadata={"help": "Early stopping: evaluations without improvement; 0 for never"}
    )
    early_stopping_threshold: float = field(default=0.0, metadata={"help": "Early stopping: minimum improvement"})

    def check(self: Any) -> None:
        """Raise ValueError for settings that cannot work."""
        patience, threshold = self.early_stopping_patience, self.early_stopping_threshold
        if patience < 0:
            raise ValueError(f"--early_stopping_patience {patience}: it must be 0 or more")
        if threshold < 0:
            raise ValueError(f"--early_stopping_threshold {threshold}: it must be 0 or more")
        if threshold and not patience:
            raise ValueError(f"--early_stopping_threshold {threshold} needs an --early_stopping_patience")
        if patience and self.eval_strategy == "no":
            raise ValueError(f"--early_stopping_patience {patience} needs evaluations: not --eval_strategy no")
        if patience and self.metric_for_best_model is None:
            raise ValueError(f"--early_stopping_patience {patience} needs a --metric_for_best_model")


class StatefulCallback(TrainerCallback, ExportableState):
    """A callback whose attributes `saved_attributes` are in the checkpoints, and restored when a run resumes.

    Transformers' own way would bring back the arguments of the earlier run with them.
    """

    saved_attributes: tuple[str, ...] = ()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        entry = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        for name in self.saved_attributes:
            setattr(self, name, entry["attributes"][name])

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {name: getattr(self, name) for name in self.saved_attributes}}


class EarlyStopping(StatefulCallback, EarlyStoppingCallback):
    """Transformers' early stopping, which says that it stops, and has stopped for good."""

    saved_attributes = ("early_stopping_patience_counter",)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        control.should_training_stop |= self.over

    @property
    def over(self) -> bool:
        """Whether patience has come to its end."""
        return self.early_stopping_patience_counter >= self.early_stopping_patience

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        if state.global_step >= state.max_steps or control.should_training_stop:
            return  # it ends anyway, or has ended
        score, found = SCORES[args.metric_for_best_model], evaluations(state.log_history)
        new, earlier = found[-1], found[:-1]
        if not earlier or self.improves(new, earlier, score):
            self.early_stopping_patience_counter = 0
            return
        self.early_stopping_patience_counter += 1
        if self.over:
            control.should_training_stop = True
            control.should_save = args.save_strategy != "no"
            best = best_of(earlier, score).get(f"eval_{score.name}", math.nan)
            report(
                f"Stopped early at step {state.global_step:,}: no better {score.name} than {best:.4g} in "
                f"{self.early_stopping_patience} evaluations."
            )

    def improves(self, new: Evaluation, earlier: Sequence[Evaluation], score: Score) -> bool:
        """Tell whether an evaluation counts as an improvement on earlier ones.

        Its score has to be better by more than the threshold; without a threshold a lower loss with an equal score
        counts too. As long as the score has not moved from what it was at first, as BLEU near 0, so does a new lowest
        loss.
        """
        best, threshold = best_of(earlier, score), self.early_stopping_threshold or 0.0
        difference = gain(new, best, score)
        if difference > threshold or (difference == 0 and not threshold and is_better(new, best, score)):
            return True
        moved = any(abs(gain(entry, earlier[0], score)) > score.resolution for entry in (new, *earlier))
        return not moved and is_better(new, best_of(earlier, SCORES["loss"]), SCORES["loss"])


class NanGuard(StatefulCallback):
    """Stops at a step whose loss or gradient is not finite, or skips it, on all processes alike.

    Args:
        trainer: The trainer; its `non_finite` says what this process has seen.
    """

    saved_attributes = ("skipped", "in_a_row")

    def __init__(self, trainer: "GuardedTrainer"):
        self.trainer, self.skipped, self.in_a_row = trainer, 0, 0

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        non_finite, self.trainer.non_finite = any_process(self.trainer.non_finite, args.device), False
        if not non_finite:
            self.in_a_row = 0
            return
        step, rate = state.global_step + 1, kwargs["optimizer"].param_groups[0]["lr"]
        what = f"the loss or its gradient is NaN or infinite at step {step:,} (learning rate {rate:.3g})"
        self.skipped, self.in_a_row = self.skipped + 1, self.in_a_row + 1
        if args.nan_loss == "stop":
            raise ValueError(
                f"{what}; the weights are those before it, {resume_point(Path(args.output_dir))}. Try a lower "
                "--learning_rate, a longer --warmup_steps, or --nan_loss skip"
            )
        if self.in_a_row > SKIPPED_IN_A_ROW:
            raise ValueError(
                f"{what}, as in the {SKIPPED_IN_A_ROW} steps before, {resume_point(Path(args.output_dir))}"
            )
        for parameter in model.parameters():
            parameter.grad = None  # for which an optimizer does nothing at all
        report(f"Skipped step {step:,}: {what.partition(' at step')[0]} ({self.skipped:,} so far)")


class StopWithCheckpoint(TrainerCallback):
    """Ends training after the step in which any of the processes was sent a signal, with a checkpoint of that step.

    Args:
        stopping: The signals of this process.
        trainer: The trainer.
    """

    def __init__(self, stopping: Stopping, trainer: "GuardedTrainer"):
        self.stopping, self.trainer, self.number = stopping, trainer, 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.stopping.training = True

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._look(args, control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.stopping.training and not self.number:  # and not after training
            self._look(args, control)

    def _look(self, args: Any, control: Any) -> None:
        self.number = largest(self.stopping.number, args.device)
        if self.number:
            self.trainer.extra_checkpoint = not control.should_save
            control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.number:
            self.stopping.number = self.number
            raise KeyboardInterrupt

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.stopping.training = False
        if self.stopping.number:  # since the last step
            raise KeyboardInterrupt


def any_process(flag: bool, device: torch.device) -> bool:
    """Return whether a flag is set on any of the processes."""
    return bool(largest(int(flag), device))


def largest(number: int, device: torch.device) -> int:
    """Return the largest of a number that each of the processes has."""
    if PartialState().num_processes == 1:
        return number
    numbers = torch.tensor(float(number), device=device)
    torch.distributed.all_reduce(numbers, op=torch.distributed.ReduceOp.MAX)
    return int(numbers)


def from_first_process(number: float, device: torch.device) -> float:
    """Return the number that the first process has."""
    if PartialState().num_processes == 1:
        return number
    numbers = torch.tensor(number, dtype=torch.float64, device=device)
    torch.distributed.broadcast(numbers, src=0)
    return float(numbers)


def total(number: Any, device: torch.device) -> int:
    """Return the sum of a whole number that each of the processes has."""
    if PartialState().num_processes == 1:
        return int(number)
    numbers = torch.as_tensor(number).to(device, torch.int64)
    torch.distributed.all_reduce(numbers)
    return int(numbers)


def resume_point(folder: Path) -> str:
    """Return which checkpoint a run can resume from, in words."""
    checkpoint = last_checkpoint(folder)
    return f"the last checkpoint is {checkpoint}" if checkpoint else "there is no checkpoint yet"


@contextmanager
def reporting_write_errors(folder: Path, what: str) -> Iterator[None]:
    """Say what is lost if something cannot be written.

    Raises:
        OSError: It could not; an unfinished checkpoint is deleted, for it takes room.
    """
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:  # of Python, torch and safetensors
        checkpoint = folder.name.startswith("checkpoint-")
        if checkpoint and not is_complete(folder):
            shutil.rmtree(folder, ignore_errors=True)
        run = folder.parent if checkpoint else folder
        raise OSError(
            f"{what} could not be written to {folder} ({error}); {resume_point(run)}, "
            "from which the same command resumes"
        ) from error


def make_writable(folder: Path) -> None:
    """Make a run's folder if need be.

    Raises:
        ValueError: It cannot be made or written to.
    """
    probe = folder / ".writable"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_text("probe")
        probe.unlink()
    except OSError as error:
        raise ValueError(f"--output_dir {folder} cannot be written to ({error})") from error


class GuardedTrainer(Trainer):
    """A `Trainer` that stops when there is nothing more to gain, and says what is lost when it has to."""

    args: Any  # of the run, with the arguments of this package
    non_finite = False  # whether this process has seen a loss or gradient in this step that is NaN or infinite
    extra_checkpoint = False  # whether the next checkpoint is one that only a stopped run has
    target_tokenizer: PreTrainedTokenizerBase | None = None  # of separate vocabularies; the Trainer saves the source's

    def __init__(self, *arguments: Any, **keywords: Any):
        super().__init__(*arguments, **keywords)
        self.add_callback(NanGuard(self))
        if patience := self.args.early_stopping_patience:
            self.add_callback(EarlyStopping(patience, self.args.early_stopping_threshold))

    def _init_training_state(self, max_steps: int, *arguments: Any, **keywords: Any) -> Any:
        progress = super()._init_training_state(max_steps, *arguments, **keywords)
        self.state.compute_steps(self.args, max_steps)  # not those of a checkpoint, of a shorter run maybe
        return progress

    def train(self, *arguments: Any, **keywords: Any) -> Any:
        """Train.

        Raises:
            ValueError: Not one step was made.
        """
        result = super().train(*arguments, **keywords)
        if not self.state.global_step:
            rows = self.args.train_batch_size * self.args.world_size
            raise ValueError(
                f"no step was made: the training data does not fill a batch of {rows:,} rows"
                if self.args.dataloader_drop_last
                else "no step was made: there are no training rows"
            )
        return result

    def training_step(self, *arguments: Any, **keywords: Any) -> torch.Tensor:
        loss = super().training_step(*arguments, **keywords)
        self.non_finite = self.non_finite or not bool(loss.isfinite().all())
        return loss

    def _get_grad_norm(self, *arguments: Any, **keywords: Any) -> Any:
        norm = super()._get_grad_norm(*arguments, **keywords)
        # In half precision overflowing gradients are what the loss scale is found by: its steps are skipped anyway
        self.non_finite = self.non_finite or not (self.args.fp16 or bool(torch.as_tensor(norm).isfinite()))
        return norm

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Find out whether this evaluation is the best of those with a checkpoint; equal scores go by their losses."""
        wanted = (
            self.control.should_save and not self.extra_checkpoint
        ) or self.args.save_strategy == SaveStrategy.BEST
        if self.args.metric_for_best_model is None or not wanted:
            return False
        score, found = SCORES[self.args.metric_for_best_model], evaluations(self.state.log_history)
        best = next((entry for entry in reversed(found) if entry["step"] == self.state.best_global_step), None)
        if best is not None and not is_better(found[-1], best, score):
            return False
        self.state.best_metric = metrics.get(f"eval_{score.name}")
        self.state.best_global_step = self.state.global_step
        return True

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        super()._save(output_dir, state_dict)
        if self.target_tokenizer is not None and self.args.should_save:
            self.target_tokenizer.save_pretrained(Path(output_dir or self.args.output_dir, TARGET_SUBFOLDER))

    def _save_checkpoint(self, *arguments: Any, **keywords: Any) -> None:
        folder, step = Path(self.args.output_dir), self.state.global_step
        checkpoint, limit = folder / f"checkpoint-{step}", self.args.save_total_limit
        extra = extra_checkpoints(folder) | ({checkpoint} if self.extra_checkpoint else set())
        with reporting_write_errors(checkpoint, f"the checkpoint of step {step:,}"):
            if self.extra_checkpoint and self.args.should_save:
                mark_extra(checkpoint)
            self.args.save_total_limit = None  # older ones are deleted once this one is on the disk
            intervals = {name: getattr(self.state, name) for name in INTERVALS}
            vars(self.state).update(dict.fromkeys(INTERVALS))  # those of a resumed run follow from its options
            try:
                super()._save_checkpoint(*arguments, **keywords)
            finally:
                self.args.save_total_limit = limit
                vars(self.state).update(intervals)
            if self.args.should_save:
                flush_all(checkpoint)
        if self.args.should_save:
            for path in extra - {checkpoint}:
                shutil.rmtree(path, ignore_errors=True)
            more = int(self.extra_checkpoint)
            rotate_checkpoints(str(folder), limit and limit + more, self.state.best_model_checkpoint)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model with its tokenizers, as a whole; pushing is another step."""
        if _internal_call:  # a part of a checkpoint
            return super().save_model(output_dir, _internal_call=True)
        folder = Path(output_dir or self.args.output_dir)
        with reporting_write_errors(folder, "the model"), written_aside(folder, writes=self.args.should_save) as part:
            super().save_model(str(part), _internal_call=True)
            self.accelerator.wait_for_everyone()

    def _run_epoch(self, *arguments: Any, **keywords: Any) -> None:
        if self.state.global_step >= self.state.max_steps:  # killed after the last step: there would be one more
            self.control.should_training_stop = True
        if not self.control.should_training_stop:  # as it has before the run was killed
            super()._run_epoch(*arguments, **keywords)
