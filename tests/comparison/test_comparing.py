"""Comparisons from the plan to the report: of trainings that are pretended, and one of real ones."""

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoConfig

from vanillaformer.comparison.comparing import compare
from vanillaformer.comparison.plan import read_plan
from vanillaformer.comparison.report import write_report
from vanillaformer.comparison.running import Job, Runner
from vanillaformer.comparison.sizes import flops_of_row
from vanillaformer.modeling.counts import count_parameters
from vanillaformer.scripts import compare as program

PRETENDED = (sys.executable, str(Path(__file__).with_name("pretended_training.py")))
FIELDS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
PLAN: dict[str, Any] = {
    "program": "train-language-model",
    "arguments": {"learning_rate": 1e-3, "overrides": FIELDS},
    "budget": {"tokens": 1280},
    "seeds": [1, 2, 3],
    "variants": {
        "pre": None,
        "post": {"overrides": ["norm_placement=post"]},
        "gated": {"overrides": {"feed_forward": "gated"}},
    },
}


@pytest.fixture
def pretended(monkeypatch):
    monkeypatch.setattr(Runner, "command", PRETENDED)


def plan_file(folder: Path, **changes: Any) -> Path:
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(PLAN | changes, sort_keys=False))
    return path


def settings_of(folder: Path, job: str) -> dict[str, Any]:
    return yaml.safe_load((folder / "settings" / f"{job}.yaml").read_text())


def test_tokens_become_steps_and_seeds_scores(tmp_path, pretended, capsys):
    found = compare(read_plan(plan_file(tmp_path)), tmp_path / "out", jobs=2)
    options = settings_of(tmp_path / "out", "runs-post-2")
    assert options["max_steps"] == 20  # 4 rows of 16 tokens in a step
    assert options["seed"] == 2
    assert options["overrides"] == FIELDS | {"norm_placement": "post"}
    assert options["load_best_model_at_end"] is False
    assert found.variants["pre"].scores == pytest.approx([2.01, 2.02, 2.03])
    assert found.variants["post"].scores == pytest.approx([3.01, 3.02, 3.03])
    assert found.variants["pre"].size.tokens == 64
    assert found.variants["pre"].speed == 64 * 20 / 2
    config = AutoConfig.from_pretrained(tmp_path / "out" / "runs" / "pre-1")
    assert found.variants["pre"].size.flops == pytest.approx(3 * 4 * flops_of_row(config, 16, 16))
    assert "9/9" in capsys.readouterr().out


@pytest.mark.parametrize("equal", ["parameters", "flops"])
def test_widths_make_variants_equal(equal, tmp_path, pretended):
    budget = 1e9
    compare(read_plan(plan_file(tmp_path, equal=equal, budget={"flops": budget})), tmp_path)
    settings = {name: settings_of(tmp_path, f"runs-{name}-1") for name in PLAN["variants"]}
    configs = {name: AutoConfig.from_pretrained(tmp_path / "runs" / f"{name}-1") for name in settings}
    assert settings["pre"]["overrides"]["intermediate_size"] == 48
    assert settings["gated"]["overrides"]["intermediate_size"] == 32  # three matrices in place of two
    counts = [sum(count_parameters(config).values()) for config in configs.values()]
    assert max(counts) <= 1.02 * min(counts)
    for name, config in configs.items():
        assert settings[name]["max_steps"] == round(budget / (3 * 4 * flops_of_row(config, 16, 16)))


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
    assert (tmp_path / "figures" / "tuning.png").exists()


def test_what_does_not_finish_is_counted_and_not_averaged(tmp_path, pretended):
    variants = {
        "pre": None,
        "nan": {"learning_rate": 50.0},
        "gone": {"learning_rate": 13},
        "up": {"learning_rate": 0.9},
    }
    plan = read_plan(plan_file(tmp_path, variants=variants, budget={"steps": 4}))
    found = compare(plan, tmp_path)
    states = {name: [lost.state for lost in variant.lost.values()] for name, variant in found.variants.items()}
    assert states == {"pre": [], "nan": ["diverged"] * 3, "gone": ["failed"] * 3, "up": ["diverged"] * 3}
    text = write_report(found, tmp_path)
    assert "| 3 diverged |" in text
    assert "gone: 3 of 3 runs did not finish" in text
    assert "Not tested, for want of two finished runs on both sides: nan, gone, up." in text


def test_report_says_what_was_found(tmp_path, pretended):
    found = compare(read_plan(plan_file(tmp_path)), tmp_path)
    text = write_report(found, tmp_path)
    assert "- Worse than pre: post." in text
    assert "- No detectable difference from pre: gated." in text
    page = (tmp_path / "report.html").read_text()
    assert "norm_placement" in page
    assert page.count("data:image/svg+xml;base64,") == 4
    assert "http" not in page.replace("http://www.w3.org", "")
    with (tmp_path / "figures" / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["variant"], row["seed"], float(row["loss"])) for row in rows][3] == ("post", "1", pytest.approx(3.01))
    with (tmp_path / "figures" / "loss_tokens.csv").open() as file:
        last = list(csv.DictReader(file))[1]
    assert (float(last["training tokens"]), float(last["validation loss"])) == (1280.0, pytest.approx(2.01))


