"""What a new model is given by its first batch, before training: Admin's factors (Liu et al. 2020)."""

from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset

from vanillaformer.hub.reporting import report
from vanillaformer.modeling.admin import profile_admin

from ..run_folder.run import Run
from .trainer import RunTrainer


def profile_new_model(run: Run, trainer: RunTrainer) -> dict[str, float]:
    """Set the factors of a new model whose config says `initialization="admin"`; do nothing to any other model.

    A run that is resumed, or starts from a saved model, has them among its weights. The batch is `first_batch`, the
    same on every process, and the pass draws no random number: what follows is what it would have been without it.

    Returns:
        The factor of each residual connection, by the module's name; none for other models.
    """
    model: Any = trainer.model
    loaded = run.checkpoint is not None or run.settings["model"]["model_name_or_path"] is not None
    if loaded or getattr(model.config, "initialization", None) != "admin":
        return {}
    batch = first_batch(trainer)
    factors = profile_admin(model, **batch)
    spread = f"{min(factors.values()):.2f} to {max(factors.values()):.2f}"
    rows = len(next(iter(batch.values())))
    report(f"Admin: factors of {len(factors)} residual connections from {spread}, measured on {rows} rows.")
    return factors


def first_batch(trainer: RunTrainer) -> dict[str, Any]:
    """Return the rows that the first epoch begins with, as many as one process takes, on the trainer's device.

    The Trainer's own loader would draw from the global random state, and give each process rows of its own.
    """
    dataset: Any = trainer.train_dataset
    if isinstance(dataset, IterableDataset):
        rows = list(islice(dataset, trainer.args.train_batch_size))
        return dict(trainer._prepare_inputs(trainer.data_collator(rows)))
    order = trainer._get_train_sampler()  # with a generator of its own
    numbers = range(len(dataset)) if order is None else order
    rows = [dataset[number] for number in islice(numbers, trainer.args.train_batch_size)]
    return dict(trainer._prepare_inputs(trainer.data_collator(rows)))
