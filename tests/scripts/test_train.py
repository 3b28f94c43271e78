"""What the training programs take, tokenizers from elsewhere too, and what they leave behind."""

import json
from pathlib import Path

import pytest
import script_runs
import torch
from datasets import load_dataset
from huggingface_hub.errors import StrictDataclassError
from refusals import ends, refused
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

from vanillaformer.data.arguments import LanguageModelDataArguments as LmData
from vanillaformer.data.preprocessing.batching import BlockCollator
from vanillaformer.data.preprocessing.language_model import block_rows
from vanillaformer.scripts import demo
from vanillaformer.tokenization import load_pair
from vanillaformer.tokenization import train as train_tokenizer
from vanillaformer.training.metrics.scores import SCORES, scores_of
from vanillaformer.training.run_folder.files import files_of_run
from vanillaformer.training.tokenizers import warn_of_other_tokenizers

BASELINES = {
    "translation": ["copied source", "unigram of the targets"],
    "classification": ["majority class"],
    "token_classification": ["tag of the word"],
    "image_classification": ["majority class", "nearest mean image"],
    "masked_image": ["mean image"],
    **{job: ["unigram"] for job in ("causal", "masked", "mlm+nsp", "span")},
}


@pytest.mark.parametrize("job", script_runs.PROGRAMS)
def test_a_run_leaves_scores_pictures_and_how_it_went(job: str, trained) -> None:
    folder = trained(job)
    names = "run", "all_results", "trainer_state"
    run, results, history = (json.loads((folder / f"{name}.json").read_text()) for name in names)
    metrics, details = run["metrics"], run["details"]
    usual = {score.name for score in scores_of(job) if not score.optional}
    for split in ("eval", "test"):
        assert {name for name in SCORES if isinstance(metrics.get(f"{split}_{name}"), float)} == usual
    assert (folder / "loss_curve.png").read_bytes().startswith(b"\x89PNG")
    assert (results["eval_loss"], results["baselines"]) == (metrics["eval_loss"], details["baselines"])
    assert list(details["baselines"]) == BASELINES[job]
    for scores in details["baselines"].values():
        assert {name.split("_")[0] for name in scores} == {"eval", "test"}
        assert scores.keys() <= metrics.keys()
    assert details["training_rows"]["rows"] > 0
    assert details["training_rows"]["loss"] > 0
    assert details["diagnosis"]
    assert "image" in job or AutoTokenizer.from_pretrained(folder).model_max_length == 64  # what the model reads
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert f"How it went: {' '.join(details['diagnosis'])}\n" in card
    assert f"of the baseline ({BASELINES[job][0]}) |" in card
    # The best checkpoint is the model
    script_runs.assert_equal_weights(folder, folder / f"checkpoint-{history['best_global_step']}")
    assert {2, 4, 6} <= {entry["step"] for entry in history["log_history"] if "eval_loss" in entry}
    wanted = {"all_results.json", "loss_curve.png"}
    if job != "masked_image":
        wanted.add("samples.jsonl" if job in ("causal", "span") else "predictions_test.jsonl")
    wanted |= {"confusion_matrix.png"} if "f1" in usual else set()
    wanted |= {"example.png"} if job == "image_classification" else set()
    left = {path.name for path in folder.iterdir()}
    assert wanted <= left
    # Another run may replace all of it
    assert {path.relative_to(folder).parts[0] for path in files_of_run(folder)} == left


def test_two_vocabularies_and_settings_of_saved_translators(trained) -> None:
    folder = trained("separate")
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert (model.generation_config.max_length, model.generation_config.num_beams) == (25, 4)
    assert model.config.use_cache is True
    source, target = load_pair(folder)
    assert source.get_vocab() != target.get_vocab()
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (len(source), len(target))
    assert load_pair(folder / "checkpoint-2")[1].get_vocab() == target.get_vocab()


@pytest.mark.parametrize("start", ["masked", "mlm+nsp", "causal"])
def test_classifier_from_a_language_model(start: str, trained, tmp_path: Path) -> None:
    # Without a step that changes anything the body is the language model's, and so is the tokenizer.
    frozen = ["--learning_rate", "0", "--max_steps", "1"]
    script_runs.train("classification", tmp_path, "--model_name_or_path", str(trained(start)), *frozen)
    old, new = script_runs.weights(trained(start)), script_runs.weights(tmp_path)
    body = [name for name in new if name.startswith("model.")]
    assert len(body) > 10
    for name in body:
        assert torch.equal(old[name], new[name]), name
    assert (tmp_path / "tokenizer.json").read_bytes() == (trained(start) / "tokenizer.json").read_bytes()
    assert f"the weights of {trained(start)}" in (tmp_path / "README.md").read_text()


