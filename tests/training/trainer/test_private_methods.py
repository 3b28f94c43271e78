"""The methods of transformers' `Trainer` without a public name that this package overrides, each with its reason.

They can change with any release. When this test fails after an upgrade: read the method in the new `Trainer`, adapt
the override, and correct the list.
"""

import ast
import inspect
from pathlib import Path

import pytest
from transformers import Seq2SeqTrainer, Trainer

import vanillaformer.training.trainer as package
from vanillaformer.training.trainer.trainer import RunTrainer, TranslationTrainer

REASONS = {
    "_determine_best_metric": "Equal scores are decided by the loss, and only steps with a checkpoint count.",
    "_get_grad_norm": "A gradient that is NaN or infinite stops or skips the step.",
    "_issue_warnings_after_load": "A shared tensor is saved under one of its names; the others are not missing.",
    "_load_best_model": "The whole weights of a checkpoint are divided as the model is.",
    "_load_from_checkpoint": "The whole weights of a checkpoint are divided as the model is.",
    "_load_optimizer_and_scheduler": "Trainer resumes no model divided by transformers; its state is in parts.",
    "_run_epoch": "A run killed after its last step resumes without another one; a stream continues where it was.",
    "_save": "Both tokenizers of a translator are saved; sharded weights are gathered.",
    "_save_optimizer_and_scheduler": "Trainer saves no state of a model divided by transformers.",
    "_save_checkpoint": "A checkpoint that cannot be written costs no older one, and says what is left.",
    "_save_rng_state": "A checkpoint is complete once all processes have written their states, and that of a stream.",
}


def test_each_override_has_its_reason():
    """Private methods of transformers' Trainer that a class in training/trainer/ defines again."""
    names = {name for name in dir(Seq2SeqTrainer) if name.startswith("_") and not name.startswith("__")}
    found = set()
    for path in Path(package.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name.endswith("Trainer"):
                found |= {entry.name for entry in node.body if isinstance(entry, ast.FunctionDef)} & names
    assert found == set(REASONS)
    assert len(REASONS) <= 11


@pytest.mark.parametrize("name", REASONS)
def test_transformers_still_calls_it(name):
    assert callable(getattr(Trainer, name, None)), f"transformers' Trainer has no {name} any more"
    assert f"self.{name}" in inspect.getsource(Trainer), f"transformers' Trainer no longer calls {name}"


@pytest.mark.parametrize("trainer", [RunTrainer, TranslationTrainer])
def test_the_trainers_of_a_run_have_all_of_them(trainer):
    theirs = {name for name in REASONS if getattr(trainer, name) is not getattr(Trainer, name)}
    assert theirs == set(REASONS)
