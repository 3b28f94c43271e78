"""`vanillaformer-serve` in a process of its own, asked over a loopback port by the client of OpenAI."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI
from transformers import AutoTokenizer

from vanillaformer import (
    VanillaDecoderForCausalLM,
    VanillaEncoderDecoderForConditionalGeneration,
    VanillaEncoderForMaskedLM,
)
from vanillaformer.scripts import serve

from .tiny import TEXTS, tiny

NEW = 8
GREEDY = {"max_tokens": NEW, "temperature": 0}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(port: int, process: subprocess.Popen, seconds: float = 120) -> None:
    """Return once the server answers."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert process.poll() is None, f"the server ended with {process.returncode}"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"no answer in {seconds} seconds")


@pytest.fixture(scope="module")
def folder(saved) -> Path:
    return saved(VanillaDecoderForCausalLM)


@pytest.fixture(scope="module")
def client(folder, tmp_path_factory) -> Iterator[OpenAI]:
    """A client of a running server, which is stopped as a person stops it."""
    port, log = free_port(), tmp_path_factory.mktemp("serve") / "log.txt"
    command = [sys.executable, "-m", "vanillaformer.scripts.serve", str(folder), "--host", "127.0.0.1"]
    with log.open("w") as output:
        process = subprocess.Popen([*command, "--port", str(port)], stdout=output, stderr=output, env=os.environ)
        try:
            wait_for(port, process)
            with OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as made:
                yield made
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)
            assert "Application shutdown complete" in log.read_text(), log.read_text()[-2000:]
            assert "Traceback" not in log.read_text()
        finally:
            process.kill()


def reply_to(folder: Path, messages: list[dict[str, str]]) -> str:
    """What the model itself writes."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    written = tiny(VanillaDecoderForCausalLM).generate(**prompt, do_sample=False, max_new_tokens=NEW)[0]
    written = written[prompt["input_ids"].shape[1] :]
    assert len(set(written.tolist())) > 2, "one token over and over: a mix-up would not be seen"
    return tokenizer.decode(written, skip_special_tokens=True)


@pytest.mark.parametrize("turns", [1, 3])
def test_chat(client, folder, turns):
    messages = [
        {"role": "assistant" if number % 2 else "user", "content": text} for number, text in enumerate(TEXTS[:turns])
    ]
    (choice,) = client.chat.completions.create(model=str(folder), messages=messages, **GREEDY).choices
    assert choice.message.role == "assistant"
    assert choice.message.content == reply_to(folder, messages)


def test_chat_that_streams(client, folder):
    messages = [{"role": "user", "content": TEXTS[1]}]
    stream = client.chat.completions.create(model=str(folder), messages=messages, stream=True, **GREEDY)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(pieces) == reply_to(folder, messages)
    assert len([piece for piece in pieces if piece]) > 1, "it came in one piece"


def test_completion_of_a_prompt(client, folder):
    (choice,) = client.completions.create(model=str(folder), prompt=TEXTS[2], **GREEDY).choices
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer(TEXTS[2], return_tensors="pt")
    written = tiny(VanillaDecoderForCausalLM).generate(**prompt, do_sample=False, max_new_tokens=NEW)[0]
    assert choice.text == tokenizer.decode(written[prompt["input_ids"].shape[1] :], skip_special_tokens=True)


# ------------------------------------------------------------------------------------------------- errors
@pytest.mark.parametrize("model_class", [VanillaEncoderForMaskedLM, VanillaEncoderDecoderForConditionalGeneration])
def test_what_writes_no_text_on_its_own_is_refused(model_class, saved):
    with pytest.raises(SystemExit, match=rf"is a {model_class.__name__}, but only language models are served"):
        serve.main([str(saved(model_class))])


def test_continuous_batching_is_refused_before_the_server_starts(saved):
    folder = saved(VanillaDecoderForCausalLM, position_embedding_type="alibi")
    with pytest.raises(SystemExit, match=r"--continuous-batching cannot serve .*position_embedding_type='alibi'"):
        serve.main([str(folder), "--continuous-batching"])


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(SystemExit, match=rf": {tmp_path} is no model"):
        serve.main([str(tmp_path)])


def test_code_of_a_model_runs_with_the_option_alone(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "odd", "auto_map": {"AutoConfig": "odd.Odd"}}')
    (tmp_path / "odd.py").write_text('raise ValueError("it has run")\n')
    with pytest.raises(SystemExit, match="has code of its own: --trust-remote-code runs it, once you have read it"):
        serve.main([str(tmp_path)])
    with pytest.raises(SystemExit, match="it has run"):
        serve.main([str(tmp_path), "--trust-remote-code"])


def test_missing_libraries_are_named(monkeypatch):
    monkeypatch.setattr(serve, "is_serve_available", lambda: False)
    monkeypatch.setattr(serve, "find_spec", lambda name: None if name == "uvicorn" else object())
    with pytest.raises(SystemExit, match=r"serving needs uvicorn: pip install 'vanillaformer\[serve\]'"):
        serve.main(["somewhere"])


def test_help_lists_the_options_of_the_server(capsys):
    with pytest.raises(SystemExit) as ended:
        serve.main(["--help"])
    assert ended.value.code == 0
    assert "--continuous-batching" in capsys.readouterr().out
