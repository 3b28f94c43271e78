import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from refusals import refused
from safetensors.torch import save_file

from vanillaformer.training.run_folder.files import PREVIOUS, RECORD, is_complete, last_checkpoint, move_aside
from vanillaformer.training.run_folder.run import Run, open_folder, recover


def run(folder: Path, *, steps: int = 10, **model) -> Run:
    return Run(folder, "command", {"model": model or {"preset": "gpt"}, "training": {"max_steps": steps, "seed": 1}})


def checkpoint(folder: Path, step: int, state: str = '{"global_step": 1}') -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "trainer_state.json").write_text(state)
    return path


def finish(entry: Run) -> None:
    entry.folder.mkdir(exist_ok=True)
    entry.finished, entry.metrics = True, {"eval_loss": 1.0}
    entry.write()


@pytest.mark.parametrize("broken", ["", '{"global_st', "[]", '{"epoch": 1}'])
def test_last_checkpoint_is_by_number_and_one_cut_off_while_written_does_not_count(broken: str, tmp_path) -> None:
    for step in (9, 100, 20):
        checkpoint(tmp_path, step)
    checkpoint(tmp_path, 200, broken)
    for name in ("checkpoint-300", "checkpoint-best"):
        (tmp_path / name).mkdir()
        assert not is_complete(tmp_path / name)
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-100"


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "config.json"])
@pytest.mark.parametrize("left", [0, 20, -1])
def test_checkpoint_with_a_file_cut_off_does_not_count(name: str, left: int, tmp_path: Path) -> None:
    """As a power failure can leave it: with all names, but not with what is in the files."""
    saved = checkpoint(tmp_path, 3)
    save_file({"weight": torch.zeros(4)}, saved / "model.safetensors")
    torch.save({"state": torch.zeros(4)}, saved / "optimizer.pt")
    (saved / "config.json").write_text('{"hidden_size": 16, "vocab_size": 5}')
    assert last_checkpoint(tmp_path) == saved
    (saved / name).write_bytes((saved / name).read_bytes()[:left])
    assert last_checkpoint(tmp_path) is None


def test_new_folder_and_one_with_foreign_files(tmp_path: Path) -> None:
    entry = open_folder(run(tmp_path / "new"))
    assert (entry.checkpoint, entry.finished) == (None, False)
    (tmp_path / "notes.txt").write_text("mine")
    for overwrite in (False, True):
        assert open_folder(run(tmp_path), overwrite=overwrite).checkpoint is None


