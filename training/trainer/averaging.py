"""One model out of many steps: the average of the last checkpoints, or the moving average of the weights."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from safetensors import safe_open
from safetensors.torch import load_file
from torch.optim.swa_utils import get_ema_multi_avg_fn
from transformers import TrainerCallback

from vanillaformer.console.limits import BELOW_ONE, NOT_NEGATIVE, option
from vanillaformer.console.reporting import report
from vanillaformer.hub.file_names import SHARDS, WEIGHTS

from ..run_folder.files import checkpoints
from .parallel import load_weights, local_part


@dataclass
class AveragingArguments:
    """The choice of the finished model: the best checkpoint, or an average."""

    HELP_GROUP = "Evaluation and checkpoints"

    average_checkpoints: int = option(0, "Last checkpoints averaged; 0 for none", limit=NOT_NEGATIVE)
    ema_decay: float = option(0.0, "Decay of the weights' moving average; 0 for none", limit=BELOW_ONE)
    ema_warmup: bool = option(True, "Start with a lower --ema_decay")

    def check(self: Any) -> None:
        """Adjust settings for averages; raise ValueError for settings that exclude them."""
        moving, last = f"--ema_decay {self.ema_decay}", f"--average_checkpoints {self.average_checkpoints}"
        if self.ema_decay and self.average_checkpoints:
            raise ValueError(f"{moving} and {last}: give one of them")
        if not self.average_checkpoints:
            return
        if self.save_strategy == "no":
            raise ValueError(f"{last} needs checkpoints: not --save_strategy no")
        self.load_best_model_at_end = False
        if self.save_total_limit is not None:  # one more, because the best one is always kept
            self.save_total_limit = max(self.save_total_limit, self.average_checkpoints + 1)


def average(folders: Sequence[Path]) -> dict[str, torch.Tensor]:
    """Return the average weights of a run's checkpoints, summed in double precision.

    Values that are not floating-point are those of the last one. A tied weight has one of its names.
    """
    totals: dict[str, torch.Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    for folder in folders:
        for file in [*folder.glob(SHARDS)] or [folder / WEIGHTS]:
            for name, value in load_file(file).items():
                dtypes[name] = value.dtype
                totals[name] = totals.get(name, 0) + value.double() if value.is_floating_point() else value
    return {
        name: (total / len(folders)).to(dtypes[name]) if total.is_floating_point() else total
        for name, total in totals.items()
    }


class AverageCheckpoints(TrainerCallback):
    """Gives the model the average weights of the last checkpoints when training ends (Vaswani et al. 2017, 6.1)."""

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        PartialState().wait_for_everyone()  # until the first process has written the last one
        found = {step: path for step, path in checkpoints(Path(args.output_dir)).items() if step <= state.global_step}
        wanted = args.average_checkpoints
        steps = sorted(found)[-wanted:]
        if not steps:
            raise ValueError(f"--average_checkpoints {wanted}: {args.output_dir} holds no complete checkpoint")
        load_weights(model, lambda: average([found[step] for step in steps]))
        fewer = f" (there are no {wanted})" if len(steps) < wanted else ""
        report(f"The model is the average of {len(steps)} checkpoints{fewer}: steps {', '.join(map(str, steps))}.")


TRAINING_WEIGHTS = "training_weights.safetensors"
"""The weights that training resumes with; the model saved next to them is the average."""


class MovingAverage(TrainerCallback):
    """Keeps the moving average of the weights θ, a ← d a + (1 − d) θ per step, starting from the first θ.

    With a warm-up d is at most (1 + t) / (10 + t) after t updates. Of a divided model each process averages its part.
    The trainer evaluates and saves within `exchanged`: a checkpoint holds the average as its model, and the weights
    that training resumes with in a file next to it.
    """

    def __init__(self, trainer: Any):
        self.trainer, self.updates = trainer, 0
        self.averages: list[torch.Tensor] | None = None  # while the model is trained with --ema_decay

    def weights(self) -> list[torch.Tensor]:
        return [local_part(weight) for weight in self.trainer.model.parameters()]

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model = self.trainer.model
        if args.ema_decay:
            if any(weight.dtype != torch.float32 for weight in model.parameters()):
                raise ValueError(f"--ema_decay {args.ema_decay} needs --dtype float32: smaller types lose the steps")
            self.averages, self.updates = [weight.detach().clone() for weight in self.weights()], 0
        file = Path(self.trainer.resumed_from or "", TRAINING_WEIGHTS)
        if self.trainer.resumed_from is None or not file.exists():
            return
        load_weights(model, lambda: load_file(file))
        if self.averages is not None:
            with safe_open(file, framework="pt") as content:
                self.updates = int(content.metadata()["updates"])

    @torch.no_grad()
    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # A skipped step, whose gradients overflowed in half precision, is not part of the average
        if self.averages is not None and not self.trainer.accelerator.optimizer_step_was_skipped:
            most = (1 + self.updates) / (10 + self.updates) if args.ema_warmup else 1.0
            decay = min(args.ema_decay, most) if self.updates else 0.0
            get_ema_multi_avg_fn(decay)(self.averages, self.weights(), self.updates)
            self.updates += 1

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        best = args.load_best_model_at_end and state.best_model_checkpoint is not None  # and loaded already
        if not best:
            self.exchange()
        self.averages = None

    def content(self) -> tuple[dict[str, torch.Tensor], dict[str, str]] | None:
        """Return the weights that training resumes with, outside of `exchanged`, and how many updates there were."""
        if self.averages is None:
            return None
        return self.trainer.without_ties(self.trainer.whole_weights()), {"updates": str(self.updates)}

    @torch.no_grad()
    def exchange(self) -> None:
        """Exchange the average with the weights in place, because the optimizer refers to the tensors."""
        for weight, average in zip(self.weights(), self.averages or ()):
            kept = weight.clone()
            weight.copy_(average)
            average.copy_(kept)

    @contextmanager
    def exchanged(self) -> Iterator[None]:
        """Give the model the average weights while this lasts, in training."""
        self.exchange()
        try:
            yield
        finally:
            self.exchange()
