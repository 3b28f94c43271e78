"""One model out of many steps: the average of the last checkpoints, or the moving average of the weights."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import Trainer, TrainerCallback
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from vanillaformer.console.reporting import report

from ..run_folder.checkpoints import checkpoints
from .sharding import refuse_sharded


@dataclass
class AveragingArguments:
    """Whether the finished model is the best one, or an average."""

    HELP_GROUP = "Evaluation and checkpoints"

    average_checkpoints: int = field(
        default=0, metadata={"help": "Number of last checkpoints averaged into the model; 0 for none"}
    )
    ema_decay: float = field(default=0.0, metadata={"help": "Decay of a moving average of the weights; 0 for none"})
    ema_warmup: bool = field(default=True, metadata={"help": "Start with a lower --ema_decay"})

    def check(self: Any) -> None:
        """Make the settings that averages need; raise ValueError for those that they cannot work with."""
        if not 0 <= self.ema_decay < 1:
            raise ValueError(f"--ema_decay {self.ema_decay}: it must be 0 or more and less than 1")
        if self.average_checkpoints < 0:
            raise ValueError(f"--average_checkpoints {self.average_checkpoints}: it must be 0 or more")
        if self.ema_decay and self.average_checkpoints:
            raise ValueError(
                f"--ema_decay {self.ema_decay} and --average_checkpoints {self.average_checkpoints}: give one of them"
            )
        if self.ema_decay:
            refuse_sharded(self, f"--ema_decay {self.ema_decay}")
        if not self.average_checkpoints:
            return
        if self.save_strategy == "no":
            raise ValueError(
                f"--average_checkpoints {self.average_checkpoints} needs checkpoints: not --save_strategy no"
            )
        refuse_sharded(self, f"--average_checkpoints {self.average_checkpoints}")
        self.load_best_model_at_end = False
        if self.save_total_limit is not None:  # one more, for the best one is kept whatever its age
            self.save_total_limit = max(self.save_total_limit, self.average_checkpoints + 1)


def average(folders: Sequence[Path]) -> dict[str, torch.Tensor]:
    """Return the average weights of saved models, tensor by tensor, summed in double precision.

    What is not a floating-point number is the last model's.

    Args:
        folders: Folders with `model.safetensors`, or its shards and their index.

    Returns:
        The weights under the names they are saved with: a tied weight has one of its names.

    Raises:
        ValueError: No folder, one without weights, or weights of another name, shape or type than the first one's.
    """
    if not folders:
        raise ValueError("there is nothing to average")
    paths = [_weight_paths(folder) for folder in folders]
    for folder, own in zip(folders, paths):
        if own.keys() != paths[0].keys():
            names = ", ".join(sorted(own.keys() ^ paths[0].keys())[:3])
            raise ValueError(f"{folder} and {folders[0]} do not hold the same weights: {names}")
    with ExitStack() as stack:
        files = {
            path: stack.enter_context(safe_open(path, framework="pt"))
            for path in sorted({path for own in paths for path in own.values()})
        }
        return {
            name: _mean((files[own[name]].get_tensor(name) for own in paths), f"{folders[0]}: {name}")
            for name in paths[0]
        }


def _mean(tensors: Iterable[torch.Tensor], name: str) -> torch.Tensor:
    """Return the average of tensors that are alike, of which one at a time is in memory."""
    tensors = iter(tensors)
    last = next(tensors)
    form, count, total = (last.shape, last.dtype), 1, last.double()
    for last in tensors:
        if (last.shape, last.dtype) != form:
            raise ValueError(
                f"{name} is {list(form[0])} {form[1]} there, and {list(last.shape)} {last.dtype} in another model"
            )
        count, total = count + 1, total + last.double()
    return (total / count).to(form[1]) if last.is_floating_point() else last


def _weight_paths(folder: Path) -> dict[str, Path]:
    """Return the file of each tensor of a saved model."""
    index, whole = folder / SAFE_WEIGHTS_INDEX_NAME, folder / SAFE_WEIGHTS_NAME
    if whole.is_file():
        with safe_open(whole, framework="pt") as file:
            return dict.fromkeys(file.keys(), whole)
    if index.is_file():
        files = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {name: folder / file for name, file in files.items()}
    raise ValueError(f"{folder} holds neither {SAFE_WEIGHTS_NAME} nor {SAFE_WEIGHTS_INDEX_NAME}")


def load_weights(model: nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Give a model these weights, of which tied ones may be there under one of their names.

    Raises:
        ValueError: A weight is missing, or one is there that the model does not have.
    """
    result = model.load_state_dict(weights, strict=False)
    parameters = model.state_dict(keep_vars=True)
    filled = {id(parameters[name]) for name in weights if name in parameters}
    missing = [name for name in result.missing_keys if id(parameters[name]) not in filled]
    if missing or result.unexpected_keys:
        names = ", ".join([*missing, *result.unexpected_keys][:3])
        raise ValueError(f"these are not the weights of a {type(model).__name__}: {names}")


