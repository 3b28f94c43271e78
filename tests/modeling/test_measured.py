"""What is faster is measured once for a machine, and kept."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vanillaformer.modeling.parts import measured
from vanillaformer.modeling.parts.measured import is_faster

SWITCH = "VANILLAFORMER_SOMETHING"


def fast() -> float:
    return 1.5


ask = partial(is_faster, "something", SWITCH, fast)


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Nothing is known of this machine; returns the file of what was measured."""
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setattr(measured, "MEASURED", tmp_path / "folder" / "products.json")
    is_faster.cache_clear()
    yield measured.MEASURED
    is_faster.cache_clear()


class Dtypes(TorchDispatchMode):
    """Notes the dtypes of floats that are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.floats: set[torch.dtype] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        values = result if isinstance(result, tuple) else (result,)
        self.floats |= {
            value.dtype for value in values if isinstance(value, torch.Tensor) and value.is_floating_point()
        }
        return result


def assert_measures_anywhere(
    name: str, speed: Callable[[], float], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """Assert that a speed is measured in any mode, in float32 and that no random state is changed."""
    before, usual = torch.get_rng_state(), torch.get_default_dtype()
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        monkeypatch.setattr(measured, "MEASURED", folder / f"{dtype}.json")
        is_faster.cache_clear()
        torch.set_default_dtype(dtype)
        try:
            with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
                is_faster(name, SWITCH, speed)
            with Dtypes() as used:
                speed()
        finally:
            torch.set_default_dtype(usual)
        (found,) = json.loads(measured.MEASURED.read_text()).values()
        assert 0.01 < found < 100
        assert used.floats == {torch.float32}
    assert torch.equal(torch.get_rng_state(), before)
    is_faster.cache_clear()


def test_it_is_measured_once_for_a_machine(unknown):
    assert ask()
    assert list(json.loads(unknown.read_text()).values()) == [1.5]
    assert list(unknown.parent.iterdir()) == [unknown]
    is_faster.cache_clear()
    assert is_faster("something", SWITCH, lambda: pytest.fail("measured again"))


def test_other_machines_and_other_choices_are_kept(unknown):
    unknown.parent.mkdir()
    unknown.write_text('{"another": 0.5}')
    assert ask()
    assert not is_faster("something else", SWITCH, lambda: 1.0)
    here = f"in float32, {measured.processor()}, torch {torch.__version__}"
    expected = {"another": 0.5, f"something {here}": 1.5, f"something else {here}": 1.0}
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
def test_it_has_to_pay(unknown, speed, expected):
    assert is_faster("something", SWITCH, lambda: speed) is expected


@pytest.mark.parametrize(("value", "expected"), [("0", False), ("1", True)])
def test_the_environment_decides(unknown, monkeypatch, value, expected):
    monkeypatch.setenv(SWITCH, value)
    assert ask() is expected
    assert not unknown.exists()
