"""Models divided among processes by transformers' own engine: `--parallel fsdp=4,replicate=2,tp=2`.

FSDP2 divides weights, gradients and the optimizer's state, within each of the replicas; tensor parallel processes
compute parts of each layer for the same rows. Checkpoints have whole weights and the optimizer's state in parts, from
which any other layout can continue, one process too.
"""

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import DistributedType, PartialState
from accelerate.utils import broadcast, get_int_from_env, parse_flag_from_env, recursively_apply
from safetensors.torch import load_file
from torch import nn
from torch.distributed import distributed_c10d
from torch.distributed.checkpoint import CheckpointException, async_save
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import PreTrainedConfig, Trainer
from transformers.distributed import DistributedConfig
from transformers.distributed.checkpoint import (
    _redistribute_state_dict,
    load_optimizer_distributed,
    save_optimizer_distributed,
)
from transformers.distributed.parallel_utils import replace_layer_number_by_wildcard
from transformers.distributed.sharding_utils import DtensorShardOperation

from vanillaformer.configuration import VanillaRecurrentEncoderDecoderConfig
from vanillaformer.console.limits import option

from .sharing import by_first

# Private before torch 2.15
set_timeout: Any = getattr(distributed_c10d, "set_timeout", None) or distributed_c10d._set_pg_timeout
AXES = {"replicate": "dp_replicate_size", "fsdp": "fsdp_size", "tp": "tp_size"}
"""The axes of a layout, as `DistributedConfig` names them."""
AUTO = "auto"
SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
"""Environment variables in which accelerate looks for a launcher's number of processes."""
DIVIDED_FACTORS = {"colwise": "lora_B", "rowwise": "lora_A"}
"""The factor of an adapter that is divided like its layer."""
ADAPTED = {"r": "lora_rank", "lora_alpha": "lora_alpha", "target_modules": "lora_targets"}
"""Fields of adapters, with their options, which cannot change when a run resumes."""
PARTS, WHOLE = "optimizer", "optimizer.pt"
"""Names of the optimizer's state in a checkpoint."""


@dataclass
class ParallelArguments:
    """Arguments that divide the work among processes."""

    HELP_GROUP = "Machine"

    parallel: str | None = option(None, "Layout: auto, or fsdp=4,replicate=2,tp=2")
    dry_run: bool = option(False, "Print what a run would take, and run nothing")

    def check(self: Any) -> None:
        """Raise ValueError for the backend of several processes where one was started."""
        if self.ddp_backend and "LOCAL_RANK" not in os.environ and get_int_from_env(SIZES, 1) == 1:
            words = "torchrun --nproc_per_node 2 ... starts the processes that it is for"
            raise ValueError(f"--ddp_backend {self.ddp_backend}: {words}")

    def check_processes(self: Any) -> None:
        """Raise ValueError if the number of processes is not that of the layout; set their timeout on CPUs."""
        if parse_flag_from_env("ACCELERATE_USE_FSDP"):
            raise ValueError("accelerate's settings of FSDP are not supported: use --parallel fsdp=N without them")
        if self.parallel is not None and self.optim == "adafactor":  # transformers' own, with whole means
            raise ValueError(f"--optim adafactor does not go together with --parallel {self.parallel}")
        wanted = math.prod(parallel_sizes(self.parallel).values())
        if self.parallel not in (None, AUTO) and wanted != self.world_size and not self.dry_run:
            raise ValueError(
                f"--parallel {self.parallel} is for {wanted} processes, and there are {self.world_size}: "
                f"torchrun --nproc_per_node {wanted} ..., or another layout"
            )
        on_cpus = self.distributed_state.distributed_type == DistributedType.MULTI_CPU
        if on_cpus and parallel_sizes(self.parallel).get("tp", 1) > 1:
            raise ValueError(f"--parallel {self.parallel}: tp needs an accelerator for every process (accelerate)")
        if on_cpus:  # transformers sets it on accelerators only
            set_timeout(timedelta(seconds=self.ddp_timeout))

    @property
    def data_processes(self: Any) -> int:
        """Number of processes with different rows; tensor parallel ones, which share rows, count once."""
        return self.world_size // parallel_sizes(self.parallel).get("tp", 1)

    @property
    def step_rows(self: Any) -> int:
        """Rows of an optimizer step, unless tokens are counted."""
        return self.train_batch_size * self.gradient_accumulation_steps * self.data_processes

    @property
    def data_process(self: Any) -> int:
        """The index of this process among those with different rows."""
        return self.process_index // parallel_sizes(self.parallel).get("tp", 1)


