"""A larger model's loss by the law of smaller ones: the fit, its intervals, and ladders of pretended trainings."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from refusals import refused
from scipy.optimize import minimize, minimize_scalar
from scipy.special import huber, logsumexp
from test_comparing import FIELDS, PLAN

from vanillaformer.comparison.results import Result
from vanillaformer.forecasting import ladder, law
from vanillaformer.scripts import compare as program

TRUE = law.Law(np.log(1.2), np.log(80.0), np.log(150.0), 0.42, 0.37)
LADDER = {"widths": [8, 16, 24, 32], "tokens_per_parameter": [5, 10, 20], "held_out": 10}


def points(
    noise: float = 0.0, seed: int = 0, sizes: Any = (2e4, 5e4, 1e5, 2e5), ratios: Any = (4, 8, 16, 32, 64)
) -> law.Points:
    """Return runs of models of these sizes, with this many tokens per parameter."""
    parameters, ratios = (np.array(each).ravel() for each in np.meshgrid(sizes, ratios))
    tokens = parameters * ratios
    drawn = np.random.default_rng(seed).normal(0, noise, len(tokens))
    return law.Points(parameters, tokens, TRUE.loss(parameters, tokens) * np.exp(drawn))


def test_a_law_is_recovered():
    found = law.fit(points())
    assert np.exp([found.e, found.a, found.b]) == pytest.approx(np.exp([TRUE.e, TRUE.a, TRUE.b]), rel=0.02)
    assert (found.alpha, found.beta) == pytest.approx((TRUE.alpha, TRUE.beta), rel=0.02)


def test_the_fit_has_the_least_huber_loss_of_the_logarithms():
    """As Hoffmann et al. state it, minimized by another method from where ours ends and from beside it."""
    drawn = points(noise=0.01)
    found = law.fit(drawn)

    def objective(x: np.ndarray) -> float:
        terms = [np.full(len(drawn.losses), x[0]), x[1] - x[3] * np.log(drawn.parameters)]
        terms.append(x[2] - x[4] * np.log(drawn.tokens))
        return float(huber(law.DELTA, logsumexp(terms, axis=0) - np.log(drawn.losses)).sum())

    ours = np.array([found.e, found.a, found.b, found.alpha, found.beta])
    for start in (ours, ours * 1.02):
        other = minimize(objective, start, method="Nelder-Mead", options={"maxiter": 4000, "fatol": 1e-12})
        assert objective(ours) <= other.fun * 1.001


def test_intervals_hold_about_as_often_as_they_say(monkeypatch):
    monkeypatch.setattr(law, "RESAMPLED", 40)
    inside = 0
    for seed in range(20):
        drawn = points(noise=0.005, seed=seed)
        found = law.fit(drawn, TRUE)
        low, high = law.interval(*law.resampled(drawn, found), 6e5, 1.2e7)
        real = TRUE.loss(6e5, 1.2e7) * np.exp(np.random.default_rng(100 + seed).normal(0, 0.005))
        inside += low <= real <= high
        assert high / low < 1.06
    assert inside >= 15  # of 20 with 90 %, fewer are chance once in 90 times


def test_seeds_show_that_runs_do_not_follow_the_law(monkeypatch):
    """A loss that falls by equal steps with every doubling, as on a plateau's edge, has no such law."""
    monkeypatch.setattr(law, "RESAMPLED", 1)
    parameters, tokens, _ = (np.tile(column, 3) for column in vars(points()).values())
    noise = np.random.default_rng(0).normal(0, 0.005, (20, len(tokens)))
    for losses, found in ((TRUE.loss(parameters, tokens), False), (8 - 0.45 * np.log(tokens), True)):
        chances = []
        for drawn in losses * np.exp(noise):
            runs = law.Points(parameters, tokens, drawn)
            chances.append(law.lack_of_fit(law.resampled(runs, law.fit(runs, TRUE))[1]))
        share = np.mean(np.array(chances) < 0.01)
        assert share == 1.0 if found else share <= 0.1
    alone = law.Points(*(column[:20] for column in vars(runs).values()))
    assert law.lack_of_fit(law.resampled(alone, law.fit(alone, TRUE))[1]) == 1.0  # one seed cannot tell


def test_seeds_with_the_same_loss_make_no_interval_narrower(monkeypatch):
    monkeypatch.setattr(law, "RESAMPLED", 20)
    parameters, tokens, losses = (column[points(0.01).parameters < 2e5] for column in vars(points(0.01)).values())
    once = law.Points(parameters, tokens, losses)
    twice = law.Points(*(np.tile(column, 2) for column in (parameters, tokens, losses)))
    ends = [law.interval(*law.resampled(each, law.fit(each, TRUE)), 6e5, 1.2e7) for each in (once, twice)]
    assert ends[1] == pytest.approx(ends[0], rel=2e-3)


