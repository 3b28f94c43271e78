"""Frozen parameters, low-rank adapters (LoRA) and measured initializations of the model to train."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import IterableDataset
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from vanillaformer.configuration import VanillaConfig
from vanillaformer.console.limits import BELOW_ONE, NOT_NEGATIVE, option
from vanillaformer.console.reporting import report
from vanillaformer.data.preprocessing.packing import PackedBatches
from vanillaformer.data.streaming import PLACES

from ..run_folder.files import ADAPTER, written_aside
from ..run_folder.run import Run
from .parallel import local_part, part_of, whole

Batches = list[dict[str, Any]]

# Heads that a task adds: with adapters they are trained in full.
NEW_HEADS = ("classifier", "score", "pooler", "seq_relationship")


@dataclass
class AdaptationArguments:
    """Arguments that choose which parameters are trained."""

    HELP_GROUP = "Fine-tuning"

    freeze: list[str] = option([], "Parameters to freeze, by parts of their names")
    lora_rank: int = option(0, "LoRA: rank, merged when saved; 0 for none", limit=NOT_NEGATIVE)
    lora_alpha: int = option(16, "LoRA: adapters are scaled by this value / rank")
    lora_dropout: float = option(0.0, "LoRA: dropout on the inputs of the adapters", limit=BELOW_ONE)
    lora_targets: list[str] = option(["q_proj", "v_proj"], "LoRA: names of the layers with adapters")

    def check(self: Any) -> None:
        flag = f"--lora_rank {self.lora_rank}"
        if not self.lora_rank:
            for name, default in vars(AdaptationArguments()).items():
                if name.startswith("lora_") and getattr(self, name) != default:
                    raise ValueError(f"--{name} {getattr(self, name)} needs a --lora_rank")
            return
        if self.lora_alpha <= 0 or not self.lora_targets:
            raise ValueError(f"{flag} needs a --lora_alpha above 0 and at least one name in --lora_targets")
        for name in ("freeze", "ema_decay", "average_checkpoints"):
            if value := getattr(self, name, None):  # averages of factors are not factors of the average
                raise ValueError(f"{flag} does not go together with --{name} {value}")
        if find_spec("peft") is None:
            raise ValueError(f"{flag} needs peft, which is not installed: pip install 'vanillaformer[peft]'")


def prepare_parameters(model: PreTrainedModel, args: Any) -> Any:
    """Return the model to train, with frozen parameters or adapters."""
    if args.freeze:
        freeze(model, args.freeze)
    if rate := getattr(model.config, "layer_drop", 0.0):
        if (layout := args.parallel) is not None:  # the processes do not skip the same layers
            raise ValueError(f"layer_drop={rate} needs the whole model on every process: not --parallel {layout}")
        args.ddp_find_unused_parameters = True
    elif args.ddp_find_unused_parameters is None and isinstance(model.config, VanillaConfig):
        args.ddp_find_unused_parameters = False  # each step uses all of them, and looking for unused ones takes time
    return with_adapters(model, args) if args.lora_rank and args.parallel is None else model  # or `divide` has done it


def merge_adapters(trainer: Any) -> None:
    """Save the adapters of a trainer's model, and merge them into its weights."""
    weights = trainer.whole_weights()
    if trainer.args.should_save:
        with written_aside(Path(trainer.args.output_dir), ADAPTER) as part:
            trainer.model.save_pretrained(part, state_dict=weights)
    if trainer.is_distributed_loading_by_transformers:
        merge_parts(trainer.model)
        merged = trainer.model.unload()
    else:
        merged = trainer.model.merge_and_unload()
    trainer.model = trainer.model_wrapped = trainer.callback_handler.model = merged


