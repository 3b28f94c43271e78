"""The program, from a model and an input to the page: every kind of model, and one clear line for wrong input."""

import csv
import re
from typing import Any

import pytest
import torch
from layout import ROOT
from modeling.axes import PATCHES_ONLY
from modeling.toys import toy
from refusals import refused
from transformers import ViTImageProcessorPil

from vanillaformer import VanillaEncoderForSequenceClassification
from vanillaformer.exploration.examples import image_example, text_example
from vanillaformer.exploration.figures import FIGURES, draw_all, write_page
from vanillaformer.exploration.pictures import LONGEST
from vanillaformer.inference.tasks import LoadedModel
from vanillaformer.scripts import explore
from vanillaformer.tokenization import train

TEXTS = ["a small model translates a line", "another line of words", "the page shows what it does"] * 4
TEXT = "a line of words"
FEW = ["attention", "lens"]  # which the ways of decoding and distributing tokens differ in
CASES = {
    "translation": ("encoder_decoder", {}),
    "copying": ("encoder_decoder", {"output_distribution": "pointer_generator",
                                    "share_encoder_decoder_embeddings": True}),
    "mask_predict": ("encoder_decoder", {"decoding": "mask_predict", "max_position_embeddings": 64}),
    "ctc": ("encoder_decoder", {"decoding": "ctc", "max_position_embeddings": 64}),
    "recurrent": ("recurrent_encoder_decoder", {}), "causal": ("decoder", {"max_position_embeddings": 80}),
    "masked": ("encoder", {}), "classification": ("encoder", {"num_labels": 3}),
}  # fmt: skip
OF_ROWS = {"ablation", "loss", "patching"}  # which need more than a text
WITHOUT = {"masked": {"rollout", "factors", "attribution"}}  # whose text has no mask
WITHOUT["recurrent"] = {"lens", "rollout", "distance", "stream", "sublayers", "factors", "positions"}