def test_the_best_size_for_a_budget():
    parameters, tokens = TRUE.best(1e14, 6.0)
    assert parameters * tokens * 6 == pytest.approx(1e14)
    by_search = minimize_scalar(lambda n: float(TRUE.loss(np.exp(n), 1e14 / 6 / np.exp(n))), bounds=(5, 25))
    assert np.log(parameters) == pytest.approx(by_search.x, abs=1e-3)


def test_parabolas_of_equal_flops_agree_with_the_law_and_take_the_mean_of_seeds():
    runs = points(sizes=np.geomspace(1e4, 3e5, 9), ratios=(2, 6, 20, 70, 300))
    flops = 6 * runs.parameters * runs.tokens
    found = law.iso_flop(runs, flops, [1e11, 3e11, 1e20])
    assert [level for level, _ in found] == [1e11, 3e11]  # nothing was trained with the last one
    for level, size in found:
        assert size == pytest.approx(TRUE.best(level, 6.0)[0], rel=0.3)
    sign = np.where(runs.parameters < 5e4, 0.02, -0.02)  # the worse seed is first for small sizes, last for large ones
    losses = np.concatenate([runs.losses * (1 + sign), runs.losses * (1 - sign)])
    both = law.Points(np.tile(runs.parameters, 2), np.tile(runs.tokens, 2), losses)
    assert law.iso_flop(both, np.tile(flops, 2), [1e11, 3e11]) == [pytest.approx(each) for each in found]


def test_budgets_go_by_the_largest_run_and_by_the_time_of_those_in_one_go():
    drawn = points()
    flops = drawn.tokens * (6 * drawn.parameters + 1e6)  # tables count more in small models

    def run(cost: float, seconds: float, whole: bool) -> Result:
        return Result(1, 2.0, {"flops": cost}, 50, seconds, whole, 0.0, {})

    runs: list = [(*pair, run(cost, cost / 1e9, True)) for *pair, cost in zip(drawn.parameters, drawn.tokens, flops)]
    runs.append((6e5, 1.2e7, run(5e13, 1.0, False)))
    row = ladder.budgets(TRUE, drawn, flops, runs).splitlines()[3].split(" | ")
    size, tokens = (float(cell.replace(",", "")) for cell in row[1:3])
    assert size * tokens == pytest.approx(6e5 * 1.2e7, rel=1e-4)
    assert row[-1] == "13.9 h |"
    assert "| unknown |" in ladder.budgets(TRUE, drawn, flops, runs[-1:])


def test_no_best_model_where_sizes_or_tokens_make_no_difference():
    drawn = points(noise=0.002)
    assert law.fit(drawn, TRUE).undetermined(drawn) == []
    tokens = np.unique(drawn.tokens, return_inverse=True)[1]
    run = Result(1, 2.0, {"flops": 1e12}, 50, 1.0, True, 0.0, {})
    losses = {"N": 1 + 150 * drawn.tokens**-0.37, "D": TRUE.loss(drawn.parameters, 1e6) + 1e-3 * tokens}
    for name in losses:
        found = law.Points(drawn.parameters, drawn.tokens, losses[name])
        fitted = law.fit(found, TRUE)
        assert fitted.undetermined(found) == [name]
        text = ladder.budgets(fitted, found, drawn.tokens, [(6e5, 1.2e7, run)])
        assert f"No best model for a budget: the loss of these runs does not measurably fall with {name}." in text


def plan_file(folder: Path, **changes: Any) -> Path:
    path = folder / "ladder.yaml"
    arguments = {"learning_rate": 0.25, "overrides": FIELDS}
    content = {"program": PLAN["program"], "arguments": arguments, "ladder": LADDER} | changes
    path.write_text(yaml.safe_dump({name: value for name, value in content.items() if value is not None}))
    return path


