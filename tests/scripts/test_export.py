"""`export`, and `generate` on what it has made: the same command, the same lines."""

import json
import shutil
from pathlib import Path

import pytest
from refusals import ends
from script_runs import answers
from transformers import AutoConfig

from vanillaformer.conversion.exports import read_record
from vanillaformer.scripts import export, generate

pytest.importorskip("ctranslate2", reason="pip install 'vanillaformer[ctranslate2]'")

LINES = ["May 6, 2031", "5:04 PM", "", "12,345.6"]
NAMES = ["Deutschland", "France métropolitaine", "x"]
JOBS: dict[str, list[str]] = {
    "translation": [*LINES, "--max_new_tokens", "8"],
    "separate": [*LINES, "--max_new_tokens", "8", "--batch_size", "3"],
    "causal": ["def f(x", "import", "--max_new_tokens", "6", "--num_beams", "1"],
    "masked": ["import [MASK] as x", "[MASK] = 1"], "mlm+nsp": ["import [MASK]"], "classification": NAMES,
    "decoder_classification": NAMES,
    "token_classification": ["we owe them €5.00 , due Oct 19, 1995 .", "x"],
}  # fmt: skip


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    """Return a function (job) -> folder of its export, made on first use."""
    folders: dict[str, Path] = {}

    def folder(job: str) -> Path:
        if job not in folders:
            folders[job] = tmp_path_factory.mktemp(job) / "export"
            export.main([str(trained(job)), str(folders[job]), "--engine", "ctranslate2"])
        return folders[job]

    return folder


@pytest.mark.parametrize("job", JOBS)
def test_the_engine_answers_as_the_model_does(job, trained, exported, capsys):
    common = ["--text", *JOBS[job]]
    expected = answers(capsys, "--model", trained(job), *common)
    assert answers(capsys, "--model", exported(job), "--engine", "ctranslate2", *common) == expected
    assert len(expected) == sum(1 for word in JOBS[job] if not word.startswith("--") and not word.isdigit())


def test_without_a_tokenizer(trained, tmp_path, capsys):
    shutil.copytree(trained("causal"), tmp_path / "bare", ignore=shutil.ignore_patterns("token*"))
    capsys.readouterr()  # what training said, where this test is the first to need the model
    export.main([str(tmp_path / "bare"), str(tmp_path / "e"), "--engine", "ctranslate2", "--quantization", "int8"])
    (line,) = capsys.readouterr().out.splitlines()
    begin = f"{tmp_path / 'e'}: VanillaDecoderForCausalLM for ctranslate2, without a tokenizer; checked: "
    assert line.startswith(begin)
    assert "greedy tokens equal" in line
    ends("was exported without a tokenizer", generate.main, "--model", tmp_path / "e", "--text", "x")


def test_what_was_checked_is_kept_and_a_link_out_of_the_folder_is_not_passed_on(trained, exported, tmp_path):
    assert "greedy tokens equal" in read_record(exported("causal"))["checked"]
    shutil.copytree(trained("causal"), tmp_path / "run")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "run" / "chat_template.jinja").symlink_to(tmp_path / "secret")
    folders = tmp_path / "run", tmp_path / "e"
    ends(r"chat_template\.jinja is a link out of the folder", export.main, *folders, "--engine", "ctranslate2")
    assert not (tmp_path / "e").exists()


@pytest.mark.parametrize(("options", "message"), [
    (["--model", "{run}", "--engine", "ctranslate2"], "--engine ctranslate2: --model .* is not a folder made by"),
    (["--model", "{export}", "--engine", "torch"], "--engine torch: --model .* was exported for ctranslate2"),
    (["--model", "{export}", "--engine", "llama.cpp"], "--engine llama.cpp: .* was exported for ctranslate2"),
    (["--model", "{export}", "--bf16"], "--bf16: an exported model has the precision"),
    (["--model", "{export}", "--quantization", "int8"], "--quantization int8: an exported model has the precision"),
    (["--model", "{run}", "--quantization", "int8", "--bf16"], "--quantization int8 is for torch on the CPU"),
    (["--model", "{export}", "--max_new_tokens", "64"], "--max_new_tokens 64: .* 64 tokens"),
])  # fmt: skip
def test_options_that_do_not_fit(options, message, trained, exported):
    places = {"{run}": trained, "{export}": exported}
    words = [places[word]("causal") if word in places else word for word in options]
    ends(message, generate.main, *words, "--text", "x")


