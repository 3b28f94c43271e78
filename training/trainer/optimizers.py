"""Optimizers beyond those of transformers' `--optim`, and which parameters decay.

All are torch's. `muon` is two of them: Muon for the matrices of the layers, AdamW for everything else.
"""

import json
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer, RAdam
from torch.overrides import TorchFunctionMode
from transformers import Trainer, get_scheduler
from transformers.training_args import OptimizerNames

from vanillaformer.console.limits import BELOW_ONE, POSITIVE, option

from ..hardware import emulates_bfloat16

WITHOUT_OPTIONS = {"muon", "radam", "adafactor", "adamw_torch", "adamw_torch_fused"}
"""Optimizers that read no `--optim_args`."""
OPTIMIZERS = ("muon", "radam")  # values of `--optim` besides those of transformers
OUTPUT_LAYERS = {"lm_head", "classifier", "score", "seq_relationship", "qa_outputs"}  # their names in models
Groups = list[dict[str, Any]]


@dataclass
class OptimizerArguments:
    """Arguments of the optimizer."""

    HELP_GROUP = "Optimizer"

    optim: str = option("adamw_torch_fused", "Optimizer: muon, radam or one of transformers")
    muon_momentum: float = option(0.95, "Muon: momentum of the matrices", limit=BELOW_ONE)
    muon_lr_factor: float = option(1.0, "Muon: learning rate relative to --learning_rate", limit=POSITIVE)

    def check(self) -> None:
        known = [*OPTIMIZERS, *(name.value for name in OptimizerNames)]
        if self.optim not in known:
            close = get_close_matches(str(self.optim), known, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise ValueError(f"--optim {self.optim}: unknown optimizer; {hint}known are {', '.join(known)}")


class Float32NewtonSchulz(TorchFunctionMode):
    """Lets torch's Muon orthogonalize in float32, 20 times faster on CPUs without bfloat16 instructions."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        newer = func is torch.Tensor.to and kwargs.get("dtype") is torch.bfloat16  # from torch 2.15 on
        if newer or func is torch.Tensor.bfloat16:
            return args[0].to(torch.float32, copy=True)  # a copy, which Muon scales in place
        return func(*args, **kwargs)


class MuonWithAdamW(Optimizer):
    """Muon (Jordan et al. 2024) for matrices and AdamW for the other parameters, as one optimizer.

    `B ← μB + (1 - μ)G`, `W ← W - η·0.2·√max(m, n)·NS(G + μ(B - G))` for W (m, n), where NS makes the singular values
    about 1: the update is as large as AdamW's, so that its learning rate and decay work (Liu et al. 2025). NS runs in
    bfloat16, on CPUs without instructions for it in float32.
    """

    def __init__(
        self,
        matrices: Groups,
        others: Groups,
        *,
        lr: float,
        momentum: float = 0.95,
        lr_factor: float = 1.0,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-8,
    ):
        self.parts: list[Optimizer] = []
        if matrices:
            self.parts += [Muon(matrices, lr=lr * lr_factor, momentum=momentum, adjust_lr_fn="match_rms_adamw")]
        if others:
            self.parts += [AdamW(others, lr=lr, betas=betas, eps=eps)]
        super().__init__([group for part in self.parts for group in part.param_groups], {"lr": lr})
        self.take_groups()

    def take_groups(self) -> None:
        """Adopt the groups of the parts."""
        self.param_groups = [group for part in self.parts for group in part.param_groups]
        self._share()

    def _share(self) -> None:
        """Make the parts work on this optimizer's groups and state: schedulers and checkpoints see only these."""
        groups = iter(self.param_groups)
        for part in self.parts:
            part.param_groups, part.state = list(islice(groups, len(part.param_groups))), self.state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # called by load_state_dict with new groups and a new state
        self._share()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Make one step with both."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for part in self.parts:
            devices = {parameter.device for group in part.param_groups for parameter in group["params"]}
            emulated = isinstance(part, Muon) and all(map(emulates_bfloat16, devices))
            with Float32NewtonSchulz() if emulated else nullcontext():
                part.step()
        return loss


def embedding_names(model: nn.Module) -> set[str]:
    """Return the names of all parameters that are embedding matrices, including tied output layers."""
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    return {name for name, parameter in model.named_parameters() if id(parameter) in tables}


def decaying_names(model: nn.Module, candidates: Iterable[str]) -> list[str]:
    """Return the candidates that are matrices that multiply states, not embeddings, vectors or scalars."""
    tables, sizes = embedding_names(model), {name: parameter.ndim for name, parameter in model.named_parameters()}
    return [name for name in candidates if name not in tables and sizes.get(name, 0) >= 2]


def build_optimizer(name: str, model: nn.Module, decaying: set[str], arguments: Any) -> Optimizer:
    """Return one of `OPTIMIZERS` for a model, with weight decay for the parameters in `decaying`."""
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    betas = arguments.adam_beta1, arguments.adam_beta2
    options: dict[str, Any] = {"lr": arguments.learning_rate, "betas": betas, "eps": arguments.adam_epsilon}

    def groups(named: Iterable[tuple[str, nn.Parameter]]) -> Groups:
        found: Groups = [{"params": [], "weight_decay": arguments.weight_decay}, {"params": [], "weight_decay": 0.0}]
        for name, parameter in named:
            found[name not in decaying]["params"].append(parameter)
        return [group for group in found if group["params"]]

    if name == "radam":
        return RAdam(groups(trained), decoupled_weight_decay=True, **options)
    outside = embedding_names(model) | {name for name, _ in trained if not OUTPUT_LAYERS.isdisjoint(name.split("."))}
    matrices = {name for name, parameter in trained if parameter.ndim == 2 and name not in outside}
    parts = [[entry for entry in trained if (entry[0] in matrices) is wanted] for wanted in (True, False)]
    options |= {"momentum": arguments.muon_momentum, "lr_factor": arguments.muon_lr_factor}
    return MuonWithAdamW(*map(groups, parts), **options)


def scale_rates(optimizer: Optimizer, model: nn.Module) -> None:
    """Divide the rates of a muP model's matrices by m = D / base_width (Yang et al. 2021), those of Muon by √m.

    A step of Muon has a spectral norm of about √D (`match_rms_adamw`), where muP asks for a constant. The decay times
    the rate does not change. Embeddings, output layer, maps of pixels, norms, biases and adapters keep their
    rate, and come first in their group, because the first rate is the one that is logged (of Muon, that of matrices).
    """
    config: Any = getattr(model, "config", None)
    if getattr(config, "parametrization", "standard") == "standard":
        return
    if (kind := type(optimizer).__name__).startswith(("SGD", "LayerWise", "Lomo", "AdaLomo")):  # some have no groups
        raise ValueError(f"--optim ({kind}): the rates of parametrization='mup' are for Adam, its relatives and Muon")
    outside = {"lm_head", *["patch_embeddings"] * (getattr(config, "patch_embedding", None) == "linear")}
    hidden = {
        id(module.weight)
        for name, module in model.named_modules()
        if (isinstance(module, nn.Linear) or getattr(module, "in_channels", 0) > getattr(config, "num_channels", 0))
        and outside.isdisjoint(name.split("."))
        and "lora_" not in name
    }
    for part in getattr(optimizer, "parts", [optimizer]):
        factor = (config.base_width / config.hidden_size) ** (0.5 if isinstance(part, Muon) else 1.0)
        groups, slower = Groups(), Groups()
        for group in part.param_groups:
            scaled = [parameter for parameter in group["params"] if id(parameter) in hidden]
            others = [parameter for parameter in group["params"] if id(parameter) not in hidden]
            rates = {"lr": group["lr"] * factor, "weight_decay": group["weight_decay"] / factor}
            groups += [group | {"params": others}] * bool(others)
            slower += [group | {"params": scaled} | rates] * bool(scaled)
        part.param_groups = groups + slower
    if isinstance(optimizer, MuonWithAdamW):
        optimizer.take_groups()


def check_optimizer(arguments: Any, name: str) -> None:
    """Raise ValueError for an optimizer whose package is missing, or with options that it does not read.

    `name` is the given `--optim`; the field holds one that transformers knows.
    """
    low_rank = name.startswith(("galore", "apollo"))
    if arguments.optim_args and name in WITHOUT_OPTIONS:
        raise ValueError(f"--optim_args {arguments.optim_args}: --optim {name} takes no options")
    if bool(arguments.optim_target_modules) != low_rank:
        given = f"--optim_target_modules {arguments.optim_target_modules}"
        raise ValueError(
            f"--optim {name} needs --optim_target_modules, such as all-linear"
            if low_rank
            else f"{given}: it is for the optimizers GaLore and APOLLO, not for --optim {name}"
        )
    try:
        Trainer.get_optimizer_cls_and_kwargs(arguments, nn.Linear(1, 1))  # type: ignore[arg-type]
    except (ImportError, ValueError) as error:
        if "No target modules found" not in str(error):  # in this model
            raise ValueError(f"--optim {name}: {' '.join(str(error).split())}") from error


def schedule_options(arguments: Any, steps: int) -> dict[str, Any]:
    """Return the options of `--lr_scheduler_type` for a number of steps, including required ones."""
    decay = {"num_decay_steps": max(1, steps // 10)} if arguments.lr_scheduler_type == "warmup_stable_decay" else {}
    return decay | (arguments.lr_scheduler_kwargs or {})


def check_schedule(arguments: Any) -> None:
    """Raise ValueError if a schedule cannot be created with its options."""
    name, options = arguments.lr_scheduler_type.value, arguments.lr_scheduler_kwargs
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(()))], lr=arguments.learning_rate)
    try:
        schedule = get_scheduler(name, optimizer, 100, 1_000, schedule_options(arguments, 1_000))
        for factor in getattr(schedule, "lr_lambdas", ()):
            factor(500)
    except (ValueError, TypeError, ArithmeticError) as error:
        given = f" --lr_scheduler_kwargs {json.dumps(options)}" if options else ""
        raise ValueError(f"--lr_scheduler_type {name}{given}: {' '.join(str(error).split())}") from error
