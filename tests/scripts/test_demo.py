"""The demo, on a toy that learns nothing: everything it shows and leaves is there."""

from pathlib import Path

from script_runs import COMMON, PAIRS, pictures

from vanillaformer.scripts import demo


def test_demo(tmp_path: Path, capsys) -> None:
    argv = [*COMMON.split(), *PAIRS.split(), "--output_dir", str(tmp_path), "--max_steps", "2"]
    with pictures(drawn=True):
        demo.main(argv)
    shown = capsys.readouterr().out
    assert shown.count("✗") + shown.count("✓") == min(demo.EXAMPLES, 5)
    assert "On 5 held-out pairs: loss" in shown
    for name in ("cross_attention.png", "loss_curve.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    (tmp_path / "cross_attention.png").unlink()
    demo.main(argv)
    assert "nothing to train" in capsys.readouterr().out
    assert (tmp_path / "cross_attention.png").exists()
