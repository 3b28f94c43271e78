from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from vanillaformer.training.report.plots import confusion_picture, loss_curve

HISTORY = [
    {"step": 1, "loss": 4.0},
    {"step": 2, "loss": 2.0},
    {"step": 2, "eval_loss": 2.5, "eval_bleu": 10.0, "eval_exact_match": 40.0},
    {"step": 2, "train_runtime": 1.0},
]


@pytest.fixture
def drawn(monkeypatch) -> list[Figure]:
    """Collect the figures that are saved."""
    figures: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k))[1])
    return figures


def test_loss_curve_with_and_without_evaluation(tmp_path: Path, drawn: list[Figure]) -> None:
    path = loss_curve(HISTORY, tmp_path / "loss.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    left, right = drawn[0].axes
    assert [list(curve.get_ydata()) for curve in left.lines] == [[4.0, 2.0], [2.5]]
    assert [list(curve.get_ydata()) for curve in right.lines] == [[40.0]]
    assert right.get_ylabel() == "exact match (%)"
    loss_curve(HISTORY[:2], tmp_path / "loss.png")
    assert len(drawn[1].axes) == 1
    assert loss_curve([], tmp_path / "empty.png").exists()


def test_confusion_picture(tmp_path: Path, drawn: list[Figure]) -> None:
    matrix = np.array([[3, 1], [0, 0]])
    path = confusion_picture(matrix, ["yes", "no $"], tmp_path / "confusion.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    axes = drawn[0].axes[0]
    np.testing.assert_allclose(axes.images[0].get_array(), [[0.75, 0.25], [0, 0]])
    assert [text.get_text() for text in axes.texts] == ["3", "1", "0", "0"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["yes", r"no \$"]