@torch.no_grad()
def merge_parts(model: nn.Module) -> None:
    """Merge the adapters of a divided model into its weights, of which this process changes its part."""
    layers: Any = model.modules()
    for layer in layers:
        if hasattr(layer, "lora_A"):
            one, other = (whole(factors["default"].weight) for factors in (layer.lora_A, layer.lora_B))
            change, weight = other @ one * layer.scaling["default"], layer.get_base_layer().weight
            local_part(weight).add_(local_part(part_of(change.T if layer.fan_in_fan_out else change, weight)))


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Freeze the parameters that match patterns, and report how many are trained.

    A pattern matches one or more whole parts of a name: `layers.1` does not match `layers.10`.
    """
    named = list(model.named_parameters(remove_duplicate=False))  # a tied one has two names
    for pattern in patterns:
        found = [parameter for name, parameter in named if fnmatchcase(f".{name}.", f"*.{pattern}.*")]
        if not found:
            examples = ", ".join(name for name, _ in named[:: max(1, len(named) // 6)])  # from all over the model
            how = f"no parameter has this as whole parts of its name (*{pattern}* matches inside of parts)"
            raise ValueError(f"--freeze {pattern}: {how}; they are called {examples}")
        for parameter in found:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for _, parameter in named):
        raise ValueError(f"--freeze {' '.join(patterns)} leaves nothing to train")
    _report_trained(model, f"without {', '.join(patterns)}")


def _report_trained(model: nn.Module, detail: str) -> None:
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    trained, total = sum(size for size, trains in sizes if trains), sum(size for size, _ in sizes)
    report(f"Trained: {trained:,} of {total:,} parameters, {detail}")


def with_adapters(model: PreTrainedModel, arguments: AdaptationArguments) -> nn.Module:
    """Return the model wrapped by peft: `W + α/r B A` replaces each target's W, with A and B to be trained."""
    from peft import LoraConfig, get_peft_model

    # Conv1D is GPT-2's linear layer
    layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)}
    names_of = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    for target in arguments.lora_targets:
        found = [module for name, module in layers.items() if f".{name}".endswith(f".{target}")]
        if any(names_of[id(module.weight)] > 1 for module in found):  # merging would change both
            raise ValueError(f"--lora_targets {target}: its weight is the embeddings', which would change too")
        if not found:
            names = sorted({name.rpartition(".")[2] for name in layers})
            raise ValueError(f"--lora_targets {target}: the model's linear layers are called {', '.join(names)}")
    heads = [name for name in NEW_HEADS if list(getattr(model, name, nn.Module()).parameters())]
    if not model.name_or_path:
        report("Warning: --lora_rank trains adapters of a new model, whose random weights are not trained.")
    config = LoraConfig(
        r=arguments.lora_rank,
        lora_alpha=arguments.lora_alpha,
        lora_dropout=arguments.lora_dropout,
        target_modules=list(arguments.lora_targets),
        modules_to_save=heads or None,
    )
    adapted = get_peft_model(model, config)
    if model.config.name_or_path != model.name_or_path:  # a native model, whose config peft would read as ours
        adapted.peft_config["default"].base_model_name_or_path = ""
    _report_trained(adapted, f"adapters of {', '.join([*arguments.lora_targets, *heads])}")
    return adapted


# ------------------------------------------------------------------------------------------- measured initializations
# By `initialization` of the config, for those that scale a new model by factors measured on batches: the name, what is
# scaled, and the number of batches
MEASUREMENTS = {
    "admin": ("Admin", "residual connections", 1),
    "dt_fixup": ("DT-Fixup", "matrices", 1),
    "gradinit": ("GradInit", "tensors", 100),
}


def measure_new_model(run: Run, trainer: Any) -> dict[str, float]:
    """Complete the initialization of a new model, if it is one of `MEASUREMENTS`, and return the factors by name.

    For a resumed run, or a saved model, this was done before. The batches are `first_batches`, the same on every
    process, and no random number is drawn, so that the order and the dropout of the training do not change.
    """
    loaded = run.checkpoint is not None or run.settings["model"]["model_name_or_path"] is not None
    initialization = getattr(trainer.model.config, "initialization", "")
    if loaded or initialization not in MEASUREMENTS:
        return {}
    name, scaled, count = MEASUREMENTS[initialization]
    batches = first_batches(trainer, count)
    # imported here because most models do not need it
    from vanillaformer.modeling.measured import learn_scales, profile_admin, scale_by_inputs

    measure: Any = {"dt_fixup": scale_by_inputs, "gradinit": learn_scales}.get(initialization)
    factors = measure(trainer.model, batches) if measure else profile_admin(trainer.model, **batches[0])
    spread = f"{min(factors.values()):.2f} to {max(factors.values()):.2f}"
    rows = sum(len(next(iter(batch.values()))) for batch in batches)
    report(f"{name}: factors of {len(factors)} {scaled} from {spread}, measured on {rows} rows.")
    return factors


def first_batches(trainer: Any, count: int) -> Batches:
    """Return the rows that the first epoch begins with, in batches as one process takes them, on the trainer's device.

    Where there are fewer batches than `count`, they repeat. The Trainer's loader would draw from the global random
    state, and give each process other rows.
    """
    dataset, size = trainer.train_dataset, trainer.args.train_batch_size
    if isinstance(dataset, IterableDataset):
        rows = list(islice(dataset, count * size))
        for row in rows:
            row.pop(PLACES, None)
    else:
        order = trainer.training_order(dataset)  # with a separate generator
        rows = [dataset[number] for number in islice(order, count * size)]
    collator = trainer.data_collator
    if isinstance(collator, PackedBatches) and count > 1:  # GradInit takes parts of a batch, of whole texts
        collator = collator.padded
    batches = [collator(rows[start : start + size]) for start in range(0, len(rows), size)]
    return [dict(trainer._prepare_inputs(batch)) for batch in islice(cycle(batches), count)]
