"""Saved models are pushed: what arrives and what does not, by whom, and what is said when it cannot be."""

import json
import shutil
from pathlib import Path

import pytest
from refusals import ends, refused
from transformers import AutoModelForCausalLM

from vanillaformer.hub.definitions import Source
from vanillaformer.hub.folding import Known, folded
from vanillaformer.hub.loading import saved_folder
from vanillaformer.hub.pushing import config_with_pipelines, files_to_push
from vanillaformer.scripts import push

from .conftest import KINDS, OTHER, READ, WRITE, WRONG, Client, edit, pipelines_of
from .server import Server


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", KINDS)
def test_every_model_arrives_whole_and_comes_back_the_same(kind, client, server, saved):
    folder, text = saved(kind), "the [MASK] sat" if kind == "masked" else "the cat sat"
    expected = client.ok("generate", "--model", folder, "--text", text)
    for large in (True, False):
        server.hub.large, name = large, f"ann/{kind}-{large}"  # or everything in the commit itself
        assert f"pushed: {server.url}/{name}" in client.ok("push", folder, name)
        assert server.hub.files(name) == contents(folder) | pipelines_of(folder)
        assert server.hub.repositories[name].at("main").files["model.safetensors"].large is large
        assert client.ok("generate", "--model", name, "--text", text) == expected


def test_a_dry_run_lists_what_would_go_and_what_stays_here_and_asks_nobody(client, server, copy):
    strays = ("optimizer.pt", "checkpoint-5/model.safetensors", "notes.txt")
    for name in (*strays, "LICENSE"):
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text("mine")
    listed = client.ok("push", copy, "ann/strays", "--dry-run", token=None)
    assert "ann/strays" not in server.hub.repositories
    assert not server.seen
    assert f"{(copy / 'model.safetensors').stat().st_size:,}" in listed
    client.ok("push", copy, "ann/strays")
    there = server.hub.files("ann/strays")
    uploads, rest = listed.split("not uploaded: ")
    assert all(name in uploads for name in there)
    assert all(name.split("/")[0] in rest for name in strays)
    assert str(copy.parent).encode() not in b"".join(there.values())


OTHERS = """
    optimizer.pt training_args.bin run.json trainer_state.json runs/events notes.txt .env secret.py a.parquet vocab.bin
    checkpoint-5/model.safetensors adapter/adapter_model.safetensors tokenizer.pkl tokenizer_mine.py tokenizer.env
    target_tokenizer/a.pt target_tokenizer/.env target_tokenizer/private.txt tokenizer_api_token.txt vocab_secret.csv
    LICENSE-key secrets.png chat_template.txt mine.spm sentencepiece.txt README.edited.md
    additional_chat_templates/notes.txt model-mine-of-2.safetensors model-00001-of-00002.safetensors
"""
OF_A_MODEL = """
    tokenizer.model spiece.model source.spm target.spm sentencepiece.bpe.model vocab.json merges.txt vocab.txt
    added_tokens.json special_tokens_map.json chat_template.jinja additional_chat_templates/tools.jinja
    target_tokenizer/vocab.json LICENSE.md LICENSE.txt confusion_matrix.png cross_attention.png loss_curve.png
    all_results.json LICENSE
"""


def test_files_of_a_model_go_along_and_those_that_begin_like_one_do_not(copy):
    before = files_to_push(copy).keys()
    for name in (OTHERS + OF_A_MODEL).split():
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text("{}")
    assert files_to_push(copy).keys() == before | {*OF_A_MODEL.split()}


