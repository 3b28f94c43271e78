"""Translators of other designs are trained, resumed, described and used by the programs as others are."""

from pathlib import Path

import pytest
from script_runs import answers, assert_equal_weights, losses, unfinished

from vanillaformer.scripts import generate, train_translation

COMMON = """
    --max_steps 4 --eval_steps 2 --save_total_limit 5 --logging_steps 1 --per_device_train_batch_size 8 --use_cpu
    --warmup_steps 2 --tokenizer_vocab_size 300 --embedded_size 150 --max_source_length 32 --max_target_length 24
    --num_beams 2 --set hidden_size=16
"""
# Options, words of the card and words that it must not have
DESIGNS = {
    "recurrent": (
        "--preset gru-attention --r_drop 1.0 --scheduled_sampling linear --scheduled_sampling_k 10",
        ["| `cell` | `gru`: gated recurrent units |", "bahdanau2015neural", "| `input_feeding` | True |",
         "| `cross_attention` | `additive`: global, score v · tanh(W h + U e) |"],
        "vaswani2017attention",
    ),
    "mask_predict": (
        "num_hidden_layers=1 num_attention_heads=2 decoding=mask_predict",
        ["| `decoding` | `mask_predict`: all tokens at once, the least certain again", "ghazvininejad2019mask"],
        "bahdanau2015neural",
    ),
}  # fmt: skip


@pytest.mark.parametrize("design", DESIGNS)
def test_a_design_is_trained_resumed_described_and_used(design: str, tmp_path: Path, capfd) -> None:
    options, words, absent = DESIGNS[design]
    whole, resumed = (tmp_path / name for name in ("whole", "resumed"))
    argv = [*COMMON.split(), *options.split(), "--output_dir"]
    train_translation.train([*argv, str(whole)])
    unfinished(whole, resumed, 2)
    train_translation.train([*argv, str(resumed)])
    assert f"resuming from {resumed / 'checkpoint-2'}" in capfd.readouterr().out
    assert_equal_weights(whole, resumed)
    assert losses(whole) == losses(resumed)
    card = (whole / "README.md").read_text(encoding="utf-8")
    assert all(text in card for text in words)
    assert absent not in card
    command = ["--model", str(whole), "--text", "Jan 5", "Mon, Jun 25"]
    assert len(answers(capfd, *command, "--num_beams", "2")) == 2
    if design == "recurrent":
        assert list(whole.glob("modeling_*recurrent_encoder_decoder.py"))
    else:
        assert len(answers(capfd, *command, "--refinement_steps", "2", "--length_scale", "0.5")) == 2
        with pytest.raises(SystemExit, match=r"repetition_penalty=2.0: .* decoding='mask_predict'"):
            generate.main([*command, "--repetition_penalty", "2"])
