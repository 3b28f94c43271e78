"""Training programs push what they made: checked before, at the end, and nothing is lost when it fails."""

import json
import os
import re
import shlex
import signal

import pytest
import torch
from safetensors.torch import load_file

from .conftest import OTHER, WRITE, pipelines_of
from .server import Fault

COMMON = shlex.split("""
    --set hidden_size=16 num_hidden_layers=1 num_attention_heads=2
    --max_steps 4 --eval_steps 2 --logging_steps 2 --per_device_train_batch_size 8 --use_cpu
""")
OF_TEXTS = shlex.split("--set max_position_embeddings=64 --tokenizer_vocab_size 300")
PAIRS = shlex.split("--embedded_size 150 --max_source_length 32 --max_target_length 24 --joint_vocabulary False")
TEXTS = shlex.split("--max_train_samples 3 --max_validation_samples 1 --block_size 32 --max_test_samples 1")
FEW = shlex.split("--max_train_samples 60 --max_validation_samples 20 --max_test_samples 20")
PROGRAMS = {
    "train_translation": [*OF_TEXTS, *PAIRS],
    "train_language_model": [*OF_TEXTS, *TEXTS],
    "train_classifier": [*OF_TEXTS, *FEW, "--max_length", "32", "--test_fraction", "0.2"],
    "train_image_classifier": FEW,
}
PUSH = ("--push_to_hub", "--hub_model_id")


def words(program: str, folder, *more) -> list[str]:
    """The arguments of a short run; of two classes in a file, for the confusion of twenty takes seconds to draw."""
    if program == "train_classifier":
        rows = folder.with_name("rows.csv")
        rows.write_text("text,label\n" + "".join(f"text {number},{'ab'[number % 2]}\n" for number in range(120)))
        more = ("--train_file", rows, *more)
    return [*COMMON, *PROGRAMS[program], "--output_dir", str(folder), *map(str, more)]


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_trained_is_pushed(program, client, server, tmp_path):
    """By the name and the token that are given; the classifier by that of its folder, and a token as an option."""
    name, local = f"ann/{program}", tmp_path / program
    of_folder = program == "train_classifier"
    named = ("--push_to_hub", "--hub-token", WRITE) if of_folder else (*PUSH, name)
    arguments = words(program, local, *named, "--hub_private_repo", True)
    out = client.ok(program, *arguments, token=None if of_folder else WRITE)
    repository = server.hub.repositories[name]
    assert repository.private
    there = server.hub.files(name)
    images = program == "train_image_classifier"
    inputs = ["preprocessor_config.json"] if images else ["tokenizer.json"]
    for file in ("model.safetensors", "README.md", "all_results.json", "loss_curve.png", *inputs):
        assert there[file] == (local / file).read_bytes(), file
    added = pipelines_of(local)  # to a translator's
    assert there["config.json"] == added.get("config.json", (local / "config.json").read_bytes())
    assert [file for file in there if re.fullmatch(r"(modeling|configuration)_\w+\.py", file)]
    assert ("target_tokenizer/tokenizer.json" in there) == (program == "train_translation")
    assert not [file for file in there if file.endswith((".bin", ".pt", ".pth", ".jsonl"))]
    assert not [file for file in there if file.startswith("checkpoint")]
    assert not {"run.json", "trainer_state.json"} & there.keys()
    everything = b"".join(there.values())
    assert str(tmp_path).encode() not in everything.replace(there["README.md"], b"")
    assert WRITE.encode() not in everything + (local / "run.json").read_bytes()
    assert f"Pushed to {name}" in out
    summaries = [commit.summary for commit in repository.commits.values()]
    assert summaries == ["initial commit", "Model save"]
    assert [seen.path for seen in server.seen].count("/api/whoami-v2") == 1, "the Hub limits how often that is asked"
    text = "Monday" if program == "train_translation" else "import"
    given = ("--image", local / "example.png") if images else ("--text", text)
    assert client.ok("generate", "--model", name, *given) == client.ok("generate", "--model", local, *given)


