"""`vanillaformer serve` in a process of its own, asked over a loopback port by the client of OpenAI."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import uvicorn
from modeling.toys import sharpen
from openai import BadRequestError, NotFoundError, OpenAI
from refusals import ends
from safetensors.torch import load_file, save_file
from starlette.testclient import TestClient
from transformers import AutoTokenizer, ContinuousBatchingConfig, Qwen3Config, Qwen3ForCausalLM
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.model_manager import ModelManager
from transformers.cli.serving.utils import GenerationState

from vanillaformer import (
    VanillaDecoderConfig,
    VanillaDecoderForCausalLM,
    VanillaEncoderDecoderForConditionalGeneration,
    VanillaEncoderForMaskedLM,
)
from vanillaformer.inference.requests import Limits
from vanillaformer.inference.serving import builder
from vanillaformer.scripts import serve
from vanillaformer.tokenization import train

from .tiny import SIZES, TEXTS, tiny, tokenizer_of

NEW = 8
GREEDY = {"max_tokens": NEW, "temperature": 0}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(holds, seconds: float = 60) -> None:
    """Return once something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


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
            with socket.socket() as probe:
                wait_until(lambda: process.poll() is not None or probe.connect_ex(("127.0.0.1", port)) == 0, 120)
            assert process.poll() is None, log.read_text()[-2000:]
            with OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as made:
                yield made
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)
            assert "Application shutdown complete" in log.read_text(), log.read_text()[-2000:]
            assert "Traceback" not in log.read_text()
        finally:
            process.kill()


