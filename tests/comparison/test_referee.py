"""Verdicts for scripts: looks at growing numbers of seeds, variants added later, work that hosts share."""

import json
import os
import shutil
import socket
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from modeling.toys import toy
from refusals import refused
from scipy import stats
from test_comparing import PLAN, plan_file, settings_of, started, starts, waiting_for

from vanillaformer.comparison import comparing, running
from vanillaformer.comparison.claims import Claims
from vanillaformer.comparison.plan import Plan, keep_added, read_added, read_plan
from vanillaformer.comparison.running import Job, Runner
from vanillaformer.comparison.statistics import levels_of_looks
from vanillaformer.comparison.verdicts import judge
from vanillaformer.scripts import compare as program

VARIANTS = PLAN["variants"]


def test_levels_of_looks_spend_the_level_by_the_joint_law_of_normal_scores():
    """Scipy integrates the law of all looks at once; the last line of the table is one look's own level."""
    counts, level = (2, 3, 5, 8), 0.05
    bounds = stats.norm.isf(np.array(levels_of_looks(counts, level)) / 2)
    shares = np.sqrt(np.minimum.outer(counts, counts) / np.maximum.outer(counts, counts))
    for number in range(1, len(counts) + 1):
        law = stats.multivariate_normal(np.zeros(number), shares[:number, :number], seed=0, abseps=1e-7, releps=1e-7)
        inside = law.cdf(bounds[:number], lower_limit=-bounds[:number])
        assert 1 - inside == pytest.approx(level * (counts[number - 1] / counts[-1]) ** 1.5, abs=2e-5)
    assert levels_of_looks((5,), level) == (pytest.approx(level),)


def plan_of(folder: Path, variants: int, added: int = 0, **changes: Any) -> Plan:
    named: dict[str, Any] = {str(number): {} for number in range(variants)}
    later: dict[str, Any] = {f"added{number}": {} for number in range(added)}
    return read_plan(plan_file(folder, variants=named, **changes), later)


def drawn(plan: Plan, rng: np.random.Generator, far: float) -> dict[str, dict[int, float]]:
    """Scores of which those of the variant "1" are lower on average, in standard deviations."""
    means = {name: -far if name == "1" else 0 for name in plan.variants}
    return {name: dict(zip(plan.seeds, rng.normal(mean, 1, len(plan.seeds)))) for name, mean in means.items()}


def test_looking_after_every_seed_finds_nothing_where_nothing_is_and_what_is_there_with_fewer_runs(tmp_path):
    """benchmarks/null_plans.py has more plans; here 10 of 100 would be chance once in thirty-five times."""
    rng, plan = np.random.default_rng(0), plan_of(tmp_path, 3, sequential=True, seeds=[*range(8)])
    verdicts = [judge(plan, drawn(plan, rng, 0)).values() for _ in range(100)]
    assert sum(any(verdict.decided for verdict in found) for found in verdicts) <= 9
    pair = plan_of(tmp_path, 2, sequential=True, seeds=[*range(8)])
    found = [judge(pair, drawn(pair, rng, 4))["1"] for _ in range(40)]
    assert [verdict.word for verdict in found].count("better") == 40
    assert np.mean([len(verdict.seeds) for verdict in found]) <= 0.6 * len(pair.seeds)


def test_a_verdict_stays_when_variants_are_added_and_its_interval_agrees_with_it(tmp_path):
    rng = np.random.default_rng(1)
    for sequential in (True, False):
        whole = plan_of(tmp_path, 3, 3, sequential=sequential, family=6, seeds=[1, 2, 3, 4])
        before = replace(whole, added=(), variants={name: {} for name in "012"})
        for far in (0, 3, 30):
            scores = drawn(whole, rng, far)
            found = judge(whole, scores)
            assert {name: found[name] for name in "12"} == judge(before, scores)
            for verdict in found.values():
                assert verdict.decided == (verdict.test.low > 0 or verdict.test.high < 0)
                side = "worse" if verdict.test.low > 0 else "better"
                assert verdict.word == (side if verdict.decided else "cannot tell")


