"""The command `vanillaformer`: help, subcommands and a word that is none; and `--dry_run`, which leaves nothing."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from layout import PYPROJECT, ROOT
from refusals import refused
from script_runs import ALONE, PROGRAMS, arguments, record, train
from transformers import GPT2Config, GPT2LMHeadModel

import vanillaformer
import vanillaformer_cli
from vanillaformer.configuration import preset
from vanillaformer.training import run as runs
from vanillaformer.training.models import check_preset
from vanillaformer.training.run import parse_arguments
from vanillaformer.training.tasks import task_of

SCRIPTS = {path.stem for path in (ROOT / "scripts").glob("*.py")} - {"__init__", "console"}


def test_help_fits_one_screen_and_the_version_one_line(capsys) -> None:
    vanillaformer_cli.main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 90
    for name, text in vanillaformer_cli.PROGRAMS.items():
        assert any(line.split() == [name, *text.split()] for line in lines), name
    vanillaformer_cli.main(["--version"])
    assert capsys.readouterr().out == f"vanillaformer {vanillaformer.__version__}\n"


FILES = {
    "pairs.csv": "english,french\nyes,oui\n",
    "rows.jsonl": '{"text": "a", "stars": 1}\n',
    "set.yaml": "seed: 1\n",
}
ANSWERS = {
    **{f"{name} --help": f"usage: vanillaformer {name} " for name in vanillaformer_cli.PROGRAMS},
    "": "vanillaformer demo ",
    "train-translation --foo 1": "error: unrecognized arguments: --foo 1\n",
    "train-translation --presett gpt": "did you mean '--preset'?",
    "train-classifier --hidden_size 64": "is a field of the model's configuration, --set hidden_size=64",
    "demo --block_size 8": "--block_size is an option of vanillaformer train-language-model",
    "generate --model x --hub_tokem hf_secret": "unrecognized arguments: --hub_tokem hf_...",
    "train-classifier set.yaml --dtype int8": "argument --dtype: invalid choice: 'int8'",
    "train-translation gone.yaml": "vanillaformer train-translation: settings file 'gone.yaml' does not exist",
    "compare gone.yaml": "vanillaformer compare: settings file 'gone.yaml' does not exist or is not a file",
    "push": "error: the following arguments are required: FOLDER, REPO",
    "genrate": "error: unknown command 'genrate'; did you mean 'generate'?",
    "trian": "error: unknown command 'trian'; did you mean 'train-",
    "train": "'train-classifier' or 'train-token-classifier' or 'train-image-classifier'?",
    "--model": "error: unknown command '--model'",
    "train-translation set.yaml --train_file gone.csv": "--train_file 'gone.csv': no such file",
    "train-translation --train_file pairs.csv --test_file t-*.csv": "'t-*.csv': no such file, nor one that matches",
    "train-translation --train_file pairs.csv": "pairs.csv has no column 'source' (--source_column)",
    "train-classifier --train_file rows.jsonl --score_column mark": "has no column 'mark' (--score_column)",
}


def test_help_and_what_is_wrong_with_options_files_and_columns_import_no_library(tmp_path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    program = """
import sys, vanillaformer_cli as cli
try: cli.main(sys.argv[1:])
except SystemExit as end: print(f"exit code {end.code}" if isinstance(end.code, int) else end.code)
print(*sys.modules)"""
    heavy = {"torch", "transformers", "datasets", "numpy", "pyarrow", "huggingface_hub", "yaml"}
    for words, answer in ANSWERS.items():
        command = [sys.executable, "-c", program, *words.split()]
        result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
        *shown, imported = result.stdout.splitlines()
        assert answer in "\n".join([*shown, result.stderr]), words
        assert ("exit code 2" in shown) is (": error: " in result.stderr), words
        assert not heavy & set(imported.split()), words


@pytest.mark.parametrize("words", [
    "train-classifier --help", "serve --help", "explore --help", "train-image-classifier --presett gpt",
    "train-language-model --block-sise 3", "generate --temperatur 1", "export a b --engine abacus", "convert a",
    "push a b --no_such_option", "generate", "generate --model x --hub_tokem hf_secret",
])  # fmt: skip
def test_early_answers_are_those_of_the_programs(words: str, monkeypatch, capsys) -> None:
    name, *options = words.split()
    monkeypatch.setattr(sys, "argv", [f"vanillaformer {name}"])
    ends = []
    for answer in (vanillaformer_cli.answer_early, vanillaformer_cli.load_program(name, []).main):
        with pytest.raises(SystemExit) as ended:
            answer(*([name, options] if not ends else [options]))
        said = capsys.readouterr()
        ends.append((ended.value.code, said.out.strip(), said.err))
    assert ends[0] == ends[1]
    assert ends[0][0] == (0 if "--help" in words else 2)


def test_what_an_early_answer_cannot_know_is_left_to_the_program(tmp_path, monkeypatch) -> None:
    """Settings may name columns and separators, and another version of transformers has other options."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    for words in (["set.yaml", "--train_file", "pairs.csv"], ["--train_file", "pairs.csv", "--csv_separator", ";"]):
        vanillaformer_cli.answer_early("train-translation", words)
    vanillaformer_cli.answer_early("train-classifier", ["--train_file", "rows.jsonl", "--score_column", "stars"])
    monkeypatch.setattr(vanillaformer_cli, "version", lambda name: "0.0")
    vanillaformer_cli.answer_early("train-translation", ["--no_such_option"])