def test_the_largest_width_is_predicted_before_it_is_trained(tmp_path, pretended, monkeypatch, capsys):
    monkeypatch.setattr(law, "RESAMPLED", 20)
    trained, train = [], ladder.LadderRuns.train

    def kept(ladder_runs: ladder.LadderRuns, runs: list[tuple[int, float]]) -> list:
        trained.append((runs, (ladder_runs.folder / "forecast.json").exists()))
        return train(ladder_runs, runs)

    monkeypatch.setattr(ladder.LadderRuns, "train", kept)
    out = tmp_path / "out"
    program.main([str(plan_file(tmp_path)), "--output_dir", str(out), "--jobs", "2"])
    assert trained == [([(width, ratio) for width in (8, 16, 24) for ratio in (5, 10, 20)], False), ([(32, 10)], True)]
    settings = yaml.safe_load((out / "settings" / "runs-32-10-1.yaml").read_text())
    assert settings["max_tokens"] == 10 * 100 * 32**2
    assert settings["overrides"] == FIELDS | {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 96}
    found = json.loads((out / "forecast.json").read_text())
    truth = 1.2 + 40 * 102_400**-0.4 + 90 * 1_024_000**-0.4
    assert found["loss"] == pytest.approx(truth, rel=0.01)
    assert found["trained"] == pytest.approx(truth, rel=0.001)
    assert found["interval"][0] < found["loss"] < found["interval"][1]
    text = (out / "forecast.md").read_text()
    assert "| 102,400 | 1,024,000 |" in text
    assert "Predicted for width 32" in capsys.readouterr().out
    assert len((out / "figures" / "forecast.csv").read_text().splitlines()) == 1 + 10
    starts = {path: path.read_text() for path in out.glob("runs/*/starts")}
    program.main([str(plan_file(tmp_path)), "--output_dir", str(out)])  # the same again: nothing is trained anew
    assert {path: path.read_text() for path in out.glob("runs/*/starts")} == starts
    assert json.loads((out / "forecast.json").read_text()) == found
    assert "Earlier predictions" not in text
    assert "- All widths, and the models below, have the learning rate 0.25." in text
    assert found["lack_of_fit"] == 1.0  # by one seed
    assert "- The data was read up to 2.3 times, and counts as new each time." in text
    program.main([str(plan_file(tmp_path, ladder=LADDER | {"held_out": 12})), "--output_dir", str(out)])
    other = json.loads((out / "forecast.json").read_text())
    assert (other["earlier"], other["others"]) == ([], {"102400-1024000": [found["loss"]]})
    longer = plan_file(tmp_path, ladder=LADDER | {"tokens_per_parameter": [5, 10, 20, 40]})
    program.main([str(longer), "--output_dir", str(out)])  # a law that is fitted when the answer is known
    assert json.loads((out / "forecast.json").read_text())["earlier"] == [found["loss"]]
    earlier = f"- Earlier predictions here: {found['loss']:.4f}; the held-out run was"
    assert earlier in (out / "forecast.md").read_text()


@pytest.mark.parametrize(("changes", "options", "words"), [
    ({"ladder": LADDER | {"width": [1]}}, [], "ladder: width; it needs widths, tokens_per_parameter, held_out"),
    ({"ladder": LADDER | {"widths": [8, 32, 16, 24]}}, [], "widths: [8, 32, 16, 24]; it must be numbers above 0"),
    ({"ladder": LADDER | {"widths": [8, 16.5, 24, 32]}}, [], "widths: [8, 16.5, 24, 32]; it must be numbers"),
    ({"ladder": LADDER | {"tokens_per_parameter": [5, 10]}}, [], "three tokens_per_parameter"),
    ({"ladder": LADDER | {"held_out": [10]}}, [], "held_out is one number"),
    ({"ladder": LADDER | {"widths": [8, 12, 16, 24]}}, [], "num_attention_heads=1.5 at width 12"),
    ({"ladder": LADDER | {"held_out": float("nan")}}, [], "held_out: nan; it must be numbers above 0"),
    ({"arguments": {"overrides": FIELDS | {"hidden_size": "16"}}}, [], "'16'; it must be a whole number"),
    *(({"arguments": {"overrides": {"hidden_size": 16}} | more} | program, [], "intermediate_size would be")
      for more, program in (({"preset": "llama-tiny"}, {}), ({}, {"program": "train-image-classifier"}))),
    *(({key: {}}, [], f"{key}: not in a plan with a ladder") for key in ("extend", "variants", "budget")),
    ({"score": "accuracy"}, [], "score: accuracy; the law only predicts the loss"),
    ({}, ["--sequential"], "--sequential cannot be used with a plan that has a ladder"),
    ({}, ["--transfer", "widths=8,16"], "--transfer cannot be used with a plan that has a ladder"),
    ({"arguments": {"learning_rate": 0.25}}, [], "other widths need a hidden_size"),
])  # fmt: skip
def test_an_invalid_ladder_is_refused(changes, options, words, tmp_path):
    command = [str(plan_file(tmp_path, **changes)), *options, "--output_dir", str(tmp_path / "out")]
    refused(re.escape(words), program.main, command, error=SystemExit)
    assert not (tmp_path / "out").exists()


def test_a_run_that_is_too_short_or_lost_ends_the_ladder(tmp_path, pretended):
    twice = {"learning_rate": 0.8, "overrides": FIELDS}  # reads twice what it should
    for changes, message in (
        ({"ladder": LADDER | {"tokens_per_parameter": [0.1, 10, 20]}}, "width 8 has 6,400 parameters; 25 steps take"),
        ({"arguments": twice}, "8-5-1 was lost, unequal: it took"),
    ):
        command = [str(plan_file(tmp_path, **changes)), "--output_dir", str(tmp_path / message[:5])]
        refused(message, program.main, command, error=SystemExit)
