"""Stands in for transformers' launcher of rank processes: CPU ranks that talk through gloo.

The ranks come from a fork server, which imports torch and transformers once and not once for each rank.
"""

import importlib
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
import transformers

from .family import load_families

PRELOADED = [
    "torch",
    "torch.distributed.tensor",
    "transformers",
    "transformers.modeling_utils",
    "transformers.distributed",
    "harness.distributed",
]
Function = Callable[..., Any]

_auto_class_in_fsdp_tests = "AutoModelForCausalLM"


def use_auto_class_in_fsdp_tests(name: str) -> None:
    """Let the FSDP tests build other models than causal language models, the only ones they know."""
    global _auto_class_in_fsdp_tests
    _auto_class_in_fsdp_tests = name
    importlib.import_module("tests.test_fsdp_mixin").AutoModelForCausalLM = getattr(transformers, name)


def run_distributed(world_size: int) -> Callable[[Function], Function]:
    """Decorate `function` so that a call runs `function(rank, ...)` on each rank of a process group."""

    def decorate(function: Function) -> Function:
        def call(*args: Any, **kwargs: Any) -> None:
            with tempfile.TemporaryDirectory() as folder:
                store = str(Path(folder, "store"))
                start_rank_processes(_run_in_group, (function, args, kwargs, world_size, store), world_size)

        return call

    return decorate


def start_rank_processes(function: Function, args: tuple[Any, ...] = (), nprocs: int = 2) -> None:
    """Run `function(rank, *args)` in `nprocs` processes; raise what the ranks raised."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory() as errors:
        try:
            _join(function, args, nprocs, errors)
        except Exception as error:
            texts = [path.read_text() for path in sorted(Path(errors).iterdir())]
            if not texts:
                raise
            reason = texts[0].strip().splitlines()[-1]
            raise AssertionError("\n".join([reason, *(text[-3000:] for text in texts)])) from error


def _join(function: Function, args: tuple[Any, ...], nprocs: int, errors: str) -> None:
    context = torch.multiprocessing.start_processes(
        _run_rank,
        args=(function, args, _auto_class_in_fsdp_tests, errors),
        nprocs=nprocs,
        join=False,
        start_method="forkserver",
    )
    try:
        while not context.join(timeout=1):
            pass
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()


def _run_rank(rank: int, function: Function, args: tuple[Any, ...], auto_class: str, errors: str) -> None:
    torch.set_num_threads(1)
    try:
        load_families(os.environ["CONTRACT_MODULE"])  # this process too must know the models
        use_auto_class_in_fsdp_tests(auto_class)
        function(rank, *args)
    except BaseException:  # torch's CheckpointException is no Exception
        Path(errors, str(rank)).write_text(f"rank {rank}:\n{traceback.format_exc()}")
        raise


def _run_in_group(
    rank: int, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], world_size: int, store: str
) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    function(rank, *args, **kwargs)
    dist.barrier()
    dist.destroy_process_group()
