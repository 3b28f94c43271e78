"""Files are written as a whole, moved aside and put back, whatever moment it is interrupted at."""

import os
import signal
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from vanillaformer import VanillaDecoderConfig
from vanillaformer.hub import atomic_files
from vanillaformer.hub.atomic_files import write_text
from vanillaformer.training.run_folder import files
from vanillaformer.training.run_folder.files import RECORD, files_of_run, locked, move_aside, put_back, written_aside
from vanillaformer.training.run_folder.run import discard

MADE = (
    *("run.json", "README.md", "model.safetensors", "model-00001-of-00002.safetensors", "config.json"),
    *("tokenizer.json", "target_tokenizer/tokenizer.json", "adapter/adapter_config.json", "loss_curve.png"),
    *("runs/a/events.out.tfevents.1", "checkpoint-2/model.safetensors", "predictions_test.jsonl"),
)
MINE = (
    *("mine.png", "model_backup.safetensors", "model-best.safetensors", "tokenizer_api_token.txt", "notes.txt"),
    *("checkpoint-best/model.safetensors", "checkpoint-2-copy/model.safetensors", "predictions_mine.jsonl"),
    *("runs/a/notes.txt", "adapter/mine.txt", "target_tokenizer/mine.txt", "modeling_mine.py"),
)


class Interrupted(Exception):
    """What stands for a kill at some moment."""


def filled(folder: Path, names=(*MADE, *MINE)) -> dict[str, str]:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"old {name}")
    return content(folder)


def content(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def interrupt(monkeypatch):
    """Return a function after which the n-th replacement of a file, and all later ones, raise."""
    replace = os.replace

    def at(number: int) -> None:
        left = [number]

        def counting(*paths) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Interrupted
            replace(*paths)

        monkeypatch.setattr(os, "replace", counting)

    yield at
    monkeypatch.setattr(os, "replace", replace)


def test_files_of_a_run_are_known_by_exact_names_moved_aside_and_deleted(tmp_path: Path) -> None:
    before = filled(tmp_path)
    assert content(move_aside(tmp_path)) == {name: before[name] for name in MADE}
    discard(tmp_path)
    card = {"README.edited.md": before["README.md"]}  # which no program has written
    assert content(tmp_path) == {name: before[name] for name in MINE} | card
    filled(tmp_path)
    found = {path.relative_to(tmp_path).as_posix() for path in files_of_run(tmp_path)}
    assert found == {name if not name.startswith("checkpoint-2/") else "checkpoint-2" for name in MADE}
    VanillaDecoderConfig(vocab_size=5, hidden_size=4, num_attention_heads=1).save_pretrained(tmp_path)
    assert tmp_path / "modeling_vanilla_decoder.py" in files_of_run(tmp_path)
    assert tmp_path / "modeling_mine.py" not in files_of_run(tmp_path)


@pytest.mark.parametrize("moment", range(13))
@pytest.mark.parametrize("step", [move_aside, put_back])
def test_interrupted_while_moved_aside_or_put_back(step, moment: int, tmp_path: Path, interrupt) -> None:
    before = filled(tmp_path)
    if step is put_back:
        move_aside(tmp_path)
        for name in (RECORD, "checkpoint-1/trainer_state.json", "tokenizer.json"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("new")
    interrupt(moment)
    with nullcontext() if moment == 12 else pytest.raises(Interrupted):
        step(tmp_path)
    interrupt(100)
    assert put_back(tmp_path) or step is put_back
    assert content(tmp_path) == before
    assert not (tmp_path / files.PREVIOUS).exists()


def test_written_aside_replaces_as_a_whole(tmp_path: Path, interrupt) -> None:
    before = filled(tmp_path, ("model.safetensors", "config.json", "tokenizer_config.json"))
    with suppress(Interrupted), written_aside(tmp_path) as part:
        (part / "tokenizer_config.json").write_text("")
        raise Interrupted
    assert before.items() <= content(tmp_path).items()
    interrupt(2)
    with pytest.raises(Interrupted), written_aside(tmp_path) as part:
        filled(part, ("model-00001-of-00001.safetensors", "model.safetensors.index.json", "config.json"))
    assert (tmp_path / "config.json").read_text() == "old config.json"
    assert (tmp_path / "model.safetensors").exists()
    interrupt(100)
    with written_aside(tmp_path) as part:
        filled(part, ("model-00001-of-00001.safetensors", "model.safetensors.index.json", "config.json"))
    assert content(tmp_path).keys() == {
        *("model-00001-of-00001.safetensors", "model.safetensors.index.json", "config.json"),
        "tokenizer_config.json",
    }
    with written_aside(tmp_path, "adapter", writes=False) as part:
        assert part == tmp_path / ".saving" / "adapter"


def test_text_is_on_the_disk_before_it_takes_its_name(tmp_path: Path, monkeypatch) -> None:
    done, replace = [], os.replace
    monkeypatch.setattr(atomic_files, "flush", lambda path: done.append(path.name))
    monkeypatch.setattr(os, "replace", lambda *paths: done.append("replaced") or replace(*paths))
    write_text(tmp_path / RECORD, "{}")
    assert done == [f"{RECORD}.part", "replaced", tmp_path.name]
    assert content(tmp_path) == {RECORD: "{}"}


def test_lock_is_another_processs_until_it_ends_and_leaves_no_empty_folder(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    process = os.fork()
    if not process:
        try:
            with locked(tmp_path):
                os.write(writer, b"held")
                signal.pause()
        finally:
            os._exit(1)
    assert os.read(reader, 4) == b"held"
    with pytest.raises(ValueError, match=rf"is in use by another process \(process {process}\)"), locked(tmp_path):
        pass
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    with locked(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    assert not list(tmp_path.iterdir())
    with locked(tmp_path / "new" / "run"):
        assert (tmp_path / "new" / "run").is_dir()
    assert not (tmp_path / "new" / "run").exists()
    with locked(tmp_path / "full"):
        (tmp_path / "full" / "model").write_text("")
    assert content(tmp_path) == {"full/model": ""}
