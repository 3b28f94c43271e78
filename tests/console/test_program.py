"""How a program ends: exit code, one line for the user's errors, a traceback for our own."""

import io
import os
import sys
import weakref

import pytest
import torch
from huggingface_hub.errors import StrictDataclassFieldValidationError
from safetensors import SafetensorError

from vanillaformer.console.program import program


def ended(error: BaseException, ending: type[BaseException] = SystemExit) -> BaseException:
    """Return what a program ends with that raises an error."""

    @program
    def main(argv=None):
        raise error

    with pytest.raises(ending) as raised:
        main([])
    return raised.value


@pytest.fixture(autouse=True)
def _name(monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/vanillaformer-x"])
    monkeypatch.delenv("VANILLAFORMER_TRACEBACK", raising=False)


@pytest.mark.parametrize(("error", "line"), [
    (ValueError("--a 0:\n  it must be\n  1"), "--a 0: it must be 1"),
    (ValueError("Bearer hf_abcdefgh"), "Bearer hf_..."),
    (FileNotFoundError(2, "No such file or directory", "a/b"), "a/b: No such file or directory"),
    (OSError(28, "No space left on device"), "No space left on device"),
    (OSError("ann/x is not a model"), "ann/x is not a model"),
    (ImportError("run `pip install wandb`"), "run `pip install wandb`"),
    (ModuleNotFoundError("No module named 'peft'", name="peft"), "No module named 'peft'"),
    (StrictDataclassFieldValidationError("width", TypeError("not an int")), None),
    (SafetensorError("header too large"), "header too large"),
    (ValueError(), "ValueError"),
])  # fmt: skip
def test_an_error_of_the_user_is_one_line(error, line) -> None:
    code = ended(error).code
    assert isinstance(code, str)  # Python writes it to standard error, and exits with 1
    assert len(code.splitlines()) == 1
    assert code.startswith("vanillaformer-x: ")
    if line is not None:
        assert code == f"vanillaformer-x: {line}"


@pytest.mark.parametrize("error", [
    TypeError("'<' not supported"), RuntimeError("shape"), KeyError("x"),
    ImportError("cannot import name 'x'", name="vanillaformer.training"),
    ModuleNotFoundError("No module named 'vanillaformer.y'", name="vanillaformer.y"),
])  # fmt: skip
def test_an_error_of_ours_keeps_its_traceback(error) -> None:
    assert ended(error, type(error)) is error


def test_usage_errors_keep_their_exit_code_and_tracebacks_can_be_asked_for(monkeypatch) -> None:
    monkeypatch.setenv("VANILLAFORMER_TRACEBACK", "1")

    error = ValueError("x")
    assert ended(error, ValueError) is error
    assert ended(SystemExit(2)).code == 2


@pytest.mark.parametrize("rank", ["0", "1"])
def test_only_the_first_process_speaks_at_once(rank: str, monkeypatch) -> None:
    """The launcher ends the others while they wait."""
    waits: list[float] = []
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr("time.sleep", waits.append)
    assert ended(ValueError("x")).code == "vanillaformer-x: x"
    assert bool(waits) is (rank == "1")


@pytest.mark.parametrize(("message", "line"), [("", "interrupted"), ("stopped at step 3", "stopped at step 3")])
def test_interrupted(message, line, capsys) -> None:
    assert ended(KeyboardInterrupt(*([message] if message else []))).code == 130
    assert capsys.readouterr().err == f"vanillaformer-x: {line}\n"


def test_a_reader_that_goes_away(monkeypatch, capsys) -> None:
    """The output is still buffered when the program ends: nothing may be left that shutdown would trip over."""
    reader, writer = os.pipe()
    os.close(reader)
    with io.TextIOWrapper(io.FileIO(writer, "w"), write_through=False) as output:
        monkeypatch.setattr(sys, "stdout", output)

        @program
        def main(argv=None):
            print("a line")

        with pytest.raises(SystemExit) as raised:
            main([])
        assert raised.value.code == 141
        output.flush()
    assert capsys.readouterr().err == ""


def test_a_program_leaves_the_group_of_processes(tmp_path):
    """Threads of a group that is open at the exit, or kept by a circle of references, abort it now and then."""

    @program
    def join(circle: list) -> None:
        torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
        held = {"group": torch.distributed.group.WORLD}
        held["itself"] = held
        circle.append(weakref.ref(held["group"]))

    join(circle := [])
    assert not torch.distributed.is_initialized()
    assert circle[0]() is None