def starts(folder: Path) -> dict[str, int]:
    return {path.parent.name: len(path.read_text().split()) for path in (folder / "runs").glob("*/starts")}


def test_a_comparison_goes_on(tmp_path, pretended):
    path = plan_file(tmp_path, budget={"steps": 4})
    compare(read_plan(path, seeds=[1]), tmp_path)
    assert set(starts(tmp_path).values()) == {1}
    (tmp_path / "runs" / "post-1" / "run.json").unlink()
    compare(read_plan(path, seeds=[1, 2]), tmp_path)
    assert starts(tmp_path) == dict.fromkeys(("pre-1", "pre-2", "post-2", "gated-1", "gated-2"), 1) | {"post-1": 2}


def test_a_training_left_behind_is_ended_first(tmp_path):
    """A comparison that is killed leaves its training, which would be in the way."""
    runner = Runner("train-language-model", tmp_path, 1)
    runner.command = PRETENDED
    options = {"learning_rate": 1e-3, "seed": 1, "output_dir": str(tmp_path / "run"), "warmup_steps": 60}
    slow = runner.settings(Job("a", options))
    left = subprocess.Popen([*PRETENDED, "train-language-model", str(slow)])
    while not (tmp_path / "run" / "starts").exists():
        time.sleep(0.05)
    slow.write_text(yaml.safe_dump(options | {"warmup_steps": 0}))
    outcomes = runner.run([Job("a", options | {"warmup_steps": 0})])
    assert outcomes["a"].state == "finished"
    left.wait(10)  # or else it would raise


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"program": "train"}, "program: 'train'; choose from train-translation"),
        ({"variants": {"a": {}}}, "variants: 1 given"),
        ({"variants": "others.yaml"}, "others.yaml' does not exist"),
        ({"variants": {"a/b": {}, "c": {}}}, "'a/b' names folders"),
        ({"variants": {"a": {}, "b": ["x"]}}, "variants: b: it must be a mapping"),
        ({"variants": {"a": {}, "b": {"max_steps": 3}}}, "b: max_steps is the comparison's to set"),
        ({"budget": {"tokens": 0}}, "budget: tokens: 0; it must be a number above 0"),
        ({"budget": {"hours": 2}}, "budget: 'hours'; choose from tokens, flops, seconds, steps"),
        ({"budget": None}, "budget: give one of"),
        ({"seeds": [1, 1]}, "a seed is given twice"),
        ({"seeds": 3}, "seeds: 3; it must be a list"),
        ({"baseline": "sandwich"}, "baseline: 'sandwich'; choose from pre, post, gated"),
        ({"score": "bleu"}, "score: bleu: choose from loss"),
        ({"equal": "tokens"}, "equal: 'tokens'; choose from parameters, flops"),
        ({"tune": {"learning_rate": 1e-3}}, "tune: learning_rate: 0.001; it must be a list of two values"),
        ({"sedes": [1]}, "unknown key 'sedes'"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        read_plan(plan_file(tmp_path, **changes))


@pytest.mark.parametrize("options", [{"learning_rte": 1}, {"learning_rate": -1}])
def test_an_option_that_cannot_be_is_refused_before_anything_runs(options, tmp_path, pretended, capsys):
    plan = read_plan(plan_file(tmp_path, variants={"a": {}, "b": options}))
    with pytest.raises(ValueError, match=f"variant b: .*{next(iter(options))}"):
        compare(plan, tmp_path)
    assert not (tmp_path / "runs").exists()


def test_real_trainings(tmp_path, monkeypatch, capsys):
    """Two variants and two seeds, one variant better; what diverges, the pretended ones show."""
    (tmp_path / "texts.txt").write_text("".join(f"the cat {i} sat on the mat number {i * i}\n" for i in range(80)))
    plan = {
        "program": "train-language-model",
        "arguments": {
            "train_file": str(tmp_path / "texts.txt"),
            "overrides": FIELDS | {"num_hidden_layers": 1},
            "block_size": 32,
            "tokenizer_algorithm": "character",
            "per_device_train_batch_size": 8,
            "eval_steps": 0.5,
            "use_cpu": True,
        },
        "budget": {"steps": 6},
        "seeds": [1, 2],
        "variants": {
            "slow": {"learning_rate": 1e-4},
            "fast": {"learning_rate": 2e-2},
        },
    }
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan, sort_keys=False))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(os.environ, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    program.main(["plan.yaml", "--jobs", "2"])
    said = capsys.readouterr().out
    assert "- Better than slow: fast." in said
    for name in ("slow-1", "fast-2"):
        assert (
            json.loads((tmp_path / "runs" / "plan" / "runs" / name / "run.json").read_text())["details"]["steps"] == 6
        )
    program.main(["plan.yaml"])
    assert "4 of 4 trainings have ended before." in capsys.readouterr().out
