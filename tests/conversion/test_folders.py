"""Saved models converted to saved models: what comes along, what is checked, and what is left when it fails."""

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers
from modeling.toys import relative_error, sharpen
from refusals import refused
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, T5Config

import vanillaformer
from vanillaformer import VanillaDecoderForCausalLM, preset
from vanillaformer.conversion import folders, from_native
from vanillaformer.conversion.folders import convert_folder, logit_error
from vanillaformer.hub.atomic_files import new_folder
from vanillaformer.tokenization import train

TEXTS = ["the cat sat on the mat", "a dog ate the log"] * 20
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


@pytest.fixture
def ours(tmp_path):
    """A GPT-2 of ours with a tokenizer, a card and a generation config."""
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    model = sharpen(VanillaDecoderForCausalLM(preset("gpt2", vocab_size=80, **SMALL, **ids)))
    model.generation_config.max_length = 17
    model.save_pretrained(tmp_path / "ours")
    train(TEXTS, algorithm="bpe", kind="decoder", vocab_size=80).save_pretrained(tmp_path / "ours")
    (tmp_path / "ours" / "README.md").write_text("---\nlicense: mit\n---\n# A model\n")
    return tmp_path / "ours"


def files(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_to_native_and_back_brings_everything_along(ours, tmp_path):
    done = convert_folder(str(ours), tmp_path / "native")
    assert (done.source, done.target) == ("VanillaDecoderForCausalLM", "GPT2LMHeadModel")
    assert done.error <= 1e-6
    native = AutoModelForCausalLM.from_pretrained(tmp_path / "native")
    assert type(native) is GPT2LMHeadModel
    assert native.generation_config.max_length == 17
    tokenizers = [AutoTokenizer.from_pretrained(folder) for folder in (ours, tmp_path / "native")]
    assert tokenizers[0](TEXTS[0]).input_ids == tokenizers[1](TEXTS[0]).input_ids
    assert tokenizers[1].model_max_length == native.config.n_positions  # which the first one does not say
    card = (tmp_path / "native" / "README.md").read_text()
    assert card.startswith("---\nlicense: mit\n---\n# A model\n")
    assert "a GPT2LMHeadModel that computes the same" in card
    convert_folder(str(tmp_path / "native"), tmp_path / "again", back=True)
    first, again = (load_file(folder / "model.safetensors") for folder in (ours, tmp_path / "again"))
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)


@pytest.mark.parametrize(("error", "words"), [(0.5, r"5\.0e-01"), (float("nan"), "nan")])
def test_logits_that_differ_write_nothing(error, words, ours, tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "logit_error", lambda *models: error)
    refused(f"differ by {words}", convert_folder, str(ours), tmp_path / "native")
    assert files(tmp_path) == ["ours"]


def test_the_check_sees_a_changed_weight():
    config = GPT2Config(vocab_size=50, n_embd=32, n_layer=1, n_head=2)
    one, other = (sharpen(GPT2LMHeadModel(config)).eval() for _ in range(2))
    assert logit_error(one, other) == 0
    with torch.no_grad():
        other.transformer.h[0].mlp.c_fc.bias[3] += 0.5
    assert logit_error(one, other) > 1e-4


def write(path: Path, last: Callable[[], object] = lambda: None) -> None:
    """Make a folder, and do something last before it is there."""
    with new_folder(path) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "file").write_text("x")
        last()


def test_a_stop_leaves_no_half_folder_and_one_is_made_in_a_thread_too(tmp_path):
    refused("", write, tmp_path / "new", partial(signal.raise_signal, signal.SIGTERM), error=KeyboardInterrupt)
    assert files(tmp_path) == []
    with ThreadPoolExecutor() as pool:  # signals can be caught in the main thread alone
        pool.submit(write, tmp_path / "new").result()
    assert files(tmp_path / "new") == ["inner"]


@pytest.mark.parametrize(("spoil", "message"), [
    (train(TEXTS, algorithm="byte_level_bpe", kind="decoder", vocab_size=400).save_pretrained,
     r"tokenizer\.json makes \d+ tokens, .* vocab_size=80"),
    (lambda folder: add_tokens(folder), r"tokenizer\.json makes 81 tokens, .* vocab_size=80"),
    (lambda folder: (folder / "tokenizer.json").write_text("[" * 100_000), r"tokenizer\.json is damaged"),
])  # fmt: skip
def test_a_damaged_source_is_one_clear_error(ours, tmp_path, spoil, message):
    """What else can be wrong with a model is in `tests/hub/test_bad_repos.py`."""
    spoil(ours)
    with pytest.raises(ValueError, match=message) as info:
        convert_folder(str(ours), tmp_path / "native")
    assert "\n" not in str(info.value)
    assert files(tmp_path) == ["ours"]


def add_tokens(folder) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([f"<new {number}>" for number in range(81 - len(tokenizer))])
    tokenizer.save_pretrained(folder)
    assert len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]) <= 80


