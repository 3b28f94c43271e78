"""A run that is killed continues where it was, and ends where it would have ended."""

from pathlib import Path

import pytest
import script_runs
import torch
from refusals import ends, refused
from script_runs import answers, arguments, assert_equal_weights, kill, logged, losses, text_file, train, unfinished

from vanillaformer.scripts import generate, train_translation
from vanillaformer.training.run_folder.files import SAVING, checkpoints


@pytest.mark.parametrize("job", script_runs.PROGRAMS)
def test_killed_and_resumed_equals_uninterrupted(job: str, trained, tmp_path: Path, capfd) -> None:
    whole = trained(job)
    script_runs.kill_in_step(job, 3, arguments(job, tmp_path))
    assert not (tmp_path / "model.safetensors").exists()
    assert (tmp_path / "checkpoint-2" / "trainer_state.json").exists()
    train(job, tmp_path)
    assert f"resuming from {tmp_path / 'checkpoint-2'}" in capfd.readouterr().out
    for part in ("", "checkpoint-4", "checkpoint-6"):
        assert_equal_weights(whole / part, tmp_path / part)
    assert losses(tmp_path)[3:] == losses(whole)[3:]
    name = "preprocessor_config.json" if "image" in job else "tokenizer.json"
    assert (tmp_path / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.parametrize(("path", "files"), [(f"{SAVING}/", 1), (f"{SAVING}/", 3), ("", 1)])
def test_killed_while_it_saves(path: str, files: int, trained, tmp_path: Path, capfd) -> None:
    """A checkpoint has its name only once it is complete."""
    whole, name = trained("causal"), f"{path}checkpoint-4"
    kill("causal", arguments("causal", tmp_path), script_runs.die_while_saving, f"{tmp_path}/{name}", files)
    assert (tmp_path / SAVING / "checkpoint-4").exists()
    assert not (tmp_path / "checkpoint-4").exists()
    train("causal", tmp_path)
    assert f"resuming from {tmp_path / 'checkpoint-2'}" in capfd.readouterr().out
    for part in ("", "checkpoint-4", "checkpoint-6"):
        assert_equal_weights(whole / part, tmp_path / part)


@pytest.mark.parametrize("job", ["causal", "classification"])  # the last step ends an epoch, or does not
def test_killed_after_the_last_step(job: str, trained, tmp_path: Path) -> None:
    unfinished(trained(job), tmp_path, 6)
    (tmp_path / "config.json").unlink()
    assert train(job, tmp_path).details["steps"] == 6
    assert not (tmp_path / "checkpoint-7").exists()
    assert_equal_weights(trained(job), tmp_path)
    assert (tmp_path / "config.json").read_bytes() == (trained(job) / "config.json").read_bytes()


# What has a state or random numbers of its own. Of 30 rows an epoch has 4 steps: the fifth must find the order and the
# masks of the second one.
EPOCHS = "--max_train_samples 30 --eval_steps 1 --block_size 12"
SAMPLED = "--scheduled_sampling linear --scheduled_sampling_k 5 --predict_with_generate False"
PACKED = "TEXTS --max_train_samples 80 --packing --block_size 24"
RESUMED = {
    "a later epoch of a wide part": "classification --max_train_samples 30 --eval_steps 1 --ema_decay 0.7 --r_drop 1 "
    "--set wide_max_ngram=2 wide_buckets=64",
    "masks of a later epoch": f"masked LINES {EPOCHS}",
    "pairs of a later epoch": f"mlm+nsp LINES {EPOCHS}",
    "packed masks": f"masked {PACKED} --eval_steps 1",
    "muon, two vocabularies, scheduled sampling": f"translation {SAMPLED} --optim muon --weight_decay 0.1 "
    "--lr_scheduler_type inverse_sqrt --joint_vocabulary False",
    "radam, r_drop": "translation --optim radam --r_drop 2 --label_smoothing_factor 0.1 --lr_scheduler_type cosine "
    "--tokens_per_batch 400 --predict_with_generate False",
    "factors in float32": "translation --optim adafactor --dtype bfloat16 --predict_with_generate False",
    "ctc": "translation --lr_scheduler_type greedy --set decoding=ctc",
    "moving average of packed texts, a measured initialization": f"causal {PACKED} --ema_decay 0.7 "
    "--gradient_accumulation_steps 2 --per_device_train_batch_size 4 --set norm_placement=admin num_hidden_layers=2",
    "pointer generator": f"translation {SAMPLED} --set output_distribution=pointer_generator --ema_decay 0.7",
    "batches by tokens": "classification --tokens_per_batch 200 --optim muon --gradient_accumulation_steps 2 "
    "--logging_steps 3",
    "plateau, noise and workers": "classification --lr_scheduler_type reduce_lr_on_plateau --neftune_noise_alpha 5 "
    "--dataloader_num_workers 1 --dataloader_persistent_workers true --set layer_drop=0.2 drop_path_rate=0.1",
    "early stopping": "causal TEXTS --early_stopping_patience 3 --learning_rate 2 --eval_steps 1 --eval_on_start",
    "rates by width": "causal --set parametrization=mup base_width=4 --optim muon",
    "streamed translation": "translation STREAM --predict_with_generate False",
    "streamed ahead": "causal STREAM --dataloader_num_workers 1 --max_steps -1 --max_tokens 1000",
    **{f"streamed {job}": f"{job} STREAM" for job in ("causal", "masked", "classification", "image_classification")},
}


def options_of(job: str, words: str, folder: Path) -> list[str]:
    """Return options with the files that the capital words stand for."""
    lines = [f"the line with the number {number}" for number in range(60)]
    files = {
        "LINES": lambda: text_file(folder, lines, "\n" if job == "masked" else ". And one more.\n"),
        "TEXTS": lambda: text_file(folder),
        "STREAM": lambda: script_runs.stream_options(job, folder),
    }
    return [option for word in words.split() for option in (files[word]() if word in files else [word])]


@pytest.mark.parametrize("case", RESUMED)
def test_resumed_from_a_checkpoint_equals_uninterrupted(case: str, tmp_path: Path) -> None:
    job, words = RESUMED[case].split(" ", maxsplit=1)
    options, whole, resumed = options_of(job, words, tmp_path), tmp_path / "whole", tmp_path / "resumed"
    run = train(job, whole, *options)
    if "later epoch" in case:
        assert run.details["rows"]["train"] < 5 * 8
    *_, start, last = sorted(checkpoints(whole))
    assert last == (3 if case == "early stopping" else 6)
    train(job, resumed, *options, "--resume_from_checkpoint", str(whole / f"checkpoint-{start}"))
    for part in ("", f"checkpoint-{last}"):
        assert_equal_weights(whole / part, resumed / part)
    assert losses(whole) == losses(resumed)
    assert logged(whole, "eval_loss") == logged(resumed, "eval_loss")
    one, other = (script_runs.record(folder)["metrics"] for folder in (whole, resumed))
    assert (one.keys(), one["train_loss"]) == (other.keys(), other["train_loss"])
    assert not (resumed / f"checkpoint-{start}").exists()
    if "moving average" in case:
        assert_equal_weights(*(path / "checkpoint-6" / "training_weights.safetensors" for path in (whole, resumed)))


@pytest.mark.parametrize(("optim", "factor"), [("adamw_torch_fused", 1 / 4), ("muon", 1 / 2)])
def test_a_resumed_run_has_the_rates_of_its_command(optim: str, factor: float, tmp_path: Path) -> None:
    """Not those of its checkpoint, which restores the optimizer with its options; some go by the model's width."""
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    options = "--optim", optim, "--set", "parametrization=mup", "base_width=4"
    train("causal", whole, *options)
    changed = "--learning_rate", "1e-2", "--weight_decay", "0.3", "--adam_beta2", "0.9"
    train("causal", resumed, *options, "--resume_from_checkpoint", str(whole / "checkpoint-4"), *changed)
    old, new = (logged(folder, "learning_rate") for folder in (whole, resumed))
    assert new == [*old[:4], *(pytest.approx(10 * rate) for rate in old[4:])]
    groups = torch.load(resumed / "checkpoint-6" / "optimizer.pt", weights_only=True)["param_groups"]
    assert {group["initial_lr"] for group in groups} == {1e-2, 1e-2 * factor}
    assert 0.3 / factor in {group["weight_decay"] for group in groups}  # a rate times its decay stays
    assert {group["betas"][1] for group in groups if "betas" in group} == {0.9}


def test_a_checkpoint_without_its_optimizer_is_not_resumed_from(trained, tmp_path: Path, capfd) -> None:
    unfinished(trained("causal"), tmp_path, 4)
    for number in (2, 4):
        (tmp_path / f"checkpoint-{number}" / "optimizer.pt").unlink()
    chosen = "--resume_from_checkpoint", str(tmp_path / "checkpoint-4")
    refused("checkpoint-4 has no state of an optimizer to resume from", train, "causal", tmp_path, *chosen)
    train("causal", tmp_path)
    assert f"Run {tmp_path}: from the beginning" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("options", "reason"),
    [("--tokenizer_vocab_size 200", "tokenizer_vocab_size"), ("--max_train_samples 9", "max_train_samples")],
)
def test_a_checkpoint_of_a_run_with_another_model_or_data(options: str, reason: str, trained, tmp_path: Path) -> None:
    message = f"checkpoint-4 is of a run with other settings .*{reason}"
    chosen = f"--resume_from_checkpoint {trained('causal') / 'checkpoint-4'} {options}"
    refused(message, train, "causal", tmp_path, *chosen.split())


