"""Every program takes the folder of a native model as it takes one of ours; answers are those of transformers."""

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from PIL import Image
from refusals import ends, refused
from script_runs import PAIRS, edit, generated
from test_native_models import BART, BERT, GPT2, LLAMA, OWN_WAY, T5, save_native, tokenizer_of
from transformers import AutoTokenizer, pipeline

from vanillaformer.conversion import from_native
from vanillaformer.conversion.exports import EngineModel, export, load_engine
from vanillaformer.inference.arguments import GenerateArguments
from vanillaformer.inference.tasks import load
from vanillaformer.scripts import explore, generate, push, serve

BERT = BERT | {"initializer_range": 0.3, "num_labels": 3}
# Class, fields, kind of tokenizer
FOLDERS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "gpt2": ("GPT2LMHeadModel", GPT2 | {"initializer_range": 0.3}, "decoder"),
    "llama": ("LlamaForCausalLM", LLAMA | {"initializer_range": 0.3}, "decoder"),
    "t5": ("T5ForConditionalGeneration", T5 | {"initializer_factor": 3.0}, "encoder_decoder"),
    "bart": ("BartForConditionalGeneration", BART | {"init_std": 0.3, "forced_eos_token_id": 3}, "encoder_decoder"),
    "marian": ("MarianMTModel", BART | {"init_std": 0.3, "forced_eos_token_id": 3}, "encoder_decoder"),
    "bert": ("BertForMaskedLM", BERT, "encoder"),
    "bert-classifier": ("BertForSequenceClassification", BERT, "encoder"),
    "bert-scorer": ("BertForSequenceClassification", BERT | {"num_labels": 1}, "encoder"),
    "bert-tagger": ("BertForTokenClassification", BERT, "encoder"),
}
TEXT = "Montag, 3. Mai"


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The folder of a native model with a tokenizer; Marian's with the settings of published ones."""
    return saved(request.param, tmp_path / request.param)


def saved(name: str, folder: Path, **fields: Any) -> Path:
    class_name, known, kind = FOLDERS[name]
    tokenizer = tokenizer_of(kind)
    model = save_native(folder, class_name, known, tokenizer, "pad" if kind == "encoder_decoder" else None, **fields)
    if name == "marian":
        model.final_logits_bias[0, tokenizer.pad_token_id] = 30.0
        settings = {"bad_words_ids": [[tokenizer.pad_token_id]], "renormalize_logits": True, "max_length": 16}
        model.generation_config.update(num_beams=2, early_stopping=True, **settings)
    elif model.can_generate():
        model.generation_config.max_length = 16
    model.save_pretrained(folder)
    return folder


