"""The help pages, and what the user's errors are answered with: one line that names the option."""

import dataclasses
import importlib
import io
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from refusals import refused
from script_runs import PROGRAMS as TRAINING_PROGRAMS

from vanillaformer.configuration import PRESETS
from vanillaformer.configuration.options import OPTIONS, SEQUENCE_POSITION_CHOICES
from vanillaformer.data.tasks import KINDS, TASKS
from vanillaformer.training.run import parse_arguments
from vanillaformer.training.tasks import PROGRAMS as TASK_OF
from vanillaformer.training.tasks import task_of

PROGRAMS = (*TASK_OF, "generate")
COMMANDS = ("compare", "convert", "eject", "explore", "export", "push", "serve")
PAGES: dict[tuple[str, str], str] = {}  # those that were made
OPTION = re.compile(r"^  (?:-h, )?(--\S+)", re.MULTILINE)


@pytest.fixture
def page(monkeypatch, capsys):
    """Return a function that gives the help page of a program at 80 columns."""

    def shown(program: str, option: str = "--help") -> str:
        if (program, option) in PAGES:
            return PAGES[program, option]
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr("sys.argv", [f"vanillaformer {program}"])
        with pytest.raises(SystemExit) as ended:
            importlib.import_module(f"vanillaformer.scripts.{program.replace('-', '_')}").main([option])
        assert not ended.value.code
        PAGES[program, option] = capsys.readouterr().out
        return PAGES[program, option]

    return shown


@pytest.mark.parametrize("program", [*PROGRAMS, *COMMANDS])
def test_help_is_short_and_options_stand_once_in_titled_groups_after_three_examples(program: str, page) -> None:
    text = page(program)
    lines = text.splitlines()
    assert len(lines) <= 200
    assert max(map(len, lines[1:])) <= 100  # examples stay unchanged
    assert lines[0].startswith(f"usage: vanillaformer {program} ")
    names = OPTION.findall(text)
    assert len(names) == len(set(names))
    other = "_" if program == "serve" else "-"  # the server's options are those of transformers' command
    assert all(other not in name.removeprefix("--") or name == "--help-all" for name in names), "one spelling"
    assert len(re.findall(rf"^  vanillaformer {program} ", text, re.MULTILINE)) >= 3
    titles = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert titles[0] == "Examples"
    assert len(titles) == len(set(titles)) >= (4 if program in COMMANDS else 5)


@pytest.mark.parametrize("program", TASK_OF)
def test_presets_configuration_fields_and_options_of_transformers_are_listed(program: str, page) -> None:
    text, listed = page(program, "--help-all").split("Configuration fields for --set:")
    assert "hidden_size" in page(program).split("Configuration fields for --set (values: --help-all):")[1]
    kinds = {kind for task in task_of(program).tasks() for kind in TASKS[task].model_kinds}
    for name, entry in PRESETS.items():
        is_named = re.search(rf"[ (]{re.escape(name)}[,;) \n]", text) is not None
        assert is_named == (KINDS[entry.config_class.model_type] in kinds), name
    assert {"hidden_size", "norm_eps"} <= set(re.findall(r"\w+", listed))
    classes = {entry.config_class for entry in PRESETS.values() if KINDS[entry.config_class.model_type] in kinds}
    fields = {entry.name for config_class in classes for entry in dataclasses.fields(config_class)}
    of_texts = OPTIONS | {"position_embedding_type": SEQUENCE_POSITION_CHOICES}
    for option, choices in (OPTIONS if "image_encoder" in kinds else of_texts).items():
        if option in fields - {"layer_types"}:
            assert f"{option} ({', '.join(choices)})" in " ".join(listed.split())
    assert ("encoder_hidden_size" in listed) == ("encoder_decoder" in kinds)
    short, everything = (set(OPTION.findall(page(program, option))) for option in ("--help", "--help-all"))
    assert short < everything
    assert {"--ddp_backend", "--dataloader_pin_memory"} <= everything - short


