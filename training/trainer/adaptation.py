"""Training a part of a model: parameters that stay as they are, and low-rank adapters added to them (LoRA)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedModel, Trainer

from vanillaformer.console.reporting import report

from ..run_folder.files import ADAPTER, written_aside
from .sharding import refuse_sharded

# Heads that a task brings along: with adapters they are trained in full.
NEW_HEADS = ("classifier", "score", "pooler", "seq_relationship")


@dataclass
class AdaptationArguments:
    """Which parameters are trained."""

    HELP_GROUP = "Fine-tuning"

    freeze: list[str] = field(
        default_factory=list,
        metadata={"help": "Parameters to freeze: parts of names, such as embed_tokens"},
    )
    lora_rank: int = field(
        default=0,
        metadata={"help": "LoRA: rank of adapters, merged when saved; 0 for none"},
    )
    lora_alpha: int = field(default=16, metadata={"help": "LoRA: adapters are scaled by this value / rank"})
    lora_dropout: float = field(default=0.0, metadata={"help": "LoRA: dropout on the inputs of the adapters"})
    lora_targets: list[str] = field(
        default_factory=lambda: ["q_proj", "v_proj"], metadata={"help": "LoRA: names of the layers with adapters"}
    )

    def check(self: Any) -> None:
        """Raise ValueError for settings that cannot work."""
        flag = f"--lora_rank {self.lora_rank}"
        if self.lora_rank < 0:
            raise ValueError(f"{flag}: it must be 0 or more")
        if not 0 <= self.lora_dropout < 1:
            raise ValueError(f"--lora_dropout {self.lora_dropout}: it must be 0 or more and less than 1")
        if not self.lora_rank:
            for name, default in _lora_defaults().items():
                if getattr(self, name) != default:
                    raise ValueError(f"--{name} {getattr(self, name)} needs a --lora_rank")
            return
        if self.lora_alpha <= 0 or not self.lora_targets:
            raise ValueError(f"{flag} needs a --lora_alpha above 0 and at least one name in --lora_targets")
        for name in ("freeze", "ema_decay", "average_checkpoints"):
            if value := getattr(self, name, None):  # averages of factors are not factors of the average
                raise ValueError(f"{flag} does not go together with --{name} {value}")
        refuse_sharded(self, flag)
        if find_spec("peft") is None:
            raise ValueError(f"{flag} needs peft, which is not installed: pip install 'vanillaformer[peft]'")


def _lora_defaults() -> dict[str, Any]:
    made = AdaptationArguments()
    return {entry.name: getattr(made, entry.name) for entry in fields(made) if entry.name.startswith("lora_")}


class AdaptingTrainer(Trainer):
    """A `Trainer` that trains the parameters that are not frozen, or adapters, which end up in the model's weights."""

    args: Any  # of the run, with the arguments of this package

    def __init__(self, model: PreTrainedModel, args: Any, **keywords: Any):
        if args.freeze:
            freeze(model, args.freeze)
        adapted: Any = with_adapters(model, args) if args.lora_rank else model
        if rate := getattr(model.config, "layer_drop", 0.0):
            refuse_sharded(args, f"layer_drop={rate}")  # the processes do not skip the same layers
            args.ddp_find_unused_parameters = True
        super().__init__(adapted, args, **keywords)

    def _finalize_training(self, *arguments: Any, **keywords: Any) -> Any:
        output = super()._finalize_training(*arguments, **keywords)
        if self.args.lora_rank:
            adapted: Any = self.model
            if self.args.should_save:
                with written_aside(Path(self.args.output_dir), ADAPTER) as part:
                    adapted.save_pretrained(part)
            self.model = self.model_wrapped = self.callback_handler.model = adapted.merge_and_unload()
        return output


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Take the parameters that patterns name out of the training, and say how many are left.

    A pattern stands for one or more whole parts of a name: `layers.1` is not `layers.10`.

    Raises:
        ValueError: A pattern that no parameter's name has, or all parameters are frozen.
    """
    named = list(model.named_parameters(remove_duplicate=False))  # a tied one has two names
    for pattern in patterns:
        found = [parameter for name, parameter in named if fnmatchcase(f".{name}.", f"*.{pattern}.*")]
        if not found:
            raise ValueError(f"--freeze {pattern}: no parameter has this in its name; they are called {_some(named)}")
        for parameter in found:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for _, parameter in named):
        raise ValueError(f"--freeze {' '.join(patterns)} leaves nothing to train")
    _report_trained(model, f"without {', '.join(patterns)}")


def _some(named: Sequence[tuple[str, Any]], count: int = 6) -> str:
    """Return some of the names, from all over the model."""
    step = max(1, len(named) // count)
    return ", ".join(name for name, _ in named[::step])


def _report_trained(model: nn.Module, what: str) -> None:
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    trained, total = sum(size for size, trains in sizes if trains), sum(size for size, _ in sizes)
    report(f"Trained: {trained:,} of {total:,} parameters, {what}")


def with_adapters(model: PreTrainedModel, arguments: AdaptationArguments) -> nn.Module:
    """Return the model as one of peft, `W + α/r B A` in place of each target's W, of which A and B are trained.

    Raises:
        ValueError: A target that no layer has as its name.
    """
    from peft import LoraConfig, get_peft_model

    modules = list(model.named_modules())
    for target in arguments.lora_targets:
        if not any(isinstance(module, nn.Linear) and f".{name}".endswith(f".{target}") for name, module in modules):
            names = sorted({name.rpartition(".")[2] for name, module in modules if isinstance(module, nn.Linear)})
            raise ValueError(f"--lora_targets {target}: the model's linear layers are called {', '.join(names)}")
    heads = [
        name for name in NEW_HEADS if hasattr(model, name) and any(True for _ in getattr(model, name).parameters())
    ]
    if not model.name_or_path:
        report("Warning: --lora_rank trains adapters of a new model, whose random weights stay as they are.")
    config = LoraConfig(
        r=arguments.lora_rank,
        lora_alpha=arguments.lora_alpha,
        lora_dropout=arguments.lora_dropout,
        target_modules=list(arguments.lora_targets),
        modules_to_save=heads or None,
    )
    adapted = get_peft_model(model, config)
    _report_trained(adapted, f"adapters of {', '.join([*arguments.lora_targets, *heads])}")
    return adapted
