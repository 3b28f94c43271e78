"""The help pages: short, with one spelling of each option, and what another program's option is answered with."""

import dataclasses
import importlib
import re

import pytest

from vanillaformer.configuration import PRESETS
from vanillaformer.configuration.options import OPTIONS, SEQUENCE_POSITION_CHOICES
from vanillaformer.data.tasks import KINDS, TASKS
from vanillaformer.training.auto_defaults import OPTIONS as FOLLOWED
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


def test_a_program_offers_the_options_of_its_tasks_only(page) -> None:
    offered = {program: set(OPTION.findall(page(program))) for program in TASK_OF}
    only = {
        "train-translation": {"--source_column", "--num_beams", "--joint_vocabulary", "--bleu_tokenize"},
        "train-language-model": {"--block_size", "--block_stride", "--turns_column", "--sample_by"},
        "train-classifier": {"--truncation_side", "--score_column", "--text_pair_column"},
        "train-token-classifier": {"--tokens_column", "--tags_column"},
        "train-image-classifier": {"--image_size", "--shift", "--random_erasing", "--mask_ratio"},
    }
    for program, names in only.items():
        assert names <= offered[program]
        assert not any(names & others for other, others in offered.items() if other != program)


@pytest.mark.parametrize(("program", "option", "owner"), [
    ("train-translation", "--block_size", "vanillaformer train-language-model"),
    ("train-translation", "--max-length", "vanillaformer train-classifier"),
    ("train-language-model", "--token_dropout", "vanillaformer train-translation and vanillaformer train-clas"),
    ("train-classifier", "--scheduled_sampling", "vanillaformer train-translation and vanillaformer train-"),
])  # fmt: skip
def test_an_option_of_another_program(program: str, option: str, owner: str, tmp_path, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments(program, [f"{option}=8"])
    assert ended.value.code == 2
    assert f"unrecognized arguments: {option}=8: {option} is an option of {owner}" in capsys.readouterr().err
    name = option.removeprefix("--")
    (tmp_path / "a.yaml").write_text(f"{name}: 8\n")
    with pytest.raises(ValueError, match=f"a.yaml: unknown key '{name}': {name.replace('-', '_')} is an option of"):
        parse_arguments(program, [str(tmp_path / "a.yaml")])


CHOSEN = {
    "translation": ("max_source_length", "lengths"), "causal": ("tokenizer_vocab_size", "vocabulary"),
    "classification": ("learning_rate", "learning rate"), "token_classification": ("max_epochs", "passes"),
    "image_classification": ("shift", "shift"),
}  # fmt: skip


@pytest.mark.parametrize("task", [name for program in TASK_OF for name in task_of(program).auto_defaults])
def test_defaults_that_follow_the_data_are_named(task: str, page) -> None:
    text = " ".join(page(TASKS[task].program).split("Examples:")[0].split())
    option, words = CHOSEN[task]
    assert any(option in names for names in FOLLOWED.values())
    named = text.partition(" Without --preset and --max_steps, ")[2].partition(" follow the data.")[0]
    assert words in named
