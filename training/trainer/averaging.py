"""One model out of many steps: the average of the last checkpoints, or the moving average of the weights."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import TrainerCallback
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from vanillaformer.console.limits import BELOW_ONE, NOT_NEGATIVE, check_limits, option
from vanillaformer.console.reporting import report

from ..run_folder.files import checkpoints


def refuse_sharded(arguments: Any, flag: str) -> None:
    """Raise ValueError where no process has the weights as a whole."""
    if arguments.parallel is not None:
        raise ValueError(f"{flag} needs the whole model on every process: not --parallel {arguments.parallel}")


@dataclass
class AveragingArguments:
    """The choice of the finished model: the best checkpoint, or an average."""

    HELP_GROUP = "Evaluation and checkpoints"

    average_checkpoints: int = option(0, "Last checkpoints averaged; 0 for none")
    ema_decay: float = option(0.0, "Decay of the weights' moving average; 0 for none")
    ema_warmup: bool = option(True, "Start with a lower --ema_decay")

    def check(self: Any) -> None:
        """Make the settings that averages need; raise ValueError for those that they cannot work with."""
        check_limits(self, {"ema_decay": BELOW_ONE, "average_checkpoints": NOT_NEGATIVE})
        moving, last = f"--ema_decay {self.ema_decay}", f"--average_checkpoints {self.average_checkpoints}"
        if self.ema_decay and self.average_checkpoints:
            raise ValueError(f"{moving} and {last}: give one of them")
        if self.ema_decay:
            refuse_sharded(self, moving)
        if not self.average_checkpoints:
            return
        if self.save_strategy == "no":
            raise ValueError(f"{last} needs checkpoints: not --save_strategy no")
        refuse_sharded(self, last)
        self.load_best_model_at_end = False
        if self.save_total_limit is not None:  # one more, for the best one is kept whatever its age
            self.save_total_limit = max(self.save_total_limit, self.average_checkpoints + 1)


def average(folders: Sequence[Path]) -> dict[str, torch.Tensor]:
    """Return the average weights of a run's checkpoints, summed in double precision.

    Numbers that are not floating-point are the last one's. A tied weight has one of its names.
    """
    totals: dict[str, torch.Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    for folder in folders:
        index = folder / SAFE_WEIGHTS_INDEX_NAME
        shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values() if index.is_file() else ()
        for file in set(shards) or {SAFE_WEIGHTS_NAME}:
            for name, value in load_file(folder / file).items():
                dtypes[name] = value.dtype
                totals[name] = totals.get(name, 0) + value.double() if value.is_floating_point() else value
    return {
        name: (total / len(folders)).to(dtypes[name]) if total.is_floating_point() else total
        for name, total in totals.items()
    }


def load_weights(model: nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Give a model exactly these weights, of which tied ones may be there under one of their names."""
    result = model.load_state_dict(weights, strict=False)
    parameters = model.state_dict(keep_vars=True)
    filled = {id(parameters[name]) for name in weights if name in parameters}
    missing = [name for name in result.missing_keys if id(parameters[name]) not in filled]
    if missing or result.unexpected_keys:
        names = ", ".join([*missing, *result.unexpected_keys][:3])
        raise ValueError(f"these are not the weights of a {type(model).__name__}: {names}")


class AverageCheckpoints(TrainerCallback):
    """Gives the model the average weights of the last checkpoints when training ends (Vaswani et al. 2017, 6.1)."""

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


TRAINING_WEIGHTS = "training_weights.safetensors"
"""The weights that training resumes with; the model saved next to them is the average."""


def moving_average(model: nn.Module, decay: float, *, warmup: bool) -> AveragedModel:
    """Return torch's average of a model's weights θ, a ← d a + (1 − d) θ per update, starting from the first θ.

    With a warm-up d is at most (1 + t) / (10 + t) after t updates. The model is copied.
    """

    def update(averages: Any, weights: Any, updates: torch.Tensor | int) -> None:
        count = int(updates)
        now = min(decay, (1 + count) / (10 + count)) if warmup else decay
        get_ema_multi_avg_fn(now)(averages, weights, updates)

    return AveragedModel(model, multi_avg_fn=update)


class MovingAverage(TrainerCallback):
    """Keeps the moving average of the weights, with which the model is evaluated and saved.

    A checkpoint holds the average as its model, and the weights that training resumes with in a file next to it. The
    trainer evaluates and saves within `exchanged`.
    """

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self.average: Any = None  # torch's, while the model is trained with --ema_decay

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model = self.trainer.model
        if args.ema_decay:
            if any(weight.dtype != torch.float32 for weight in model.parameters()):
                raise ValueError(f"--ema_decay {args.ema_decay} needs --dtype float32: smaller types lose the steps")
            self.average = moving_average(model, args.ema_decay, warmup=args.ema_warmup)
        file = Path(self.trainer.resumed_from or "", TRAINING_WEIGHTS)
        if self.trainer.resumed_from is None or not file.exists():
            return
        load_weights(model, load_file(file))
        if self.average is not None:
            with safe_open(file, framework="pt") as content:
                self.average.n_averaged.fill_(int(content.metadata()["updates"]))

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # A skipped step, whose gradients overflowed in half precision, is not part of the average
        if self.average is not None and not self.trainer.accelerator.optimizer_step_was_skipped:
            self.average.update_parameters(self.trainer.model)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        best = args.load_best_model_at_end and state.best_model_checkpoint is not None  # and loaded already
        if not best:
            self._exchange()
        self.average = None

    def content(self) -> tuple[dict[str, torch.Tensor], dict[str, str]] | None:
        """Return the weights that training resumes with, while the model has the average, and how many updates."""
        if self.average is None:
            return None
        trained = self.average.module
        tied = trained.all_tied_weights_keys
        weights = {name: value for name, value in trained.state_dict().items() if name not in tied}
        return weights, {"updates": str(int(self.average.n_averaged))}

    @contextmanager
    def exchanged(self) -> Iterator[None]:
        """Let the model have the average, and the average's copy the weights, while this lasts in training."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        """Exchange the weights in place, for the optimizer holds on to the tensors."""
        if self.average is not None:
            for one, other in zip(self.trainer.model.parameters(), self.average.module.parameters()):
                kept = one.clone()
                one.copy_(other)
                other.copy_(kept)
