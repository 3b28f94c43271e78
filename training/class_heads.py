"""Classifiers that start from saved ones: with the output layer of classes of the same names, or a new one."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from vanillaformer.console.reporting import report
from vanillaformer.data.tasks import Task
from vanillaformer.hub.loading import open_config, open_model


def saved_classes(task: Task, path: Path) -> list[str] | None:
    """Return the classes of a saved classifier by id; None of another model."""
    config: Any = open_config(path)
    if not any(name.endswith(task.architectures) for name in config.architectures or ()):
        return None
    return [str(name) for _, name in sorted(config.id2label.items())]


def open_classifier(
    model_class: Any, path: Path, where: str, saved: Sequence[str], config: Any, **common: Any
) -> PreTrainedModel:
    """Return the classifier in `path`, which has the classes `saved`, with those of its new config (`open_model`)."""
    # A class without a name, such as LABEL_3, has its number
    saved, labels = ([name.removeprefix("LABEL_") for name in names] for names in (saved, config.id2label.values()))
    config.problem_type = None  # one class for each row, whatever it was
    if labels == saved:
        return open_model(model_class, path, where, config=config, **common)
    old_config = copy.deepcopy(config)
    old_config.num_labels = len(saved)
    old = open_model(model_class, path, where, config=old_config, **common)
    dimensions, weights = class_dimensions(model_class, config), old.state_dict()
    if set(labels) == set(saved):
        report(f"{where} has the same classes in another order: its output layer is reordered by their names.")
        order = torch.tensor([saved.index(name) for name in labels])
        weights |= {name: weights[name].index_select(at, order) for name, at in dimensions.items()}
    else:
        names = f"{', '.join(saved[:5])}{', ...' if len(saved) > 5 else ''}"
        report(f"{where} has other classes ({names}): the output layer is new, all other weights are loaded.")
        weights = {name: value for name, value in weights.items() if name not in dimensions}
    new = model_class.from_config(config, attn_implementation=common["attn_implementation"], dtype=old.dtype)
    new.load_state_dict(weights, strict=False)
    return new


def class_dimensions(model_class: Any, config: Any) -> dict[str, int]:
    """Return the weights that have a part for each class, and in which of their dimensions."""
    shapes = []
    for more in (0, 1):
        changed = copy.deepcopy(config)
        changed.num_labels = config.num_labels + more
        with torch.device("meta"):
            shapes.append({name: value.shape for name, value in model_class.from_config(changed).state_dict().items()})
    pairs = {name: list(zip(shape, shapes[1][name])) for name, shape in shapes[0].items()}
    return {
        name: [a != b for a, b in sizes].index(True) for name, sizes in pairs.items() if any(a != b for a, b in sizes)
    }
