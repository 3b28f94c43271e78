"""A translator that decodes in parallel, from training to use."""

from pathlib import Path

import pytest
from script_runs import arguments, assert_equal_weights, kill_in_step, train

from vanillaformer.scripts import generate


def test_a_run_of_mask_predict_is_resumed_described_and_used(tmp_path: Path, capsys) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    options = ["--set", "decoding=mask_predict", "--num_beams", "2"]
    train("translation", whole, *options)
    kill_in_step("translation", 5, arguments("translation", killed, *options))
    train("translation", killed, *options)
    assert_equal_weights(whole, killed)
    card = (whole / "README.md").read_text("utf-8")
    assert "| decoding | all tokens at once, the least certain again and again" in card
    assert "ghazvininejad2019mask" in card
    capsys.readouterr()
    command = ["--model", str(whole), "--text", "May 6, 2031"]
    generate.main([*command, "--refinement_steps", "2", "--length_scale", "0.5"])
    assert capsys.readouterr().out.count("\n") >= 1
    with pytest.raises(SystemExit, match=r"repetition_penalty=2.0: the model has decoding='mask_predict'"):
        generate.main([*command, "--repetition_penalty", "2"])
