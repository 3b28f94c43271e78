"""The methods of transformers' `Trainer` without a public name that this package overrides, each with its reason.

They can change with any release. When this test fails after an upgrade: read the method in the new `Trainer`, adapt
the override, and correct the list.
"""

import inspect

import pytest
from transformers import Seq2SeqTrainer, Trainer

from vanillaformer.training.trainer.trainer import RunTrainer, TranslationTrainer

REASONS = {
    "_determine_best_metric": "Equal scores are decided by the loss, and only steps with a checkpoint count.",
    "_get_grad_norm": "A gradient that is NaN or infinite stops or skips the step.",
    "_init_training_state": "A resumed run may be longer than the checkpoint's, and so are its intervals.",
    "_issue_warnings_after_load": "A shared tensor is saved under one of its names; the others are not missing.",
    "_load_best_model": "The whole weights of a checkpoint are divided as the model is.",
    "_load_from_checkpoint": "The whole weights of a checkpoint are divided as the model is.",
    "_load_optimizer_and_scheduler": "Trainer resumes no model divided by transformers, and keeps earlier options.",
    "_run_epoch": "A run killed after its last step resumes without another one; a stream continues where it was.",
    "_save": "Both tokenizers of a translator are saved; sharded weights are gathered.",
    "_save_checkpoint": "A checkpoint has its name once it is whole, and only then older ones are deleted.",
    "_save_rng_state": "A checkpoint is complete once all processes have written their states, and that of a stream.",
}


@pytest.mark.parametrize(("ours", "theirs"), [(RunTrainer, Trainer), (TranslationTrainer, Seq2SeqTrainer)])
def test_each_override_has_its_reason(ours, theirs):
    names = [name for name in dir(theirs) if name.startswith("_") and not name.startswith("__")]
    defined = [{name: inspect.getattr_static(trainer, name) for name in names} for trainer in (ours, theirs)]
    assert {name for name in names if defined[0][name] is not defined[1][name]} == set(REASONS)
    assert len(REASONS) <= 11
    assert not [name for name in REASONS if f"self.{name}" not in inspect.getsource(Trainer)], "it calls them no more"
