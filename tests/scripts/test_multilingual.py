"""Multilingual translators (mBART, mBART-50, NLLB, M2M-100) train for one pair of languages and keep it."""

import csv
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from test_native_models import BART, LONG, STEPS, Recorder, plain_losses
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, Seq2SeqTrainer

from vanillaformer.scripts import generate, train_translation

PAIRS = [(f"Saturday, August {n}, {1900 + 7 * n}", f"Samstag, {n}. August {1900 + 7 * n}") for n in range(1, 31)]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
SIZES = {**BART, "encoder_layerdrop": 0, "decoder_layerdrop": 0, "attention_dropout": 0, "init_std": 0.2}
# Tokenizer, class of model, codes, and the tokens before and after a text of the first language
FOLDERS: dict[str, tuple[str, str, tuple[str, str], tuple[str, ...], tuple[str, ...]]] = {
    "mbart": ("MBartTokenizer", "MBart", ("en_XX", "de_DE"), (), ("</s>", "en_XX")),
    "mbart50": ("MBart50Tokenizer", "MBart", ("en_XX", "de_DE"), ("en_XX",), ("</s>",)),
    "nllb": ("NllbTokenizer", "M2M100", ("eng_Latn", "deu_Latn"), ("eng_Latn",), ("</s>",)),
    "m2m_100": ("M2M100Tokenizer", "M2M100", ("en", "de"), ("__en__",), ("</s>",)),
}