@pytest.mark.parametrize("name", ["model.bin", "config.json"])
def test_a_damaged_export_is_an_error_in_words(name, exported, tmp_path):
    shutil.copytree(exported("causal"), tmp_path / "export")
    (tmp_path / "export" / name).write_bytes(b"{damaged")
    message = "export: the exported model cannot be loaded"
    ends(message, generate.main, "--model", tmp_path / "export", "--text", "x")


HELD_OUT = {
    "translation": ("source,target\nMay 6,6. Mai\nMay 7,7. Mai\nMay 8,8. Mai\n", ["BLEU", "chrF"]),
    "causal": ("text\ndef f(x): return x\nimport os\nx\n", ["perplexity per token"]),
    "classification": ("text,label\nDeutschland,de\nFrance,fr\nItalia,it\n", ["accuracy", "F1, mean over classes"]),
}


@pytest.mark.parametrize("job", HELD_OUT)
def test_a_float32_export_scores_as_the_model_does(job, trained, tmp_path, capsys):
    source, (content, names) = str(trained(job)), HELD_OUT[job]
    labels = list(AutoConfig.from_pretrained(source).id2label.values())[:3]
    for old, new in zip((",de", ",fr", ",it"), labels) if job == "classification" else ():
        content = content.replace(old, f",{new}")
    (tmp_path / "rows.csv").write_text(content)
    capsys.readouterr()
    arguments = [source, str(tmp_path / "e"), "--engine", "ctranslate2"]
    export.main([*arguments, "--validation_file", str(tmp_path / "rows.csv")])
    _, count, header, *both = capsys.readouterr().out.splitlines()
    assert count == f"3 rows of {tmp_path / 'rows.csv'}:"
    assert all(name in header for name in names)
    ours, theirs = (line.split()[1:-1] for line in both)  # without the name and the speed
    assert ours == theirs
    assert len(ours) >= len(names)


@pytest.mark.parametrize(("job", "row", "columns", "read"), [
    ("translation", {"source": "May 6", "target": "6. Mai", "task": "date", "to": "de"},
     "--task_column task --target_lang_column to", {"source": ["date: <2de>May 6"], "target": ["6. Mai"]}),
    ("causal", {"chat": ["hi", "you"]}, "--turns_column chat", {"text": ["hi[SEP]you[SEP]"]}),
])  # fmt: skip
def test_rows_are_marked_as_in_training(job, row, columns, read, trained, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    options = f"--engine onnx --validation_file {tmp_path / 'rows.jsonl'} {columns}"
    args = export.build_parser().parse_args([str(trained(job)), "e", *options.split()])
    assert export.held_out_rows(args).rows == read


@pytest.mark.parametrize(("job", "more", "message"), [
    ("causal", "FILE --source_column a", "--source_column a: VanillaDecoderForCausalLM reads text"),
    ("causal", "FILE --text_pair_column a", "--text_pair_column a: VanillaDecoderForCausalLM reads text"),
    ("masked", "FILE", "VanillaEncoderForMaskedLM has no scores to compare"),
    ("causal", "FILE --max_validation_samples 0", "--max_validation_samples 0: it must be at least 1"),
    ("causal", "--text_column a", "--text_column needs a --validation_file"),
])  # fmt: skip
def test_rows_that_cannot_be_scored_are_refused_before_the_export(job, more, message, trained, tmp_path):
    (tmp_path / "rows.csv").write_text("text\nabc\n")
    more = more.replace("FILE", f"--validation_file {tmp_path / 'rows.csv'}").split()
    ends(message, export.main, trained(job), tmp_path / "e", "--engine", "ctranslate2", *more)
    assert not (tmp_path / "e").exists()
