"""The choice of `benchmarks/leave_one_out.py` on scores made up so that one set alone prefers a rule."""

import json
import runpy
from pathlib import Path

import pytest

FILE = Path(__file__).parents[1] / "benchmarks" / "leave_one_out.py"
RULES = {"steady": {"a": (0.8, 0.7), "b": (0.8, 0.6)}, "lucky": {"a": (0.99, 0.9), "b": (0.7, 0.5)}}


def test_no_set_chooses_its_own_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    for rule, sets in RULES.items():
        for name, (validation, test) in sets.items():
            for seed, step in ((1, 0.01), (2, -0.01)):
                folder = tmp_path / rule / f"{name}-{seed}"
                folder.mkdir(parents=True)
                metrics = {"eval_accuracy": validation + step, "test_accuracy": test + step}
                (folder / "run.json").write_text(json.dumps({"metrics": metrics}))
    (tmp_path / "lucky" / "c-1").mkdir()  # without a record: not done
    monkeypatch.setattr("sys.argv", ["leave_one_out", *(str(tmp_path / rule) for rule in RULES)])
    runpy.run_path(str(FILE), run_name="__main__")
    table = capsys.readouterr().out
    assert "(4 runs each)" in table
    assert "| a | steady | 0.7 | 0.7 |" in table  # b prefers the steady rule
    assert "| b | lucky | 0.5 | 0.6 |" in table
    assert "| mean | | **0.6** | 0.65 |" in table
    assert "| lucky | 0.845 | 0.7 |" in table