def parallel_sizes(layout: str | None) -> dict[str, int]:
    """Return the number of processes of each axis that a layout names; raise ValueError if it cannot be parsed."""
    found: dict[str, int] = {}
    for part in [] if layout in (None, AUTO) else str(layout).split(","):
        name, _, number = part.strip().partition("=")
        if name == "pp":
            raise ValueError(f"--parallel {layout}: pipeline parallelism of transformers computes no gradients")
        if name not in AXES or name in found or not number.isdecimal() or int(number) < 1:
            raise ValueError(
                f"--parallel {layout}: {part!r} is not one of {', '.join(AXES)} and a number: fsdp=4,tp=2"
            )
        found[name] = int(number)
    return found


def check_layout(config: PreTrainedConfig, layout: str | None) -> None:
    """Raise ValueError, naming the field, for a layout that cannot divide the models of a config."""
    if layout == AUTO and isinstance(config, VanillaRecurrentEncoderDecoderConfig):
        raise ValueError(f"--parallel {layout}: the memory of models of type {config.model_type!r} is not counted")
    tensor_parallel = parallel_sizes(layout).get("tp", 1)
    if tensor_parallel == 1:
        return
    if not config.base_model_tp_plan:
        raise ValueError(f"--parallel {layout}: {config.model_type!r} has no tensor parallel plan")
    for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        if (value := getattr(config, name, None)) and value % tensor_parallel:
            raise ValueError(f"--parallel {layout}: {name}={value} cannot be divided by tp={tensor_parallel}")


def divided(model: Any, layout: str) -> Any:
    """Return a copy of a model, or of a model of peft, of whose weights this process has its part."""
    sizes: Any = {AXES[name]: size for name, size in parallel_sizes(layout).items()}
    base = getattr(model, "get_base_model", lambda: model)()
    kind, adapted = type(base), list[Any]()
    distribute = kind.maybe_distribute_model

    def distribute_adapted(new: Any, *details: Any) -> Any:
        with torch.device("meta"):
            adapted.append(type(model)(new, model.peft_config["default"]))
        new._tp_plan = adapted_plan(new)
        return distribute(new, *details)

    if base is not model:
        kind.maybe_distribute_model = staticmethod(distribute_adapted)  # transformers has no hook for it
    try:
        new = kind.from_pretrained(
            None,
            config=base.config,
            state_dict={  # zeros that take no memory replace weights that another process has read
                name: torch.zeros((), dtype=value.dtype).expand(value.shape) if value.is_meta else value
                for name, value in base.state_dict().items()
            },
            attn_implementation=base.config._attn_implementation,
            dtype=base.dtype,
            distributed_config=DistributedConfig(**sizes),
        )
    finally:
        if base is not model:
            del kind.maybe_distribute_model
    for name, parameter in base.named_parameters():
        new.get_parameter(name).requires_grad_(parameter.requires_grad)
    _copy_views(new)
    _share_padding(new)
    share_weights(new, new.state_dict(), base.state_dict())
    if base.can_generate():
        new.generation_config = base.generation_config
    return adapted[0] if adapted else new


def adapted_plan(model: Any) -> dict[str, str]:
    """Return the tensor parallel plan of a model with adapters, of which one factor is divided as the weight is."""
    plan: dict[str, str] = dict(model._tp_plan)
    adapted: dict[bool, set[str]] = {True: set(), False: set()}
    for name, module in model.named_modules():
        adapted[hasattr(module, "lora_A")].add(replace_layer_number_by_wildcard(name))
    for name in plan.keys() & adapted[True]:
        if name in adapted[False]:
            raise ValueError(f"--lora_targets: with tp, {name} must have adapters in all layers or in none")
        style = plan.pop(name)
        plan[f"{name}.base_layer"] = style
        if style in DIVIDED_FACTORS:
            plan[f"{name}.{DIVIDED_FACTORS[style]}.default"] = style
    return plan


def _copy_views(model: nn.Module) -> None:
    """Copy parts that are views of whole weights, as transformers makes on a CPU: the whole would stay in memory."""
    parameters: Any = model.parameters()
    for parameter in parameters:
        part = local_part(parameter)
        if part.untyped_storage().nbytes() != part.nbytes:  # views have larger storage, stand-ins smaller
            setattr(parameter, "data" if part is parameter else "_local_tensor", part.clone())