@pytest.mark.parametrize(("token", "name", "message"), [
    (None, "ann/early", "no token found"),
    (OTHER, "ann/there", "the token has no right to do that in ann/there"),
    (WRITE, "ann/ea rly", "is not a repository name"),
])  # fmt: skip
def test_what_will_not_work_is_said_before_anything_is_done(token, name, message, client, server, tmp_path):
    server.hub.put("ann/there", {"README.md": b"public, and somebody else's"})
    answer = client("train_classifier", *words("train_classifier", tmp_path / "run", *PUSH, name), token=token)
    assert message in answer.error
    assert answer.traceback is None
    assert "Tokenizer" not in answer.out
    assert not list((tmp_path / "run").glob("*"))
    assert WRITE not in answer.everything
    assert OTHER not in answer.everything


def test_a_failed_push_at_the_end_loses_nothing(client, server, tmp_path):
    folder = tmp_path / "run"
    arguments = words("train_classifier", folder, *PUSH, "ann/late", "--hub_strategy", "end")
    server.faults.append(Fault("POST", "/commit/"))
    out = client.ok("train_classifier", *arguments)
    assert "The model could not be pushed to ann/late: the connection to the Hub" in out
    assert f"It is saved in {folder}; to push it: vanillaformer push {folder} ann/late" in out
    assert json.loads((folder / "run.json").read_text())["finished"]
    assert server.hub.files("ann/late") == {}
    client.ok("push", folder, "ann/late")
    assert server.hub.files("ann/late")["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    assert b"'ann/late'" in server.hub.files("ann/late")["README.md"]


def test_a_finished_run_is_pushed_when_that_is_asked_for_and_training_starts_from_a_pinned_model(
    client, server, tmp_path
):
    first = tmp_path / "first"
    run = words("train_language_model", first, "--objective", "masked")
    client.ok("train_language_model", *run)
    weights = (first / "model.safetensors").read_bytes()
    assert "is finished already" in client.ok("train_language_model", *run, *PUSH, "ann/start")
    there = server.hub.files("ann/start")
    assert there["model.safetensors"] == weights == (first / "model.safetensors").read_bytes()
    assert b"'ann/start'" in there["README.md"] == (first / "README.md").read_bytes()
    pin = server.hub.repositories["ann/start"].branches["main"]
    server.hub.put("ann/start", {"config.json": b"{}"})
    start = ("--model_name_or_path", "ann/start", "--model_revision", pin)
    more = words("train_classifier", tmp_path / "second", *start, "--learning_rate", 0)
    del more[more.index("--set") : more.index("--max_steps")]
    client.ok("train_classifier", *more)
    one, two = (load_file(folder / "model.safetensors") for folder in (first, tmp_path / "second"))
    assert torch.equal(one["model.embed_tokens.weight"], two["model.embed_tokens.weight"])
    answer = client("train_classifier", *words("train_classifier", tmp_path / "third", "--model_revision", pin))
    assert f"--model_revision {pin} needs a --model_name_or_path" in answer.error
    answer = client("train_classifier", *words("train_classifier", tmp_path / "third", *start[:2]))
    assert "--model_name_or_path ann/start" in answer.error


FORKED = """if True:
    import os, pathlib, sys
    from vanillaformer.scripts import push
    process = os.fork()
    if process:
        print(os.waitpid(process, 0)[1])
    else:
        pathlib.Path({pid!r}).write_text(str(os.getpid()))
        push.main({arguments!r})
        os._exit(0)
"""


def test_a_push_that_is_killed_in_the_middle_can_be_repeated(client, server, saved, tmp_path):
    size, pid = (saved("decoder") / "model.safetensors").stat().st_size, tmp_path / "pid"
    kill = lambda: os.kill(int(pid.read_text()), signal.SIGKILL)  # noqa: E731
    server.faults.append(Fault("PUT", "/storage/", after=size // 2, then=kill))
    forked = FORKED.format(pid=str(pid), arguments=[str(saved("decoder")), "ann/killed"])
    assert int(client.ok("python", forked)) == signal.SIGKILL
    assert server.hub.files("ann/killed") == {}
    client.ok("push", saved("decoder"), "ann/killed")
    assert "model.safetensors" in server.hub.files("ann/killed")