def reply_to(folder: Path, asked: str | list[dict[str, str]]) -> str:
    """What the model itself writes."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if isinstance(asked, str):
        prompt = tokenizer(asked, return_tensors="pt")
    else:
        options = {"return_tensors": "pt", "return_dict": True}
        prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, **options)
    written = tiny(VanillaDecoderForCausalLM).generate(**prompt, do_sample=False, max_new_tokens=NEW)[0]
    written = written[prompt["input_ids"].shape[1] :]
    assert len(set(written.tolist())) > 2, "one token over and over: a mix-up would not be seen"
    return tokenizer.decode(written, skip_special_tokens=True)


def test_a_completion_without_a_limit_ends_at_the_models_length(client, folder):
    """One of 64 positions: its table has no more."""
    reply = client.completions.create(model=str(folder), prompt=TEXTS[2], temperature=0)
    assert reply.usage.completion_tokens <= 64 - reply.usage.prompt_tokens
    assert (reply.choices[0].finish_reason, reply.usage.total_tokens) == ("length", 64)


def test_other_models_and_what_does_not_fit_are_refused(client, folder):
    assert [model.id for model in client.models.list().data] == [str(folder)]
    with pytest.raises(BadRequestError, match="max_tokens=100: after 3 tokens of prompt at most 61 fit"):
        client.completions.create(model=str(folder), prompt=TEXTS[2], max_tokens=100)
    with pytest.raises(BadRequestError, match=f"Server is pinned to '{folder}'; requested '/etc'"):
        client.completions.create(model="/etc", prompt="x")


def test_transformers_chat_talks_to_it(client, folder):
    """The program as a person uses it, its lines read from a pipe."""
    url = str(client.base_url).removesuffix("/v1/")
    command = [Path(sys.executable).with_name("transformers"), "chat", folder, url, "--user", "ann"]
    environment = os.environ | {"COLUMNS": "400", "HF_HUB_OFFLINE": "0"}  # or it asks no server at all
    reply = reply_to(folder, [{"role": "user", "content": TEXTS[1]}])
    for option, said in (("top_p=1.0", reply), ("top_k=3", "generation_config: top_k cannot be set by a request")):
        asked = [*command, "do_sample=False", f"max_new_tokens={NEW}", option]
        lines = f"{TEXTS[1]}\n!exit\n"
        done = subprocess.run(asked, input=lines, capture_output=True, text=True, env=environment, timeout=120)
        assert said in done.stdout + done.stderr, done.stdout + done.stderr
    with pytest.raises(NotFoundError, match=f"model='/etc': this server serves only {folder}"):
        client.post(f"{url}/load_model", body={"model": "/etc"}, cast_to=str)


DIALOGUE = [{"role": role, "content": text} for role, text in zip(("user", "assistant", "user"), TEXTS)]


def written(client, folder, kind: str, **options) -> str:
    """Return an answer of the server, streamed or not, and check why it ended and what it names."""
    options |= GREEDY | {"model": str(folder), "stream": "streamed" in kind}
    if "chat" in kind:
        made = client.chat.completions.create(messages=DIALOGUE, **options)
    else:
        made = client.completions.create(prompt=TEXTS[2], **options)
    parts = [*made] if options["stream"] else [made]
    assert {part.model for part in parts} == {str(folder)}
    choices = [part.choices[0] for part in parts]
    if "chat" in kind:
        messages = [choice.delta if options["stream"] else choice.message for choice in choices]
        assert options["stream"] or messages[0].role == "assistant"
        texts = [message.content or "" for message in messages]
    else:
        texts = [choice.text for choice in choices]
    assert choices[-1].finish_reason == "stop" or "stop" not in options
    assert len([*filter(None, texts)]) > 1 or not options["stream"] or "stop" in options, "it came in one piece"
    return "".join(texts)


@pytest.mark.parametrize("kind", ["completion", "streamed completion", "chat", "streamed chat"])
def test_an_answer_is_the_models_and_ends_before_its_stop_sequence(kind, client, folder):
    whole = written(client, folder, kind)
    assert whole == reply_to(folder, DIALOGUE if "chat" in kind else TEXTS[2])
    middle = len(whole) // 2
    for stop in (whole[middle], whole[middle : middle + 3], whole[-2:], ["never", whole[middle:]]):
        stops = [stop] if isinstance(stop, str) else stop
        wanted = whole[: min(whole.find(each) for each in stops if each in whole)]
        assert written(client, folder, kind, stop=stop) == wanted


def test_a_text_that_only_begins_as_a_stop_sequence_or_after_one_in_the_prompt_is_sent(client, folder):
    whole = written(client, folder, "completion")
    options = {"model": str(folder), "prompt": TEXTS[2], **GREEDY}
    for stop in (f"{whole[-4:]}more", TEXTS[2][-1] + whole[0]):
        stream = list(client.completions.create(stream=True, stop=stop, **options))
        assert "".join(part.choices[0].text for part in stream) == whole
        assert stream[-1].choices[0].finish_reason == "length"
        assert client.completions.create(stop=stop, **options).choices[0].text == whole


LIMITS = Limits(max_tokens=50, max_prompt_tokens=20, max_body_bytes=3000)


def app_of(folder: Path, host: str = "localhost", state: GenerationState | None = None) -> TestClient:
    """A client of the app that serves a folder."""
    serve.server_command()  # makes transformers know the class
    manager, state = ModelManager(device="cpu", force_model=str(folder)), state or GenerationState()
    named = ("completion", "response", "transcription", "systemone")
    app = builder(LIMITS, host)(
        manager, ChatCompletionHandler(manager, state), **dict.fromkeys([f"{name}_handler" for name in named]),
        generation_state=state,
    )  # fmt: skip
    return TestClient(app, base_url="http://localhost", raise_server_exceptions=False)


@pytest.fixture(scope="module")
def app(folder) -> TestClient:
    return app_of(folder)


@pytest.mark.parametrize(
    "path", ["/reset", "/v1/responses", "/v1/systemone", "/v1/audio/transcriptions", "/docs", "/openapi.json"]
)
def test_other_endpoints_are_not_there(path, app, tmp_path):
    answer = app.post(path, json={"model": str(tmp_path)})
    assert answer.status_code == 404
    error = {"message": "Not Found", "type": "invalid_request_error", "param": None, "code": None}
    assert answer.json() == {"error": error}
    assert app.get(path).status_code == 404
    assert app.get("/health").json() == {"status": "ok"}


PROMPT, TURN = {"prompt": "the old"}, {"role": "user", "content": "the old"}
# Fields of a completion, each with a wrong value and what is allowed
WRONG: list[tuple[str, list, str]] = [
    ("max_tokens", ["many", -3, 0, True, 51], "an integer from 1 to 50"),
    ("temperature", ["hot", 9, -1], "a number from 0 to 2"), ("top_p", [2], "a number from 0 to 1"),
    ("seed", ["x"], "an integer from 0"), ("frequency_penalty", [-1], "a number above -1"),
    ("stop", [[1]], "a text or up to 16 of them"), ("stream", ["yes"], "true or false"), ("model", [5], "a text"),
    ("logit_bias", [{"5": 1}], "{}, others are not supported"), ("n", [2], "1, others are not supported"),
    ("best_of", [3], "1"), ("logprobs", [0], "false, others are not supported"), ("echo", [True], "false"),
    ("presence_penalty", [0.5], "0"),
]  # fmt: skip
COMPLETIONS: dict[str, tuple[dict, str]] = {
    **{f"{name}={value!r}": (PROMPT | {name: value}, f"{name}={value!r}: it must be {allowed}")
       for name, values, allowed in WRONG for value in values},
    "suffix": (PROMPT | {"suffix": "end"}, "suffix is not accepted from clients: use prompt, max_tokens"),
    "settings": (PROMPT | {"generation_config": "{"}, "generation_config is not accepted from clients: use prompt"),
    "prompts": ({"prompt": ["a", "b"]}, "prompt has 2 texts: send a request for each"),
    "tokens": ({"prompt": [5, 6]}, "prompt=[5, 6]: it must be a non-empty text"),
    "empty": ({"prompt": ""}, "prompt='': it must be a non-empty text"),
    "long": ({"prompt": "the old ship " * 20}, "the prompt has 62 tokens, it must be from 1 to 20"),
}  # fmt: skip
CHATS: dict[str, tuple[dict, str]] = {
    "no messages": ({}, "messages=None: it must be a non-empty list of messages"),
    "text": ({"messages": "x"}, "messages='x': it must be a non-empty list of messages"),
    "no role": ({"messages": [{"content": "x"}]}, "messages[0]: it must be an object with a role"),
    "content": ({"messages": [{"role": "user", "content": 5}]}, "messages[0]: content=5: it must be a text, or a"),
    "picture": ({"messages": [TURN | {"content": [{"type": "image_url", "image_url": {"url": "file:///etc/x"}}]}]},
                "messages[0]: content=[{'type': 'image_url'"),
    "calls": ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, "tool_calls must be functions"),
    "bias": ({"messages": [TURN], "logit_bias": {"x": 1}}, "logit_bias={'x': 1}: it must be an object of numbers by"),
    "unknown": ({"messages": [TURN], "logit_bias": {"5000": 1}}, "logit_bias='5000': the model has tokens from 0 to "),
    "format": ({"messages": [TURN], "response_format": {"type": "json_object"}}, "response_format is not accepted"),
    "tools": ({"messages": [TURN], "tools": "all"}, "tools='all': it must be a list of objects"),
    "template": ({"messages": [TURN], "chat_template_kwargs": {"chat_template": "{{ 7 * 7 }}", "mood": "good"}},
                 "chat_template_kwargs: chat_template cannot be set by a request"),
    "more of it": ({"messages": [TURN], "chat_template_kwargs": {"tokenize": False}}, "tokenize cannot be set"),
    "long": ({"messages": [TURN | {"content": "the old ship " * 20}]}, "the prompt has 6"),
}  # fmt: skip
REQUESTS = [
    *[pytest.param("/v1/completions", *case, id=f"completion-{name}") for name, case in COMPLETIONS.items()],
    *[pytest.param("/v1/chat/completions", *case, id=f"chat-{name}") for name, case in CHATS.items()],
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body", "message"), REQUESTS)
def test_a_wrong_request_is_an_error_that_names_the_field(path, body, message, stream, app):
    answer = app.post(path, json={"stream": stream} | body)
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]["message"]
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(("content", "kind", "status", "message"), [
    (b'{"prompt": ', "application/json", 400, "the body is not JSON"),
    (b"[" * 2000, "application/json", 400, "the body is not JSON"),
    (b"[]", "application/json", 400, "the body must be a JSON object, got a list"),
    (b'{"prompt": "the"}', "text/plain", 415, "content-type 'text/plain': it must be application/json"),
    (b'{"prompt": "%s"}' % (b"a" * 3000), "application/json", 413, "the body has more than 3,000 bytes"),
])  # fmt: skip
def test_a_body_that_is_not_a_json_object_is_refused(content, kind, status, message, app):
    answer = app.post("/v1/completions", content=content, headers={"content-type": kind})
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]


def test_only_names_of_this_machine_reach_a_server_that_listens_on_it(app, folder):
    assert app.get("/health", headers={"host": "127.0.0.1:8000"}).status_code == 200
    assert app.get("/health", headers={"host": "evil.example:8000"}).status_code == 400
    assert app_of(folder, "0.0.0.0").get("/health", headers={"host": "evil.example"}).status_code == 200


def test_limits_fit_what_is_asked_for(app):
    greedy = {"prompt": TEXTS[2], "temperature": 0}  # which does not end by itself
    for asked, count in ((greedy, 50), (greedy | {"max_tokens": 3}, 3)):
        usage = app.post("/v1/completions", json=asked).json()["usage"]
        assert usage == {"prompt_tokens": 3, "completion_tokens": count, "total_tokens": 3 + count}
    answer = app.post("/v1/chat/completions", json={"messages": [TURN], "max_completion_tokens": 3, "max_tokens": 9})
    assert answer.json()["usage"]["completion_tokens"] <= 3
    default = {"generation_config": json.dumps({"do_sample": True, "max_new_tokens": 256})}  # of `transformers chat`
    assert app.post("/v1/chat/completions", json={"messages": [TURN], **default}).status_code == 200


def test_values_that_ask_for_nothing_are_taken(app):
    nothing = {"n": 1, "logprobs": False, "presence_penalty": 0.0, "user": "me", "max_tokens": 3, "temperature": 0}
    whole = app.post("/v1/completions", json=PROMPT | {"max_tokens": 3, "temperature": 0}).json()["choices"]
    more = {"best_of": 1, "echo": False, "logit_bias": {}, "suffix": None}
    assert app.post("/v1/completions", json={"prompt": [PROMPT["prompt"]]} | nothing | more).json()["choices"] == whole
    assert app.post("/v1/chat/completions", json={"messages": [TURN], "logit_bias": {}} | nothing).status_code == 200


def test_a_stream_ends_with_its_incomplete_character(tmp_path):
    """As the answer in one piece does; most bytes of this random model are no UTF-8."""
    tokenizer = train(TEXTS, algorithm="byte_level_bpe", kind="decoder", vocab_size=270)
    tokenizer.save_pretrained(tmp_path)
    torch.manual_seed(0)
    sharpen(VanillaDecoderForCausalLM(VanillaDecoderConfig(vocab_size=270, **SIZES))).save_pretrained(tmp_path)
    app, ends_so = app_of(tmp_path), []
    for length, stop in ((1, None), (1, "never"), (2, None), (3, None)):
        body = {"prompt": "the", "max_tokens": length, "temperature": 0, "stop": stop}
        whole = app.post("/v1/completions", json=body).json()["choices"][0]["text"]
        lines = app.post("/v1/completions", json=body | {"stream": True}).text.split("\n\n")
        pieces = [json.loads(line.removeprefix("data: "))["choices"][0]["text"] for line in lines if line]
        assert "".join(pieces) == whole
        ends_so.append(whole.endswith("\ufffd"))
    assert any(ends_so)


def test_biases_may_be_integers(app, folder):
    asked = {"messages": [TURN], "logit_bias": {"9": 100}, "max_tokens": 3, "temperature": 0}
    content = app.post("/v1/chat/completions", json=asked).json()["choices"][0]["message"]["content"]
    assert content == AutoTokenizer.from_pretrained(folder).decode([9, 9, 9])


def test_requests_at_the_same_time_have_their_own_seeds(app):
    def text(seed: int) -> str:
        body = PROMPT | {"max_tokens": 40, "temperature": 2, "seed": seed}
        return app.post("/v1/completions", json=body).json()["choices"][0]["text"]

    alone = [*map(text, range(6))]
    with ThreadPoolExecutor(6) as pool:
        assert [*pool.map(text, range(6))] == alone


@pytest.mark.parametrize("together", [False, True])
def test_a_temperature_is_heeded_by_a_model_that_is_greedy_by_default(together, folder):
    """Eight texts of a model whose choices are nearly uniform at this temperature; a batch has only one."""
    state = GenerationState(together, cb_config=ContinuousBatchingConfig(block_size=16, num_blocks=64))
    options = PROMPT | {"max_tokens": NEW, "temperature": 2}
    with app_of(folder, state=state) as app:
        replies = [app.post("/v1/completions", json=options | {"seed": seed}).json() for seed in range(8)]
        other = [app.post("/v1/completions", json=options | {name: 0.5}) for name in ("top_p", "frequency_penalty")]
    assert len({reply["choices"][0]["text"] for reply in replies}) > 1
    running, _ = state._cb_manager, state.shutdown()
    assert ([answer.status_code for answer in other], running) == ([400 if together else 200] * 2, None)


def test_a_chat_without_a_template_is_refused(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "model", ignore=shutil.ignore_patterns("chat_template*"))
    answer = app_of(tmp_path / "model").post("/v1/chat/completions", json={"messages": [TURN]})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "the model has no chat template: use /v1/completions"


def test_generation_stops_when_its_client_has_gone(folder, monkeypatch):
    """Of 50 tokens few are made, and the next client is answered."""
    steps, forward, port = [], VanillaDecoderForCausalLM.forward, free_port()

    def slow(self, *arguments, **options):
        steps.append(1)
        time.sleep(0.1)
        return forward(self, *arguments, **options)

    monkeypatch.setattr(VanillaDecoderForCausalLM, "forward", slow)
    server = uvicorn.Server(uvicorn.Config(app_of(folder).app, port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    body = json.dumps({"prompt": TEXTS[2], "temperature": 0}).encode()
    lines = ("POST /v1/completions HTTP/1.1", "host: localhost", "content-type: application/json")
    head = "\r\n".join([*lines, f"content-length: {len(body)}"])
    try:
        wait_until(lambda: server.started)
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(head.encode() + b"\r\n\r\n" + body)
            wait_until(lambda: steps)
        with OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client:
            reply = client.completions.create(model=str(folder), prompt=TEXTS[2], max_tokens=1)
            assert reply.usage.completion_tokens == 1
        assert 1 < len(steps) < 40
    finally:
        server.should_exit = True
        thread.join(timeout=30)


@pytest.mark.parametrize("model_class", [VanillaEncoderForMaskedLM, VanillaEncoderDecoderForConditionalGeneration])
def test_what_writes_no_text_on_its_own_is_refused(model_class, saved):
    ends(rf"is a {model_class.__name__}, but only language models are served", serve.main, saved(model_class))


def test_what_cannot_be_served_is_refused_before_the_server_starts(saved, folder, tmp_path, monkeypatch):
    biased = saved(VanillaDecoderForCausalLM, position_embedding_type="alibi")
    message = r"--continuous-batching cannot serve .*position_embedding_type='alibi'"
    ends(message, serve.main, biased, "--continuous-batching")
    monkeypatch.chdir(tmp_path)
    ends("name the model to serve: vanillaformer serve MODEL", serve.main)
    ends(r": \. is not a model", serve.main, ".")
    (tmp_path / "a@b").symlink_to(folder)
    ends("a@b: an @ precedes a revision here", serve.main, "a@b")
    shutil.copytree(folder, tmp_path / "model")
    damaged = {name: value for name, value in load_file(folder / "model.safetensors").items() if "down" not in name}
    save_file(damaged, tmp_path / "model/model.safetensors")
    ends(rf"MODEL {tmp_path}/model has weights without .*down_proj", serve.main, tmp_path / "model")


def test_an_answer_of_a_native_model_is_without_its_prompt(tmp_path):
    """Of Qwen's, the server of transformers looks for the turns of its own chat template."""
    tokenizer, sizes = tokenizer_of("decoder"), {name: SIZES[name] for name in SIZES if name != "dropout"}
    model = sharpen(Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer), num_key_value_heads=4, **sizes))).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    answer = app_of(tmp_path).post("/v1/chat/completions", json=GREEDY | {"messages": [TURN]}).json()
    prompt = tokenizer.apply_chat_template([TURN], add_generation_prompt=True, return_tensors="pt", return_dict=True)
    ids = model.generate(**prompt, do_sample=False, max_new_tokens=NEW)[0, prompt["input_ids"].shape[1] :]
    assert answer["choices"][0]["message"]["content"] == tokenizer.decode(ids, skip_special_tokens=True) != ""


def test_code_of_a_model_runs_only_with_the_option(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "odd", "auto_map": {"AutoConfig": "odd.Odd"}}')
    (tmp_path / "odd.py").write_text('raise ValueError("it has run")\n')
    ends("has its own code: --trust-remote-code runs it, once you have read it", serve.main, tmp_path)
    ends("it has run", serve.main, tmp_path, "--trust-remote-code")


@pytest.mark.parametrize("option", ["--decision-config", "--model-timeout"])
def test_options_without_effect_are_unknown(option, folder, capsys):
    """Those of the decision endpoint, and of other models."""
    assert option not in serve.help_page(serve.server_command())
    ends("2", serve.main, folder, option, "1")
    assert f"No such option '{option}'" in capsys.readouterr().err


def test_missing_libraries_are_named(monkeypatch):
    monkeypatch.setattr(serve, "is_serve_available", lambda: False)
    monkeypatch.setattr(serve, "find_spec", lambda name: None if name == "uvicorn" else object())
    ends(r"serving needs uvicorn: pip install 'vanillaformer\[serve\]'", serve.main, "somewhere")
