"""Native translators with their own tokenizers: Marian's, and multilingual ones, which are set to two languages."""

import csv
import json
import pickle
import shutil
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from refusals import ends, refused
from script_runs import answers, generated, json_lines
from test_native_models import BART, LONG, STEPS, plain_losses, recorded
from transformers import AutoTokenizer, Seq2SeqTrainer

from vanillaformer.configuration import VanillaEncoderDecoderConfig
from vanillaformer.data.caching import tokenizer_key
from vanillaformer.exploration.examples import text_example
from vanillaformer.hub.loading import set_language
from vanillaformer.inference.arguments import GenerateArguments
from vanillaformer.inference.tasks import load
from vanillaformer.scripts import export, generate, train_translation
from vanillaformer.tokenization import pairs
from vanillaformer.tokenization.passages import text_tokenizer

PAIRS = [(f"Saturday, August {n}, {1900 + 7 * n}", f"Samstag, {n}. August {1900 + 7 * n}") for n in range(1, 31)]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
SIZES = {**BART, "encoder_layerdrop": 0, "decoder_layerdrop": 0, "attention_dropout": 0, "init_std": 0.2}
# Tokenizer, class of model, codes, and the tokens before and after a text of the first language
FOLDERS: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "marian": ("MarianTokenizer", "MarianMTModel", (), (), ("</s>",)),
    "marian-two": ("MarianTokenizer", "MarianMTModel", (), (), ("</s>",)),
    "mbart": ("MBartTokenizer", "MBartForConditionalGeneration", ("en_XX", "de_DE"), (), ("</s>", "en_XX")),
    "mbart50": ("MBart50Tokenizer", "MBartForConditionalGeneration", ("en_XX", "de_DE"), ("en_XX",), ("</s>",)),
    "nllb": ("NllbTokenizer", "M2M100ForConditionalGeneration", ("eng_Latn", "deu_Latn"), ("eng_Latn",), ("</s>",)),
    "m2m_100": ("M2M100Tokenizer", "M2M100ForConditionalGeneration", ("en", "de"), ("__en__",), ("</s>",)),
}


def pieces_of(texts: list[str], path: Path) -> list[str]:
    """Train SentencePiece on texts, and return its pieces."""
    sentencepiece: Any = pytest.importorskip("sentencepiece")
    model = BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, vocab_size=60, hard_vocab_limit=False, minloglevel=2
    )
    path.write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return [processor.id_to_piece(number) for number in range(3, processor.get_piece_size())]


def write_vocabulary(path: Path, *tokens: str) -> None:
    path.write_text(json.dumps({token: number for number, token in enumerate(dict.fromkeys(tokens))}))


def save_tokenizer(name: str, folder: Path) -> None:
    """A tokenizer of the class, of the pairs' characters; those of Marian and M2M-100 read files of SentencePiece."""
    sources, targets = ([pair[side] for pair in PAIRS] for side in (0, 1))
    settings: dict[str, Any] = {"tokenizer_class": FOLDERS[name][0]}
    if name == "m2m_100":
        pieces = pieces_of(sources + targets, folder / "sentencepiece.bpe.model")
        write_vocabulary(folder / "vocab.json", *SPECIAL, *pieces)
        codes = transformers.models.m2m_100.tokenization_m2m_100.FAIRSEQ_LANGUAGE_CODES["m2m100"]
        settings["additional_special_tokens"] = [f"__{code}__" for code in codes]
    elif name.startswith("marian"):
        one, other = pieces_of(sources, folder / "source.spm"), pieces_of(targets, folder / "target.spm")
        settings["separate_vocabs"] = name == "marian-two"
        if settings["separate_vocabs"]:
            write_vocabulary(folder / "target_vocab.json", "</s>", "<unk>", "<pad>", *other)
            other = []
        write_vocabulary(folder / "vocab.json", "</s>", "<unk>", "<pad>", *one, *other)
    if name == "m2m_100" or name.startswith("marian"):
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        return
    tokens = [*SPECIAL, *sorted({"\u2581", *"".join(sources + targets)} - {" "})]
    vocabulary: Any = [(token, 0.0) for token in (*tokens, *FOLDERS[name][2], "<mask>")]
    if name == "nllb":  # which adds its languages itself
        vocabulary = {token: number for number, token in enumerate(tokens)}
    getattr(transformers, FOLDERS[name][0])(vocab=vocabulary).save_pretrained(folder)