REFUSED = [
    ("causal", "--preset bert-base", "--preset bert-base: choose from gpt"),
    ("mlm+nsp", "--preset gpt2", "--preset gpt2: choose from bert"),
    ("causal", "--preset gpt2 --model_name_or_path x", "give one of them"),
    ("image_classification", "--set num_channels=1", "num_channels=1 of the model: images are read in color"),
    ("causal", "--block_size 65", "65 tokens do not fit max_position_embeddings=64"),
    ("translation", "--max_source_length 100", "100 tokens do not fit max_position_embeddings=64"),
    ("masked", "--mlm_probability 1.5", "--mlm_probability 1.5: it must be between 0 and 1"),
    ("masked", "--scheduled_sampling linear --scheduled_sampling_k 5", "linear: .* feeds itself no tokens"),
    ("causal", "--fp16", "--fp16 needs an accelerator: .*; --bf16 works there"),
    ("classification", "--report_to comet_ml", "--report_to comet_ml: it is not installed .pip install comet_ml"),
    ("mlm+nsp", "--packing", "--packing is not for --objective mlm"),
    ("translation", "--source_lang en_XX --target_lang de_DE", "de_DE: the tokenizer has no language codes"),
    ("translation", "--metrics perplexity", "--metrics perplexity: it does not score texts"),
    ("translation", "--metrics rougeL --predict_with_generate False", "--metrics rougeL: not with --predict"),
    ("span", "--mean_span_length 0.5", "--mean_span_length 0.5: it must be at least 1"),
    ("span", "--noise_density 1", "--noise_density 1.0: it must be between 0 and 1"),
    ("span", "--noise delete", "--noise delete does not go with --objective span"),
    ("span", "--set decoding=mask_predict", "--objective span is for decoding=autoregressive, not mask_predict"),
    ("causal", "--mean_span_length 2", "--mean_span_length 2.0 does not go with --objective causal"),
    ("span", "--objective denoise --noise rotate --noise_density 0.1", "--noise rotate corrupts no single tokens"),
    ("causal", "--packing --block_stride 8", "--block_stride .* not for --packing"),
    ("mlm+nsp", "--block_stride 8", "--block_stride .* not for --objective mlm"),
    ("mlm+nsp", "STREAM", "--streaming is not for --objective mlm"),
    ("causal", "--turns_column turns --objective masked", "--turns_column turns does not go with --objective"),
    ("causal", "--turns_column turns --streaming", "--turns_column turns does not go with --streaming"),
    ("classification", "--dataloader_drop_last true --per_device_train_batch_size 500", "no step was made: the"),
    ("masked_image", "--r_drop 0.2", "--r_drop 0.2 is for --objective image_classification"),
    ("masked_image", "--mask_ratio 1", "--mask_ratio 1.0: it must be between 0 and 1"),
    ("image_classification", "--tokens_per_batch 100", "--tokens_per_batch 100: images have no tokens"),
    ("image_classification", "--random_erasing 2", "--random_erasing 2.0: it must be from 0 to 1"),
]


@pytest.mark.parametrize(("job", "options", "message"), REFUSED)
def test_what_is_refused_leaves_no_model(job: str, options: str, message: str, tmp_path: Path) -> None:
    files = script_runs.stream_options(job, tmp_path) if "STREAM" in options else []
    refused(message, script_runs.train, job, tmp_path / "run", *files, *options.removeprefix("STREAM").split())
    for name in ("config.json", "model.safetensors", "README.md"):
        assert not (tmp_path / "run" / name).exists()
    assert not (tmp_path / "run" / "run.json").exists() or not script_runs.record(tmp_path / "run")["finished"]


# The demo, on a toy that learns nothing: everything it shows and leaves is there.


