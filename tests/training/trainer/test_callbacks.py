from types import SimpleNamespace

import pytest
from transformers import TrainerControl, TrainerState

from vanillaformer.training.tasks.classification import ClassifierTrainingArguments
from vanillaformer.training.trainer.callbacks import EarlyStopping

ARGUMENTS = SimpleNamespace(
    metric_for_best_model="accuracy", greater_is_better=True, load_best_model_at_end=True, save_strategy="steps"
)


def evaluate(callback: EarlyStopping, state: TrainerState, control: TrainerControl, accuracy: float) -> None:
    """As the Trainer does: the log first, then callbacks."""
    state.global_step += 1
    state.log_history.append({"eval_accuracy": accuracy, "step": state.global_step})
    callback.on_evaluate(ARGUMENTS, state, control, metrics={"eval_accuracy": accuracy})


def test_stops_when_patience_is_over_which_is_remembered(capsys) -> None:
    callback, state, control = EarlyStopping(3), TrainerState(max_steps=100), TrainerControl()
    callback.on_train_begin(ARGUMENTS, state, control)
    for accuracy in (0.5, 0.4, 0.63, 0.62, 0.6):
        evaluate(callback, state, control, accuracy)
    state.stateful_callbacks["EarlyStopping"] = callback.state()
    for patience, stopped in ((2, True), (3, False), (4, False)):  # what is asked for now counts
        resumed, later = EarlyStopping(patience), TrainerControl()
        resumed.on_train_begin(ARGUMENTS, state, later)
        assert resumed.early_stopping_patience_counter == 2
        assert later.should_training_stop is stopped
    new, other = EarlyStopping(2), TrainerControl()
    new.on_train_begin(ARGUMENTS, TrainerState(max_steps=100), other)
    assert other.should_training_stop is control.should_training_stop is False
    capsys.readouterr()
    evaluate(callback, state, control, 0.61)
    assert control.should_training_stop
    assert control.should_save
    assert capsys.readouterr().out == "Stopped early at step 6: no better accuracy than 0.63 in 3 evaluations.\n"
    with pytest.raises(ValueError, match="--early_stopping_patience 2 needs a --metric_for_best_model"):
        ClassifierTrainingArguments(use_cpu=True, early_stopping_patience=2, metric_for_best_model=None)
