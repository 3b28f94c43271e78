"""The programs with tokenizers from elsewhere, and texts that hold the names of control tokens."""

import json
from pathlib import Path

import pytest
from datasets import load_dataset
from huggingface_hub.errors import StrictDataclassError
from script_runs import answers, json_lines, train
from transformers import AutoConfig, AutoTokenizer, pipeline

from vanillaformer.data.preprocessing.batching import BlockCollator
from vanillaformer.data.preprocessing.language_model import block_rows
from vanillaformer.scripts import generate
from vanillaformer.tokenization import load_pair
from vanillaformer.tokenization import train as train_tokenizer
from vanillaformer.training.tokenizers import warn_of_other_tokenizers

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
    train(job, tmp_path, *more, *given, "--max_steps", "2")
    printed = capsys.readouterr().out
    for option in ("tokenizer_algorithm word", "tokenizer_vocab_size 300"):
        assert f"--{option} is not used: the tokenizer is that of {without_padding}." in printed
    assert "--lowercase" not in printed
    tokenizer, config = AutoTokenizer.from_pretrained(tmp_path), AutoConfig.from_pretrained(tmp_path)
    assert tokenizer.pad_token == "</s>"
    assert tokenizer.pad_token_id == config.pad_token_id == 3
    if job != "classification":
        assert json.loads((tmp_path / "generation_config.json").read_text())["pad_token_id"] == 3
    assert len(answers(capsys, "--model", tmp_path, "--text", "line", "a much longer line")) == 2


def test_the_end_of_a_text_is_learned_where_it_pads_too_but_is_no_blank(without_padding, tmp_path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(without_padding, pad_token="</s>")
    (tmp_path / "t.txt").write_text("\n".join(TEXTS[:3]))
    texts = load_dataset("text", data_files=str(tmp_path / "t.txt"))
    rows = list(block_rows(texts, tokenizer, block_size=30)["train"])
    assert 1 < len(rows[-1]["input_ids"]) < 30
    batch = BlockCollator(tokenizer)(rows)
    wanted = [token for row in rows for token in row["input_ids"]]
    assert (batch["labels"][batch["labels"] >= 0].tolist(), batch["attention_mask"].sum()) == (wanted, len(wanted))
    assert wanted.count(tokenizer.eos_token_id) == 3
    options = ["--tokenizer_name_or_path", str(without_padding), "--set", "decoding=ctc"]
    with pytest.raises(StrictDataclassError, match=r"as its blank, .* pad_token_id=3 and eos_token_id=3"):
        train("translation", tmp_path, *options)


def test_another_tokenizer_than_the_models_is_told(without_padding, tmp_path, capsys) -> None:
    train_tokenizer(["another day"] * 9, kind="decoder", vocab_size=280).save_pretrained(tmp_path)
    warn_of_other_tokenizers(load_pair(without_padding), "other", tmp_path, "mine")
    (warning,) = capsys.readouterr().out.splitlines()
    said = "Warning: --tokenizer_name_or_path other is not the tokenizer of --model_name_or_path mine"
    assert warning.startswith(said)
    warn_of_other_tokenizers(load_pair(tmp_path), "same", tmp_path, "mine")
    assert capsys.readouterr().out == ""


def test_names_of_control_tokens_stay_in_the_texts_of_a_run(tmp_path, capsys) -> None:
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS * 3))
    files = [f"--{split}_file={tmp_path / 't.jsonl'}" for split in ("train", "validation")]
    train("causal", tmp_path / "run", *files, "--packing", "true", "--max_steps", "1", "--eval_steps", "1")
    samples = json_lines(tmp_path / "run" / "samples.jsonl")
    assert {row["prompt"] + row["reference"] for row in samples} <= {*TEXTS}
    (text,) = answers(capsys, "--model", tmp_path / "run", "--text", "line <s>old</s>", "--max_new_tokens", "2")
    assert text.startswith("line <s>old</s>")


def test_a_pipeline_truncates_a_long_text_and_our_own_reading_does_not_warn(trained, capsys) -> None:
    long_text = "Deutschland " * 200
    (answer,) = pipeline("text-classification", str(trained("classification")))(long_text, truncation=True)
    assert 0 < answer["score"] <= 1
    capsys.readouterr()
    generate.main(["--model", str(trained("classification")), "--text", long_text])
    output = capsys.readouterr()
    assert output.out.startswith(answer["label"])
    assert "longer than the specified maximum" not in output.err


@pytest.mark.parametrize(
    ("job", "problem", "text"),
    [
        ("masked", "fill-mask", "import [MASK]"),
        ("classification", "text-classification", "May"),
        ("token_classification", "token-classification", "May 6"),
    ],
)
def test_tokenizers_of_models_without_token_types_return_none(
    job: str, problem: str, text: str, tmp_path: Path
) -> None:
    train(job, tmp_path, "--set", "type_vocab_size=0")
    assert pipeline(problem, str(tmp_path))(text)
    assert "token_type_ids" not in AutoTokenizer.from_pretrained(tmp_path)(text)
