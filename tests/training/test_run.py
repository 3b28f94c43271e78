from types import SimpleNamespace

import pytest

from vanillaformer.training.run import command_line
from vanillaformer.training.trainer.callbacks import Lines, scores_text

STATE = SimpleNamespace(global_step=5, max_steps=200, is_world_process_zero=True)


@pytest.mark.parametrize("words", [
    ["--hub_token", "hf_secret"], ["--hub_token=hf_secret"], ["--hub-token", "hf_secret"],
    ["--seed", "1", "--hub_token", "hf_secret"],
])  # fmt: skip
def test_command_line_keeps_secrets(words: list[str]) -> None:
    command = command_line("train_translation", [*words, "--output_dir", "a folder"])
    assert "hf_secret" not in command
    assert command.startswith("vanillaformer train-translation ")
    assert command.endswith("--output_dir 'a folder'")


def test_scores_in_a_line_and_lines_that_end_with_the_training(capsys) -> None:
    assert scores_text({"test_accuracy": 0.5, "eval_f1": 1.0}, "test") == "accuracy 50.0%"
    assert scores_text({}, "test") == ""
    lines = Lines()
    for report in (lines.on_train_begin, lines.on_log, lines.on_train_end, lines.on_log):  # with the training they end
        report(None, STATE, None, logs={"eval_loss": 0.5})
    assert capsys.readouterr().out.count("validation") == 1