def expected(name: str, folder: Path) -> str:
    """What transformers' own class answers."""
    model = getattr(transformers, FOLDERS[name][0]).from_pretrained(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(TEXT + " [MASK]" * (name == "bert"), return_tensors="pt")
    if model.can_generate():
        return str(tokenizer.decode(model.generate(**inputs)[0], skip_special_tokens=True))
    if name in ("bert-classifier", "bert-scorer"):
        (answer,) = pipeline("text-classification", model=model, tokenizer=tokenizer)(TEXT)
        return f"{answer['label']}\t{answer['score']:.4f}"
    ids = model(**inputs).logits[0].argmax(-1)
    filled = torch.where(inputs["input_ids"][0] == tokenizer.mask_token_id, ids, inputs["input_ids"][0])
    return str(tokenizer.decode(filled, skip_special_tokens=True))


@pytest.mark.parametrize("folder", [name for name in FOLDERS if name != "bert-tagger"], indirect=True)
@pytest.mark.parametrize("engine", ["torch", "auto"])
def test_answers_are_those_of_transformers(folder: Path, engine: str, capsys: Any) -> None:
    text = TEXT + " [MASK]" * (folder.name == "bert")
    out, err = generated(capsys, "--model", folder, "--text", text, "--device", "cpu", "--engine", engine)
    assert out.rstrip("\n") == expected(folder.name, folder).rstrip("\n")
    assert engine == "torch" or "outputs are the same as those of torch" in err
    assert type(load(GenerateArguments(str(folder), device="cpu"))[0].model).__name__.startswith("Vanilla")


@pytest.mark.parametrize("folder", ["llama", "marian", "bert-tagger"], indirect=True)
def test_what_is_inside_is_drawn(folder: Path, tmp_path: Path) -> None:
    explore.main([str(folder), "--text", TEXT, "--figures", "lens", "--output_dir", str(tmp_path / "page")])
    assert (tmp_path / "page" / "index.html").is_file()


def test_what_ours_cannot_be_runs_as_it_is(tmp_path: Path, capsys: Any) -> None:
    folder = saved("gpt2", tmp_path / "gpt2", **OWN_WAY)
    out, err = generated(capsys, "--model", folder, "--text", TEXT, "--device", "cpu", "--engine", "auto")
    assert out.rstrip("\n") == expected("gpt2", folder).rstrip("\n")
    assert "GPT2LMHeadModel cannot be exported to ctranslate2: the model must be a" in err
    ends("scale_attn_by_inverse_layer_idx=True", explore.main, folder, "--text", TEXT)


def test_weights_of_another_task_are_refused(tmp_path: Path) -> None:
    """ELECTRA's discriminator has no output layer, which transformers would make of random numbers."""
    tokenizer, sizes = tokenizer_of("encoder"), {key: value for key, value in BERT.items() if key != "num_labels"}
    config = transformers.ElectraConfig(vocab_size=len(tokenizer), embedding_size=16, **sizes)
    transformers.ElectraForPreTraining(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    message = "without generator_.*, which a ElectraForMaskedLM has"
    ends(message, generate.main, "--model", tmp_path, "--text", f"{TEXT} [MASK]")


# A program, its options but for the folder of the model, and what it is to write
READERS: dict[str, Callable[[str, str], list[str]]] = {
    "generate": lambda model, out: ["--model", model, "--text", TEXT, "--output_file", out],
    "export": lambda model, out: [model, out, "--engine", "ctranslate2"],
    "train_translation": lambda model, out: [
        *("--model_name_or_path", model, "--output_dir", out, "--use_cpu", *PAIRS.split())
    ],
}


# `export` exports a model without a tokenizer, and `generate` runs quantized weights as their packages do
@pytest.mark.parametrize(("program", "message"), [
    *((program, "has no tokenizer") for program in ("generate", "train_translation")),
    *((program, "(quant_method='bitsandbytes')") for program in ("export", "train_translation")),
])  # fmt: skip
def test_a_damaged_folder_is_named_in_one_line_and_nothing_is_written(program, message, tmp_path: Path) -> None:
    folder, out = saved("t5", tmp_path / "t5"), tmp_path / "out"
    if "tokenizer" in message:
        for path in folder.glob("tokenizer*"):
            path.unlink()
    else:
        edit(folder / "config.json", quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True})
    main = importlib.import_module(f"vanillaformer.scripts.{program}").main
    with pytest.raises(SystemExit, match=re.escape(message)) as said:
        main(READERS[program](str(folder), str(out)))
    assert "\n" not in str(said.value)
    assert not out.exists()


def test_images(tmp_path: Path, capsys: Any) -> None:
    config = transformers.ViTConfig(**LLAMA, image_size=16, patch_size=4, num_labels=3, initializer_range=0.3)
    transformers.ViTForImageClassification(config).eval().save_pretrained(tmp_path / "vit")
    transformers.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(tmp_path / "vit")
    Image.effect_noise((20, 20), 90).convert("RGB").save(tmp_path / "image.png")
    words = ["--model", tmp_path / "vit", "--image", tmp_path / "image.png", "--device", "cpu"]
    (best, *_) = pipeline("image-classification", model=str(tmp_path / "vit"))(str(tmp_path / "image.png"))
    assert generated(capsys, *words).out == f"{best['label']}\t{best['score']:.4f}\n"


def test_a_model_of_ours_is_pushed_as_a_native_one(tmp_path: Path, capsys: Any) -> None:
    native = saved("gpt2", tmp_path / "gpt2")
    ours = tmp_path / "ours"
    from_native(native).save_pretrained(ours)
    tokenizer_of("decoder").save_pretrained(ours)
    with push.published(ours, "native") as folder:
        assert json.loads((folder / "config.json").read_text())["architectures"] == ["GPT2LMHeadModel"]
        assert not list(folder.glob("*.py"))
        assert expected("gpt2", folder) == expected("gpt2", native)
    push.main([str(ours), "me/model", "--as", "gpt2", "--dry_run"])
    assert ".py" not in capsys.readouterr().out
    with push.published(native, "native") as folder:
        assert folder == native
    message = "cannot be converted to llama: feed_forward='plain'"
    ends(message, push.main, ours, "me/model", "--as", "llama", "--dry_run")


def test_only_language_models_are_served(tmp_path: Path) -> None:
    serve.check_model(str(saved("gpt2", tmp_path / "gpt2")))
    for name in ("t5", "bert"):
        refused("only language models are served", serve.check_model, str(saved(name, tmp_path / name)))


def test_settings_that_native_translators_have_are_those_of_an_export(tmp_path: Path) -> None:
    native: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(saved("bart", tmp_path / "bart"))
    native.generation_config.update(forced_bos_token_id=7)
    ids = torch.tensor([[5, 6, 7, 8, 3], [9, 10, 11, 3, 0]])
    export(from_native(native), tmp_path / "engine", "ctranslate2")
    exported = EngineModel(load_engine(tmp_path / "engine"))
    for options in ({}, {"num_beams": 3, "early_stopping": True}):
        texts = [model.generate(ids, attention_mask=ids.ne(0).long(), **options) for model in (exported, native)]
        found, wanted = ([row[row.ne(3) & row.ne(0)].tolist() for row in rows] for rows in texts)
        assert found == wanted