def run(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code of a comparison and what it prints as JSON."""
    with pytest.raises(SystemExit) as ended:
        program.main([str(folder / "plan.yaml"), "--output_dir", str(folder), "--json", *words])
    code: Any = ended.value.code
    return code, json.loads(capsys.readouterr().out)


def test_seeds_go_where_nothing_is_decided_and_a_script_reads_the_verdicts(tmp_path, pretended, capsys):
    plan_file(tmp_path, variants=VARIANTS, seeds=[1, 2, 3, 4, 5], sequential=True, family=4)
    code, found = run(tmp_path, capsys)
    assert code == 3
    baseline = found["variants"].pop(found["baseline"])
    assert list(baseline["scores"].values()) == pytest.approx([2.01, 2.02, 2.03, 2.04, 2.05])
    words = {name: (each["verdict"], each["seeds"]) for name, each in found["variants"].items()}
    assert words == {"post": ("worse", [1, 2]), "gated": ("cannot tell", [1, 2, 3, 4, 5])}
    trained = {"pre": 5, "post": 2, "gated": 5}
    assert set(starts(tmp_path)) == {f"{name}-{n}" for name, seeds in trained.items() for n in range(1, seeds + 1)}
    post = found["variants"]["post"]
    assert post["test"]["difference"] == pytest.approx(1)
    assert 0 < post["test"]["low"] < 1 < post["test"]["high"]
    assert post["test"]["p"] < post["test"]["level"] < 0.05
    assert post["scores"] == {"1": pytest.approx(3.01), "2": pytest.approx(3.02)}


def test_a_variant_is_added_without_new_baselines(tmp_path, pretended, capsys, monkeypatch):
    claim = tmp_path / "claims" / "folder"  # is held: two processes must not write the file at once
    monkeypatch.setattr(comparing, "keep_added", lambda *given: claim.stat() and keep_added(*given))
    plan_file(tmp_path, variants=VARIANTS, seeds=[1, 2, 3], family=4)
    first = run(tmp_path, capsys)[1]["variants"]
    code, found = run(tmp_path, capsys, "--add", "rate={learning_rate: 3.0e-2}")
    assert code == 4
    assert {name: found["variants"][name] for name in first} == first
    assert set(starts(tmp_path).values()) == {1}
    added = "--add", "rate={learning_rate: 3.0e-2}", "--add", "low={learning_rate: 9.0e-4}"
    code, found = run(tmp_path, capsys, *added)
    assert (code, len(found["variants"])) == (4, 5)
    assert run(tmp_path, capsys) == (3, found)  # what was added stays
    command = [str(tmp_path / "plan.yaml"), "--output_dir", str(tmp_path)]
    program.main([*command, "--family", "5"])
    assert "by other rules are given again: family 4, now 5." in capsys.readouterr().out
    assert set(starts(tmp_path).values()) == {1}
    for words, message in (
        ("low={learning_rate: 1.0e-4}", "--add low: it exists with other options"),
        ("fifth={}", "family: 4 variants are to be tested, and fifth would be number 5"),
        ("post={}", "variants: post exists already"),
    ):
        refused(message, program.main, [*command, "--add", words], error=SystemExit)
    plan_file(tmp_path, variants=VARIANTS)
    refused("family: say how many variants will be tested in all", program.main, command, error=SystemExit)


def test_what_was_added_is_not_lost_nor_the_baseline(tmp_path):
    """Of two processes that add a variant at once, the second one knows nothing of the first one's."""
    changes = {"variants": {1: {}, 2: {}}, "family": 4}
    path = plan_file(tmp_path, **changes)
    first, second = (read_plan(path, {name: {}}) for name in "ab")
    keep_added(first, tmp_path)
    refused("another process has added a", keep_added, second, tmp_path)
    keep_added(read_plan(path, read_added(tmp_path, {"b": {}})), tmp_path)
    assert list(read_added(tmp_path)) == ["a", "b"]
    refused("variants: 2 exists already", read_plan, path, {"2": {}})
    path = plan_file(tmp_path, **changes, baseline="b")
    refused("baseline: 'b'; choose from 1, 2", read_plan, path, read_added(tmp_path))


def test_processes_share_trainings_and_one_that_is_killed_leaves_its_own_to_the_others(tmp_path, pretended):
    slow = {"learning_rate": 1e-3, "warmup_steps": 1}
    plan_file(tmp_path, variants=VARIANTS, seeds=[1, 2], budget={"steps": 4}, arguments=slow)
    words = "--output_dir", ".", "--share"
    processes = [started(tmp_path, *words, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    waiting_for(tmp_path / "runs" / "pre-1" / "starts")
    owner = json.loads((tmp_path / "claims" / "runs-pre-1").read_text())["pid"]
    (killed,) = [process for process in processes if process.pid == owner]
    killed.kill()
    outputs = [process.communicate()[0] for process in processes if process is not killed]
    assert [process.returncode for process in processes if process is not killed] == [0, 0]
    assert outputs[0].partition("\n- Better")[2] == outputs[1].partition("\n- Better")[2] != ""
    counts = starts(tmp_path)
    assert len(counts) == 6
    assert sum(counts.values()) <= 7  # only that of the one that was killed ran again
    assert not list((tmp_path / "claims").iterdir())


def test_an_interrupted_training_is_for_others_and_other_settings_are_refused(tmp_path, pretended, monkeypatch):
    plan = read_plan(plan_file(tmp_path))
    options = {"learning_rate": 1e-3, "seed": 1, "output_dir": str(tmp_path / "runs" / "a-1")}
    job, other = (Job("runs-a-1", options | {"learning_rate": rate}) for rate in (1e-3, 1e-2))
    first, second = (Runner(plan, tmp_path, 1, shared=True) for _ in range(2))
    outcome = tmp_path / "outcomes" / "runs-a-1.json"

    def interrupted(job: Job, settings: Path) -> tuple[int, float]:
        refused(r"learning_rate: 0\.001 then, 0\.01 now", second.run, [other])
        first.stop()
        first._write("logs", job, {})
        return 1, 1.0

    with monkeypatch.context() as patched:
        patched.setattr(first, "execute", interrupted)
        assert first.run([job])[job.name].state == "failed"
    assert not outcome.exists()

    second.before = {job.name: None}
    for kind, content in (("settings", other.options), ("outcomes", {"state": "finished"})):  # by a third one
        first._write(kind, job, content)
    refused("--share: another process trained runs-a-1 differently", second._job, job)
    assert second.run([job])[job.name].state == "finished"
    assert settings_of(tmp_path, job.name) == job.options
    saved = {"model_name_or_path": str(tmp_path / "saved"), "output_dir": str(tmp_path / "runs" / "b-1")}
    job, model = Job("runs-b-1", options | saved), toy("decoder")
    model.save_pretrained(tmp_path / "saved")
    assert second.run([job]) == second.run([job])
    model.lm_head.weight.data.zero_()
    model.save_pretrained(tmp_path / "saved")
    refused("model_name_or_path: '.*' has other weights now", second.run, [job])
    shutil.rmtree(tmp_path / "saved")  # of a finished run, which needs it no more
    running.found_folder.cache_clear()
    written = second._file("settings", job).stat().st_mtime_ns
    assert second.run([job])[job.name].state == "finished"
    assert second._file("settings", job).stat().st_mtime_ns == written  # another process may be writing it


def test_a_claim_of_another_host_is_free_once_it_is_old(tmp_path, monkeypatch):
    mine = Claims(tmp_path)
    assert mine.take("a")
    assert not mine.take("a")
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    other = Claims(tmp_path)
    assert not other.take("a")
    assert other.owners() == {mine.me["host"]}
    os.utime(tmp_path / "a", (time.time() - 1000,) * 2)
    assert other.owners() == set()
    assert other.take("a")
    assert not mine.take("a")
    other.release("a")
    assert mine.take("a")
