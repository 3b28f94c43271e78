"""Checkpoints written while training continues (`--async_save`): copied to host memory, then written by a thread."""

import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy, deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch.utils._pytree import tree_map
from transformers.trainer_callback import ExportableState

from vanillaformer.hub.atomic_files import flush

from ..run_folder.files import SAVING, flush_all
from .averaging import TRAINING_WEIGHTS


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
        self.tokenizers: Any = None  # copies: a tokenizer that is at work cannot be saved

    def start(self, write: Callable[[], None]) -> None:
        self.pending = self.thread.submit(write)

    def wait(self) -> None:
        """Wait until nothing is written any more; raise what the writing failed with."""
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.result()

    def keep(self, trainer: Any, checkpoint: Path, average: Any) -> Callable[[], None]:
        """Copy what a checkpoint holds to host memory, and return what writes it, under its name once it is whole.

        What is small is written at once, into a folder of unfinished work. `average` is a copy of the moving average's
        `content`.
        """
        part, saves, divided = checkpoint.parent / SAVING / checkpoint.name, trainer.args.should_save, None
        if saves:
            shutil.rmtree(part.parent, ignore_errors=True)
            part.mkdir(parents=True)
        trainer.accelerator.wait_for_everyone()
        if trainer.is_distributed_loading_by_transformers:
            divided, weights = trainer.save_parts(part, later=True), trainer.whole_weights()
        trainer._save_rng_state(str(part))
        if not saves:
            return lambda: divided and divided.result()
        trainer._save_scaler(str(part))
        save_state(trainer, part)
        then: Any = copy(trainer)  # as the trainer is now, whatever the next steps do
        then.is_distributed_loading_by_transformers = False
        then.model = object.__new__(type(trainer.model))  # `copy` would build an FSDP2 model again
        vars(then.model).update(vars(trainer.model))
        then.model.config = deepcopy(trainer.model.config)
        then.model.config.distributed_config = None
        self.tokenizers = self.tokenizers or deepcopy((trainer.processing_class, trainer.target_tokenizer))
        then.processing_class, then.target_tokenizer = self.tokenizers
        if divided is None:
            weights = on_host(trainer.without_ties(trainer.whole_weights()))
            for name in ("optimizer", "lr_scheduler"):
                state = on_host(getattr(trainer, name).state_dict())
                setattr(then, name, SimpleNamespace(state_dict=lambda state=state: state))

        def write() -> None:
            then._save(str(part), weights)
            if divided is None:
                then._save_optimizer_and_scheduler(str(part))
            else:
                divided.result()
            if average is not None:
                save_file(average[0], part / TRAINING_WEIGHTS, average[1])
            flush_all(part)
            shutil.rmtree(checkpoint, ignore_errors=True)  # one that a killed run left unfinished
            os.replace(part, checkpoint)
            flush(checkpoint.parent)

        return write


def save_state(trainer: Any, folder: Path) -> None:
    """Save the state of the Trainer and of its callbacks."""
    state = copy(trainer.state)
    vars(state).update(logging_steps=None, eval_steps=None, save_steps=None)  # a resumed run's follow from its options
    callbacks = [
        one for one in (*trainer.callback_handler.callbacks, trainer.control) if isinstance(one, ExportableState)
    ]
    state.stateful_callbacks = state.stateful_callbacks | {type(one).__name__: one.state() for one in callbacks}
    state.save_to_json(str(folder / "trainer_state.json"))