def save_tokenizer(name: str, folder: Path) -> None:
    """A tokenizer of the class, trained on the pairs; that of M2M-100 is read from SentencePiece's file."""
    texts = [text for pair in PAIRS for text in pair]
    if name == "m2m_100":
        sentencepiece: Any = pytest.importorskip("sentencepiece")
        model = BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_writer=model, vocab_size=60, hard_vocab_limit=False, minloglevel=2
        )
        (folder / "sentencepiece.bpe.model").write_bytes(model.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        pieces = [*SPECIAL, *(processor.id_to_piece(number) for number in range(3, processor.get_piece_size()))]
        (folder / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}))
        codes = transformers.models.m2m_100.tokenization_m2m_100.FAIRSEQ_LANGUAGE_CODES["m2m100"]
        settings = {
            "tokenizer_class": FOLDERS[name][0],
            "additional_special_tokens": [f"__{code}__" for code in codes],
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        return
    trained = Tokenizer(models.BPE(unk_token="<unk>") if name == "nllb" else models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer: Any = (
        trainers.BpeTrainer(vocab_size=120, special_tokens=SPECIAL, show_progress=False)
        if name == "nllb"
        else trainers.UnigramTrainer(vocab_size=120, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False)
    )
    trained.train_from_iterator(texts, trainer)
    found = json.loads(trained.to_str())["model"]
    content: dict[str, Any]
    if name == "nllb":
        content = {"vocab": found["vocab"], "merges": [tuple(merge) for merge in found["merges"]]}
    else:
        pieces = [(piece, score) for piece, score in found["vocab"] if piece != "<unk>"]
        codes = [(token, 0.0) for token in (*FOLDERS[name][2], "<mask>")]
        content = {"vocab": [*((token, 0.0) for token in SPECIAL), *pieces, *codes]}
    getattr(transformers, FOLDERS[name][0])(**content).save_pretrained(folder)


@pytest.fixture
def native(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A small random model with its tokenizer, which is not set to any languages."""
    folder = tmp_path / request.param
    folder.mkdir()
    save_tokenizer(request.param, folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    size = max(tokenizer.get_vocab().values(), default=0) + 1
    torch.manual_seed(0)
    family = FOLDERS[request.param][1]
    config = getattr(transformers, f"{family}Config")(vocab_size=size, **SIZES)
    if family == "MBart":
        config.decoder_start_token_id = None  # it starts from the last token of the target
    getattr(transformers, f"{family}ForConditionalGeneration")(config).save_pretrained(folder)
    return folder


def run(native: Path, out: Path, *options: str) -> Any:
    path = out.parent / "pairs.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("source", "target"), *PAIRS])
    command = [*STEPS.split(), "--train_file", str(path), "--num_beams", "1", "--test_fraction", "0.2"]
    command += ["--max_source_length", "60", "--max_target_length", "60"]
    return train_translation.train([*command, "--model_name_or_path", str(native), "--output_dir", str(out), *options])


@pytest.mark.parametrize("native", FOLDERS, indirect=True)
def test_a_pair_of_languages_is_trained_and_kept(
    native: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Tokens, losses and translations are those of transformers' tokenizer, trainer and model."""
    _, _, (source, target), before, after = FOLDERS[native.name]
    tokenizer: Any = AutoTokenizer.from_pretrained(native, src_lang=source, tgt_lang=target)
    with monkeypatch.context() as patch:
        recorded = Recorder(patch)
        languages = "--source_lang", source, "--target_lang", target
        run(native, tmp_path / "run", *languages, *LONG)
    rows = {
        (tuple(tokenizer(one)["input_ids"]), tuple(tokenizer(text_target=other)["input_ids"])) for one, other in PAIRS
    }
    found = set()
    for batch in recorded.batches:
        for ids, mask, labels in zip(batch["input_ids"], batch["attention_mask"], batch["labels"]):
            found.add((tuple(ids[mask.bool()].tolist()), tuple(labels[labels.ne(-100)].tolist())))
        batch.pop("decoder_input_ids", None)  # which the native model makes itself
    assert found <= rows
    tokens = tokenizer.convert_ids_to_tokens(next(iter(found))[0])
    assert tuple(tokens[: len(before)]) == before
    assert tuple(tokens[-len(after) :]) == after

    plain = transformers.AutoModelForSeq2SeqLM.from_pretrained(native)
    assert recorded.losses == pytest.approx(
        plain_losses(plain, recorded, tmp_path / "plain", Seq2SeqTrainer), rel=1e-5
    )

    model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run")
    saved: Any = AutoTokenizer.from_pretrained(tmp_path / "run")
    assert (type(model), type(saved)) == (type(plain), type(tokenizer))
    assert (saved.src_lang, saved.tgt_lang) == (source, target)
    language = tokenizer(text_target="")["input_ids"][1 if native.name == "mbart" else 0]
    settings = model.generation_config
    first = settings.decoder_start_token_id if native.name == "mbart" else settings.forced_bos_token_id
    assert first == language
    records = [json.loads(line) for line in (tmp_path / "run" / "predictions_test.jsonl").read_text().splitlines()]
    texts = [record["source"] for record in records]
    outputs = model.generate(**saved(texts, return_tensors="pt", padding=True))
    assert {int(row[0 if native.name == "mbart" else 1]) for row in outputs} == {language}
    translations = saved.batch_decode(outputs, skip_special_tokens=True)
    assert [record["prediction"] for record in records] == translations
    assert not any(code in translation for translation in translations for code in (source, target) if len(code) > 2)
    capsys.readouterr()
    generate.main(["--model", str(tmp_path / "run"), "--text", *texts, "--device", "cpu"])
    assert capsys.readouterr().out.splitlines() == translations

    run(tmp_path / "run", tmp_path / "again", "--max_steps", "1")  # with the languages that it was saved with
    assert AutoTokenizer.from_pretrained(tmp_path / "again").tgt_lang == target


@pytest.mark.parametrize("native", ["mbart", "nllb"], indirect=True)
@pytest.mark.parametrize("languages", [(), ("--source_lang", "{}"), ("--source_lang", "{}", "--target_lang", "xx")])
def test_both_languages_have_to_be_known(native: Path, languages: tuple[str, ...], tmp_path: Path) -> None:
    first, _ = FOLDERS[native.name][2]
    given = [option.format(first) for option in languages]
    with pytest.raises(ValueError, match=r"the tokenizer is multilingual, and both must be .* and \d+ more") as said:
        run(native, tmp_path / "run", *given)
    assert "\n" not in str(said.value)
    assert not any((tmp_path / "run").glob("*"))


def test_other_tokenizers_have_no_languages(tmp_path: Path) -> None:
    languages = "--source_lang", "en_XX", "--target_lang", "de_DE"
    with pytest.raises(ValueError, match="--source_lang en_XX --target_lang de_DE: the tokenizer has no codes"):
        train_translation.train([*STEPS.split(), *languages, "--output_dir", str(tmp_path / "run")])
