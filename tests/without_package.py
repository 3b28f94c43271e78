"""For programs of the tests that run in a process of their own, where the package cannot be imported."""

import copy
import importlib.abc
from pathlib import Path

import torch

FOLDER = str(Path(__file__).parent)  # on the path of such a process, which imports this file


class Absent(importlib.abc.MetaPathFinder):
    """Makes the package look as if it were not installed."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "vanillaformer":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@torch.no_grad()
def answers(model, inputs):
    """Return what the model computes, and what it generates if it does.

    A copy computes, whose tensors are aligned: those of a mapped file begin anywhere, by which a product with one
    column is rounded otherwise.
    """
    model = copy.deepcopy(model)
    found = {"output": model(**inputs)[0]}
    if model.can_generate():
        ids = {name: inputs[name] for name in ("input_ids", "attention_mask") if name in inputs}
        found["generated"] = model.generate(**ids, max_new_tokens=5, do_sample=False)
    return found


def same_answers(model, expected):
    """Whether a model answers its inputs as the package's did, bit for bit."""
    found = answers(model, expected["inputs"])
    return all(torch.equal(value, expected["answers"][name]) for name, value in found.items())