def test_a_checkpoint_takes_the_tokenizers_of_its_run_and_no_other_file_named_like_one(copy, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(copy, run / "checkpoint-1")
    for name in ("hf_token.json", "my-tokens.json", "tokenizer.json"):
        (run / name).write_text("{}")
    files = files_to_push(run / "checkpoint-1")
    assert {name for name in files if name.endswith(".json")} == {path.name for path in copy.glob("*.json")}


@pytest.mark.parametrize("name", ["LICENSE", "target_tokenizer/vocab.json", "modeling_mine.py"])
def test_a_link_out_of_the_folder_is_not_followed(name, copy, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    for file in ("LICENSE", "vocab.json", "modeling_mine.py"):
        (tmp_path / "elsewhere" / file).write_text("# Generated: vanillaformer/\npassword")
    if "/" in name:
        (copy / "target_tokenizer").symlink_to(tmp_path / "elsewhere")
    else:
        (copy / name).symlink_to(tmp_path / "elsewhere" / name)
    refused(f"{name} is a link out of the folder, to {tmp_path}/elsewhere/", files_to_push, copy)


def test_links_within_the_folder_and_in_the_cache_are_followed(copy, client, server):
    (copy / "LICENSE").write_text("mine")
    (copy / "LICENSE.txt").symlink_to("LICENSE")
    (copy / "README.md").write_text("# Mine\n")
    client.ok("push", copy, "ann/linked")
    assert server.hub.files("ann/linked")["LICENSE.txt"] == b"mine"
    client.ok("generate", "--model", "ann/linked", "--text", "the cat")
    (snapshot,) = client.home.rglob("models--ann--linked/snapshots/*")
    client.ok("push", snapshot, "ann/linked-again")
    assert server.hub.files("ann/linked-again")["README.md"] == b"# Mine\n"
    assert (snapshot / "README.md").is_symlink(), "the cache is not changed"


@pytest.mark.parametrize("auto_map", [["mine.Mine"], {"AutoModel": "/etc/passwd.X"}, {"AutoModel": "../secret.X"}])
def test_code_outside_the_folder_is_not_pushed(auto_map, client, server, copy):
    (copy.parent / "secret.py").write_text("secret = 1\n")
    edit(copy, auto_map=auto_map)
    listed = client.ok("push", copy, "ann/elsewhere", "--dry-run")
    assert "modeling_vanilla_decoder.py" in listed
    assert "secret" not in listed.replace(str(copy), "")


def test_code_that_the_config_names_comes_along(client, server, copy):
    pipelines = {"chat": {"impl": "talk.Talk"}, "translation": {"impl": "talk.Translate"}}
    edit(copy, auto_map={"AutoModelForCausalLM": "mine.Mine"}, custom_pipelines=pipelines)
    (copy / "mine.py").write_text("from .parts import part\n")
    (copy / "parts.py").write_text("part = 1\n")
    (copy / "talk.py").write_text("class Talk: ...\n")
    client.ok("push", copy, "ann/mine")
    assert {"mine.py", "parts.py", "talk.py"} <= server.hub.files("ann/mine").keys()
    added = json.loads(config_with_pipelines(copy / "config.json"))["custom_pipelines"]
    assert {name: added[name] for name in pipelines} == pipelines


@pytest.mark.parametrize(("token", "repo", "more", "message"), [
    (None, "ann/x", [], "no token found: log in with `hf auth login`, or set HF_TOKEN"),
    (WRONG, "ann/x", [], "the token is not .* valid"),
    *((f"hf_{odd}secret", "ann/x", [], "the token has characters that are not allowed in tokens|the token is not")
      for odd in ("\x01", "\x0b", "ümlaut")),
    (READ, "ann/x", [], "the token may only read; pushing to ann/x needs a write token"),
    (READ, "x", [], "the token may only read; pushing to ann/x"),
    (OTHER, "ann/x", [], "the token has no right to do that in ann/x"),
    (OTHER, "ann/open", [], "the token has no right to do that in ann/open"),
    (OTHER, "ann/closed", [], "the token has no right to do that in ann/closed"),
    (OTHER, "ann/closed", ["--pr"], "the Hub has no ann/closed, or one that is private and not yours"),
    (WRITE, "ann/none", ["--pr"], "the Hub has no ann/none"),
    (WRITE, "ann/open", ["--private"], "ann/open exists already and is public"),
    (WRITE, "ann/open", ["--revision", "v1"], r"'v1' is a tag or commit of ann/open: push to a branch \(main\)"),
    (WRITE, "a/b/c", [], "'a/b/c' is not a repository name"),
    (WRITE, "ann/it's", [], "is not a repository name"), (WRITE, "./folder", [], "is not a repository name"),
])  # fmt: skip
def test_a_push_that_is_not_possible_is_one_error(token, repo, more, message, client, server, saved):
    for name, private in (("ann/open", False), ("ann/closed", True)):
        if name not in server.hub.repositories:
            server.hub.put(name, {"a": b"b"}, private)
            server.hub.repositories[name].tags["v1"] = server.hub.repositories[name].branches["main"]
    assert len(client.refused(message, "push", saved("decoder"), repo, *more, token=token).error) < 300
    assert not server.uploaded()


def test_a_folder_without_a_whole_model_is_refused(client, server, copy):
    (copy / "model.safetensors").unlink()
    for more in ([], ["--dry-run"]):
        client.refused("has no model.safetensors", "push", copy, "ann/nothing", *more)
    assert "ann/nothing" not in server.hub.repositories


def test_an_error_names_the_setting_that_forbids_the_network(saved, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", WRITE)  # this process itself is offline: tests/conftest.py
    ends("HF_HUB_OFFLINE is set: the Hub is not asked, and ann/x is not", push.main, saved("decoder"), "ann/x")
    refused(r"--model ann/x is not a directory, nor .*: HF_HUB_OFFLINE is set", saved_folder, "ann/x")


def test_a_second_push_sends_what_is_new_and_removes_what_would_be_loaded_by_mistake(client, server, saved, copy):
    client.ok("push", saved("pair"), "ann/again")
    mistakes = "chat_template.jinja", "added_tokens.json", "vanillaformer_export.json", "adapter_config.json"
    old = dict.fromkeys(mistakes, b"{}")
    server.hub.put("ann/again", {"notes.md": b"kept", **old})
    server.seen.clear()
    (copy / "all_results.json").write_text("{}")
    client.ok("push", copy, "ann/again")
    assert len(server.uploaded()) == 1
    assert server.hub.files("ann/again").keys() == contents(copy).keys() | {"notes.md"} | {
        name for name in server.hub.files("ann/again") if name.endswith(".py")
    }
    before = server.hub.repositories["ann/again"].branches["main"]
    server.seen.clear()
    client.ok("push", copy, "ann/again")
    assert server.hub.repositories["ann/again"].branches["main"] == before, "an empty commit"
    assert not server.uploaded()


def test_a_model_without_a_tokenizer_leaves_the_one_that_is_there(client, server, saved, copy):
    client.ok("push", saved("pair"), "ann/model-alone")
    tokenizers = {name for name in server.hub.files("ann/model-alone") if "tokenizer" in name}
    assert "target_tokenizer/tokenizer.json" in tokenizers
    for path in copy.glob("tokenizer*"):
        path.unlink()
    client.ok("push", copy, "ann/model-alone")
    assert tokenizers <= server.hub.files("ann/model-alone").keys()


def test_weights_in_several_files_are_whole_too(client, server, saved, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(saved("decoder"))
    shutil.copytree(saved("decoder"), tmp_path / "model", ignore=shutil.ignore_patterns("model.safetensors"))
    model.save_pretrained(tmp_path / "model", max_shard_size="9KB")
    shards = {path.name for path in (tmp_path / "model").glob("model*.safetensors*")}
    assert len(shards) > 3
    client.ok("push", tmp_path / "model", "ann/shards")
    assert shards <= server.hub.files("ann/shards").keys()
    client.ok("convert", "ann/shards", tmp_path / "native")
    client.ok("push", saved("decoder"), "ann/shards")
    assert {name for name in server.hub.files("ann/shards") if "safetensors" in name} == {"model.safetensors"}


def test_branches_pull_requests_private_repositories_and_organizations(client, server, saved):
    folder = saved("decoder")
    client.ok("push", folder, "lab/model", "--private")
    assert server.hub.repositories["lab/model"].private
    client.ok("push", folder, "own-name")
    assert "ann/own-name" in server.hub.repositories
    server.hub.put("bob/model", {"a": b"b"})
    out = client.ok("push", folder, "bob/model", "--pr")
    assert f"pull request: {server.url}/bob/model/discussions/1" in out
    assert server.hub.files("bob/model") == {"a": b"b"}
    assert server.hub.files("bob/model", "refs/pr/1").keys() == contents(folder).keys() | {"a"}
    out = client.ok("push", folder, "ann/own-name", "--revision", "second", "--message", "Second try")
    assert server.hub.repositories["ann/own-name"].at("second").files.keys() == contents(folder).keys()


def test_a_card_edited_on_the_hub_stays_edited(client, server, copy):
    (copy / "README.md").write_text("---\nlicense: mit\n---\n\n# Mine\n\nWritten by hand.\n")
    client.ok("push", copy, "ann/card")
    text = server.hub.files("ann/card")["README.md"].decode()
    server.hub.put("ann/card", {"README.md": (text + "\nA warning from the Hub.\n").encode()})
    client.ok("push", copy, "ann/card")
    assert "A warning from the Hub." in server.hub.files("ann/card")["README.md"].decode()
    assert "A warning from the Hub." in (copy / "README.md").read_text()
    assert not list(copy.glob("README.edited*")), "nothing was lost"
    (copy / "README.md").write_text("---\n- no mapping\n---\n")
    server.hub.put("ann/other-card", {"a": b"b"})
    client.refused("Invalid metadata in README.md. - no mapping", "push", copy, "ann/other-card")


@pytest.mark.parametrize("where", ["in ", "of ann/latin"])
def test_a_card_that_is_not_text_is_named(where, client, server, copy):
    server.hub.put("ann/latin", {"README.md": "Größe".encode("utf-8" if where == "in " else "latin-1")})
    (copy / "README.md").write_bytes("Größe".encode("latin-1" if where == "in " else "utf-8"))
    client.refused(rf"the README.md {where}.*is not UTF-8 text", "push", copy, "ann/latin")


def test_a_card_that_cannot_be_written_does_not_fail_the_push(client, server, copy):
    (copy / "README.md").write_text("# Mine")
    (copy / "README.md.part").mkdir()
    assert f"could not be written to {copy}/README.md" in client.ok("push", copy, "ann/read-only")
    assert server.hub.files("ann/read-only")["README.md"] == b"# Mine\n"


def test_a_commit_in_between_is_not_overwritten(client, server, saved):
    server.hub.put("ann/busy", {"a": b"b"})

    def interfere(path: str) -> None:
        if "/preupload/" in path:
            server.watch = None
            server.hub.put("ann/busy", {"README.md": b"by somebody else"})

    server.watch = interfere
    client.refused("ann/busy was changed in the meantime: try again", "push", saved("decoder"), "ann/busy")
    assert server.hub.files("ann/busy")["README.md"] == b"by somebody else"
    client.ok("push", saved("decoder"), "ann/busy")


def test_a_lost_connection_is_reported_and_the_push_can_be_repeated(client: Client, server: Server, saved):
    size = (saved("decoder") / "model.safetensors").stat().st_size
    server.faults.append("/commit/")
    client.refused("the connection to the Hub", "push", saved("decoder"), "ann/lost")
    assert server.uploaded() == [size]
    assert server.hub.files("ann/lost") == {}
    server.seen.clear()
    client.ok("push", saved("decoder"), "ann/lost")
    assert server.hub.files("ann/lost") == contents(saved("decoder"))
    assert server.uploaded() == [], "the weights were there already"


CONFIG = Known(kind="plain", rate=0.0, window=None)
SCOPE = {"config": CONFIG, "self": Known(config=CONFIG), "KINDS": {"plain": Known(is_gated=False)}}
SCOPE |= {"FUNCTIONS": {"packed"}, "Known": Known, "CLASSES": {"plain": Known}}
# What stands in the source, and what remains of it; `tests/modeling/test_saved_code.py` shows that no more is gone
FOLDS = {
    'x = 1 if config.kind == "plain" else 2': "x = 1",
    "x = f(a) if KINDS[config.kind].is_gated else g(b)": "x = g(b)",
    "x = config.rate and y": "x = 0.0", "x = config.window is None and y": "x = y", "x = config.rate or y": "x = y",
    "x = KINDS[config.kind].is_gated": "x = False", "x = CLASSES[config.kind](y)": "x = Known(y)",
    "a()\nacceleration.prepare(x)\nb()": "a()\nb()",
    "x = acceleration.attend(f, y, mask=z)": "x = f(y, mask=z)",
    "if (x := packed(y)) is not None:\n    a(x)\nb()": "b()",
    "if acceleration.loss(x) is None:\n    a()\nb()": "a()\nb()",
    "if config.rate:\n    a()\nb()": "b()",
    "if not config.rate:\n    a()  # why\nb()": "a()  # why\nb()",
    "if self.config.window is None:\n    a()\nelse:\n    b()": "a()",
    "if y:\n    a()\nelif config.rate:\n    b()\nelse:\n    c()": "if y:\n    a()\nelse:\n    c()",
    "if y:\n    a()\nelif not config.rate:\n    b()\nelse:\n    c()": "if y:\n    a()\nelse:\n    b()",
    "if config.rate:\n    a()\nelif y:\n    b()": "if y:\n    b()",
    "def f():\n    if config.window is None:\n        return 1\n    return 2": "def f():\n    return 1",
    "def f():\n    if config.rate:\n        a()": "def f():\n    pass",
    "if y and config.rate:\n    a()\nb()": "b()",
}  # fmt: skip


@pytest.mark.parametrize("text", FOLDS)
def test_the_branch_that_is_taken_remains(text):
    assert folded(Source(text + "\n"), SCOPE).text.decode() == FOLDS[text] + "\n"
