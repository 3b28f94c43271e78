"""What is faster is measured once in a process, and kept in a file if asked."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from vanillaformer.acceleration import autotune, chosen, gemv, keep, linear
from vanillaformer.acceleration.autotune import is_faster

from .conftest import Made

SWITCH = "VANILLAFORMER_SOMETHING"
ask = partial(is_faster, "something", SWITCH, lambda: 1.5)


@pytest.fixture(autouse=True)
def unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Nothing is known of this machine; returns the file of what was measured."""
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setenv("VANILLAFORMER_AUTOTUNE", "save")
    monkeypatch.setattr(autotune, "SAVED", tmp_path / "folder" / "products.json")
    monkeypatch.setattr(autotune, "CHOICES", {})
    return autotune.SAVED


ONEDNN = (
    [partial(linear.speed, gradients) for gradients in (True, False)] if torch.backends.mkldnn.is_available() else []
)


@pytest.mark.parametrize("speed", [gemv.speed, *ONEDNN])
def test_a_speed_is_measured_in_any_mode_in_float32_and_changes_no_random_state(speed):
    before, usual = torch.get_rng_state(), torch.get_default_dtype()
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        torch.set_default_dtype(dtype)
        try:
            with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
                assert 0.01 < autotune.speed_of(str(dtype), speed) < 100
            with Made() as made:
                speed()
        finally:
            torch.set_default_dtype(usual)
        assert {dtype for dtype, _ in made.tensors if dtype.is_floating_point} == {torch.float32}
    assert torch.equal(torch.get_rng_state(), before)


def test_it_is_measured_once_for_a_process_and_forgotten_with_it(unknown, monkeypatch):
    monkeypatch.delenv("VANILLAFORMER_AUTOTUNE")
    assert ask()
    assert is_faster("something", SWITCH, lambda: pytest.fail("measured again"))
    assert chosen() == {"something": True}
    assert not unknown.parent.exists()


def test_it_is_measured_once_for_a_machine_if_asked(unknown, monkeypatch):
    assert ask()
    assert list(json.loads(unknown.read_text()).values()) == [1.5]
    assert list(unknown.parent.iterdir()) == [unknown]
    autotune.CHOICES.clear()
    assert is_faster("something", SWITCH, lambda: pytest.fail("measured again"))
    monkeypatch.delenv("VANILLAFORMER_AUTOTUNE")
    autotune.CHOICES.clear()
    assert not is_faster("something", SWITCH, lambda: 1.0)


def test_other_machines_and_other_choices_are_kept(unknown):
    unknown.parent.mkdir()
    unknown.write_text('{"another": 0.5}')
    assert ask()
    assert not is_faster("something else", SWITCH, lambda: 1.0)
    here = f"{autotune.processor()}, torch {torch.__version__}"
    expected = {"another": 0.5, f"something, {here}": 1.5, f"something else, {here}": 1.0}
    assert json.loads(unknown.read_text()) == expected


@pytest.mark.parametrize("content", ["", "[1]", '{"another": "fast"}', "\xff"])
def test_a_damaged_file_is_written_again(unknown, content):
    unknown.parent.mkdir()
    unknown.write_text(content, "latin-1")
    assert ask()
    assert list(json.loads(unknown.read_text()).values()) == [1.5]


def test_a_folder_that_cannot_be_written_to(unknown):
    unknown.parent.write_text("no folder")
    assert ask()


@pytest.mark.parametrize(("speed", "expected"), [(0.9, False), (1.1, False), (1.2, True)])
def test_only_a_clear_gain_counts(speed, expected):
    assert is_faster("something", SWITCH, lambda: speed) is expected


@pytest.mark.parametrize(("value", "expected"), [("0", False), ("1", True)])
def test_the_environment_decides(unknown, monkeypatch, value, expected):
    monkeypatch.setenv(SWITCH, value)
    assert ask() is expected
    assert not unknown.exists()


def test_a_run_that_is_resumed_decides_as_before(monkeypatch):
    monkeypatch.setattr(autotune, "KEPT", {})
    keep({"something": False})
    assert not is_faster("something", SWITCH, lambda: pytest.fail("measured again"))
    autotune.CHOICES.clear()
    monkeypatch.setenv(SWITCH, "1")
    assert ask(), "the environment goes first"
