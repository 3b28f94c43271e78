"""The page in the browser: answers of `generate`, sentences for wrong input, nothing of the machine."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from html import unescape

import pytest
from modeling.toys import toy
from refusals import refused

pytest.importorskip("gradio_client", reason="pip install 'vanillaformer[explore]'")
from gradio_client import Client, handle_file
from transformers import ViTImageProcessorPil

from vanillaformer.exploration.server import FAILED, MAX_BYTES, alert
from vanillaformer.scripts import explore, generate

from .chromium import KEYS, MISSING, chromium
from .test_page import TEXT, loaded

TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
CLASSES = {0: "short", 1: "a_name_" * 12, 2: "odd"}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    labels = {"id2label": CLASSES, "label2id": {label: number for number, label in CLASSES.items()}}
    for name, case, fields in (("translator", "translation", {}), ("classifier", "classification", labels)):
        found = loaded(case, **TINY, max_position_embeddings=32, **fields)
        if name == "translator":
            found.model.generation_config.num_beams = 2
        found.model.save_pretrained(root / name)
        found.tokenizer.save_pretrained(root / name)
    (root / "translator/README.md").write_text("`vanillaformer generate --model runs/x --text 'another line'`\n")
    names = {"id2label": {0: "dark", 1: "bright"}, "label2id": {"dark": 0, "bright": 1}}
    toy("image_encoder", **TINY, **names, image_size=8, patch_size=4, num_channels=3).save_pretrained(root / "images")
    size = {"height": 8, "width": 8}
    ViTImageProcessorPil(size=size, image_mean=[0.5] * 3, image_std=[0.5] * 3).save_pretrained(root / "images")
    return root


SERVE = """
import contextlib, sys, threading
from vanillaformer.exploration.server import build_app, listen, private_gradio, serve, server_of
from vanillaformer.inference.arguments import GenerateArguments

with contextlib.ExitStack() as stack:
    for model in sys.argv[2:]:
        folder, listener = stack.enter_context(private_gradio()), listen("127.0.0.1", 0)
        app = build_app(GenerateArguments(model, device="cpu"), folder, "127.0.0.1")
        threading.Thread(target=server_of(app).run, kwargs={"sockets": [listener]}, daemon=True).start()
        print(listener.getsockname()[1], flush=True)
    serve(GenerateArguments(sys.argv[1], device="cpu"), port=0)
