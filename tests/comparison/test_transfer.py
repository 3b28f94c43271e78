"""The best learning rate by width."""

from pathlib import Path

import numpy as np
import pytest
from test_comparing import FIELDS, plan_file, settings_of

from vanillaformer.comparison.plan import read_plan
from vanillaformer.console.parsing import read_settings
from vanillaformer.forecasting.ladder import read_ladder
from vanillaformer.forecasting.transfer import at_widths, best_rate
from vanillaformer.scripts import compare as program

TUNE = {"learning_rate": [1e-4, 1e-3, 1e-2]}
PLANS = Path(program.__file__).parent / "plans"


@pytest.mark.parametrize("path", sorted(PLANS.glob("*.yaml")), ids=lambda path: path.stem)
def test_each_included_plan_is_valid(path: Path):
    keys = read_settings(path).keys()
    if "ladder" in keys:
        read_ladder(path)
    elif "program" in keys:  # others are files of variants
        plan = read_plan(path)
        assert not path.stem.startswith("widths") or at_widths(plan, (64, 128, 256, 512)).variants


def test_each_variant_is_tuned_in_each_width_and_nothing_else_is_trained(tmp_path, pretended, capsys):
    path = plan_file(tmp_path, tune=TUNE, budget={"steps": 5})
    program.main([str(path), "--transfer", "widths=32,16", "--output_dir", str(tmp_path / "out")])
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 96}
    settings = settings_of(tmp_path / "out", "tuning-gated-32-1-101")
    assert settings["overrides"] == FIELDS | sizes | {"feed_forward": "gated"}
    assert settings["learning_rate"] == 1e-3
    assert not (tmp_path / "out" / "runs").exists()
    assert len(list((tmp_path / "out" / "tuning").iterdir())) == 3 * 2 * 3
    text = capsys.readouterr().out
    assert text.startswith("6 variants, 1 seed;")
    assert text.index("| pre | 16 | 0.001 |") < text.index("| pre | 32 | 0.001 |")
    assert "| post | 16 | 0.01 (the end of the rates tried) |" in text
    assert "- pre: from width 16 to 32 the best rate changes by a factor of 1.00.\n" in text
    assert "- post: from width 16 to 32 the best rate changes by a factor of 1.00; with rates beyond those" in text
    assert (tmp_path / "out" / "transfer.md").read_text().startswith("| variant | width")
    assert len((tmp_path / "out" / "figures" / "transfer.csv").read_text().splitlines()) == 1 + 18


def test_the_best_rate_is_the_vertex_over_the_logarithm():
    rates = np.geomspace(1e-4, 1e-2, 5)
    tried = [({"learning_rate": rate}, 2 + np.log(rate / 7e-4) ** 2) for rate in reversed(rates)]
    assert best_rate([*tried, ({"learning_rate": 1.0}, None)], False) == pytest.approx((7e-4, 2.0, True))
    assert best_rate([(options, -score) for options, score in tried], True) == pytest.approx((7e-4, -2.0, True))
    assert not best_rate(tried[:2], False).inside
    lost = [(options, score if options["learning_rate"] < 1e-3 else None) for options, score in tried]
    assert best_rate(lost, False) == pytest.approx((10**-3.5, 2 + np.log(10**-3.5 / 7e-4) ** 2, True))


@pytest.mark.parametrize(("changes", "widths", "words"), [
    ({}, "widths=16,32", "it needs `tune"),
    ({"tune": TUNE | {"seed": [1, 2]}}, "widths=16,32", "seed is the comparison's to set"),
    ({"tune": TUNE, "equal": "flops"}, "widths=16,32", "and no `equal`"),
    ({"tune": TUNE}, "widths=16,20", "variant pre: num_attention_heads=2.5 at width 20: give other widths"),
    ({"tune": TUNE, "arguments": {}}, "widths=16,32", "variant pre: overrides: other widths need a hidden_size"),
    ({"tune": TUNE, "arguments": {"overrides": FIELDS | {"stage_heads": [2, 2]}}}, "widths=16,32", "stage_heads="),
    ({"tune": TUNE}, "widths=16,32 --seeds 1 2", "--seeds cannot be used with --transfer"),  # but `tuning_seeds`
    ({"tune": TUNE}, "widths=16,32 --add x={}", "--add cannot be used with --transfer"),
    ({"tune": TUNE}, "widths=16", "write it as widths=64,128,256"),
    ({"tune": TUNE}, "widths=16,16", "write it as widths=64,128,256"),
])  # fmt: skip
def test_what_cannot_be_scaled_is_refused(changes, widths, words, tmp_path: Path, capsys):
    path = plan_file(tmp_path, **changes)
    with pytest.raises(SystemExit) as ended:
        program.main([str(path), "--transfer", *widths.split(), "--output_dir", str(tmp_path / "out")])
    assert words in f"{ended.value}{capsys.readouterr().err}"
    assert not (tmp_path / "out").exists()