def _share_padding(model: nn.Module) -> None:
    """Give all names of a tied weight the same padded part of it.

    Where a process has fewer rows than others, torch pads the part of each name separately, and only the last of these
    copies changes in training (torch 2.13, transformers 5.23).
    """
    parts: dict[int, torch.Tensor] = {}
    for module in model.modules():
        group = module._get_fsdp_state()._fsdp_param_group if isinstance(module, FSDPModule) else None
        for entry in group.fsdp_params if group is not None else ():
            parameter = getattr(entry._module_info.module, entry._module_info.param_name)
            entry._sharded_param_data = parts.get(id(parameter), entry._sharded_param_data)
            entry.reset_sharded_param()
            parts[id(parameter)] = entry._sharded_param_data


class ParallelTrainer(Trainer):
    """A `Trainer` that saves, resumes and evaluates models that `divided` returns."""

    args: Any  # of the run, with the arguments of this package
    model: Any
    optimizer: Any
    lr_scheduler: Any
    writers: Any = None

    def gather_rows(self, values: Any, **keywords: Any) -> Any:
        """Gather the results for a batch, with those of tensor parallel processes, which share rows, once."""
        same, state = self.get_tp_size(), self.accelerator.gradient_state
        if same == 1:
            return self.accelerator.gather_for_metrics(values, **keywords)
        last = state.remainder if state.end_of_dataloader and state.remainder > 0 else None

        def once(rows: torch.Tensor) -> torch.Tensor:
            return torch.cat(rows.chunk(self.args.world_size)[::same])[:last]

        return recursively_apply(once, self.accelerator.gather(values))

    def save_parts(self, folder: Path, *, later: bool) -> Any:
        """Save the state of the optimizer in parts, and the schedule; `later` returns a future for the former."""
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), folder / "scheduler.pt")
        if not later:
            return save_optimizer_distributed(self.model, self.optimizer, str(folder / PARTS))
        if self.writers is None:  # for messages separate from those of the training
            self.writers = torch.distributed.new_group(backend="gloo")
        options = StateDictOptions(flatten_optimizer_state_dict=True)
        state = _redistribute_state_dict(get_optimizer_state_dict(self.model, self.optimizer, options=options))
        return async_save({"optimizer": state}, checkpoint_id=folder / PARTS, process_group=self.writers)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        whole = checkpoint is None or not Path(checkpoint, PARTS).is_dir()
        if checkpoint is None or (whole and not self.is_distributed_loading_by_transformers):
            super()._load_optimizer_and_scheduler(checkpoint)
            if checkpoint and {weight.dtype for weight in self.model.parameters()} - {torch.float32}:
                restore_dtypes(self.optimizer, Path(checkpoint, WHOLE))
            return
        if whole:
            state = torch.load(Path(checkpoint, WHOLE), map_location="cpu", weights_only=True)
            take_over_state(self.optimizer, state, self.model)
        else:
            parts = Path(checkpoint, PARTS)
            groups = self.optimizer.param_groups  # torch cannot load groups without parameters
            self.optimizer.param_groups = [group for group in groups if group["params"]]
            try:
                load_optimizer_distributed(self.model, self.optimizer, str(parts))
            except CheckpointException as error:
                first = next(iter(error.failures.values()))[0]
                raise ValueError(f"{parts} cannot be read as a state of the optimizer: {first}") from error
            loaded = iter(self.optimizer.param_groups)
            self.optimizer.param_groups = [next(loaded) if group["params"] else group for group in groups]
        schedule: Any = torch.load(Path(checkpoint, "scheduler.pt"), weights_only=True)
        for name in ("base_lrs", "_last_lr", "lr_lambdas"):  # other layouts have other groups
            if name in schedule and len(schedule[name]) != len(self.optimizer.param_groups):
                now = getattr(self.lr_scheduler, name)
                schedule[name] = [None] * len(now) if name == "lr_lambdas" else now
        self.lr_scheduler.load_state_dict(schedule)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        self._load(resume_from_checkpoint, partial(super()._load_from_checkpoint, resume_from_checkpoint, model))

    def _load_best_model(self) -> None:
        self._load(self.state.best_model_checkpoint, super()._load_best_model)

    def _load(self, folder: Any, load: Callable[[], None]) -> None:
        """Load the weights in a folder, which one process reads; small adapters are read by all."""
        if self.args.lora_rank:
            config = self.model.peft_config["default"]
            for name, value in vars(type(config).from_pretrained(folder)).items():
                if name in ADAPTED and (here := getattr(config, name)) != value:
                    here, there = (" ".join(sorted(v)) if isinstance(v, set) else v for v in (here, value))
                    raise ValueError(f"--{ADAPTED[name]} {here}: the adapters in {folder} have {there}: use the same")
            load()
        elif not self.is_distributed_loading_by_transformers:
            by_first(load)
            share_weights(self.model, weights := self.model.state_dict(keep_vars=True), weights)
        else:
            paths = Path(folder).glob("model*.safetensors")  # large models have several
            try:
                load_weights(self.model, lambda: {name: w for path in paths for name, w in load_file(path).items()})
            except ValueError as error:
                raise ValueError(f"{folder}: {error}: resume from another checkpoint") from error


