"""Models come from the Hub, by the programs and without the package; training programs push what they made."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from without_package import report_of

from .conftest import KINDS, OTHER, WRITE, environment, pipelines_of, save_model

AUTO = {  # class and pipeline
    "translator": ("AutoModelForSeq2SeqLM", "translation"), "pair": ("AutoModelForSeq2SeqLM", "translation"),
    "decoder": ("AutoModelForCausalLM", "text-generation"), "masked": ("AutoModelForMaskedLM", "fill-mask"),
    "classifier": ("AutoModelForSequenceClassification", "text-classification"),
}  # fmt: skip


def upload(server, name: str, folder: Path, private: bool = False, **changes: bytes | None) -> str:
    """Put a folder on the Hub, with other content in some files, or without them; return the commit."""
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    files = {path: data for path, data in (files | changes).items() if data is not None}
    return server.hub.put(name, files, private)


@pytest.fixture(scope="module")
def report(server, saved, tmp_path_factory) -> dict:
    """What a process without the package found."""
    root, jobs = tmp_path_factory.mktemp("standalone"), []
    for kind in KINDS:
        folder, name = saved(kind), f"lab/{kind}"
        upload(server, name, folder, **pipelines_of(folder))
        text, options = "the [MASK] sat" if kind == "masked" else "the cat sat", {}
        if kind == "decoder":
            options = {"max_new_tokens": 3}
        job = dict(zip(("class", "task"), AUTO[kind]))
        jobs.append(job | {"id": name, "text": text, "pair": kind == "pair", "options": options})
    pin = upload(server, "lab/moved", saved("decoder"))
    upload(server, "lab/moved", save_model("decoder", root / "wide", hidden_size=32))
    upload(server, "lab/private", saved("decoder"), private=True)
    jobs = {"models": jobs, "moved": "lab/moved", "pin": pin, "private": "lab/private"}
    program = Path(__file__).with_name("standalone.py")
    return report_of(program, jobs, root, environment(server.url, root / "home", HF_TOKEN=WRITE))


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_package_a_model_loads_by_its_id_and_is_pushed_as_it_was(kind, report, server, saved):
    """What such a model computes is in `tests/modeling/test_saved_code.py`."""
    assert report["ours"] == []
    found = report["models"][f"lab/{kind}"]
    assert "trust_remote_code=True" in found["refused"]
    assert found["module"].startswith("transformers_modules."), found
    pushed = server.hub.files(f"lab/{kind}-again")
    of_model = ("config.json", "generation_config.json", "model.safetensors")
    saved_files = [path for path in saved(kind).iterdir() if path.name in of_model or path.suffix == ".py"]
    first = {path.name: path.read_bytes() for path in saved_files}
    config, before = (json.loads(files.pop("config.json")) for files in (pushed, first))
    config.pop("custom_pipelines", None)  # which a push adds to a translator's
    assert config == before
    assert {name: pushed.get(name) for name in first} == first


def test_without_the_package_pipelines_and_both_tokenizers_work_and_a_commit_can_be_pinned(report, saved):
    found = {kind: report["models"][f"lab/{kind}"] for kind in KINDS}
    assert found["decoder"]["pipeline"] == ["generated_text"]
    assert found["masked"]["pipeline"] == ["score", "sequence", "token", "token_str"]
    assert found["classifier"]["pipeline"] == ["label", "score"]
    assert found["translator"]["pipeline"] == found["pair"]["pipeline"] == ["translation_text"]
    target = transformers.AutoTokenizer.from_pretrained(saved("pair"), subfolder="target_tokenizer")
    assert found["pair"]["target"] == target.get_vocab()
    assert found["pair"]["target"] != transformers.AutoTokenizer.from_pretrained(saved("pair")).get_vocab()
    assert report["widths"] == [16, 32]


def test_a_private_repository_is_not_there_for_others(report, client):
    assert "lab/private" in report["private"]
    said = "lab/private is not a directory, nor can it be read from the Hub: the Hub has no lab/private, or one that"
    for token in (None, OTHER):
        client.refused(said, "generate", "--model", "lab/private", "--text", "the", token=token)
    client.ok("generate", "--model", "lab/private", "--text", "the", token=WRITE)


@pytest.mark.parametrize("token", [None, OTHER])
def test_a_gated_repository_says_where_to_ask(token, client, server, saved, tmp_path):
    upload(server, "lab/gated", saved("decoder"))
    server.hub.repositories["lab/gated"].gated = True
    for program, options in {
        "generate": ("--model", "lab/gated", "--text", "the", "--output_file", tmp_path / "out"),
        "export": ("lab/gated", tmp_path / "out", "--engine", "ctranslate2"),
        "train_language_model": ("--model_name_or_path", "lab/gated", "--output_dir", tmp_path / "out", "--use_cpu"),
    }.items():
        said = f"lab/gated is gated: ask for access at {server.url}/lab/gated, and log in"
        assert "\n" not in client.refused(said, program, *options, token=token).error
        assert not (tmp_path / "out").exists()
    client.ok("generate", "--model", "lab/gated", "--text", "the", token=WRITE)


def test_only_what_is_needed_is_fetched(client, server, saved):
    names = ["pytorch_model.bin", "optimizer.pt", "model.onnx", "data.parquet", "x.gguf", "tokenizer.pkl", "vocab.bin"]
    more = dict.fromkeys([*names, "tokenizer_mine.py", "target_tokenizer/mine.py"], b"no")
    upload(server, "ann/much", saved("decoder"), **more)
    client.ok("generate", "--model", "ann/much", "--text", "the cat")
    fetched = set(server.downloaded())
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= fetched
    assert not fetched & more.keys()
    assert not [name for name in fetched if name.endswith(".py")]


def test_a_revision_can_be_pinned_in_every_program(client, server, saved, tmp_path):
    pin = upload(server, "ann/pins", saved("decoder"))
    server.hub.repositories["ann/pins"].tags["v1"] = pin
    server.hub.put("ann/pins", {"config.json": b"{}"})
    for revision in (pin, "v1"):
        client.ok("generate", "--model", "ann/pins", "--revision", revision, "--text", "the cat")
    assert client("generate", "--model", "ann/pins", "--text", "the cat").error
    client.ok("convert", "ann/pins", tmp_path / "native", "--revision", pin)
    assert client("convert", "ann/pins", tmp_path / "other").error
    client.ok("export", "ann/pins", tmp_path / "ct2", "--engine", "ctranslate2", "--revision", "v1")
    of_folder = f"{saved('decoder')} is a folder: it has no revision 'v2'"
    no_name = "'what is this' is not a repository name"
    of_hub = "ann/pins has no revision 'v2'"
    for model, said in (("ann/pins", of_hub), (saved("decoder"), of_folder), ("what is this", no_name)):
        client.refused(said, "generate", "--model", model, "--revision", "v2", "--text", "the cat")
    client.refused("^2$", "convert", "x.pt", tmp_path / "n", "--from-state-dict", "nanogpt", "--revision", "v1")


def test_converted_models_are_pushed_and_pulled_too(client, server, saved, tmp_path):
    upload(server, "ann/chain", saved("decoder"))
    client.ok("convert", "ann/chain", tmp_path / "native", "--to", "gpt2")
    client.ok("push", tmp_path / "native", "ann/native")
    assert b"/tmp/" not in b"".join(server.hub.files("ann/native").values())
    client.ok("convert", "ann/native", tmp_path / "back", "--from")
    first, second = (load_file(folder / "model.safetensors") for folder in (saved("decoder"), tmp_path / "back"))
    assert all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize(
    ("kind", "engine"), [("classifier", "ctranslate2"), ("classifier", "onnx"), ("pair", "ctranslate2")]
)
def test_all_that_an_export_holds_is_pushed_and_pulled(kind, engine, client, server, saved, tmp_path):
    client.ok("export", saved(kind), tmp_path / "out", "--engine", engine)
    client.ok("push", tmp_path / "out", f"ann/{kind}-{engine}")
    made = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert server.hub.files(f"ann/{kind}-{engine}").keys() == made
    out = client.ok("generate", "--model", f"ann/{kind}-{engine}", "--text", "the cat")
    assert out == client.ok("generate", "--model", tmp_path / "out", "--text", "the cat")
    assert made <= set(server.downloaded())


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
    assert [commit.summary for commit in repository.commits.values()] == ["initial commit", "Model save"]
    assert [seen.path for seen in server.seen].count("/api/whoami-v2") == 1, "the Hub limits how often that is asked"
    text = "Monday" if program == "train_translation" else "import"
    given = ("--image", local / "example.png") if images else ("--text", text)
    assert client.ok("generate", "--model", name, *given) == client.ok("generate", "--model", local, *given)


@pytest.mark.parametrize(("token", "name", "message"), [
    (None, "ann/early", "no token found"),
    (OTHER, "ann/there", "the token has no right to do that in ann/there"),
    (WRITE, "ann/ea rly", "is not a repository name"),
])  # fmt: skip
def test_a_push_that_cannot_work_is_refused_before_anything_is_done(token, name, message, client, server, tmp_path):
    server.hub.put("ann/there", {"README.md": b"public, and somebody else's"})
    arguments = words("train_classifier", tmp_path / "run", *PUSH, name)
    assert "Tokenizer" not in client.refused(message, "train_classifier", *arguments, token=token).out
    assert not list((tmp_path / "run").glob("*"))


def test_a_failed_push_at_the_end_loses_nothing(client, server, tmp_path):
    folder = tmp_path / "run"
    arguments = words("train_classifier", folder, *PUSH, "ann/late", "--hub_strategy", "end")
    server.faults.append("/commit/")
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
    for said, given in (
        (f"--model_revision {pin} needs a --model_name_or_path", start[2:]),
        ("--model_name_or_path ann/start", start[:2]),
    ):
        client.refused(said, "train_classifier", *words("train_classifier", tmp_path / "third", *given))
