"""Comparisons from the plan to the report, of trainings that are pretended."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import yaml
from pandas import read_csv
from refusals import refused
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForSequenceClassification

from vanillaformer.comparison import running
from vanillaformer.comparison.comparing import compare
from vanillaformer.comparison.plan import read_plan
from vanillaformer.comparison.report import row, write_report
from vanillaformer.comparison.results import Result, VariantResult
from vanillaformer.comparison.running import Runner
from vanillaformer.data.tasks import TASKS
from vanillaformer.scripts import compare as program

FIELDS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
PLAN: dict[str, Any] = {
    "program": "train-language-model", "arguments": {"learning_rate": 1e-3, "overrides": FIELDS},
    "budget": {"tokens": 6400}, "seeds": [1, 2, 3],
    "variants": {"pre": None, "post": {"overrides": ["norm_placement=post"]},
                 "gated": {"overrides": {"feed_forward": "gated"}}},
}  # fmt: skip


def plan_file(folder: Path, **changes: Any) -> Path:
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(PLAN | changes, sort_keys=False))
    return path


def settings_of(folder: Path, job: str) -> dict[str, Any]:
    return yaml.safe_load((folder / "settings" / f"{job}.yaml").read_text())


def test_runs_have_the_budget_and_the_report_says_what_was_found(tmp_path, pretended, capsys):
    found = compare(read_plan(plan_file(tmp_path)), tmp_path, jobs=2)
    options = settings_of(tmp_path, "runs-post-2")
    assert options["max_tokens"] == 6400
    assert "max_steps" not in options
    assert (options["seed"], options["overrides"]) == (2, FIELDS | {"norm_placement": "post"})
    assert options["load_best_model_at_end"] is False
    assert found.variants["pre"].scores == pytest.approx([2.01, 2.02, 2.03])
    assert found.variants["post"].scores == pytest.approx([3.01, 3.02, 3.03])
    assert (found.variants["pre"].speed, found.variants["pre"].flops_per_token) == (6400 / 2, 1_000_000 / 64)
    assert "9/9" in capsys.readouterr().out
    found.variants["pre"].runs[0].whole = False  # its seconds are those since it resumed
    text = write_report(found, tmp_path)
    assert "- Worse than pre: post." in text
    assert "- No detectable difference from pre: gated." in text
    page = (tmp_path / "report.html").read_text()
    assert "norm_placement" in page
    assert page.count("data:image/svg+xml;base64,") == 4
    assert "http" not in page.replace("http://www.w3.org", "")
    names = "scores", "curves_tokens", "curves_seconds"
    scores, tokens, seconds = (read_csv(tmp_path / "figures" / f"{name}.csv") for name in names)
    assert scores.iloc[3].to_dict() == {"variant": "post", "seed": 1, "loss": pytest.approx(3.01)}
    assert (tokens["training tokens"][1], tokens.validation[1]) == (6400.0, pytest.approx(2.01))
    assert [*seconds.seed[seconds.variant == "pre"]] == [2, 2, 3, 3]


def test_a_mean_curve_ends_with_all_runs():
    """In equal time one run makes more steps than another, or is evaluated more often."""
    curves = [[(50, 3.0), (100, 2.0)], [(25, 5.0), (150, 2.5), (200, 1.0)]]
    runs = [Result(seed, 1.0, {}, curve[-1][0], 1.0, True, 0.0, {"loss": curve}) for seed, curve in enumerate(curves)]
    assert VariantResult("a", {}, runs=runs).curve("loss") == [(0.5, pytest.approx(3.25)), (1.0, pytest.approx(1.5))]


def test_each_variant_is_tuned_alike(tmp_path, pretended):
    tune = {"learning_rate": [1e-4, 1e-3, 1e-2]}
    plan = read_plan(plan_file(tmp_path, tune=tune, tuning_seeds=[7], budget={"steps": 5}))
    found = compare(plan, tmp_path)
    assert {name: len(tried) for name, tried in found.tuning.items()} == {"pre": 3, "post": 3, "gated": 3}
    assert settings_of(tmp_path, "runs-pre-1")["learning_rate"] == 1e-3
    assert settings_of(tmp_path, "runs-post-1")["learning_rate"] == 1e-2
    assert settings_of(tmp_path, "tuning-post-0-7")["seed"] == 7
    text = write_report(found, tmp_path)
    assert "Nothing was tuned" not in text
    assert "- post: learning_rate 0.01 is at the end of the values tried" in text
    assert "pre: learning_rate" not in text
    assert (tmp_path / "figures" / "tuning.png").exists()


def test_a_best_value_at_an_end_is_followed_on_request(tmp_path, pretended):
    tune = {"learning_rate": [1e-3, 1e-4]}
    found = compare(read_plan(plan_file(tmp_path, tune=tune, budget={"steps": 5}), extend=True), tmp_path)
    assert [options["learning_rate"] for options, _ in found.tuning["pre"]] == [1e-3, 1e-4, 1e-2]
    assert [options["learning_rate"] for options, _ in found.tuning["post"]] == [1e-3, 1e-4, 1e-2, 1e-1]
    chosen = {name: options["learning_rate"] for name, options in found.chosen.items()}
    assert chosen == {"pre": 1e-3, "post": 1e-2, "gated": 1e-3}
    text = write_report(found, tmp_path)
    assert "at the end of the values tried" not in text
    rows = read_csv(tmp_path / "figures" / "tuning.csv")
    assert {*zip(rows.variant, rows.learning_rate)} >= {("post", 1e-1)}


def test_options_are_merged_by_any_of_their_names(tmp_path):
    arguments = {"learning-rate": 1e-3, "set": FIELDS}
    variants = {"pre": None, "post": {"set": ["norm_placement=post", "norm_eps=1e-6"], "learning_rate": 2e-3}}
    plan = read_plan(plan_file(tmp_path, arguments=arguments, variants=variants))
    assert plan.options("post")["overrides"] == FIELDS | {"norm_placement": "post", "norm_eps": 1e-6}
    assert plan.options("post")["learning_rate"] == 2e-3
    assert {"set", "learning-rate"}.isdisjoint(plan.options("post", {"set": {"dropout": 0}}))
    refused("twice in set, overrides", read_plan, plan_file(tmp_path, arguments={"set": {}, "overrides": {}}))


def test_values_that_are_mappings_are_tuned(tmp_path, pretended, capsys):
    words = "overrides={norm_placement: post, dropout: 0},{norm_placement: pre}"
    path = plan_file(tmp_path, variants={"a": {}, "b": {}}, budget={"steps": 5})
    program.main([str(path), "--output_dir", str(tmp_path), "--tune", words])
    assert settings_of(tmp_path, "runs-a-1")["overrides"] == FIELDS | {"norm_placement": "pre"}
    assert "{'norm_placement': 'post', 'dropout': 0}" in (tmp_path / "figures" / "tuning.csv").read_text()
    refused("2", program.main, [str(path), "--tune", "overrides={norm_placement,"], error=SystemExit)
    assert "write it as option=a,b,c" in capsys.readouterr().err


@pytest.mark.parametrize(("values", "further"), [
    (["5e-4", "1e-3", "2e-3"], [2.5e-4, 4e-3]), ([1000, 1024], [977, 1049]), ([1, 2], [4]), (["a", "b"], []),
])  # fmt: skip
def test_values_beyond_are_of_the_kind_of_those_tried(values, further, tmp_path):
    """As the program reads them: YAML takes 5e-4 for a word, and a batch of 32.0 is refused."""
    plan = read_plan(plan_file(tmp_path, tune={"option": values}))
    found = [plan.beyond(plan.grid(), {"option": plan.tune["option"][end]}).get("option") for end in (0, -1)]
    found = [value for value in found if value is not None]
    assert (found, [type(value) for value in found]) == (further, [type(value) for value in further])


def test_what_does_not_finish_is_counted_and_not_averaged(tmp_path, pretended):
    rates = {"nan": 50.0, "gone": 13, "twice": 0.8}
    variants = {"pre": None} | {name: {"learning_rate": rate} for name, rate in rates.items()}
    found = compare(read_plan(plan_file(tmp_path, variants=variants, budget={"steps": 4})), tmp_path)
    states = {name: [lost.state for lost in variant.lost.values()] for name, variant in found.variants.items()}
    assert states == {"pre": [], "nan": ["diverged"] * 3, "gone": ["failed"] * 3, "twice": ["unequal"] * 3}
    text = write_report(found, tmp_path)
    assert "| 3 diverged |" in text
    assert "gone: 3 of 3 runs are lost and not in the means (seed 1 failed: the file is not there; seed 2" in text
    assert "seed 1 unequal: it took 8 steps; 3.92 to 4.08 are allowed" in text
    assert "nan: 3 of 3 runs are lost and not in the means (seed 1 diverged: the loss or its gradient is NaN" in text
    assert "Not tested, for lack of two valid runs on both sides, or of any spread: nan, gone, twice." in text
    del variants["gone"], variants["twice"]  # the first steps of the rest do not end the comparison
    measured = compare(read_plan(plan_file(tmp_path, variants=variants, seeds=[1])), tmp_path / "tokens").variants
    assert (measured["nan"].lost[1].state, measured["pre"].scores) == ("diverged", found.variants["pre"].scores[:1])
    assert measured["pre"].runs[0].memory > 1
    (tmp_path / "tokens" / "outcomes" / "runs-pre-1.json").unlink()  # its training outlived a comparison, and finished
    again = compare(read_plan(plan_file(tmp_path, variants=variants, seeds=[1])), tmp_path / "tokens")
    assert row(again.variants["pre"], None, again.plan)["memory"] == "-"


def test_tokens_of_two_tokenizers_are_not_compared_but_what_a_model_reads_may_differ(tmp_path, pretended):
    """Where the options do not tell, by the files of the first runs."""
    variants = {"pre": {"train_file": "1.txt"}, "long": {"train_file": "1.txt", "block_size": 64}}
    assert compare(read_plan(plan_file(tmp_path, variants=variants)), tmp_path / "b").variants["long"].runs
    plan = read_plan(plan_file(tmp_path, variants=variants | {"post": {"train_file": "2.txt"}}))
    refused("the tokenizers of measured-pre and measured-post", compare, plan, tmp_path / "c")
    assert not (tmp_path / "c" / "runs").exists()
    plan = read_plan(plan_file(tmp_path, variants=variants, score="bits_per_byte"))
    refused("score: bits_per_byte: the runs of variant pre do not compute it", compare, plan, tmp_path / "b")
    plan = read_plan(plan_file(tmp_path, variants=variants, score="bits_per_byte", budget={"steps": 5}))
    assert compare(plan, tmp_path / "d").variants["pre"].lost[1].message == "its record has no bits_per_byte"
    # Shorter texts of a classifier have the same labels, and BLEU has whole references
    options = {"program": "train-translation", "arguments": {"learning_rate": 1e-3}, "score": "bleu"}
    variants = {"a": {}, "b": {"max_target_length": 6}, "c": {"max_source_length": 6}}
    found = compare(read_plan(plan_file(tmp_path, **options, variants=variants, budget={"steps": 4})), tmp_path)
    assert found.variants["b"].lost[1].message == "its record has no bleu"


CLASSIFIER = {"program": "train-classifier", "score": "loss"}


def test_runs_with_a_time_follow_no_data(tmp_path, pretended, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{'word ' * 50}word{number % 7},{number % 2}" for number in range(200)]
    (tmp_path / "texts.csv").write_text("\n".join(["text,label", *rows]))
    variants = {"base": {}, "preset": {"preset": "gpt-tiny"}, "late": {"learning_rate": 0.8}}
    plan = CLASSIFIER | {"variants": variants, "seeds": [1, 2], "budget": {"seconds": 100}}
    plan["arguments"] = {"train_file": "texts.csv", "validation_file": "texts.csv", "learning_rate": 1e-3}
    found = compare(read_plan(plan_file(tmp_path, **plan)), tmp_path)
    settings = {name: settings_of(tmp_path, f"runs-{name}-1") for name in variants}
    usual = TASKS["classification"].preset
    assert [options["preset"] for options in settings.values()] == [usual, "gpt-tiny", usual]
    assert not {"max_length", "tokenizer_algorithm", "overrides"} & settings["base"].keys()
    assert {lost.state for lost in found.variants["late"].lost.values()} == {"unequal"}
    assert len(found.variants["base"].runs) == 2
    assert settings_of(tmp_path, "measured-late")["max_steps"] == 4  # tokenized before the first run's time begins


@pytest.mark.parametrize("equal", ["parameters", "flops"])
def test_a_classifier_is_as_large_as_its_own_model_is(equal, tmp_path, pretended):
    """Without the head of a language model, whose size depends on the width and on tied embeddings."""
    fields = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
    arguments = {"preset": "bert-tiny", "learning_rate": 1e-3, "overrides": fields | {"vocab_size": 8000}}
    variants = {
        "base": {}, "untied": {"overrides": {"tie_word_embeddings": False}},
        "narrow": {"overrides": {"hidden_size": 48}}, "gated": {"overrides": {"feed_forward": "gated"}},
    }  # fmt: skip
    plan = CLASSIFIER | {"arguments": arguments, "variants": variants, "budget": {"flops": 1e9}, "equal": equal}
    compare(read_plan(plan_file(tmp_path, **plan, seeds=[1])), tmp_path)
    assert settings_of(tmp_path, "runs-untied-1")["overrides"]["intermediate_size"] == 256
    sizes = []
    for name in ("base", "narrow", "gated"):
        assert settings_of(tmp_path, f"runs-{name}-1")["max_flops"] == 1e9
        config = AutoConfig.from_pretrained(tmp_path / "runs" / f"{name}-1")
        model = AutoModelForSequenceClassification.from_config(config, attn_implementation="eager")
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(input_ids=torch.zeros(1, 16, dtype=torch.long))
        sizes.append(model.num_parameters() if equal == "parameters" else counter.get_total_flops())
    assert sizes[1:] == pytest.approx([sizes[0]] * 2, rel=0.02)


def test_runs_have_the_score_that_decides(tmp_path: Path) -> None:
    """One that is computed only where it is asked for."""
    plan = {"program": "train-translation", "score": "rougeL"}
    for metrics, both in ((["rouge1"], ["rouge1", "rougeL"]), ("rouge1", ["rouge1", "rougeL"]), (None, ["rougeL"])):
        path = plan_file(tmp_path, **plan, arguments={"metrics": metrics})
        assert read_plan(path).arguments["metrics"] == both


TWO: dict[str, Any] = {"a": {}, "b": {}}
MASKED, CUT = {"objective": "masked_image", "learning_rate": 1e-3}, {"long_texts": "skip"}
# Options that cannot be, with a part of the error
WRONG: list[tuple[str, Any, str]] = [
    ("learning_rte", 1, "learning_rte"), ("learning_rate", -1, "learning_rate"),
    ("overrides", {"nrom": "no"}, "has no field 'nrom'; did you mean 'norm'"),
    ("overrides", {"norm": "no"}, "Field 'norm'"),
]  # fmt: skip


def other_targets(program: str, common: dict[str, Any], **changed: Any) -> tuple[dict[str, Any], str]:
    """Return a plan with a variant that is scored on other targets, and the beginning of the error."""
    plan = {"program": program, "arguments": common, "variants": {"a": {}, "b": changed}, "budget": {"steps": 4}}
    return plan, f"variant b: {next(iter(changed.get('overrides', changed)))}: it decides what is scored and differs"


# Plans with the beginning of an error: those that are refused at once, and those that a first training shows
AT_ONCE: list[tuple[dict[str, Any], str]] = [
    ({"tune": {"tokenizer_vocab_size": [300, 400]}}, r"loss is a mean over tokens.* choose .*bits_per_byte, or give"),
    other_targets("train-language-model", {"objective": "masked"}, mlm_probability=0.4),
    other_targets("train-language-model", {"objective": "span"}, noise_density=0.4),
    other_targets("train-image-classifier", MASKED, mask_ratio=0.3),
    other_targets("train-image-classifier", MASKED, overrides={"patch_size": 4}),
    other_targets("train-translation", {}, max_target_length=6),
    other_targets("train-token-classifier", {}, max_length=6),
    other_targets("train-classifier", CUT, max_length=6),
    other_targets("train-classifier", {}, **CUT),
    ({**other_targets("train-translation", {}, bleu_lowercase=True)[0], "score": "bleu"}, "variant b: bleu_lowercase"),
    ({"variants": {"a": {}, "b": {"model_name_or_path": "saved"}}, "equal": "parameters"},
     "variant b: model_name_or_path: a saved model's size is fixed"),
    *(({"variants": {"a": {}, "b": {name: value}}}, f"variant b.*: .*{words}") for name, value, words in WRONG),
    *(({"variants": TWO, "tune": {name: [value] * 2}}, f"variant a with.*: .*{words}")
      for name, value, words in WRONG),
]  # fmt: skip
LATER: list[tuple[dict[str, Any], str]] = [
    ({"budget": {"tokens": 1500}}, "variant pre takes 64 in a step; with fewer than 25 steps, 1,600, runs"),
    ({"tune": {"learning_rate": [13, 50]}, "budget": {"steps": 5}, "variants": TWO}, "variant a: no value tried in"),
    ({"program": "train-image-classifier", "arguments": MASKED, "variants": {"a": {}, "b": {"split_seed": 2}}},
     r"measured-b divides pixels by \[2\], measured-a by \[1\]: their losses are not comparable"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), AT_ONCE + LATER)
def test_what_cannot_be_compared_is_refused_before_the_runs(changes, message, tmp_path, pretended):
    refused(message, compare, read_plan(plan_file(tmp_path, **changes)), tmp_path / "out")
    assert not (tmp_path / "out" / ("runs" if (changes, message) in LATER else "")).exists()


def starts(folder: Path) -> dict[str, int]:
    return {path.parent.name: len(path.read_text().split()) for path in (folder / "runs").glob("*/starts")}


def test_a_comparison_resumes(tmp_path, pretended, monkeypatch):
    path = plan_file(tmp_path, budget={"steps": 4})
    text = write_report(compare(read_plan(path, seeds=[1]), tmp_path), tmp_path)
    assert "| pre | 2.01 | 2.01 | baseline |" in text  # one seed has no interval
    assert set(starts(tmp_path).values()) == {1}
    (tmp_path / "runs" / "post-1" / "run.json").unlink()
    compare(read_plan(path, seeds=[1, 2]), tmp_path)
    ended = dict.fromkeys(("pre-1", "pre-2", "post-2", "gated-1", "gated-2"), 1) | {"post-1": 2}
    assert starts(tmp_path) == ended
    shutil.copytree(tmp_path, tmp_path / "moved", ignore=shutil.ignore_patterns("moved"))
    compare(read_plan(path, seeds=[1, 2]), tmp_path / "moved")
    assert starts(tmp_path / "moved") == ended
    assert settings_of(tmp_path / "moved", "runs-pre-1")["output_dir"] == str(tmp_path / "moved" / "runs" / "pre-1")
    raised = read_plan(plan_file(tmp_path, budget={"steps": 8}), seeds=[1, 2])
    refused(r"pre-1 and 5 more: max_steps: 4 then, 8 now\): choose another", compare, raised, tmp_path)
    assert starts(tmp_path) == ended
    compare(raised, tmp_path, overwrite=True)
    assert set(starts(tmp_path).values()) == {1}
    assert json.loads((tmp_path / "replaced" / "runs-pre-1.1" / "run.json").read_text())["details"]["steps"] == 4
    folders = ("outcomes/runs-pre-1.json", "started/runs-pre-1.json", "settings/runs-pre-1.yaml", "report.json")
    for file in map(tmp_path.joinpath, (*folders, "runs/pre-1/run.json", "runs/pre-1/trainer_state.json")):
        whole = file.read_text()
        file.write_text('{"a": [1,')
        refused(f"{file} is not valid", lambda: write_report(compare(raised, tmp_path), tmp_path))
        file.write_text(whole)
    monkeypatch.setattr(running, "__version__", "99")
    refused("vanillaformer: .* then, 99 now", compare, raised, tmp_path)


def started(folder: Path, *words: str, **options: Any) -> subprocess.Popen:
    """Start the comparison of a plan in its folder, whose trainings are pretended, in a process of its own."""
    code = "from vanillaformer.comparison import claims, running; from vanillaformer.scripts import compare; "
    code += f"running.Runner.command = {Runner.command!r}; running.POLL = 0.1; "
    code += f"compare.main({['plan.yaml', *words]})"
    return subprocess.Popen([sys.executable, "-c", code], cwd=folder, **options)


def started_slowly(folder: Path, *words: str) -> subprocess.Popen:
    """Start a comparison of trainings of a minute, in a group of processes of its own."""
    folder.mkdir(exist_ok=True)
    plan_file(folder, seeds=[1], budget={"steps": 4}, arguments={"learning_rate": 1e-3, "warmup_steps": 60})
    return started(folder, *words, start_new_session=True)


def waiting_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.05)


def test_only_its_own_training_left_behind_is_ended(tmp_path, monkeypatch, pretended):
    """A comparison that is killed leaves its training, which would be in the way; others have files of that name."""
    comparisons = {name: started_slowly(tmp_path / name) for name in ("own", "others")}
    monkeypatch.chdir(tmp_path / "own")
    trainings = {}
    waiting_for(Path("runs/plan/runs/pre-1/starts"))
    refused("in use by another process", program.main, ["plan.yaml"], error=SystemExit)
    for name, comparison in comparisons.items():
        runs = tmp_path / name / "runs" / "plan"
        waiting_for(runs / "runs" / "pre-1" / "starts")
        (trainings[name],) = psutil.Process(comparison.pid).children()
        comparison.kill()
        comparison.wait()
    reader = subprocess.Popen(["tail", "-f", "runs/plan/settings/runs-pre-1.yaml"], stdout=subprocess.DEVNULL)
    try:
        plan_file(tmp_path / "own", seeds=[1], budget={"steps": 4})
        program.main(["plan.yaml", "--overwrite"])
        assert not trainings["own"].is_running()
        assert trainings["others"].is_running()
        assert reader.poll() is None
    finally:
        for process in (trainings["others"], reader):
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_reaches_a_training_once(number, tmp_path, pretended):
    """A terminal sends it to the whole group of processes, and the comparison ends its trainings besides."""
    comparison = started_slowly(tmp_path, "--output_dir", ".")
    waiting_for(tmp_path / "runs" / "pre-1" / "starts")
    os.killpg(comparison.pid, number)
    comparison.wait()
    assert not psutil.pid_exists(json.loads((tmp_path / "started" / "runs-pre-1.json").read_text())["pid"])
    assert (tmp_path / "logs" / "runs-pre-1.log").read_text() == ""  # no KeyboardInterrupt
    assert not (tmp_path / "outcomes").exists()  # that is for the run that goes on


def test_a_training_that_is_killed_failed_whatever_it_printed_before(tmp_path, monkeypatch):
    code = "import os; print('a loss is NaN', flush=True); os.kill(os.getpid(), 9)"  # as where memory ends
    monkeypatch.setattr(Runner, "command", (sys.executable, "-c", code))
    lost = compare(read_plan(plan_file(tmp_path, budget={"steps": 4})), tmp_path).variants["pre"].lost[1]
    assert (lost.state, lost.message) == ("failed", "killed by signal 9")


@pytest.mark.parametrize("words", [["--add", "a={}"], ["--tune", "learning_rate=1,2"]])
def test_what_is_given_twice_is_refused(words, tmp_path):
    refused("a name is given twice", program.main, [str(plan_file(tmp_path)), *words * 2], error=SystemExit)


@pytest.mark.parametrize(("changes", "message"), [
    *(({"program": program}, f"program: {program!r}; choose from train-translation") for program in ("train", ["a"])),
    ({"variants": {"a": {}}}, "variants: 1 given"), ({"variants": "others.yaml"}, "others.yaml' does not exist"),
    ({"variants": {"a/b": {}, "c": {}}}, "'a/b' names folders"),
    ({"variants": {"a": {}, "b": ["x"]}}, "variants: b: it must be a mapping"),
    ({"variants": {"a": {}, "b": {"max_steps": 3}}}, "b: max_steps is the comparison's to set"),
    *(({"budget": {"steps": x}}, f"budget: steps: {x}; it must be a whole number above 0") for x in (0, True, 0.4)),
    ({"seeds": [True, False]}, "seeds: [True, False]; it must be a list of whole numbers"),
    ({"tune": {"max_steps": [4, 400]}}, "tune: max_steps is the comparison's to set"),
    ({"arguments": {"max-tokens": 4}}, "arguments: max_tokens is the comparison's to set"),
    ({"tune": {"learning_rate": [1e-3, 1e-2]}, "tuning_seeds": [3]}, "none of them may be among the seeds"),
    ({"variants": {"a": {}, "b": {"objective": "masked"}}}, "scores of two objectives are not comparable"),
    ({"tune": {"overrides": [{}, {}]}, "equal": "flops"}, "overrides changes the size that `equal: flops` keeps"),
    ({"budget": {"hours": 2}}, "budget: 'hours'; choose from tokens, flops, seconds, steps"),
    ({"budget": None}, "budget: give one of"), ({"seeds": [1, 1]}, "a seed is given twice"),
    ({"seeds": 3}, "seeds: 3; it must be a list"), ({"seeds": [1, 2**32]}, "whole numbers from 0 to 4294967295"),
    ({"baseline": "sandwich"}, "baseline: 'sandwich'; choose from pre, post, gated"),
    ({"score": "bleu"}, "score: bleu: choose from loss"),
    ({"equal": "tokens"}, "equal: 'tokens'; choose from parameters, flops"),
    ({"tune": {"learning_rate": 1e-3}}, "tune: learning_rate: 0.001; it must be a list of two values"),
    ({"tune": {"learning_rate": [1, 2], "weight_decay": [0, 1]}, "extend": True}, "exactly one tuned option, got 2"),
    ({"extend": True}, "extend: it goes beyond the list of exactly one tuned option, got 0"),
    ({"sedes": [1]}, "unknown key 'sedes'"), ({"sequential": "yes"}, "sequential: 'yes'; choose from true, false"),
    ({"sequential": True, "seeds": [1, 2]}, "seeds: [1, 2]; `sequential` begins with two"),
    ({"family": 1}, "family: 1 variants are to be tested, and gated would be number 2"),
    ({"family": True}, "family: True; it must be a whole number"),
])  # fmt: skip
def test_an_invalid_plan_is_refused(changes, message, tmp_path):
    refused(re.escape(message), read_plan, plan_file(tmp_path, **changes))