"""


@pytest.fixture(scope="module")
def server(models):
    """A process without network that serves the translator as the program does, and beside it the other pages."""
    command = [sys.executable, "-c", SERVE, *(str(models / name) for name in ("translator", "classifier", "images"))]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=os.environ | {"HF_HUB_OFFLINE": "1"}, **streams)
    yield process
    process.kill()
    process.communicate()


@pytest.fixture(scope="module")
def ports(server):
    names = ("classifier", "images", "translator")
    return {name: int(re.search(r"(\d+)( \(.*)?$", server.stdout.readline())[1]) for name in names}


@pytest.fixture(scope="module")
def clients(ports):
    options = {"verbose": False, "analytics_enabled": False, "httpx_kwargs": {"trust_env": False}}
    return {name: Client(f"http://127.0.0.1:{port}", **options) for name, port in ports.items()}


def generated(capsys, *words: str) -> str:
    capsys.readouterr()
    generate.main([*words, "--device", "cpu"])
    return capsys.readouterr().out.removesuffix("\n")


def status(port: int, path: str, method: str = "GET", body: bytes | None = None, host: str = "127.0.0.1") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request(method, path, body, {"Host": host, "Content-Type": "application/json"})
    answer = connection.getresponse()
    connection.close()
    return answer.status


@pytest.mark.parametrize(
    "options", [{}, {"num_beams": 3, "max_new_tokens": 5}, {"temperature": 1.5, "top_p": 0.9, "seed": 7}], ids=str
)
def test_a_translation_is_that_of_generate(options, clients, models, capsys) -> None:
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    expected = generated(capsys, "--model", str(models / "translator"), "--text", TEXT, *words)
    assert clients["translator"].predict(TEXT, **options, api_name="/answer") == (expected, "")
    assert expected


def test_classes_are_those_of_generate(clients, models, tmp_path, capsys) -> None:
    image = tmp_path / "stripes.png"
    pytest.importorskip("PIL.Image").effect_noise((20, 12), 90).convert("RGB").save(image)
    asked = {"classifier": ("--text", TEXT, TEXT), "images": ("--image", str(image), handle_file(image))}
    for name, (option, word, given) in asked.items():
        label, probability = generated(capsys, "--model", str(models / name), option, word).split("\t")
        answer, message = clients[name].predict(given, api_name="/answer")
        assert (answer["label"], message) == (label, "")
        assert f"{answer['confidences'][0]['confidence']:.4f}" == probability
        assert sum(each["confidence"] for each in answer["confidences"]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name", ["translator", "images"])
def test_a_figure_of_the_answer_follows_it(name, clients, tmp_path) -> None:
    pytest.importorskip("PIL.Image").new("RGB", (9, 9), "red").save(tmp_path / "red.png")
    given = handle_file(tmp_path / "red.png") if name == "images" else TEXT
    clients[name].predict(given, api_name="/answer")
    title = {"translator": "Attribution", "images": "Attention"}[name]  # one that needs gradients
    shown = clients[name].predict(title.lower(), api_name="/figure")
    pictures = re.findall(r'<figure><img src="data:image/png;base64,([^"]+)" alt="([^"]+)"', shown)
    assert pictures
    assert all(alt.startswith(title) for _, alt in pictures)


@pytest.mark.parametrize(("given", "options", "sentence"), [
    (" ", {}, "Type a text first."), ("x" * 6000, {}, "The text has 6,000 characters, but at most 5,000 are allowed."),
    (TEXT, {"num_beams": 0}, "Beams 0: it must be at least 1."),
    (TEXT, {"num_beams": "99"}, "Beams 99: it must be at most 16."),
    (TEXT, {"num_beams": "two"}, "Beams 'two': it must be a number."),
    (TEXT, {"num_beams": 1.5}, "Beams 1.5: it must be a whole number."),
    (TEXT, {"max_new_tokens": 40}, "Maximum length 40: the model handles no more than 32 tokens."),
    (TEXT, {"top_p": 1.5}, "Top-p 1.5: it must be at most 1."),
])  # fmt: skip
def test_wrong_input_gets_a_message(given, options, sentence, clients) -> None:
    answer, message = clients["translator"].predict(given, **options, api_name="/answer")
    assert answer is None
    assert re.fullmatch(f"<p role='alert'>{sentence}</p>", unescape(message))


def test_a_long_text_is_cut_as_generate_cuts_it(clients, models, capsys) -> None:
    text = f"{TEXT} " * 20
    expected = generated(capsys, "--model", str(models / "translator"), "--text", text)
    answer, message = clients["translator"].predict(text, api_name="/answer")
    assert answer == expected != ""
    assert unescape(message) == f"<p>Cut to 32 tokens: {text[:60]!r} ...</p>"
    assert "<figure><img" in clients["translator"].predict("attention", api_name="/figure")
    assert clients["translator"].predict(TEXT, api_name="/answer")[1] == ""


def test_a_file_that_is_no_picture_gets_a_message(clients, models, tmp_path) -> None:
    (tmp_path / "words.png").write_text("no picture")
    answer, message = clients["images"].predict(handle_file(tmp_path / "words.png"), api_name="/answer")
    assert not answer
    assert "This picture cannot be read: it is not an image" in message
    elsewhere = {"path": str(models / "images" / "config.json")}  # not as an upload, which Gradio itself refuses
    assert "was not uploaded here" in clients["images"].predict(elsewhere, api_name="/answer")[1]
    assert "Drop a picture first" in clients["images"].predict(None, api_name="/answer")[1]


def test_an_unexpected_error_is_printed_on_the_server(capfd) -> None:
    assert alert(RuntimeError("planted")) == f"<p role='alert'>{FAILED}</p>"
    assert "RuntimeError: planted" in capfd.readouterr().err


def test_nothing_but_the_page_is_served(ports, models) -> None:
    texts, images = ports["translator"], ports["images"]
    assert [status(texts, path) for path in ("/", "/config", "/theme.css")] == [200] * 3
    secret = models / "images" / "config.json"
    for port in (texts, images):
        files = ("/etc/passwd", secret, "pyproject.toml", "http://127.0.0.1/")
        others = ("proxy=http://127.0.0.1/", "vibe-code/", "runs")
        hidden = [*(f"/gradio_api/file={file}" for file in files), *(f"/gradio_api/{name}" for name in others)]
        hidden += ["/monitoring", "/docs", "/openapi.json", "/static/../../../etc/passwd"]
        for path in (*hidden, "/assets/..%2f..%2f..%2fetc%2fpasswd"):
            assert status(port, path) in (403, 404), path
    assert status(texts, "/gradio_api/upload", "POST", b"") == 404
    assert status(texts, "/gradio_api/queue/join", "POST", b" " * (MAX_BYTES + 1)) == 413
    file = {"path": "http://127.0.0.1/x.png", "meta": {"_type": "gradio.FileData"}}
    assert status(images, "/gradio_api/queue/join", "POST", json.dumps({"data": [file]}).encode()) == 400
    assert status(texts, "/", host="evil.example") == 400


def test_a_port_that_is_taken_and_a_missing_library_are_named(ports, models, monkeypatch, capsys) -> None:
    words = [str(models / "translator"), "--serve", "--port"]
    message = r"--port \d+ cannot be used: address already in use"
    refused(message, explore.main, [*words, str(ports["translator"])], error=SystemExit)
    monkeypatch.setitem(sys.modules, "gradio", None)
    message = r"the page needs gradio: pip install 'vanillaformer\[explore\]'"
    refused(message, explore.main, [*words, "0"], error=SystemExit)


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_a_person_types_and_sees_answer_figure_and_sentence(ports, models, tmp_path, capsys) -> None:
    words = ["--model", str(models / "translator"), "--text", TEXT]
    expected, short = generated(capsys, *words), generated(capsys, *words, "--max_new_tokens", "3")
    assert expected != short
    with chromium(tmp_path) as window:
        window.open(f"http://127.0.0.1:{ports['translator']}/")
        window.one(".examples button").click()
        window.wait(lambda: window.one("textarea").value() == "another line")
        window.one("textarea").replace(TEXT + KEYS["enter"])
        window.wait(lambda: window.one(".answer textarea").value() == expected)
        window.one(".figures img[alt^='Logit lens: ']")
        window.one("input[type=radio][value=attention]").type(KEYS["space"])
        window.one(".figures img[alt^='Attention: ']")
        assert window.run("return [...document.images].every(each => each.naturalWidth > 0)")
        window.one(".options button").click()
        window.wait(lambda: window.all(".options textarea, .options input")[1:])[0].type("3" + KEYS["enter"])
        window.wait(lambda: window.one(".answer textarea").value() == short)
        window.one("textarea").replace("line " * 40 + KEYS["enter"])
        window.wait(lambda: "Cut to 32 tokens" in window.one(".message p").text)
        assert window.one(".answer textarea").value() != ""
        window.resize(390, 800)
        fits = "const figure = document.querySelector('.figures figure'); return figure.scrollWidth <= {}"
        window.wait(lambda: window.run(fits.format("figure.clientWidth && figure.clientWidth < 390")))
        window.one("textarea").replace(" " + KEYS["enter"])
        assert "Type a text first" in window.one("[role=alert]").text
        assert window.one(".answer textarea").value() == ""
        window.wait(lambda: not window.all(".figures img"))
        others = "return performance.getEntries().map(each => each.name).filter(each => /^[a-z]+:/.test(each))"
        addresses = {re.match(r"[a-z]+:/*([^/]*)", name).group(1) for name in window.run(others)}
        assert addresses == {f"127.0.0.1:{ports['translator']}"}


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_long_names_of_classes_are_whole_on_a_small_screen(ports, tmp_path) -> None:
    with chromium(tmp_path) as window:
        window.resize(390, 800)
        window.open(f"http://127.0.0.1:{ports['classifier']}/")
        window.one("textarea").type(TEXT + KEYS["enter"])
        window.one(".figures img")
        parts = "[...document.querySelectorAll('.classes, .classes *')]"
        assert "a_name_" in window.run(f"return {parts}.map(each => each.innerText).join()")
        assert window.run(f"return Math.max(...{parts}.map(each => each.scrollWidth))") <= 390


def test_an_interrupted_server_ends_quietly(server, ports) -> None:
    """The last test: the server is gone after it."""
    server.send_signal(signal.SIGINT)
    assert server.communicate(timeout=120) == ("", "")
    assert server.returncode == 0
