"""Ensembles distilled into one model: several are trained, and one more learns their mean.

The student learns the mean of the teachers' probabilities for the very inputs that it reads, in which tokens are
hidden at random: it matches their function (Hinton et al. 2015, arXiv 1503.02531; Beyer et al. 2022, arXiv
2106.05237), and takes no longer to run than one of them.
"""

import copy
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, set_seed

from vanillaformer.console.reporting import report
from vanillaformer.hub.atomic_files import write_text
from vanillaformer.hub.file_names import CONFIG

from ..run_folder.files import RECORD, TEACHERS, last_checkpoint, spent_of_budget
from ..run_folder.run import Run, as_written, changed_settings, is_longer
from .account import COUNTED, from_all
from .budget import COUNTS, budget_option
from .callbacks import StopWithCheckpoint, replace_callbacks
from .losses import Batch, Inputs, without_labels

TEACHERS_SHARE = 0.5
"""Part of a run's length that the teachers have: of its time together, of its passes or steps each."""
SEED_STEP = 1_000
"""Difference of the seeds of two teachers."""


class Distillation:
    """`-Σ_x Σ_c q(c|x) log p(c|x) / items`, q the mean of the probabilities of teachers on the student's device."""

    def __init__(self, teachers: list[PreTrainedModel], device: torch.device):
        self.teachers: list[Any] = [model.eval().requires_grad_(False).to(device) for model in teachers]

    def __call__(self, model: nn.Module, batch: Batch, options: dict[str, bool]) -> Any:
        inputs = without_labels(batch.inputs)
        logits = model(**inputs)["logits"].float()
        wanted = self.probabilities(inputs)
        return {"loss": nn.functional.cross_entropy(logits, wanted, reduction="sum") / batch.items}

    @torch.no_grad()
    def probabilities(self, inputs: Inputs) -> torch.Tensor:
        """Return the mean of the teachers' probabilities (B, C) for a batch without labels."""
        return torch.stack([model(**inputs)["logits"].float().softmax(dim=-1) for model in self.teachers]).mean(dim=0)


def train_teachers(run: Run, trainer: Any) -> Distillation:
    """Train the ensemble of a run, or its missing models, each with another seed.

    They are kept in the run's folder: a longer run learns from the same ones. They share the rows, arguments and
    scores of the student's trainer (`RunTrainer`), whose `new_model` makes them.
    """
    args, folder = trainer.args, run.folder / TEACHERS
    with args.main_process_first(local=False, desc="looking for teachers"):
        if trainer.is_world_process_zero():
            _discard_other_teachers(folder, run)
    parts = [folder / str(number) for number in range(1, args.ensemble + 1)]
    if args.max_time is not None and run.checkpoint is None:
        before = sum(_spent_time(part) for part in parts)  # in a process that was interrupted
        args.started, trainer.budget.origin = args.started - before, trainer.budget.origin - before
    models: list[PreTrainedModel] = []
    for number, part in enumerate(parts, start=1):
        model = trainer.new_model(args.seed + number * SEED_STEP)
        if not (part / CONFIG).is_file():
            report(f"Teacher {number} of {args.ensemble}")
            _train_teacher(run, trainer, model, part, parts[: number - 1])
        models.append(type(model).from_pretrained(part))
    trainer.account.add_teachers([_record(part)["consumed"] for part in parts])
    set_seed(args.seed)  # as if the teachers had been there
    report(f"Student, distilled from {args.ensemble} teachers")
    distillation = Distillation(models, args.device)
    distillation.teachers = [trainer.account.counted(model) for model in models]
    return distillation


def _discard_other_teachers(folder: Path, run: Run) -> None:
    """Delete the teachers of another run, or of a longer one, and note whose the next ones are.

    Those that a checkpoint of the student has learned from stay, whatever else has changed.
    """
    if run.checkpoint is not None and (folder / RECORD).is_file():
        return
    origin = as_written({"settings": run.settings, "data": run.data, "defaults": run.details.get("defaults")})
    note = folder / RECORD
    if note.is_file():
        found = json.loads(note.read_text(encoding="utf-8"))
        changes = changed_settings(found["settings"], run.settings, run.defaults)
        if {**found, "settings": origin["settings"]} == origin and (not changes or is_longer(changes)):
            return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_text(note, json.dumps(origin, sort_keys=True))


def _record(folder: Path) -> dict[str, Any]:
    """Return a teacher's consumption and duration; zeros until it is ready."""
    file = folder / RECORD
    if file.is_file():
        return json.loads(file.read_text(encoding="utf-8"))
    return {"consumed": dict.fromkeys(COUNTED, 0), "seconds": 0.0}


def _spent_time(folder: Path) -> float:
    """Return how long a teacher has been trained with a time budget, ready or not."""
    checkpoint = last_checkpoint(folder)
    return _record(folder)["seconds"] or (spent_of_budget(checkpoint) if checkpoint else 0.0)


def _train_teacher(run: Run, trainer: Any, model: PreTrainedModel, folder: Path, earlier: Sequence[Path]) -> None:
    teacher: Any = type(trainer)(
        model=model,
        args=teacher_arguments(trainer.args, folder, [_record(part)["consumed"] for part in earlier]),
        train_dataset=trainer.train_dataset,
        eval_dataset=trainer.eval_dataset,
        data_collator=trainer.data_collator,
        processing_class=trainer.processing_class,
        compute_metrics=trainer.compute_metrics,
    )
    teacher.account.cost = trainer.account.cost  # it is as large as the student
    replace_callbacks(teacher)
    teacher.add_callback(StopWithCheckpoint(run.stopping, teacher))
    checkpoint = last_checkpoint(folder)
    teacher.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if teacher.is_world_process_zero():
        seconds = 0.0 if teacher.budget is None else teacher.budget.spent
        write_text(folder / RECORD, json.dumps({"consumed": teacher.account.record(), "seconds": seconds}))
    teacher.save_model()  # as a whole: a folder with a config is a teacher that is ready
    if teacher.is_world_process_zero():
        for path in folder.glob("checkpoint-*"):
            shutil.rmtree(path)
    teacher.accelerator.wait_for_everyone()


def teacher_arguments(args: Any, folder: Path, earlier: Sequence[Mapping[str, int]]) -> Any:
    """Return a teacher's training arguments, with its share of the run's length; `earlier` is others' consumption."""
    changed, number = copy.copy(args), len(earlier) + 1
    changed.output_dir, changed.seed, changed.ensemble = str(folder), args.seed + number * SEED_STEP, 0
    changed.push_to_hub, changed.report_to = False, []
    if args.max_time is not None:
        spent = from_all(time.monotonic() - args.started, args.device)[0]
        left = args.max_time * TEACHERS_SHARE - spent + _spent_time(folder)
        changed.started = time.monotonic()
        changed.max_time = max(left / (args.ensemble - number + 1), args.max_time * TEACHERS_SHARE / 10)
    elif (option := budget_option(args)) is not None:
        left = getattr(args, option) * TEACHERS_SHARE - sum(record[COUNTS[option][0]] for record in earlier)
        setattr(changed, option, max(left, 1.0) / (args.ensemble - number + 1))
    elif args.max_steps > 0:
        changed.max_steps = max(1, round(args.max_steps * TEACHERS_SHARE))
    else:
        changed.num_train_epochs = args.num_train_epochs * TEACHERS_SHARE
    if args.max_epochs is not None:
        changed.max_epochs = args.max_epochs * TEACHERS_SHARE
    return changed
