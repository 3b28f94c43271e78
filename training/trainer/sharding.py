"""Models whose weights are divided among the processes: FSDP2, and DeepSpeed where it is installed."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from accelerate import DistributedType
from torch.distributed.fsdp import MixedPrecisionPolicy
from transformers import Trainer
from transformers.training_args import ParallelMode

OFF = ("", "false", "none", "no")


def refuse_sharded(arguments: Any, flag: str) -> None:
    """Raise ValueError where no process has the weights as a whole."""
    for name in ("fsdp", "deepspeed"):
        if getattr(arguments, name, None):
            raise ValueError(f"{flag} needs the whole model on every process: not --{name}")


class ShardingArguments:
    """Transformers' `--fsdp`, `--fsdp_config` and `--deepspeed`: what goes together with them."""

    def check(self: Any) -> None:
        """Raise ValueError for settings that cannot work."""
        if isinstance(self.fsdp, str) and self.fsdp.lower() in ("true", *OFF):  # as a settings file says it
            given: Any = self
            given.fsdp = None if self.fsdp.lower() in OFF else True
        if self.fsdp and "SHARDED" in str(_content(self.fsdp_config, "fsdp_config").get("state_dict_type", "")):
            raise ValueError("--fsdp_config state_dict_type SHARDED_STATE_DICT: models are saved as FULL_STATE_DICT")
        if not self.deepspeed:
            return
        content = _content(self.deepspeed, "deepspeed")
        if self.optim == "muon":
            raise ValueError("--optim muon needs whole matrices, which --deepspeed cuts up: use radam or adamw_torch")
        if self.optim == "radam" and "optimizer" in content:
            raise ValueError("--optim radam and the optimizer in the --deepspeed file: give one of them")
        if self.nan_loss == "skip":
            raise ValueError("--nan_loss skip: --deepspeed makes the step before it can be skipped; use stop")
        if find_spec("deepspeed") is None:
            raise ValueError(
                f"--deepspeed {self.deepspeed} needs deepspeed, which is not installed: pip install deepspeed"
            )

    def check_processes(self: Any) -> None:
        """Raise ValueError where FSDP would not divide anything."""
        if not self.fsdp:
            return
        if self.parallel_mode != ParallelMode.DISTRIBUTED:
            raise ValueError(
                "--fsdp divides the model among processes, and there is one: torchrun --nproc_per_node 2 ..."
            )
        if self.distributed_state.distributed_type == DistributedType.MULTI_CPU:
            raise ValueError("--fsdp needs an accelerator for every process: on CPUs accelerate takes no notice of it")


def _content(config: Any, flag: str) -> dict[str, Any]:
    """Return what a configuration holds that is given as a dictionary, its JSON, or a file of it."""
    if config is None or isinstance(config, dict):
        return config or {}
    try:
        content = json.loads(config if config.lstrip().startswith("{") else Path(config).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"--{flag} {config} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"--{flag} {config} must hold an object, not a {type(content).__name__}")
    return content


class ShardingTrainer(Trainer):
    """A `Trainer` that FSDP2 can divide any of our models for, and whose checkpoints are whole on all processes."""

    def _prepare_for_training(self, *arguments: Any, **keywords: Any) -> Any:
        if not self.is_fsdp_enabled:
            return super()._prepare_for_training(*arguments, **keywords)
        model: Any = self.model
        plugin = self.accelerator.state.fsdp_plugin
        policy = plugin.mixed_precision_policy
        if isinstance(policy, MixedPrecisionPolicy):  # accelerate's rounds losses and sums of gradients too
            exact = replace(policy, reduce_dtype=torch.float32, output_dtype=torch.float32)
            plugin.mixed_precision_policy = exact
        with _embeddings_in_root(model) if model.config.is_encoder_decoder else nullcontext():
            return super()._prepare_for_training(*arguments, **keywords)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        if state_dict is not None:  # gathered, so that tied weights are no longer one tensor
            tied = getattr(self.accelerator.unwrap_model(self.model), "all_tied_weights_keys", {})
            state_dict = {name: value for name, value in state_dict.items() if name not in tied}
        super()._save(output_dir, state_dict)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        self.accelerator.wait_for_everyone()  # a checkpoint is complete with the file that the first one writes next


@contextmanager
def _embeddings_in_root(model: Any) -> Iterator[None]:
    """Hide the embeddings from accelerate while this lasts.

    It would wrap those of the encoder and the output layer, but not those of the decoder, which are tied to either;
    what it does not know of stays in the group of the whole model, where one weight may have many names.
    """
    names = ("get_input_embeddings", "get_output_embeddings")
    for name in names:
        setattr(model, name, lambda: None)
    try:
        yield
    finally:
        for name in names:
            delattr(model, name)