def local_part(weight: torch.Tensor) -> torch.Tensor:
    """Return the part of a weight that this process has."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


def whole(weight: torch.Tensor) -> torch.Tensor:
    """Return the whole of a weight that may be divided; all processes call it."""
    return weight.full_tensor() if isinstance(weight, DTensor) else weight


def load_weights(model: nn.Module, read: Callable[[], dict[str, torch.Tensor]]) -> None:
    """Load exactly the weights that the first process reads into a model; tied ones may have one of their names.

    Raises ValueError on all processes, and changes nothing, if they are not the weights of such a model.
    """
    weights: dict[str, torch.Tensor] = {}

    def read_and_check() -> list[str]:
        weights.update(read())
        targets = model.state_dict(keep_vars=True)
        filled = {id(targets[name]) for name in weights.keys() & targets.keys()}
        wrong = [name for name, target in targets.items() if id(target) not in filled]
        wrong += [name for name, w in weights.items() if name not in targets or targets[name].shape != w.shape]
        if wrong:
            names = ", ".join(wrong[:3])
            raise ValueError(f"these are not the weights of a {type(model).__name__.removeprefix('FSDP')}: {names}")
        return list(weights)

    share_weights(model, by_first(read_and_check), weights)


@torch.no_grad()
def share_weights(model: nn.Module, names: Iterable[str], weights: dict[str, torch.Tensor]) -> None:
    """Copy weights by name from the first process into a model, whole or divided, one at a time."""
    targets = model.state_dict(keep_vars=True)
    for name in {id(targets[name]): name for name in names}.values():  # one name of tied weights
        like = targets[name]
        if PartialState().is_main_process:
            value = weights[name].to(like.device, like.dtype).contiguous()
        else:
            value = torch.empty(like.shape, dtype=like.dtype, device=like.device)
        like.copy_(part_of(broadcast(value), like))


def part_of(whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a tensor divided like another one of its shape, contiguous in memory as fused optimizers expect."""
    if not isinstance(like, DTensor):
        return whole.to(like.device)
    part: Any = DtensorShardOperation(like).shard_tensor(whole, device=like.device)
    local = part.clone(memory_format=torch.contiguous_format)
    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def restore_dtypes(optimizer: Any, path: Path) -> None:
    """Read values again that torch has cast to the type of their weights: Adafactor keeps them in float32."""
    saved = torch.load(path, map_location="cpu", weights_only=True)
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        for name, value in saved["state"].get(number, {}).items():
            loaded = optimizer.state[parameter][name]
            if isinstance(value, torch.Tensor) and value.dtype != loaded.dtype:
                optimizer.state[parameter][name] = value.to(loaded.device)


def take_over_state(optimizer: Any, state: dict[str, Any], model: nn.Module) -> None:
    """Load the state of a whole model's optimizer into one whose groups may be parts of the saved groups."""
    order = {parameter: number for number, parameter in enumerate(model.parameters())}
    groups = iter(optimizer.param_groups)
    for saved in state["param_groups"]:
        parameters: list[torch.nn.Parameter] = []
        while len(parameters) < len(saved["params"]):
            group = next(groups)
            parameters += group["params"]
            group |= {name: value for name, value in saved.items() if name != "params"}
        for number, parameter in zip(saved["params"], sorted(parameters, key=order.__getitem__), strict=True):
            optimizer.state[parameter] = {
                name: part_of(value, parameter) if getattr(value, "shape", None) == parameter.shape else value
                for name, value in state["state"].get(number, {}).items()
            }