@pytest.fixture
def native(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A small random model with its tokenizer, which is not set to any languages."""
    folder = tmp_path / request.param
    folder.mkdir()
    save_tokenizer(request.param, folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    sizes: dict[str, Any] = {**SIZES, "vocab_size": max(tokenizer.get_vocab().values(), default=0) + 1}
    if request.param.startswith("marian"):
        ids = {"pad_token_id": 2, "decoder_start_token_id": 2, "eos_token_id": 0, "forced_eos_token_id": 0}
        sizes |= {**ids, "share_encoder_decoder_embeddings": request.param == "marian"}
        sizes["decoder_vocab_size"] = len(getattr(tokenizer, "target_encoder", tokenizer.encoder))
    torch.manual_seed(0)
    model_class = getattr(transformers, FOLDERS[request.param][1])
    config = model_class.config_class(**sizes)
    if request.param.startswith("mbart"):
        config.decoder_start_token_id = None  # it starts from the last token of the target
    model_class(config).save_pretrained(folder)
    return folder


def run(native: Path, out: Path, *options: str) -> Any:
    path = out.parent / "pairs.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("source", "target"), *PAIRS])
    command = [*STEPS.split(), "--train_file", str(path), "--num_beams", "1", "--test_fraction", "0.2"]
    command += ["--max_source_length", "60", "--max_target_length", "60"]
    return train_translation.train([*command, "--model_name_or_path", str(native), "--output_dir", str(out), *options])


@pytest.mark.parametrize("native", FOLDERS, indirect=True)
def test_tokens_losses_and_translations_are_those_of_transformers(native: Path, tmp_path: Path, capsys: Any) -> None:
    """And a pair of languages is kept in what is saved."""
    _, _, codes, before, after = FOLDERS[native.name]
    set_to = dict(zip(("src_lang", "tgt_lang"), codes))
    languages = [text for pair in zip(("--source_lang", "--target_lang"), codes) for text in pair]
    tokenizer: Any = AutoTokenizer.from_pretrained(native, **set_to)
    with recorded() as ours:
        run(native, tmp_path / "run", *languages, *LONG)
    rows = {
        (tuple(tokenizer(one)["input_ids"]), tuple(tokenizer(text_target=other)["input_ids"])) for one, other in PAIRS
    }
    found = set()
    for batch in ours.batches:
        for ids, mask, labels in zip(batch["input_ids"], batch["attention_mask"], batch["labels"]):
            found.add((tuple(ids[mask.bool()].tolist()), tuple(labels[labels.ne(-100)].tolist())))
        batch.pop("decoder_input_ids", None)  # which the native model makes itself
    assert found <= rows
    tokens = tokenizer.convert_ids_to_tokens(next(iter(found))[0])
    assert (tuple(tokens[: len(before)]), tuple(tokens[-len(after) :])) == (before, after)

    plain = transformers.AutoModelForSeq2SeqLM.from_pretrained(native)
    assert ours.losses == pytest.approx(plain_losses(plain, ours, tmp_path / "plain", Seq2SeqTrainer), rel=1e-5)

    model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run")
    saved: Any = AutoTokenizer.from_pretrained(tmp_path / "run")
    assert (type(model), type(saved)) == (type(plain), type(tokenizer))
    assert {name: getattr(saved, name) for name in set_to} == set_to
    records = json_lines(tmp_path / "run" / "predictions_test.jsonl")
    texts = [record["source"] for record in records]
    outputs = model.generate(**saved(texts, return_tensors="pt", padding=True))
    if codes:
        starts = native.name == "mbart"  # with the language, which others write after their start
        language = tokenizer(text_target="")["input_ids"][1 if starts else 0]
        assert {int(row[0 if starts else 1]) for row in outputs} == {language}
    translations = saved.batch_decode(outputs, skip_special_tokens=True)
    assert [record["prediction"] for record in records] == translations
    assert not any(code in translation for translation in translations for code in codes if len(code) > 2)
    assert answers(capsys, "--model", tmp_path / "run", "--text", *texts, "--device", "cpu") == translations

    run(tmp_path / "run", tmp_path / "again", "--max_steps", "1")  # with the languages that it was saved with
    again: Any = AutoTokenizer.from_pretrained(tmp_path / "again")
    assert {name: getattr(again, name) for name in set_to} == set_to


@pytest.mark.parametrize("native", ["marian", "nllb", "m2m_100"], indirect=True)
def test_cutting_a_long_text_is_reported_for_every_tokenizer(native: Path, capsys: Any) -> None:
    texts = "Saturday, " * 100, "Saturday"
    captured = generated(capsys, "--model", native, "--device", "cpu", "--max_new_tokens", "2", "--text", *texts)
    assert captured.out.count("\n") == 2
    assert captured.err.count(f" tokens: {texts[0][:60]!r} ...") == captured.err.count("cut to ") == 1


@pytest.mark.parametrize("native", ["mbart", "m2m_100", "nllb"], indirect=True)
def test_languages_of_a_translator_that_was_never_trained_here(native: Path, capsys: Any) -> None:
    source, target = FOLDERS[native.name][2]
    tokenizer: Any = AutoTokenizer.from_pretrained(native, src_lang=source, tgt_lang=target)
    model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(native)
    model.generation_config.min_new_tokens = 6
    model.model.decoder.layers.requires_grad_(False).apply(lambda part: [w.mul_(5) for w in part.parameters(False)])
    model.save_pretrained(native)
    code = tokenizer.convert_tokens_to_ids(f"__{target}__" if native.name == "m2m_100" else target)
    first = {"decoder_start_token_id" if native.name == "mbart" else "forced_bos_token_id": code}
    output = model.generate(**tokenizer(["Saturday"], return_tensors="pt"), **first, max_new_tokens=9)
    (expected,) = tokenizer.batch_decode(output, skip_special_tokens=True)
    command = ["--model", str(native), "--text", "Saturday", "--device", "cpu", "--max_new_tokens", "9"]
    assert answers(capsys, *command, "--source_lang", source, "--target_lang", target) == [expected]
    swapped = answers(capsys, *command, "--source_lang", target, "--target_lang", source)
    assert swapped != [expected], "the languages change nothing: nothing was tested"
    pipe: Any = transformers.pipeline("translation", str(native), device="cpu", src_lang=source)
    assert pipe("Saturday", tgt_lang=target, max_new_tokens=9) == [{"translation_text": expected}]
    arguments = GenerateArguments(str(native), source_lang=source, target_lang=target, device="cpu")
    targets: Any = text_example(load(arguments)[0], "Saturday", "Samstag").targets
    assert targets.tolist() == tokenizer(text_target="Samstag")["input_ids"]
    command += ["--source_lang", "de"]
    ends("--source_lang de --target_lang None: one needs the other", generate.main, *command)
    ends("--source_lang de --target_lang xx: .* must be one of", generate.main, *command, "--target_lang", "xx")


@pytest.mark.parametrize("native", ["mbart"], indirect=True)
def test_an_export_that_starts_from_one_language_refuses_another(native: Path, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(native)
    set_language(model, AutoTokenizer.from_pretrained(native, src_lang="en_XX", tgt_lang="de_DE"))
    model.save_pretrained(native)
    export.main([str(native), str(tmp_path / "export"), "--engine", "ctranslate2"])
    command = ["--model", str(tmp_path / "export"), "--text", "Saturday", "--max_new_tokens", "5"]
    generate.main([*command, "--source_lang", "en_XX", "--target_lang", "de_DE"])
    languages = "--source_lang", "de_DE", "--target_lang", "en_XX"
    ends("this CTranslate2 model always starts from", generate.main, *command, *languages)


@pytest.mark.parametrize("native", ["mbart", "nllb"], indirect=True)
@pytest.mark.parametrize("languages", [(), ("--source_lang", "{}"), ("--source_lang", "{}", "--target_lang", "xx")])
def test_both_languages_have_to_be_known(native: Path, languages: tuple[str, ...], tmp_path: Path) -> None:
    given = [option.format(FOLDERS[native.name][2][0]) for option in languages]
    in_one_line = r"\A.*the tokenizer is multilingual, and both must be .* and \d+ more\Z"
    refused(in_one_line, run, native, tmp_path / "run", *given)
    assert not any((tmp_path / "run").glob("*"))


@pytest.mark.parametrize(
    ("name", "file"), [("marian", "target.spm"), ("marian-two", "source.spm"), ("m2m_100", "sentencepiece.bpe.model")]
)
def test_tokenized_rows_are_known_by_the_pieces_too(name: str, file: str, tmp_path: Path) -> None:
    """Other pieces make other ids of a text, though the vocabulary is the same; another folder does not."""
    (folder := tmp_path / "one").mkdir()
    save_tokenizer(name, folder)
    shutil.copytree(folder, tmp_path / "copy")
    key = tokenizer_key(AutoTokenizer.from_pretrained(folder))
    assert tokenizer_key(AutoTokenizer.from_pretrained(tmp_path / "copy")) == key
    pieces_of(["another text", "of other words"], folder / file)
    assert tokenizer_key(AutoTokenizer.from_pretrained(folder)) != key


@pytest.mark.parametrize("name", ["marian", "m2m_100"])
def test_declared_tokens_are_found_by_tokenizers_in_python_too(name: str, tmp_path: Path) -> None:
    save_tokenizer(name, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.add_tokens(["<2de>", "<2de>x"])
    twin = pickle.loads(pickle.dumps(text_tokenizer(text_tokenizer(tokenizer))))
    for text in ("<2de>Saturday", "<2de>x <2de>"):
        assert twin(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert twin.eos_token_id not in twin("</s>")["input_ids"][:-1]


def test_each_side_of_two_vocabularies_reads_and_writes_its_texts(tmp_path: Path) -> None:
    """Marian's own writes targets only, and would name the tokens of a source by those of the targets."""
    (folder := tmp_path / "one").mkdir()
    save_tokenizer("marian-two", folder)
    for _ in range(2):
        sides = pairs.load_pair(folder)
        for tokenizer, text in zip(sides, PAIRS[0]):
            ids = tokenizer(text)["input_ids"]
            assert ids == tokenizer(text_target=text)["input_ids"] or tokenizer is sides[0]
            assert tokenizer.decode(ids, skip_special_tokens=True) == text
        pairs.save_pair(*sides, folder := tmp_path / "saved")


def test_a_language_without_a_token_or_a_start_is_not_forced(tmp_path: Path) -> None:
    """FSMT's tokenizer has languages and no tokens of them; parallel decoding has no first token to force."""
    settings = transformers.GenerationConfig()
    model: Any = SimpleNamespace(config=VanillaEncoderDecoderConfig(), generation_config=settings)
    before = model.config.to_dict(), model.generation_config.to_dict()
    fsmt: Any = type("FSMT", (), {"tgt_lang": "de", "__call__": lambda self, text_target: {"input_ids": [2]}})()
    set_language(model, fsmt)
    save_tokenizer("nllb", tmp_path)
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path, tgt_lang="deu_Latn")
    model.config.decoding = "mask_predict"
    set_language(model, tokenizer)
    model.config.decoding = "autoregressive"
    assert (model.config.to_dict(), model.generation_config.to_dict()) == before
    set_language(model, tokenizer)
    assert model.generation_config.forced_bos_token_id == tokenizer.convert_tokens_to_ids("deu_Latn")


@pytest.mark.parametrize("native", ["marian", "m2m_100"], indirect=True)
def test_the_extra_of_a_tokenizer_is_named(native: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "find_spec", lambda name: None)
    message = r"needs sentencepiece, .*: pip install 'vanillaformer\[sentencepiece\]'"
    refused(message, run, native, tmp_path / "run", error=OSError)
    ends(message, generate.main, "--model", native, "--text", "Saturday")
