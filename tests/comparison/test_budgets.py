"""What runs of real trainings take, whatever is varied: the budget of the plan, or else they are not compared."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pandas import read_csv

from vanillaformer.comparison.comparing import Comparison, compare
from vanillaformer.comparison.plan import read_plan
from vanillaformer.comparison.report import curve_figure
from vanillaformer.scripts import compare as program
from vanillaformer.training.run_folder.files import spent_of_budget

FIELDS = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
COMMON = {
    "overrides": FIELDS, "eval_steps": 0.5, "use_cpu": True, "train_file": "train.csv",
    "validation_file": "validation.csv",
}  # fmt: skip
PROGRAMS: dict[str, dict[str, Any]] = {
    "train-classifier": {"preset": "bert-tiny", "tokenizer_algorithm": "word", "per_device_train_batch_size": 8},
    "train-language-model": {"preset": "gpt-tiny", "tokenizer_algorithm": "character", "block_size": 16}
    | {"per_device_train_batch_size": 4},
}
VARIED = [
    {"per_device_train_batch_size": 3}, {"gradient_accumulation_steps": 2}, {"tokens_per_batch": 96},
    {"overrides": {"hidden_size": 32}},
]  # fmt: skip
TECHNIQUES = {"train-classifier": [{"r_drop": 1.0}]}
TECHNIQUES["train-language-model"] = [{"scheduled_sampling": "linear"}, {"block_size": 24}]


def write_data(folder: Path, seed: int = 0) -> None:
    numbers = random.Random(seed)
    for name, rows in (("train", 160), ("validation", 20)):
        words = "a", "bb", "ccc", "good", "bad"
        texts = (" ".join(numbers.choices(words, k=numbers.randint(2, 9))) for _ in range(rows))
        lines = [f"{text},{int('good' in text)}" for text in texts]
        (folder / f"{name}.csv").write_text("\n".join(["text,label", *lines]))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process: None) -> Path:
    """The working directory, with data in it."""
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path)
    return tmp_path


def compared(folder: Path, **plan: Any) -> Comparison:
    """Compare trainings of a classifier, unless the plan says others."""
    usual = {"program": "train-classifier", "arguments": COMMON | PROGRAMS["train-classifier"], "seeds": [1]}
    (folder / "plan.yaml").write_text(yaml.safe_dump(usual | plan, sort_keys=False))
    return compare(read_plan(folder / "plan.yaml"), folder / "out")


def records(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.parent.name: json.loads(path.read_text()) for path in folder.glob("out/runs/*/run.json")}


@st.composite
def plans(draw: st.DrawFn) -> dict[str, Any]:
    name = draw(st.sampled_from(sorted(PROGRAMS)))
    unit, amount = draw(st.sampled_from([("tokens", 6000), ("flops", 6e7), ("steps", 30)]))
    variants = {"base": {}, "varied": draw(st.sampled_from(VARIED + TECHNIQUES[name]))}
    arguments = COMMON | PROGRAMS[name]
    return {"program": name, "arguments": arguments, "budget": {unit: amount}, "variants": variants}


@settings(max_examples=3, deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=[
    HealthCheck.function_scoped_fixture, HealthCheck.too_slow,
])  # fmt: skip
@given(plan=plans())
def test_every_run_takes_the_budget(plan, tmp_path_factory, monkeypatch, in_process):
    folder = tmp_path_factory.mktemp("plan")
    monkeypatch.chdir(folder)
    write_data(folder)
    ((unit, amount),) = plan["budget"].items()
    try:
        found = compared(folder, **plan)
    except ValueError:  # a variant's step is too large for the budget
        assert not records(folder)
        return
    for name, record in records(folder).items():
        taken = record["details"]["consumed"]
        variant = found.variants[name.removesuffix("-1")]
        assert taken[unit] == pytest.approx(amount, rel=0.02) or not variant.runs, (plan, taken)
        assert [run.consumed for run in variant.runs] == [taken] * len(variant.runs)
    assert found.variants["base"].runs


def test_tuned_batches_and_r_drop_take_the_budget(folder):
    """The steps of one batch size are no measure for another, nor those of one pass for two."""
    arguments = COMMON | PROGRAMS["train-classifier"] | {"max_validation_samples": 10}
    found = compared(
        folder, arguments=arguments | {"lr_scheduler_type": "reduce_lr_on_plateau"}, budget={"tokens": 3000},
        variants={"base": {}, "r_drop": {"r_drop": 1.0}}, tune={"per_device_train_batch_size": [4, 16]},
    )  # fmt: skip
    jobs = [*folder.glob("out/tuning/*/run.json"), *folder.glob("out/runs/*/run.json")]
    assert len(jobs) == 6
    for path in jobs:
        details = json.loads(path.read_text())["details"]
        assert details["consumed"]["tokens"] == pytest.approx(3000, rel=0.02), path
        assert spent_of_budget(path.parent) == details["consumed"]["tokens"]  # which seconds are compared by
    assert [len(variant.runs) for variant in found.variants.values()] == [1, 1]
    curve_figure(found, folder, "tokens")
    rows = read_csv(folder / "curves_tokens.csv")
    assert rows["training tokens"][rows.variant == "r_drop"].iloc[-1] == pytest.approx(3000, abs=60)


def test_runs_on_other_data_are_not_compared(folder, capsys):
    for _ in range(2):
        compared(folder, budget={"steps": 3}, variants={"a": {}, "b": {"weight_decay": 0.1}})
    assert "2 of 2 trainings were finished before." in capsys.readouterr().out
    before = records(folder)
    write_data(folder, seed=1)
    with pytest.raises(SystemExit, match=r"a-1 and 1 more: train data: 160 rows .*; validation data: 20 rows"):
        program.main(["plan.yaml", "--output_dir", "out"])
    assert records(folder) == before
    program.main(["plan.yaml", "--output_dir", "out", "--overwrite"])
    old, new = ({name: record["data"] for name, record in found.items()} for found in (before, records(folder)))
    assert old != new
    assert len(list(folder.glob("out/replaced/*/run.json"))) == 2


def test_scores_on_other_validation_rows_are_not_compared(folder):
    with pytest.raises(ValueError, match=r"runs-b-1 was validated on other rows than runs-a-1 \(rows 20 .* 10 now"):
        compared(folder, budget={"steps": 2}, variants={"a": {}, "b": {"max_validation_samples": 10}})