def test_every_program_is_a_command_and_the_older_commands_run_the_same() -> None:
    assert {name.replace("-", "_") for name in vanillaformer_cli.PROGRAMS} == SCRIPTS
    older = {name: target for name, target in PYPROJECT["project"]["scripts"].items() if name != "vanillaformer"}
    for name, target in older.items():
        program = name.removeprefix("vanillaformer-")
        assert program in vanillaformer_cli.PROGRAMS
        assert target == f"vanillaformer.scripts.{program.replace('-', '_')}:main"


@pytest.mark.parametrize("name", ["push", "train-translation", "train_translation", "train-seq2seq"])
def test_a_command_runs_its_program_under_its_name(name: str, monkeypatch) -> None:
    ran = []
    monkeypatch.setattr(sys, "argv", ["/bin/vanillaformer", name, "--x", "1"])
    module = import_module(f"vanillaformer.scripts.{name.replace('-', '_').replace('seq2seq', 'translation')}")
    monkeypatch.setattr(module, "main", lambda argv: ran.append((sys.argv[0], argv)))
    vanillaformer_cli.main()
    assert ran == [(f"vanillaformer {name.replace('_', '-')}", ["--x", "1"])]


def test_python_m_is_the_command_and_errors_begin_with_its_name() -> None:
    command = [sys.executable, "-m", "vanillaformer", "push", "--no-such-option"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2
    assert "usage: vanillaformer push " in result.stderr
    assert "vanillaformer push: error: " in result.stderr


@pytest.mark.parametrize("library", ["triton", "another"])
def test_objects_of_imports_are_released_at_the_end_only_for_a_library_that_calls_them_leaks(library) -> None:
    program = f"""
import sys, types, vanillaformer_cli as cli
class Cycle:
    def __del__(self): print("released")
kept = Cycle(); kept.itself = kept
cli.load_program("push", ["folder", "repository"])
sys.modules["{library}"] = types.ModuleType("{library}")
del kept"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ("released" in result.stdout) is (library == "triton")


RECIPES = sorted((ROOT / "scripts" / "recipes").glob("*.yaml"))
assert RECIPES


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_accepted_by_its_program_and_its_model_can_be_built(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = re.search(rf"^#\s+vanillaformer (train-\S+) scripts/recipes/{path.name} ", text, re.MULTILINE)
    assert named, "say in a comment which command runs it"
    args = parse_arguments(named[1], [str(path)])
    check_preset(task_of(named[1])(args).name, args.model_args)
    if args.model_args.model_name_or_path is None:
        assert preset(args.model_args.preset, **args.model_args.config_overrides())
    assert path.name in (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")


JOBS = "causal", "masked", "translation", "classification", "image_classification", "span"


@pytest.mark.parametrize(("job", "technique"), [*((job, "") for job in JOBS), ("classification", "--r_drop 1")])
def test_a_plan_has_the_numbers_of_the_run(job: str, technique: str, trained, tmp_path: Path, capfd) -> None:
    train(job, tmp_path / "plan", "--dry_run", *technique.split())
    assert not list(tmp_path.iterdir())
    printed = capfd.readouterr().out
    run = trained(job) if not technique else train(job, tmp_path / "run", *technique.split()).folder
    details = record(run)["details"]
    consumed = details["consumed"]
    assert f", {details['training']['parameters']:,} parameters\n" in printed
    found = re.search(r"Steps: 8 rows(?:, ([\d,]+) tokens)? and (\S+) operations each, 6 steps", printed)
    assert found is not None, printed
    assert float(found[2]) == pytest.approx(consumed["flops"] / 6, rel=0.25)
    if found[1]:
        assert float(found[1].replace(",", "")) == pytest.approx(consumed["tokens"] / 6, rel=0.25)
    assert printed.count("GiB") == 1 + 4 * 4  # a checkpoint, and four layouts


@pytest.mark.parametrize("length", [["--num_train_epochs", "2.5"], ["--max_tokens", "1e6", "--max_epochs", "2"]])
def test_a_plan_has_the_steps_of_whole_epochs(length: list[str], tmp_path: Path, capfd) -> None:
    options = arguments("classification", tmp_path, *ALONE, *length)
    del options[options.index("--max_steps") : options.index("--max_steps") + 2]
    assert "--max_train_samples" in options  # 60, of which the last batch of an epoch has 4
    PROGRAMS["classification"][0].train([*options, "--dry_run"])
    PROGRAMS["classification"][0].train(options)
    steps = record(tmp_path)["details"]["consumed"]["steps"]
    assert f" operations each, {steps} steps\n" in capfd.readouterr().out


def test_a_plan_of_more_processes_than_there_are(tmp_path: Path, capfd) -> None:
    train("causal", tmp_path / "plan", "--dry_run", "--parallel", "fsdp=32,replicate=2")
    printed = capfd.readouterr().out
    assert "Steps: 512 rows" in printed
    assert re.search(r"fsdp=32 \(yours\)( +[\d.]+ GiB){4}\n", printed)


def test_a_model_whose_memory_is_not_counted_is_refused_before_the_data_is_read(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(runs, "load_data", None)
    GPT2LMHeadModel(GPT2Config(vocab_size=300, n_embd=16, n_layer=1, n_head=2)).save_pretrained(tmp_path / "gpt2")
    for job, kind, *model in (
        ("translation", "vanilla_recurrent_encoder_decoder", "--preset", "gru-tiny"),
        ("causal", "gpt2", "--model_name_or_path", str(tmp_path / "gpt2")),
    ):
        options = ["--dry_run", "--output_dir", str(tmp_path / "plan"), *model]
        refused(f"--dry_run: the memory of models of type '{kind}'", PROGRAMS[job][0].train, options)