def loaded(case: str, **more: Any) -> LoadedModel:
    """A toy with a tokenizer, as `vanillaformer.inference.tasks.load` gives it."""
    kind, fields = CASES[case]
    tokenizer = train(TEXTS, kind=kind.removeprefix("recurrent_"), algorithm="bpe", vocab_size=60)
    names = ("pad_token_id", "bos_token_id", "eos_token_id")
    sizes = {"vocab_size": len(tokenizer)} | {name: getattr(tokenizer, name) for name in names if kind != "encoder"}
    if kind.endswith("encoder_decoder"):
        sizes |= {"decoder_vocab_size": len(tokenizer), "decoder_start_token_id": tokenizer.bos_token_id}
    model_class = VanillaEncoderForSequenceClassification if case == "classification" else None
    model = toy(kind, model_class, **(sizes | fields | more))
    if case not in ("masked", "classification"):
        model.generation_config.update(max_length=12, eos_token_id=tokenizer.eos_token_id)
    return LoadedModel(model, tokenizer, tokenizer, type(model).__name__)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A saved causal language model."""
    found = loaded("causal")
    path = tmp_path_factory.mktemp("models") / "causal"
    found.model.save_pretrained(path)
    found.tokenizer.save_pretrained(path)
    return path


def check_drawn(example, names, without):
    """All figures of these names but some are drawn, with as many numbers in each row as the header names."""
    drawn, missing = draw_all(example, names)
    assert set(missing) == without
    assert {figure.name for figure, _ in drawn} == set(names or (figure.name for figure in FIGURES)) - without
    for _, drawings in drawn:
        for drawing in drawings:
            assert len({len(row) for row in drawing.rows} | {len(drawing.header)}) == 1


@pytest.mark.parametrize("case", CASES)
def test_every_figure_that_applies_is_drawn(case):
    model = loaded(case)
    with torch.inference_mode():
        example = text_example(model, TEXT)
    if case == "ctc":
        assert len(example.tokens["decoder"]) == example.model.config.ctc_upsampling * len(example.tokens["encoder"])
    names = FEW if case in ("copying", "mask_predict", "ctc") else None
    check_drawn(example, names, set() if names else WITHOUT.get(case, {"rollout", "factors"}) | OF_ROWS)


WINDOWS = PATCHES_ONLY | {"position_embedding_type": "window_relative", "window_size": 2}


@pytest.mark.parametrize(("fields", "without"), [
    ({}, {"factors"}), (WINDOWS, {"attention", "rollout", "factors"}),
    (WINDOWS | {"depths": [1, 1]}, {"attention", "rollout", "factors"}),
])  # fmt: skip
def test_every_figure_of_an_image_that_applies_is_drawn(fields, without, tmp_path):
    image_module = pytest.importorskip("PIL.Image")
    model = toy("image_encoder", image_size=16, patch_size=4, num_channels=3, **fields)
    processor = ViTImageProcessorPil(size={"height": 16, "width": 16})
    image_module.new("RGB", (20, 20), "red").save(tmp_path / "red.png")
    example = image_example(model, processor, tmp_path / "red.png")
    check_drawn(example, None, without | OF_ROWS | {"attribution"})


def test_an_encoder_decoder_reads_its_own_output_or_the_target():
    translator = loaded("translation")
    own = text_example(translator, TEXT)
    output = translator.model.generate(**own.recording.inputs | {"decoder_input_ids": None})
    assert own.targets.tolist() == output[0, 1:].tolist()
    assert own.recording.inputs["decoder_input_ids"].tolist() == output[:, :-1].tolist()
    given = text_example(translator, TEXT, "another line")
    assert given.predicted[-1] == translator.tokenizer.eos_token
    assert "".join(given.predicted[:-1]).replace(" ", "") == "anotherline"
    assert given.output == own.output


def test_the_program_writes_one_page_that_needs_no_network(folder, tmp_path, capsys):
    text = "a line of words " * 12
    options = ["--figures", "entropy", "attention", "--output_dir", str(tmp_path / "look")]
    explore.main([str(folder / ".." / folder.name), "--text", text, *options])
    assert re.search(r"^output: ", capsys.readouterr().out)
    page = (tmp_path / "look/index.html").read_text()
    assert page.count('<img src="data:image/png;base64,') == 3
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", page)
    assert "<h1>Inside causal</h1>" in page
    for title, caption in re.findall(r'alt="[^:]*: ([^"(]*)[^>]*>\n<figcaption>(.*?)</figcaption>', page):
        assert not caption.startswith(title[:20]), "the picture has its title"
    assert page.index('id="entropy"') < page.index('id="attention"')  # in the order of --figures
    assert sorted(path.suffix for path in (tmp_path / "look/figures").iterdir()) == [".csv"] * 3 + [".png"] * 3
    with (tmp_path / "look/figures/attention_decoder.csv").open() as file:
        rows = list(csv.reader(file))[1:]
    assert len(rows) == 2 * 4 * LONGEST
    assert all(sum(map(float, row[3:])) == pytest.approx(1, abs=1e-2) for row in rows)


@pytest.mark.parametrize(("words", "message"), {
    "no model": (["/nowhere", "--text", TEXT], "MODEL /nowhere is not a directory"),
    "empty text": (["MODEL", "--text", " "], "--text ' ' is empty"),
    "long text": (["MODEL", "--text", "words " * 200], "--text: the text has .* tokens, the model handles no more"),
    "image for text": (["MODEL", "--image", __file__], "--image: --model .* does not classify images"),
    "no image": (["MODEL", "--image", "/nowhere.png"], "--image /nowhere.png does not exist or is not a file"),
    "no figure": (["MODEL", "--text", TEXT, "--figures", "dance"], "--figures dance: the figures are lens, attention"),
    "no such thing": (["MODEL", "--text", TEXT, "--figures", "rollout"], "--figures rollout: only image models have"),
    "target": (["MODEL", "--text", TEXT, "--target", "x"], "--target 'x': VanillaDecoderForCausalLM reads no target"),
    "number of rows": (["MODEL", "--text", TEXT, "--num_rows", "0"], "--num_rows 0: it must be at least 1"),
    "rows alone": (["MODEL", "--serve", "--rows", "x.csv"], "--rows x.csv is for figures"),
    "figures alone": (["MODEL", "--serve", "--figures", "lens", "stream"], "--figures lens stream is for figures"),
    "no rows": (["MODEL", "--text", TEXT, "--rows", "x.csv"], "--rows 'x.csv': no such file"),
    "no setting": (["MODEL", "--text", TEXT, "--rows", "x.csv", "--rows_set", "colour"], "--rows_set colour: it must"),
    "not YAML": (["MODEL", "--text", TEXT, "--rows", "x.csv", "--rows_set", "a=["], "--rows_set 'a=.': the value is"),
    "file": (["MODEL", "--text", TEXT, "--output_dir", __file__], "--output_dir .*test_page.py is not a directory"),
}.values())  # fmt: skip
def test_wrong_input_gives_one_line_before_any_work(words, message, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = [str(folder) if word == "MODEL" else word for word in words]
    refused(f": {message}", explore.main, given, error=SystemExit)
    assert not list(tmp_path.iterdir())


def test_the_page_on_exploring_names_every_figure_and_its_example_runs(capsys):
    page = (ROOT / "docs/exploring.md").read_text(encoding="utf-8")
    assert not [figure.name for figure in FIGURES if f"\n| `{figure.name}` |" not in page]
    blocks = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "record(" in block]
    exec("".join(blocks), {})
    printed = capsys.readouterr().out
    assert printed.startswith("torch.Size([1, 4, 4, 4])")
    assert "\nTrue\n" in printed


def test_names_of_tokens_and_models_are_text_on_the_page(tmp_path):
    example = text_example(loaded("causal"), "<b>words</b>")
    page = write_page(example, [], {"lens": "<i>none</i>"}, tmp_path, "<script>").read_text()
    assert not re.search("<(b|i|script)>", page)