def test_a_translator_keeps_both_tokenizers_each_checked_against_its_own_vocabulary(tmp_path):
    tokenizer = train(TEXTS, algorithm="bpe", kind="encoder_decoder", vocab_size=60)
    assert 30 < len(tokenizer) <= 60
    two = {"vocab_size": 60, "share_encoder_decoder_embeddings": False, "pad_token_id": 0}
    for size in (60, 30):
        folder, config = tmp_path / f"ours-{size}", preset("marian", **SMALL, **two, decoder_vocab_size=size)
        sharpen(vanillaformer.VanillaEncoderDecoderForConditionalGeneration(config)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        tokenizer.save_pretrained(folder / "target_tokenizer")
    done = convert_folder(str(tmp_path / "ours-60"), tmp_path / "native", to="marian")
    assert (done.target, done.error <= 1e-6) == ("MarianMTModel", True)
    assert {"tokenizer.json", "target_tokenizer"} <= set(done.carried)
    message = rf"target_tokenizer/tokenizer\.json makes {len(tokenizer)} tokens, .*=30"
    refused(message, convert_folder, str(tmp_path / "ours-30"), tmp_path / "other", to="marian")


@pytest.mark.parametrize("name", [
    "LICENSE", "README.md", "chat_template.jinja", "tokenizer.json", "generation_config.json", "config.json",
    "target_tokenizer/tokenizer.json",
])  # fmt: skip
def test_links_out_of_the_folder_are_refused(name, ours, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes((ours / name).read_bytes() if (ours / name).exists() else b"secret")
    (ours / name).parent.mkdir(exist_ok=True)
    (ours / name).unlink(missing_ok=True)
    (ours / name).symlink_to(secret)
    refused(f"{name} is a link out of the folder, to {secret}", convert_folder, str(ours), tmp_path / "native")
    assert files(tmp_path) == ["ours", "secret"]


@pytest.mark.parametrize(("head", "fields"), [
    *(("CausalLM", {"vocab_size": 80, "max_position_embeddings": positions}) for positions in (1, 5)),
    ("SequenceClassification", {"vocab_size": 2, "pad_token_id": None, "bos_token_id": 0, "eos_token_id": 1}),
], ids=str)  # fmt: skip
def test_short_position_tables_no_padding_and_a_vocabulary_of_special_tokens(head, fields, tmp_path):
    model_class, config = getattr(vanillaformer, f"VanillaDecoderFor{head}"), preset("gpt2", **SMALL, **fields)
    sharpen(model_class(config)).save_pretrained(tmp_path / "ours")
    done = convert_folder(str(tmp_path / "ours"), tmp_path / "native")
    assert done.target == {"CausalLM": "GPT2LMHeadModel"}.get(head, f"GPT2For{head}")
    assert done.error <= 1e-6


def test_a_t5_in_float16_becomes_one_of_ours(tmp_path):
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4, "vocab_size": 40}
    native = transformers.T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0))
    sharpen(native.eval(), focus=0.3).save_pretrained(tmp_path / "float32")
    native.half().save_pretrained(tmp_path / "native")
    model = from_native(tmp_path / "float32", dtype=torch.float16)  # where transformers keeps one matrix in float32
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float16}
    ids = torch.tensor([[5, 6, 7]])
    expected = native.float()(input_ids=ids, decoder_input_ids=ids).logits
    assert relative_error(model(input_ids=ids, decoder_input_ids=ids).logits.float(), expected) < 2e-2
    assert convert_folder(str(tmp_path / "native"), tmp_path / "ours", back=True).error < 2e-2


def test_what_a_killed_process_has_left_is_deleted_by_the_next(tmp_path):
    def write_and_die() -> None:
        write(tmp_path / "new", lambda: os.kill(os.getpid(), signal.SIGKILL))

    process = multiprocessing.get_context("fork").Process(target=write_and_die)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert files(tmp_path) == [".new.part"]
    with new_folder(tmp_path / "new") as folder:
        assert files(folder) == []
        (folder / "whole").write_text("x")
    assert files(tmp_path) == ["new"]
    assert files(tmp_path / "new") == ["whole"]


def test_two_that_write_the_same_folder_do_not_meet_and_a_link_is_not_replaced(tmp_path):
    message = "new cannot be written: another process is writing it"
    write(tmp_path / "new", partial(refused, message, write, tmp_path / "new"))
    assert files(tmp_path / "new") == ["inner"]
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    refused("link exists already", write, tmp_path / "link")
    assert files(tmp_path / "empty") == []


def test_a_signal_handler_that_was_not_set_from_python_stays(tmp_path, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    write(tmp_path / "new")
    monkeypatch.undo()
    assert files(tmp_path / "new") == ["inner"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_has_the_form_already_or_cannot_be_written_is_refused(ours, tmp_path):
    convert_folder(str(ours), tmp_path / "native")
    refused("'gpt2' is native already; use --from", convert_folder, str(tmp_path / "native"), tmp_path / "new")
    refused("is one of ours already", convert_folder, str(ours), tmp_path / "new", back=True)
    (tmp_path / "file").write_text("x")
    refused("cannot be written", convert_folder, str(ours), tmp_path / "file" / "native")