def test_demo(tmp_path: Path, capsys) -> None:
    argv = [*script_runs.COMMON.split(), *script_runs.PAIRS.split(), "--output_dir", str(tmp_path), "--max_steps", "2"]
    with script_runs.pictures(drawn=True):
        demo.main(argv)
    shown = capsys.readouterr().out
    assert shown.count("✗") + shown.count("✓") == min(demo.EXAMPLES, 5)
    assert "On 5 held-out pairs: loss" in shown
    for name in ("cross_attention.png", "loss_curve.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    (tmp_path / "cross_attention.png").unlink()
    demo.main(argv)
    assert "nothing to train" in capsys.readouterr().out
    assert (tmp_path / "cross_attention.png").exists()
    capsys.readouterr()
    ends("2", demo.main, "--num_train_epochs", "x")
    assert capsys.readouterr().out == ""


TEXTS = [f"line {number} of <s>old</s> text" for number in range(20)]


@pytest.fixture(scope="module")
def without_padding(tmp_path_factory) -> Path:
    """A decoder's tokenizer without a pad token, as GPT-2's and Llama's are."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = train_tokenizer(TEXTS, kind="decoder", vocab_size=300)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("job", "more"), [
    ("causal", []),
    ("classification", ["--preset", "gpt-tiny", "--max_length", "8"]),
    ("translation", ["--num_beams", "2"]),
], ids=["blocks", "classification", "translation"])  # fmt: skip
def test_a_tokenizer_without_padding(job, more, without_padding, tmp_path, capsys) -> None:
    given = "--tokenizer_algorithm", "word", "--tokenizer_name_or_path", str(without_padding)
    script_runs.train(job, tmp_path, *more, *given, "--max_steps", "2")
    printed = capsys.readouterr().out
    for option in ("tokenizer_algorithm word", "tokenizer_vocab_size 300"):
        assert f"--{option} is not used: the tokenizer is that of {without_padding}." in printed
    assert "--lowercase" not in printed
    tokenizer, config = AutoTokenizer.from_pretrained(tmp_path), AutoConfig.from_pretrained(tmp_path)
    assert tokenizer.pad_token == "</s>"
    assert tokenizer.pad_token_id == config.pad_token_id == 3
    if job != "classification":
        assert json.loads((tmp_path / "generation_config.json").read_text())["pad_token_id"] == 3
    assert len(script_runs.answers(capsys, "--model", tmp_path, "--text", "line", "a much longer line")) == 2


def test_an_end_token_that_pads_too_is_learned_but_cannot_be_a_blank(without_padding, tmp_path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(without_padding, pad_token="</s>")
    (tmp_path / "t.txt").write_text("\n".join(TEXTS[:3]))
    texts = load_dataset("text", data_files=str(tmp_path / "t.txt"))
    rows = list(block_rows(texts, tokenizer, LmData(block_size=30))["train"])
    assert 1 < len(rows[-1]["input_ids"]) < 30
    batch = BlockCollator(tokenizer)(rows)
    wanted = [token for row in rows for token in row["input_ids"]]
    assert (batch["labels"][batch["labels"] >= 0].tolist(), batch["attention_mask"].sum()) == (wanted, len(wanted))
    assert wanted.count(tokenizer.eos_token_id) == 3
    options = ["--tokenizer_name_or_path", str(without_padding), "--set", "decoding=ctc"]
    message = "as its blank, .* pad_token_id=3 and eos_token_id=3"
    refused(message, script_runs.train, "translation", tmp_path, *options, error=StrictDataclassError)


def test_a_warning_names_another_tokenizer_than_the_models(without_padding, tmp_path, capsys) -> None:
    train_tokenizer(["another day"] * 9, kind="decoder", vocab_size=280).save_pretrained(tmp_path)
    warn_of_other_tokenizers(load_pair(without_padding), "other", tmp_path, "mine")
    (warning,) = capsys.readouterr().out.splitlines()
    said = "Warning: --tokenizer_name_or_path other is not the tokenizer of --model_name_or_path mine"
    assert warning.startswith(said)
    warn_of_other_tokenizers(load_pair(tmp_path), "same", tmp_path, "mine")
    assert capsys.readouterr().out == ""


def test_a_pipeline_truncates_a_long_text_and_our_own_reading_does_not_warn(trained, capsys) -> None:
    long_text = "Deutschland " * 200
    (answer,) = pipeline("text-classification", str(trained("classification")))(long_text, truncation=True)
    assert 0 < answer["score"] <= 1
    output = script_runs.generated(capsys, "--model", trained("classification"), "--text", long_text)
    assert output.out.startswith(answer["label"])
    assert "longer than the specified maximum" not in output.err
