"""A recurrent model is trained, killed, resumed, described and used by the programs as a Transformer is."""

from pathlib import Path

from script_runs import assert_equal_weights, kill_in_step, losses

from vanillaformer.scripts import generate, train_translation

RUN = """
    --preset gru-attention --set hidden_size=16 --max_steps 4 --eval_steps 2 --save_total_limit 5 --logging_steps 1
    --per_device_train_batch_size 8 --use_cpu --warmup_steps 2 --tokenizer_vocab_size 300 --embedded_size 150
    --max_source_length 32 --max_target_length 24 --r_drop 1.0 --scheduled_sampling linear --scheduled_sampling_k 10
    --num_beams 2
"""


def test_a_recurrent_model_is_trained_resumed_described_and_used(tmp_path: Path, capfd) -> None:
    whole, resumed = (tmp_path / name for name in ("whole", "resumed"))
    train_translation.train([*RUN.split(), "--output_dir", str(whole)])
    kill_in_step("translation", 3, [*RUN.split(), "--output_dir", str(resumed)])
    train_translation.train([*RUN.split(), "--output_dir", str(resumed)])
    assert f"resuming from {resumed / 'checkpoint-2'}" in capfd.readouterr().out
    assert_equal_weights(whole, resumed)
    assert losses(whole) == losses(resumed)
    card = (whole / "README.md").read_text(encoding="utf-8")
    assert "| cells | gated recurrent units |" in card
    assert "| attention | global, score v · tanh(W h + U e), its result fed into the next step |" in card
    assert "bahdanau2015neural" in card
    assert "vaswani2017attention" not in card
    assert (whole / "modeling_recurrent_encoder_decoder.py").is_file()
    generate.main(["--model", str(whole), "--text", "Jan 5", "Mon, Jun 25", "--num_beams", "2"])
    assert capfd.readouterr().out.count("\n") == 2
