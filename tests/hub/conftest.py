"""A Hub on this machine, a process that talks to it, and a saved model of every type."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import vanillaformer
from vanillaformer import VanillaDecoderForCausalLM, VanillaEncoderDecoderForConditionalGeneration, preset
from vanillaformer.hub.pushing import PIPELINES, config_with_pipelines, files_to_push
from vanillaformer.tokenization import save_pair, train

from .repositories import Token
from .server import Server, serve

WRITE, READ, OTHER, WRONG = "hf_writesecret", "hf_readsecret", "hf_othersecret", "hf_wrongsecret"
TOKENS = {WRITE: Token("ann", organizations=("lab",)), READ: Token("ann", "read"), OTHER: Token("bob")}
ENGLISH = ["the cat sat on the mat", "a dog ate the log", "the dog sat"] * 20
GERMAN = ["die katze sass auf der matte", "ein hund frass den stamm", "der hund sass"] * 20
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 32}


@pytest.fixture(scope="session")
def server():
    with serve(TOKENS) as running:
        yield running


@pytest.fixture(autouse=True)
def _calm(server: Server):
    """No test sees the faults or requests of another, and none finds a fault in the server itself."""
    server.faults.clear()
    server.seen.clear()
    server.hub.large = True
    server.errors.clear()
    yield
    assert not server.errors, server.errors[0]


def pipelines_of(folder: Path) -> dict[str, bytes]:
    """Return what a push adds to a saved translator."""
    path = files_to_push(folder).get(PIPELINES)
    return {PIPELINES: path.read_bytes(), "config.json": config_with_pipelines(folder / "config.json")} if path else {}


@dataclass
class Answer:
    """What a program printed, and what ended it."""

    out: str
    err: str
    error: str | None
    traceback: str | None = None
    kind: str | None = None

    @property
    def everything(self) -> str:
        return "\n".join(filter(None, (self.out, self.err, self.error, self.traceback)))


def environment(url: str, home: Path, **more: str) -> dict[str, str]:
    """Return the environment of a process that talks to this Hub and no other."""
    left = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    fixed = {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "OMP_NUM_THREADS": "1"}
    offline = {"HF_DATASETS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "CUDA_VISIBLE_DEVICES": ""}
    return left | fixed | offline | more


class Client:
    """Runs the programs in a process of its own."""

    def __init__(self, url: str, home: Path):
        program = [sys.executable, str(Path(__file__).with_name("client.py"))]
        self.home = home
        self.log = home / "stderr"
        self.process = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log.open("w"), text=True,
            env=environment(url, home),
        )  # fmt: skip

    def __call__(self, program: str, *argv: Any, token: str | None = WRITE, memory: int | None = None) -> Answer:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        job = {"program": program, "argv": [str(word) for word in argv], "environment": {"HF_TOKEN": token}}
        print(json.dumps(job | {"memory": memory}), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        assert line, self.log.read_text()[-3000:]
        return Answer(**json.loads(line))

    def ok(self, program: str, *argv: Any, **options: Any) -> str:
        """Run a program that has to succeed, and return what it printed."""
        answer = self(program, *argv, **options)
        assert answer.error is None, answer.everything
        return answer.out

    def refused(self, message: str, program: str, *argv: Any, **options: Any) -> Answer:
        """Run a program that has to end with this message alone, and no token in anything it says."""
        answer = self(program, *argv, **options)
        assert re.search(message, answer.error or ""), answer.everything
        assert answer.traceback is None, answer.traceback
        assert "secret" not in answer.everything, "of a token"
        return answer


@pytest.fixture(scope="session")
def client(server: Server, tmp_path_factory: pytest.TempPathFactory):
    runs = Client(server.url, tmp_path_factory.mktemp("home"))
    yield runs
    runs.process.kill()  # it would take seconds to put away all that it has imported
    runs.process.wait()


def save_model(kind: str, folder: Path, **changes: Any) -> Path:
    """Save a toy of a kind with its tokenizers."""
    torch.manual_seed(0)
    separate = kind == "pair"
    of = {"translator": "encoder_decoder", "pair": "encoder_decoder", "decoder": "decoder"}.get(kind, "encoder")
    source = train(ENGLISH, algorithm="word", kind=of, vocab_size=40)
    target = train(GERMAN, algorithm="word", kind=of, vocab_size=30) if separate else source
    ids = {f"{name}_token_id": getattr(target, f"{name}_token_id") for name in ("pad", "bos", "eos")}
    name = {"encoder_decoder": "transformer-tiny", "decoder": "gpt-tiny", "encoder": "bert-tiny"}[of]
    more: dict[str, Any] = {"encoder": {"pad_token_id": ids["pad_token_id"]}}.get(of, ids)
    if of == "encoder_decoder":
        more |= {"decoder_start_token_id": target.bos_token_id, "share_encoder_decoder_embeddings": not separate}
        more |= {"decoder_vocab_size": len(target)} if separate else {}
    model = CLASSES[kind](preset(name, vocab_size=len(source), dropout=0.0, **(SMALL | more | changes))).eval()
    for parameter in model.parameters():  # fresh ones would answer everything alike
        torch.nn.init.normal_(parameter, std=0.5)
    if model.can_generate():
        model.generation_config.max_length = 20
    model.save_pretrained(folder)
    save_pair(source, target, folder)
    return folder


def edit(folder: Path, file: str = "config.json", **fields: Any) -> None:
    """Change fields of a file of JSON."""
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


CLASSES = {
    "translator": VanillaEncoderDecoderForConditionalGeneration,
    "pair": VanillaEncoderDecoderForConditionalGeneration,
    "decoder": VanillaDecoderForCausalLM,
    "masked": vanillaformer.VanillaEncoderForMaskedLM,
    "classifier": vanillaformer.VanillaEncoderForSequenceClassification,
}
KINDS = list(CLASSES)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory):
    """Return a function (kind) -> folder of a saved model, to be read and not changed."""
    root, folders = tmp_path_factory.mktemp("saved"), {}

    def folder(kind: str) -> Path:
        if kind not in folders:
            folders[kind] = save_model(kind, root / kind)
        return folders[kind]

    return folder


@pytest.fixture
def copy(saved, tmp_path) -> Path:
    """A folder of a decoder that may be changed."""
    return Path(shutil.copytree(saved("decoder"), tmp_path / "model"))
