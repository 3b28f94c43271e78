"""The page of `--engine web`: complete and on its own, and in a browser it answers as the model does.

TRANSFORMERS_JS is a folder where `npm install @huggingface/transformers` was run; without it, files of the same names
are copied.
"""

import functools
import json
import os
import re
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from ecosystem.tiny import TEXTS, save, tiny, tokenizer_of
from exploration.chromium import MISSING, chromium
from modeling.toys import toy
from refusals import refused
from transformers import AutoTokenizer

import vanillaformer.modeling as modeling
from vanillaformer.conversion.exports import export, export_folder, load_engine
from vanillaformer.conversion.exports.web.exporter import COPIES
from vanillaformer.hub.pushing import files_to_push

pytest.importorskip("onnxscript", reason="pip install 'vanillaformer[onnx]'")
NPM = os.environ.get("TRANSFORMERS_JS", "")
MODELS = {
    "translate": modeling.VanillaEncoderDecoderForConditionalGeneration,
    "continue": modeling.VanillaDecoderForCausalLM,
}
CARD = "---\nlicense: mit\n---\n# From A & B\n\nThis model translates from `en` to [de](https://example.org).\n\n"
CARD += "## Limits\n\n- It was tested on <nothing>.\n\n## Use\n\n- Here.\n"


@pytest.fixture(scope="module", params=MODELS)
def page(request, tmp_path_factory):
    """A task, its model and the folder of its page, which has a copy of the library."""
    folder, model = tmp_path_factory.mktemp("web"), tiny(MODELS[request.param])
    for path in () if NPM else (folder / "node_modules" / name for name in COPIES):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name)
    (save(model, folder / "run") / "README.md").write_text(CARD)
    export_folder(str(folder / "run"), folder / "out", "web", quantization="float32", transformers_js=NPM or folder)
    return request.param, model, folder / "out"


def settings(folder: Path) -> dict:
    return json.loads(re.search(r"const page = (.*);", (folder / "index.html").read_text()).group(1))


def test_a_folder_is_a_page_and_a_space_and_an_export(page):
    task, _, folder = page
    made = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert made >= {"tokenizer.json"} | {f"transformers.js/{Path(name).name}" for name in COPIES}
    assert files_to_push(folder).keys() == made
    html, readme = ((folder / name).read_text() for name in ("index.html", "README.md"))
    assert not re.search(r"https?://|src=\"[^\"]|href=\"(?!data:)", html), "an address outside of the folder"
    for text in ("<h1>From A &amp; B</h1>", "from en to de.", "<li>It was tested on &lt;nothing&gt;.</li>"):
        assert text in html
    assert "Here." not in html
    assert ("Type a turn of a dialogue, then [SEP], and" in html) == (task == "continue")
    header = yaml.safe_load(readme.split("---\n")[1])
    assert (header["sdk"], header["title"]) == ("static", "From A & B")
    assert "\n- It was tested on <nothing>.\n" in readme
    assert settings(folder)["task"] == task
    assert settings(folder)["bytes"] == sum(path.stat().st_size for path in (folder / "onnx").iterdir())
    assert load_engine(folder).generate([[5, 6]], max_new_tokens=4)[0]


def test_a_page_puts_the_source_prefix_before_what_is_typed(tmp_path):
    model = tiny(MODELS["translate"], tie_word_embeddings=True)
    model.config.prefix = "to de: "
    export(model, tmp_path / "out", "web", tokenizer=tokenizer_of("encoder_decoder"))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["model_type"], config["prefix"]) == ("marian", "to de: ")
    assert settings(tmp_path / "out")["prefix"] == "to de: "
    assert "await tokenizer(page.prefix + input.value)" in (tmp_path / "out" / "index.html").read_text()


def test_a_classifier_has_its_labels_and_the_address_has_a_version(tmp_path):
    fields = {"id2label": {0: "a", 1: "b"}, "problem_type": "multi_label_classification"}
    model = toy("encoder", modeling.VanillaEncoderForSequenceClassification, **fields)
    export(model, tmp_path / "page", "web", tokenizer=tokenizer_of("encoder"))
    found = settings(tmp_path / "page")
    assert (found["task"], found["labels"], found["several"], found["scores"]) == ("classify", ["a", "b"], True, False)
    assert re.fullmatch(r"https://cdn\.jsdelivr\.net/npm/@huggingface/transformers@\d+\.\d+\.\d+", found["library"])
    assert [path.name for path in (tmp_path / "page" / "onnx").iterdir()] == ["model_quantized.onnx"]


@pytest.mark.parametrize(("kind", "fields", "options", "message"), [
    ("decoder", {}, {}, r"a page needs a tokenizer with a tokenizer\.json: the model has none"),
    ("encoder", {}, {}, r"VanillaEncoderForMaskedLM cannot be exported to web: the model must be a"),
    ("image_encoder", {"num_channels": 3}, {}, "a page needs the image processor of its model"),
    ("image_encoder", {"num_channels": 3}, {"image_processor": 1, "transformers_js": "."}, r"\.js is missing: run"),
    ("image_encoder", {"num_channels": 1}, {}, "num_channels=1, but an image in a browser has 3"),
    ("decoder", {}, {"engine": "onnx", "transformers_js": "."}, "is for engine='web', got engine='onnx'"),
])  # fmt: skip
def test_what_a_page_needs(kind, fields, options, message, tmp_path):
    refused(message, export, toy(kind, **fields), tmp_path / "page", **{"engine": "web"} | options)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not NPM or bool(MISSING), reason=MISSING or "needs @huggingface/transformers in TRANSFORMERS_JS")
def test_typing_gives_the_greedy_tokens_of_generate(page, tmp_path):
    task, model, folder = page
    handler, shown = functools.partial(SimpleHTTPRequestHandler, directory=folder), {}
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, chromium(tmp_path) as browser:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        browser.resize(390, 800)
        browser.open(address)
        browser.wait(lambda: browser.one("#status").text == "Ready.")
        assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
        for text in TEXTS[:2]:
            browser.one("#input").replace(text)
            browser.wait(lambda: browser.all("#output[data-done]"))
            shown[text] = browser.one("#output").text
        asked = browser.run("return performance.getEntriesByType('resource').map((entry) => entry.name)")
        server.shutdown()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text, found in shown.items():
        options = {"max_new_tokens": {"translate": 64, "continue": 40}[task], "do_sample": False, "num_beams": 1}
        (row,) = model.generate(**tokenizer(text, return_tensors="pt"), **options)
        assert found == tokenizer.decode(row, skip_special_tokens=True)
    assert len({*shown.values()}) == 2
    assert len(asked) > 5
    assert all(url.startswith(address) for url in asked)