@pytest.mark.parametrize(("name", "content", "message"), [
    ("run/config.json", "{}", r"would replace \(config.json\), but no record"),  # a foreign model
    (f"run/{RECORD}", "{", "run.json is damaged .* by hand"),
    ("run", "", "run is a file, not a folder"),
])  # fmt: skip
def test_folders_and_files_that_no_run_has_made(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(content)
    for overwrite in (False, True):
        refused(message, open_folder, run(tmp_path / "run"), overwrite=overwrite)


def test_unfinished_run_is_continued_and_says_which_settings_changed(tmp_path: Path, capsys) -> None:
    begun = run(tmp_path)
    begun.details = {"acceleration": {"oneDNN": True}, "defaults": [], "steps": 5}
    begun.write()
    saved = checkpoint(tmp_path, 5)
    resumed = open_folder(run(tmp_path))
    assert (resumed.checkpoint, resumed.details) == (saved, {"acceleration": {"oneDNN": True}, "defaults": []})
    capsys.readouterr()
    assert open_folder(run(tmp_path, steps=7)).checkpoint is not None
    assert "Resuming with changed settings: max_steps: 10 there, 7 now" in capsys.readouterr().out


def test_unfinished_run_of_another_model_is_refused_or_replaced_if_it_has_no_checkpoint(tmp_path: Path) -> None:
    run(tmp_path).write()
    assert open_folder(run(tmp_path, preset="gpt2")).checkpoint is None
    checkpoint(tmp_path, 5)
    with pytest.raises(ValueError, match=r"an unfinished run with other settings \(preset: 'gpt' there, 'gpt2' now\)"):
        open_folder(run(tmp_path, preset="gpt2"))


def test_finished_run_of_this_and_an_earlier_version(tmp_path: Path) -> None:
    finish(run(tmp_path))
    newer = run(tmp_path)
    newer.settings["training"] |= {"ema_decay": 0.9, "freeze": []}
    assert open_folder(newer).finished
    finish(run(tmp_path))
    checkpoint(tmp_path, 10)
    entry = open_folder(run(tmp_path))
    assert (entry.finished, entry.metrics) == (True, {"eval_loss": 1.0})
    entry = open_folder(run(tmp_path, steps=20))
    assert (entry.finished, entry.is_extension) == (False, True)
    for other in (run(tmp_path, steps=5), run(tmp_path, preset="gpt2")):
        refused("holds a finished run with other settings", open_folder, other)


@pytest.mark.parametrize(("asked", "message"), [
    ({"max_steps": 4}, "--max_steps 4: the run in .* has reached 5 already"),
    ({"max_steps": 6}, None),
    ({"max_steps": -1, "num_train_epochs": 1.0}, "--num_train_epochs 1.0: the run in .* has reached 2.5 already"),
    ({"max_steps": -1, "num_train_epochs": 3.0}, None),
    ({"max_steps": -1, "max_time": 60.0}, "--max_time 60.0: the run in .* has reached 65 already"),
    ({"max_steps": -1, "max_time": 90.0}, None),
])  # fmt: skip
def test_unfinished_run_is_not_made_shorter_than_it_is(asked: dict, message: str | None, tmp_path: Path) -> None:
    run(tmp_path).write()
    callbacks = '{"TimeBudget": {"args": {}, "attributes": {"spent": 65.0}}}'
    checkpoint(tmp_path, 5, f'{{"global_step": 5, "epoch": 2.5, "stateful_callbacks": {callbacks}}}')
    wanted = run(tmp_path)
    wanted.settings["training"] |= asked
    with pytest.raises(ValueError, match=message) if message else nullcontext():
        assert open_folder(wanted).checkpoint == tmp_path / "checkpoint-5"


PRINTS = {name: {"rows": 5, "hash": name} for name in ("train", "validation", "test")}


@pytest.mark.parametrize("finished", [True, False])
def test_changed_data(finished: bool, tmp_path: Path) -> None:
    made = run(tmp_path)
    made.data, made.finished = PRINTS, finished
    made.write()
    checkpoint(tmp_path, 5)
    for split in ("train", "validation"):
        entry = open_folder(run(tmp_path))
        with pytest.raises(ValueError, match=rf"other data .* \({split}: rows 5 then, 6 now\): put the data back"):
            entry.check_data(PRINTS | {split: {"rows": 6, "hash": "other"}})
    for data, new in ((PRINTS, False), (PRINTS | {"test": {"rows": 6, "hash": "other"}}, finished)):
        entry = open_folder(run(tmp_path))
        entry.check_data(data)
        assert (entry.needs_test, entry.data) == (new, data)
    made.data = {}  # as an earlier version has left it
    made.write()
    entry = open_folder(run(tmp_path))
    entry.check_data(PRINTS)
    assert entry.data == PRINTS


def test_chosen_checkpoint(tmp_path: Path) -> None:
    chosen = checkpoint(tmp_path / "elsewhere", 3)
    assert open_folder(run(tmp_path / "new"), resume_from=str(chosen)).checkpoint == chosen
    refused("not a complete checkpoint", open_folder, run(tmp_path / "new"), resume_from=str(tmp_path))
    refused("would delete", open_folder, run(tmp_path / "elsewhere"), overwrite=True, resume_from=str(chosen))
    assert is_complete(chosen)


@pytest.mark.parametrize("progress", ["checkpoint", "finished"])
def test_a_run_with_a_checkpoint_or_its_end_replaces_the_earlier_one(progress: str, tmp_path: Path) -> None:
    finish(run(tmp_path))
    move_aside(tmp_path)
    new = run(tmp_path, preset="gpt2")
    new.write()
    if progress == "checkpoint":
        checkpoint(tmp_path, 2)
    else:
        finish(new)
    recover(tmp_path)
    assert not (tmp_path / PREVIOUS).exists()
    assert json.loads((tmp_path / RECORD).read_text())["settings"]["model"]["preset"] == "gpt2"