@pytest.mark.parametrize("options", [[], ["--tokens_per_batch", "400"]])
def test_workers_that_outlive_an_epoch(options: list[str], tmp_path: Path) -> None:
    """They draw each epoch's masks, as others do, and evaluations have their own rows."""
    lines = "\n".join(f"the line with the number {number}" for number in range(40))
    for name in ("train", "other"):
        (tmp_path / f"{name}.txt").write_text(lines if name == "train" else lines.upper())
    files = "--train_file", str(tmp_path / "train.txt"), "--test_file", str(tmp_path / "other.txt")
    more = "--set dropout=0 --learning_rate 0 --block_size 24 --max_train_samples 16"
    options = [*files, *options, *more.split()]
    workers = "--dataloader_num_workers", "1", "--dataloader_persistent_workers"
    runs = [train("masked", tmp_path / str(kept), *options, *workers, str(kept)) for kept in (False, True)]
    alone, together = (losses(run.folder) for run in runs)
    assert together == alone
    assert alone[:2] != alone[2:4]
    assert runs[0].metrics["test_loss"] == runs[1].metrics["test_loss"] != runs[1].metrics["eval_loss"]


# Translators of other designs are trained, resumed, described and used by the programs as others are.
COMMON = """
    --max_steps 4 --eval_steps 2 --save_total_limit 5 --logging_steps 1 --per_device_train_batch_size 8 --use_cpu
    --warmup_steps 2 --tokenizer_vocab_size 300 --embedded_size 150 --max_source_length 32 --max_target_length 24
    --num_beams 2 --set hidden_size=16
"""
# Options, and words of the card
DESIGNS = {
    "recurrent": ("--preset gru-attention --r_drop 1.0 --scheduled_sampling linear --scheduled_sampling_k 10",
                  ["| `cell` | `gru`: gated recurrent units |", "bahdanau2015neural"]),
    "mask_predict": ("num_hidden_layers=1 num_attention_heads=2 decoding=mask_predict",
                     ["| `decoding` | `mask_predict`: all tokens at once, after the length", "ghazvininejad2019mask"]),
}  # fmt: skip


@pytest.mark.parametrize("design", DESIGNS)
def test_a_design_is_trained_resumed_described_and_used(design: str, tmp_path: Path, capfd) -> None:
    (options, words), (whole, resumed) = DESIGNS[design], (tmp_path / name for name in ("whole", "resumed"))
    argv = [*COMMON.split(), *options.split(), "--output_dir"]
    train_translation.train([*argv, str(whole)])
    unfinished(whole, resumed, 2)
    train_translation.train([*argv, str(resumed)])
    assert f"resuming from {resumed / 'checkpoint-2'}" in capfd.readouterr().out
    assert_equal_weights(whole, resumed)
    assert losses(whole) == losses(resumed)
    card = (whole / "README.md").read_text(encoding="utf-8")
    assert all(text in card for text in words)
    command = ["--model", str(whole), "--text", "Jan 5", "Mon, Jun 25"]
    assert len(answers(capfd, *command, "--num_beams", "2")) == 2
    if design == "mask_predict":
        assert len(answers(capfd, *command, "--refinement_steps", "2", "--length_scale", "0.5")) == 2
        ends("repetition_penalty=2.0", generate.main, *command, "--repetition_penalty", "2")