@pytest.mark.parametrize(("program", "option", "owner"), [
    ("train-translation", "--block_size", "vanillaformer train-language-model"),
    ("train-translation", "--max-length", "vanillaformer train-classifier"),
    ("train-classifier", "--scheduled_sampling", "vanillaformer train-translation and vanillaformer train-"),
])  # fmt: skip
def test_an_option_of_another_program(program: str, option: str, owner: str, tmp_path, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments(program, [f"{option}=8"])
    assert ended.value.code == 2
    assert f"unrecognized arguments: {option}=8: {option} is an option of {owner}" in capsys.readouterr().err
    name = option.removeprefix("--")
    (tmp_path / "a.yaml").write_text(f"{name}: 8\n")
    message = f"a.yaml: unknown key '{name}': {name.replace('-', '_')} is an option of"
    refused(message, parse_arguments, program, [str(tmp_path / "a.yaml")])


FILES: dict[str, bytes] = {"bad.txt": b"one\ntwo \xff\n", "text.txt": b"one\n", "abc.txt": b"abc"}
Words = list[str]


@pytest.fixture
def said(monkeypatch, tmp_path: Path) -> Callable[[str, Words], str]:
    """Return a function that runs a program on words, and returns the message that it ends with."""
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VANILLAFORMER_TRACEBACK", raising=False)

    def run(program: str, words: Words) -> str:
        monkeypatch.setattr(sys, "argv", [program])
        with pytest.raises(SystemExit) as ended:
            importlib.import_module(f"vanillaformer.scripts.{program}").main(words)
        return str(ended.value.code)  # Python writes it to standard error, and exits with 1

    return run


GENERATE = [
    (["--text", "x", "--num_beams", "0"], "--num_beams 0: it must be at least 1"),
    (["--text", "x", "--max_new_tokens", "0"], "--max_new_tokens 0: it must be at least 1"),
    (["--text", "x", "--batch_size", "-3"], "--batch_size -3: it must be at least 1"),
    (["--text", "x", "--temperature", "0"], "--temperature 0.0: it must be greater than 0"),
    (["--text", "x", "--temperature", "nan"], "--temperature nan: it must be greater than 0"),
    (["--text", "x", "--repetition_penalty", "-1"], "--repetition_penalty -1.0: it must be greater than 0"),
    (["--text", "x", "--length_penalty", "nan"], "--length_penalty nan: it must be a finite number"),
    (["--text", "x", "--top_k", "-1"], "--top_k -1: it must be 0 or more"),
    (["--text", "x", "--top_p", "1.5"], "--top_p 1.5: it must be greater than 0 and at most 1"),
    (["--text", "x", "--seed", "-1"], "--seed -1: it must be from 0 to 4294967295"),
    (["--text", "x", "--output_file", "no/out.txt"], "--output_file no/out.txt: no is not a directory"),
    (["--text", "x", "--output_file", "folder"], "--output_file folder is a directory"),
    (["--input_file", "text.txt", "--output_file", "./text.txt"], "--output_file ./text.txt is the --input_file"),
    (["--input_file", "no.txt"], "--input_file no.txt does not exist or is not a file"),
    (["--input_file", "bad.txt"], "--input_file bad.txt, line 2: byte 0xff is not UTF-8"),
    (["--text", "x\udcff"], r"--text 'x\udcff' is not UTF-8"),
    (["--text", "x", "--text_pair", "\udcff"], r"--text_pair '\udcff' is not UTF-8"),
    (["--text", "", "x", "--text_pair", "y", "z"], "--text_pair: the pair ('', 'y') has an empty text"),
    (["--text", "x", "--chat", "--max_history", "0"], "--max_history 0: it must be at least 1"),
    (["--text", "x", "--chat", "--candidates", "3"], "--candidates 3 and --rerank_model None: one needs the other"),
    (
        ["--text", "x", "--chat", "--candidates", "3", "--rerank_model", "m", "--num_beams", "1"],
        "--candidates 3 --num_beams 1: sample, or give as many beams as candidates",
    ),
    (["--text", " "], "--text has no text in it"),
]


# A model, options that it cannot have, and what the line says
OF_MODELS = [
    ("./nowhere", "", "nowhere is not a directory"),
    ("causal", "--max_history 3", "are for --chat"),
    ("causal", "--text_pair y", "--text_pair: .* reads one text at a time"),
    ("causal", "--input_file missing.txt", "not both"),
    ("causal", "--max_new_tokens 64", "--max_new_tokens 64: .* 64 tokens"),
    ("causal", "--device meta", "--device meta cannot be used here: "),
    ("classification", "--num_beams 2", "--num_beams: .* does not generate text"),
    ("causal", "--reject_below 0.5", "--reject_below 0.5: .* is not a classifier"),
    ("causal", "--reject_below 1.5", "--reject_below 1.5: it must be greater than"),
    ("masked", "", r"fills in \[MASK\], which is not in 'x'"),
    ("masked", "--text_pair y", r"fills in \[MASK\], which is not in \('x', 'y'\)"),
    ("classification", "--chat", "is not a causal language model"),
    ("causal", "--chat", r"the tokenizer has no token \[SEP\]"),
]


@pytest.mark.parametrize("chat", [[], ["--chat"]])
def test_standard_input_that_is_not_utf8(chat: Words, said, monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\n\xc3(\n")))
    parrot = SimpleNamespace(reply=lambda text: text)
    monkeypatch.setattr("vanillaformer.inference.chat.open_chat", lambda generate_args: parrot)
    assert said("generate", ["--model", "folder", *chat]) == "generate: standard input, line 2: byte 0xc3 is not UTF-8"


# Programs, their options, and what the line says
OF_PROGRAMS = [
    *(("generate", ["--model", "folder", *words], rf"^generate: {re.escape(line)}$") for words, line in GENERATE),
    *(("generate", ["--model", model, "--text", "x", *words.split()], message) for model, words, message in OF_MODELS),
    ("convert", ["folder", "new"], "SRC folder has no config.json: it contains no finished model$"),
    ("convert", ["nowhere/a/b", "new"], "SRC nowhere/a/b is not a directory$"),
    ("convert", ["bad.txt", "new", "--from-state-dict", "nanogpt"], "bad.txt"),
    ("convert", ["abc.txt", "new", "--from-state-dict", "nanogpt"], "abc.txt cannot be read as tensors: pop from emp"),
    ("export", ["./nowhere", "new", "--engine", "onnx"], "SRC ./nowhere is not a directory$"),
    ("export", ["folder", "new", "--engine", "onnx"], "SRC folder has no config.json: it contains no finished model$"),
    ("push", ["folder", "a/b/c"], "a/b/c"), ("serve", ["./folder"], "folder"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "words", "message"), OF_PROGRAMS)
def test_an_error_is_one_line_that_begins_with_the_program(program, words: Words, message, trained, said) -> None:
    line = said(program, [str(trained(word)) if word in TRAINING_PROGRAMS else word for word in words])
    assert line.startswith(f"{program}: ")
    assert len(line.splitlines()) == 1
    assert re.search(message, line)
