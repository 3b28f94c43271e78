"""Image models split over processes: transformers' own tests of its plans give the models tokens."""

import copy
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import AutoModelForImageClassification
from transformers.distributed import DistributedConfig

from ..distributed import run_distributed
from ..family import Inputs
from .base import Checks, not_applicable, sharpen

RANKS = 2
STEPS = 3


class ParallelChecks(Checks):
    """Tensor-parallel and fully sharded image classifiers learn what a whole one does."""

    def train_split(self, kind: str) -> None:
        """Train a whole and a split classifier on the same batch and compare losses and weights."""
        if not self.family.of_images:
            not_applicable("the models read tokens: transformers' own tests train them")
        model_class = self.family.auto_classes["AutoModelForImageClassification"]
        config, inputs = self.inputs_for(model_class, labels=True)
        inputs = {name: value[: 2 * RANKS] for name, value in inputs.items()}
        inputs["labels"] = torch.arange(2 * RANKS) % config.num_labels
        with tempfile.TemporaryDirectory() as folder:
            sharpen(model_class(config)).save_pretrained(folder)
            run_distributed(RANKS)(compare_split)(folder, kind, inputs)

    def test_image_tensor_parallel(self) -> None:
        self.train_split("tp_size")

    def test_image_fully_sharded(self) -> None:
        self.train_split("fsdp_size")


def compare_split(rank: int, folder: str, kind: str, inputs: Inputs) -> None:
    """Train the saved classifier whole, and split over the ranks in one way; each rank of FSDP has its rows."""
    whole = AutoModelForImageClassification.from_pretrained(folder).train()
    split = AutoModelForImageClassification.from_pretrained(
        folder, distributed_config=DistributedConfig(**{kind: RANKS})
    ).train()
    assert any(isinstance(parameter, DTensor) for parameter in split.parameters()), "nothing is split"
    rows = copy.copy(inputs)
    if kind == "fsdp_size":
        rows = {name: value.chunk(RANKS)[rank] for name, value in inputs.items()}
    torch.testing.assert_close(mean_over_ranks(losses(split, rows)), losses(whole, inputs), atol=1e-4, rtol=1e-4)
    for (name, parameter), expected in zip(split.named_parameters(), whole.parameters(), strict=True):
        value = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        torch.testing.assert_close(value, expected, atol=1e-4, rtol=1e-3, msg=f"{name} differs")


def losses(model: nn.Module, inputs: Inputs) -> torch.Tensor:
    """Return the losses of a few steps of gradient descent."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    history = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        history.append(loss.detach())
    return torch.stack(history)


def mean_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """Return the mean of what each rank has."""
    values = values.clone()
    dist.all_reduce(values)
    return values / RANKS