class AverageCheckpoints(TrainerCallback):
    """Gives the model the average weights of the last checkpoints when training ends (Vaswani et al. 2017, 6.1).

    Args:
        count: How many, or as many as there are.
    """

    def __init__(self, count: int):
        self.count = count

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        PartialState().wait_for_everyone()  # the first process has written the last one
        found = {step: path for step, path in checkpoints(Path(args.output_dir)).items() if step <= state.global_step}
        steps = sorted(found)[-self.count :]
        if not steps:
            raise ValueError(f"--average_checkpoints {self.count}: {args.output_dir} holds no complete checkpoint")
        load_weights(model, average([found[step] for step in steps]))
        fewer = f" (there are no {self.count})" if len(steps) < self.count else ""
        report(f"The model is the average of {len(steps)} checkpoints{fewer}: steps {', '.join(map(str, steps))}.")


# The weights that training resumes with; the model saved next to them is the average.
TRAINING_WEIGHTS = "training_weights.safetensors"


def moving_average(model: nn.Module, decay: float, *, warmup: bool) -> AveragedModel:
    """Return torch's average of a model's weights θ, a ← d a + (1 − d) θ per update, starting from the first θ.

    Args:
        model: The model, which is copied.
        decay: The part d.
        warmup: Whether d after t updates is at most (1 + t) / (10 + t).
    """

    def update(averages: Any, weights: Any, updates: torch.Tensor | int) -> None:
        count = int(updates)
        now = min(decay, (1 + count) / (10 + count)) if warmup else decay
        get_ema_multi_avg_fn(now)(averages, weights, updates)

    return AveragedModel(model, multi_avg_fn=update)


class AveragingTrainer(Trainer):
    """A `Trainer` that evaluates and saves the moving average of the weights, if `ema_decay` asks for one.

    A checkpoint holds the average as its model, and the weights that training resumes with in a file next to it.
    """

    args: Any  # of the run, with the arguments of this package
    model: Any
    averaged: AveragedModel | None = None

    def __init__(self, *arguments: Any, **keywords: Any):
        super().__init__(*arguments, **keywords)
        if self.args.ema_decay:
            self.add_callback(_UpdateAverage(self))

    def start_average(self) -> None:
        """Begin with the weights that the model has now."""
        if any(weight.dtype != torch.float32 for weight in self.model.parameters()):
            raise ValueError(f"--ema_decay {self.args.ema_decay} needs --dtype float32: smaller types lose the steps")
        self.averaged = moving_average(self.model, self.args.ema_decay, warmup=self.args.ema_warmup)

    @contextmanager
    def exchanged(self) -> Iterator[None]:
        """Let the model have the average, and the average's copy the weights, while this lasts."""
        _exchange(self.model, self.averaged)
        try:
            yield
        finally:
            _exchange(self.model, self.averaged)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        file = Path(resume_from_checkpoint, TRAINING_WEIGHTS)
        if self.args.ema_decay:
            self.start_average()
        if file.exists():
            load_weights(self.model, load_file(file))
            if self.averaged is not None:
                with safe_open(file, framework="pt") as content:
                    self.averaged.n_averaged.fill_(int(content.metadata()["updates"]))

    def _maybe_log_save_evaluate(self, *arguments: Any, **keywords: Any) -> None:
        wanted = self.control.should_evaluate or self.control.should_save
        with self.exchanged() if self.averaged is not None and wanted else nullcontext():
            super()._maybe_log_save_evaluate(*arguments, **keywords)

    def _save_checkpoint(self, *arguments: Any, **keywords: Any) -> None:
        if self.averaged is not None and self.args.should_save:  # first: a checkpoint is complete with its last file
            folder = Path(self.args.output_dir, f"checkpoint-{self.state.global_step}")
            folder.mkdir(parents=True, exist_ok=True)
            trained: Any = self.averaged.module
            tied = trained.all_tied_weights_keys
            weights = {name: value for name, value in trained.state_dict().items() if name not in tied}
            save_file(weights, folder / TRAINING_WEIGHTS, {"updates": str(int(self.averaged.n_averaged))})
        super()._save_checkpoint(*arguments, **keywords)

    def _finalize_training(self, *arguments: Any, **keywords: Any) -> Any:
        if self.averaged is not None:  # the best one, if it is wanted, is loaded after this
            _exchange(self.model, self.averaged)
            self.averaged = None
        return super()._finalize_training(*arguments, **keywords)


class _UpdateAverage(TrainerCallback):
    """Takes each step of the optimizer into the average."""

    def __init__(self, trainer: AveragingTrainer):
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer.averaged is None:
            self.trainer.start_average()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model: Any = self.trainer.model
        # A skipped step has no gradients, or overflowing ones in half precision: it is none of the average's
        skipped = self.trainer.accelerator.optimizer_step_was_skipped
        if not skipped and any(weight.grad is not None for weight in model.parameters()):
            self.trainer.averaged.update_parameters(model)  # type: ignore[union-attr]


@torch.no_grad()
def _exchange(model: nn.Module, averaged: AveragedModel | None) -> None:
    """Exchange the weights of two models, in place, for the optimizer holds on to the tensors."""
    for one, other in zip(model.parameters(), averaged.module.parameters()):  # type: ignore[union-attr]
        kept = one.clone()
        one.copy_(other)
        other.copy_(kept)
