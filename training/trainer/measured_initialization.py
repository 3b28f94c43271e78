"""What a new model is given by its first batches, before training: the factors of Admin, DT-Fixup and GradInit."""

from collections.abc import Callable
from itertools import cycle, islice
from typing import Any, NamedTuple

from torch.utils.data import IterableDataset

from vanillaformer.console.reporting import report
from vanillaformer.modeling.admin import profile_admin
from vanillaformer.modeling.dt_fixup import scale_by_inputs
from vanillaformer.modeling.gradinit import learn_scales

from ..run_folder.run import Run
from .trainer import RunTrainer

Batches = list[dict[str, Any]]


class Measurement(NamedTuple):
    """How an initialization is completed by data.

    Attributes:
        name: Its name in messages.
        scaled: What it has factors of.
        batches: The number of batches it takes.
        measure: Changes a new model by batches, and returns the factors by name.
    """

    name: str
    scaled: str
    batches: int
    measure: Callable[[Any, Batches], dict[str, float]]


# By `initialization` of the config
MEASUREMENTS = {
    "admin": Measurement(
        "Admin", "residual connections", 1, lambda model, batches: profile_admin(model, **batches[0])
    ),
    "dt_fixup": Measurement("DT-Fixup", "matrices", 1, scale_by_inputs),
    "gradinit": Measurement("GradInit", "tensors", 100, learn_scales),
}


def measure_new_model(run: Run, trainer: RunTrainer) -> dict[str, float]:
    """Complete the initialization of a new model, if it is one of `MEASUREMENTS`; do nothing to any other model.

    A run that is resumed, or starts from a saved model, has the result among its weights. The batches are
    `first_batches`, the same on every process, and no random number is drawn: what follows is what it would have been
    without it.

    Returns:
        The factors by name; none for other models.
    """
    model: Any = trainer.model
    loaded = run.checkpoint is not None or run.settings["model"]["model_name_or_path"] is not None
    found = None if loaded else MEASUREMENTS.get(getattr(model.config, "initialization", ""))
    if found is None:
        return {}
    batches = first_batches(trainer, found.batches)
    factors = found.measure(model, batches)
    spread = f"{min(factors.values()):.2f} to {max(factors.values()):.2f}"
    rows = sum(len(next(iter(batch.values()))) for batch in batches)
    report(f"{found.name}: factors of {len(factors)} {found.scaled} from {spread}, measured on {rows} rows.")
    return factors


def first_batches(trainer: RunTrainer, count: int) -> Batches:
    """Return the rows that the first epoch begins with, in batches as one process takes them, on the trainer's device.

    Where there are fewer batches than `count`, they repeat. The Trainer's own loader would draw from the global random
    state, and give each process rows of its own.
    """
    dataset: Any = trainer.train_dataset
    size = trainer.args.train_batch_size
    if isinstance(dataset, IterableDataset):
        rows = list(islice(dataset, count * size))
    else:
        order = trainer._get_train_sampler()  # with a generator of its own
        numbers = range(len(dataset)) if order is None else order
        rows = [dataset[number] for number in islice(numbers, count * size)]
    batches = [trainer.data_collator(rows[start : start + size]) for start in range(0, len(rows), size)]
    return [dict(trainer._prepare_inputs(batch)) for batch in islice(cycle(batches), count)]
