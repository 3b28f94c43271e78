"""Ensembles distilled into one model: several are trained, and one more learns what they say together.

The student learns the mean of the teachers' probabilities for the very inputs that it reads, in which tokens are
hidden at random: it matches their function (Hinton et al. 2015, arXiv 1503.02531; Beyer et al. 2022, arXiv
2106.05237), and takes no longer to run than one of them.
"""

import copy
import json
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, set_seed

from vanillaformer.hub.file_names import CONFIG
from vanillaformer.hub.reporting import report

from ..run_folder.checkpoints import last_checkpoint
from ..run_folder.run import Run
from .callbacks import replace_callbacks
from .guards import StopWithCheckpoint, from_first_process
from .losses import Inputs, without_labels

TEACHERS = ".teachers"
"""Folder in that of a run, until it is finished."""
TEACHERS_SHARE = 0.5
"""Part of a run's length that the teachers have: of its time together, of its passes or steps each."""
SEED_STEP = 1_000
"""Difference of the seeds of two teachers."""


class Teachers:
    """The models of an ensemble, whose mean probabilities are the targets of a student.

    Args:
        models: Classifiers with the student's tokenizer and labels.
        device: Where the student is trained.
    """

    def __init__(self, models: list[PreTrainedModel], device: torch.device):
        self.models = [model.eval().requires_grad_(False).to(device) for model in models]

    @torch.no_grad()
    def probabilities(self, inputs: Inputs) -> torch.Tensor:
        """Return the mean of their probabilities (B, C) for a batch."""
        seen = without_labels(inputs)
        return torch.stack([model(**seen)["logits"].float().softmax(dim=-1) for model in self.models]).mean(dim=0)


def train_teachers(run: Run, trainer: Any) -> Teachers | None:
    """Train the ensemble of a run, or what is missing of it, each model with its own seed; None if it has none.

    Args:
        run: The run, in whose folder they are kept until it is finished.
        trainer: The student's trainer (`RunTrainer`), whose rows, arguments and scores the teachers share, and whose
            `new_model` makes them.
    """
    args = trainer.args
    if not args.ensemble:
        return None
    folder = run.folder / TEACHERS
    with args.main_process_first(local=False, desc="looking for teachers"):
        if trainer.is_world_process_zero():
            _keep_own(folder, {"settings": run.settings, "data": run.data, "defaults": run.details.get("defaults")})
    models: list[PreTrainedModel] = []
    for number in range(1, args.ensemble + 1):
        part = folder / str(number)
        model = trainer.new_model(args.seed + number * SEED_STEP)
        if not (part / CONFIG).is_file():
            report(f"Model {number} of the {args.ensemble} to learn from")
            _train_teacher(run, trainer, model, part, number)
        models.append(type(model).from_pretrained(part))
    set_seed(args.seed)  # as if the teachers had been there
    report(f"The model that learns from the mean of the {args.ensemble}")
    return Teachers(models, args.device)


def _keep_own(folder: Path, origin: dict[str, Any]) -> None:
    """Delete the teachers of another run, and note whose the next ones are."""
    note, text = folder / "run.json", json.dumps(origin, sort_keys=True)
    if note.is_file() and note.read_text(encoding="utf-8") == text:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    note.write_text(text, encoding="utf-8")


def _train_teacher(run: Run, trainer: Any, model: PreTrainedModel, folder: Path, number: int) -> None:
    teacher: Any = type(trainer)(
        model=model,
        args=teacher_arguments(trainer.args, folder, number),
        train_dataset=trainer.train_dataset,
        eval_dataset=trainer.eval_dataset,
        data_collator=trainer.data_collator,
        processing_class=trainer.processing_class,
        compute_metrics=trainer.compute_metrics,
    )
    replace_callbacks(teacher)
    teacher.add_callback(StopWithCheckpoint(run.stopping, teacher))
    checkpoint = last_checkpoint(folder)
    teacher.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    teacher.save_model()  # as a whole: a folder with a config is a teacher that is ready
    if teacher.is_world_process_zero():
        for path in folder.glob("checkpoint-*"):
            shutil.rmtree(path)
    teacher.accelerator.wait_for_everyone()


def teacher_arguments(args: Any, folder: Path, number: int) -> Any:
    """Return the training arguments of a teacher: its folder, its seed and its share of the run's length."""
    changed = copy.copy(args)
    changed.output_dir, changed.seed, changed.ensemble = str(folder), args.seed + number * SEED_STEP, 0
    changed.push_to_hub, changed.report_to = False, []
    if args.max_time is not None:
        spent = from_first_process(time.monotonic() - args.started, args.device)
        left = args.max_time * TEACHERS_SHARE - spent
        changed.started = time.monotonic()
        changed.max_time = max(left / (args.ensemble - number + 1), args.max_time * TEACHERS_SHARE / 10)
        if args.max_epochs is not None:
            changed.max_epochs = args.max_epochs * TEACHERS_SHARE
    elif args.max_steps > 0:
        changed.max_steps = max(1, round(args.max_steps * TEACHERS_SHARE))
    else:
        changed.num_train_epochs = args.num_train_epochs * TEACHERS_SHARE
    return changed


def distillation_loss(model: nn.Module, inputs: Inputs, teachers: Teachers, items: torch.Tensor | int) -> torch.Tensor:
    """Return `-Σ_x Σ_c q(c|x) log p(c|x) / items`, q the mean of the teachers' probabilities.

    Args:
        model: The student, maybe wrapped.
        inputs: A batch; its labels are not used.
        teachers: The teachers.
        items: The number of texts in all batches of the step.
    """
    logits = model(**without_labels(inputs))["logits"].float()
    return nn.functional.cross_entropy(logits, teachers.probabilities(inputs), reduction="sum") / items
