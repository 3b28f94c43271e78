"""Native models train as ours with the losses of transformers' Trainer, and saved as the classes that they were."""

import copy
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import transformers
from refusals import refused
from script_runs import FEW, PAIRS, PROGRAMS, TEXTS, answers, edit
from transformers import AutoModelForCausalLM, AutoTokenizer, Seq2SeqTrainingArguments, Trainer

from vanillaformer.tokenization import ModelKind, train
from vanillaformer.training.native import keep_tokenizer
from vanillaformer.training.trainer.trainer import RunTrainer

STEPS = "--max_steps 5 --eval_steps 2 --save_steps 2 --logging_steps 1 --per_device_train_batch_size 8 --use_cpu"
LONG = ("--max_steps", "20", "--eval_steps", "20", "--save_steps", "20", "--learning_rate", "1e-4")
DATA = {
    "causal": TEXTS, "masked": f"{TEXTS} --objective masked", "translation": PAIRS,
    "classification": f"{FEW} --max_length 32",
}  # fmt: skip
SETTINGS = (
    "learning_rate", "lr_scheduler_type", "warmup_steps", "optim", "weight_decay", "adam_beta1", "adam_beta2",
    "adam_epsilon", "max_grad_norm", "label_smoothing_factor", "max_steps", "seed",
)  # fmt: skip
GPT2 = {"n_embd": 16, "n_head": 2, "n_layer": 1, "n_positions": 64, "resid_pdrop": 0, "embd_pdrop": 0}
GPT2 |= {"attn_pdrop": 0, "summary_first_dropout": 0}
LLAMA = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 32}
BERT = {**LLAMA, "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0, "max_position_embeddings": 64}
T5: dict[str, Any] = {"d_model": 16, "num_heads": 2, "num_layers": 1, "d_ff": 32, "d_kv": 8, "dropout_rate": 0}
T5["initializer_factor"] = 0.3  # with 1.0 an untied output layer gives logits so large that rounding errors grow
BART: dict[str, Any] = {
    "d_model": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_layers": 1,
    "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 64, "dropout": 0,
}  # fmt: skip
GROUPED = {"num_key_value_heads": 1, "head_dim": 8}
OPT = {"hidden_size": 16, "word_embed_proj_dim": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "ffn_dim": 32}
OPT |= {"dropout": 0, "max_position_embeddings": 64}
DISTILBERT = {"dim": 16, "n_heads": 2, "n_layers": 1, "hidden_dim": 32, "dropout": 0, "attention_dropout": 0}
# Class, fields, task, and class after training if it is another one
MODELS: dict[str, tuple[Any, ...]] = {
    "gpt2": ("GPT2LMHeadModel", GPT2, "causal"),
    "llama": ("LlamaForCausalLM", LLAMA, "causal"),
    "bert": ("BertForMaskedLM", BERT, "masked"),
    "roberta": ("RobertaForMaskedLM", BERT | {"max_position_embeddings": 33}, "masked"),
    "t5": ("T5ForConditionalGeneration", T5, "translation"),
    "bart": ("BartForConditionalGeneration", BART, "translation"),
    "marian": ("MarianMTModel", BART, "translation"),
    "opt": ("OPTForCausalLM", OPT, "causal"),
    "gpt_neox": ("GPTNeoXForCausalLM", LLAMA, "causal"),
    "qwen3": ("Qwen3ForCausalLM", LLAMA | GROUPED, "causal"),
    "gemma2": ("Gemma2ForCausalLM", LLAMA | GROUPED, "causal"),
    "distilbert": ("DistilBertForMaskedLM", DISTILBERT, "masked"),
    "electra": ("ElectraForMaskedLM", BERT | {"embedding_size": 16}, "masked"),
    "mt5": ("MT5ForConditionalGeneration", T5, "translation"),
    "bert-classifier": ("BertForMaskedLM", BERT, "classification", "BertForSequenceClassification"),
    "gpt2-classifier": ("GPT2LMHeadModel", GPT2, "classification", "GPT2ForSequenceClassification"),
}
# Of which transformers' own class could not read the rows as they are packed by default
UNPACKED = dict.fromkeys(("gpt2", "bert-classifier"), ("--packing", "false"))


@cache
def tokenizer_of(kind: ModelKind) -> Any:
    texts = ["Saturday, August 1, 1981", "def f(x):\n    return x + 1", "Montag, 3. Mai 2004", "Schweizer Franken"]
    return train(texts * 20, kind=kind, vocab_size=300)


def save_native(
    folder: Path, class_name: str, fields: dict[str, Any], tokenizer: Any, start: str | None = None, **more: Any
) -> Any:
    """Save a small random native model with its tokenizer, and return it; `start` names what a decoder begins with."""
    ids = {f"{token}_token_id": getattr(tokenizer, f"{token}_token_id") for token in ("pad", "bos", "eos")}
    ids |= {} if start is None else {"decoder_start_token_id": getattr(tokenizer, f"{start}_token_id")}
    model_class = getattr(transformers, class_name)
    torch.manual_seed(0)
    model = model_class(model_class.config_class(vocab_size=len(tokenizer), **fields, **ids, **more))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def native_folder(name: str, folder: Path) -> Path:
    class_name, fields, task, *_ = MODELS[name]
    kinds: dict[str, ModelKind] = {"causal": "decoder", "translation": "encoder_decoder"}
    tokenizer = copy.deepcopy(tokenizer_of(kinds.get(task, "decoder" if "gpt2" in name else "encoder")))
    save_native(folder, class_name, fields, tokenizer, "eos" if name == "bart" else "pad")
    return folder


@contextmanager
def recorded() -> Iterator[SimpleNamespace]:
    """Note the batches of a run, the losses of its steps and its settings."""
    found, compute = SimpleNamespace(batches=[], losses=[]), RunTrainer.compute_loss

    def noted(trainer: RunTrainer, model: Any, inputs: Any, *others: Any, **options: Any) -> Any:
        loss = compute(trainer, model, inputs, *others, **options)
        if model.training:
            found.batches.append({key: value.clone() for key, value in inputs.items()})
            found.losses.append(loss.item())
            found.settings = {field: getattr(trainer.args, field) for field in SETTINGS}
        return loss

    with mock.patch.object(RunTrainer, "compute_loss", noted):
        yield found


def plain_losses(model: Any, ours: SimpleNamespace, folder: Path, base: Any = Trainer) -> list[float]:
    """The losses of transformers' own trainer for the same batches."""
    losses: list[float] = []
    if model.config.model_type == "marian":  # whose sinusoids transformers 5.24 trains once they are loaded
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_positions.requires_grad_(False)

    class Plain(base):  # type: ignore[misc]
        def compute_loss(self, *others: Any, **options: Any) -> Any:
            loss: Any = super().compute_loss(*others, **options)
            losses.append(loss.item())
            return loss

        def _get_train_sampler(self, *_: Any) -> Any:
            return range(len(ours.batches))

    fixed: dict[str, Any] = {"per_device_train_batch_size": 1, "use_cpu": True, "report_to": [], "save_strategy": "no"}
    arguments = Seq2SeqTrainingArguments(str(folder), remove_unused_columns=False, **fixed, **ours.settings)
    plain = Plain(model, arguments, train_dataset=ours.batches, data_collator=lambda rows: dict(rows[0]))  # type: ignore[arg-type]
    if isinstance(model, transformers.GPT2LMHeadModel):  # by whose name it finds no loss, and counts a target too many
        plain._loss_shifts_labels = True
    plain.train()
    return losses


def run(name: str, native: Path, out: Path, *options: str) -> Any:
    task = MODELS[name][2]
    command = [*DATA[task].split(), *STEPS.split(), "--model_name_or_path", str(native), "--output_dir", str(out)]
    return PROGRAMS[task][0].train([*command, *options])


@pytest.mark.parametrize(
    ("name", "smoothing"),
    [(name, 0.0) for name in MODELS] + [(name, 0.1) for name in ("gpt2", "bert", "t5", "bert-classifier")],
)
def test_the_losses_are_those_of_transformers_trainer(name: str, smoothing: float, tmp_path: Path, capsys) -> None:
    native = native_folder(name, tmp_path / "native")
    options = "--label_smoothing_factor", str(smoothing), *UNPACKED.get(name, ())
    with recorded() as ours:
        result = run(name, native, tmp_path / "run", *options, *(() if smoothing else LONG))
    class_name, _, task, *other = MODELS[name]
    (trained,) = other or [class_name]
    assert json.loads((tmp_path / "run" / "config.json").read_text())["architectures"] == [trained]
    saved = getattr(transformers, trained).from_pretrained(tmp_path / "run")
    assert len(ours.losses) == (5 if smoothing else 20)
    classes = saved.config.num_labels
    torch.manual_seed(42)  # of the new weights of a classifier
    fresh = type(saved).from_pretrained(native, num_labels=classes, pad_token_id=saved.config.pad_token_id)
    assert ours.losses == pytest.approx(plain_losses(fresh, ours, tmp_path / "plain"), rel=1e-5)
    assert math.isfinite(result.metrics["test_loss"])
    if name == "bert-classifier":
        assert AutoTokenizer.from_pretrained(tmp_path / "run").model_max_length == 64
    mask = " [MASK]" if task == "masked" else ""
    assert answers(capsys, "--model", tmp_path / "run", "--text", f"Montag{mask}", "--device", "cpu")


OWN_WAY: dict[str, Any] = {"scale_attn_by_inverse_layer_idx": True}  # which no model of ours does


def test_what_ours_cannot_be_trains_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """With adapters, which are merged into layers of GPT-2 that are no `nn.Linear`."""
    monkeypatch.setitem(MODELS, "gpt2", ("GPT2LMHeadModel", GPT2 | OWN_WAY, *MODELS["gpt2"][2:]))
    native = native_folder("gpt2", tmp_path / "native")
    with recorded() as ours:
        run("gpt2", native, tmp_path / "whole")
    expected = plain_losses(transformers.GPT2LMHeadModel.from_pretrained(native), ours, tmp_path / "plain")
    assert ours.losses == pytest.approx(expected, rel=1e-5)
    lora = "--lora_rank", "2", "--learning_rate", "0.1", "--lora_targets"
    run("gpt2", native, tmp_path / "run", *lora, "c_attn")
    before, after = (transformers.GPT2LMHeadModel.from_pretrained(tmp_path / name) for name in ("native", "run"))
    old = before.state_dict()
    changed = {name for name, value in after.state_dict().items() if not torch.allclose(value, old[name])}
    assert changed == {"transformer.h.0.attn.c_attn.weight"}
    with pytest.raises(ValueError, match=r"--lora_targets q_proj: .* called c_attn, c_fc, c_proj, lm_head"):
        run("gpt2", native, tmp_path / "other", *lora, "q_proj")
    capsys.readouterr()
    refused(r"--packing: .*GPT2LMHeadModel", run, "gpt2", native, tmp_path / "packed", "--packing", "true")
    assert "scale_attn_by_inverse_layer_idx=True" in "".join(capsys.readouterr())
    with pytest.raises(ValueError, match=r"--save_as vanilla: .*scale_attn_by_inverse_layer_idx=True"):
        run("gpt2", native, tmp_path / "other", "--save_as", "vanilla")
    monkeypatch.setitem(MODELS, "gpt2", ("GraniteForCausalLM", LLAMA, "classification"))
    head = "no AutoModelForSequenceClassification .*'granite'; `vanillaformer convert --from`"
    refused(head, run, "gpt2", native_folder("gpt2", tmp_path / "granite"), tmp_path / "other")


@pytest.mark.parametrize(("name", "more"), [("marian", ""), ("bert-classifier", "--lora_rank 2")])
def test_packed_rows_of_a_native_model(name: str, more: str, tmp_path: Path) -> None:
    """What is saved is the native class without code of ours, and the tokenizer as it was."""
    native = native_folder(name, tmp_path / "native")
    edit(native / "tokenizer_config.json", model_max_length=48)
    run(name, native, tmp_path / "run", "--packing", "true", "--learning_rate", "0.01", *more.split())
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (native, tmp_path / "run"))
    labels = {"id2label", "label2id", "architectures", "problem_type"}
    assert {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)} <= labels
    assert not list((tmp_path / "run").glob("*.py"))
    for path in (native / "tokenizer.json", native / "tokenizer_config.json"):
        assert (tmp_path / "run" / path.name).read_bytes() == path.read_bytes()
    if more:
        assert json.loads((tmp_path / "run" / "adapter" / "adapter_config.json").read_text())["r"] == 2
        return
    checkpoint = json.loads((tmp_path / "run" / "checkpoint-4" / "config.json").read_text())
    assert checkpoint["model_type"].startswith("vanilla")


def test_what_training_decides_of_the_tokenizer_is_saved(tmp_path: Path) -> None:
    """The side at which texts are cut, and how images are scaled; all else is as it was."""
    native, saved = native_folder("bert-classifier", tmp_path / "native"), tmp_path / "saved"
    edit(native / "tokenizer_config.json", model_max_length=64)
    origin = json.loads((native / "tokenizer_config.json").read_text())
    (native / "preprocessor_config.json").write_text("{}")
    saved.mkdir()
    (saved / "preprocessor_config.json").write_text('{"size": 8}')
    (saved / "tokenizer_config.json").write_text(json.dumps({"truncation_side": "left", "model_max_length": 32}))
    keep_tokenizer(native, saved)
    assert (saved / "preprocessor_config.json").read_text() == '{"size": 8}'
    assert json.loads((saved / "tokenizer_config.json").read_text()) == origin | {"truncation_side": "left"}
    assert (saved / "tokenizer.json").read_bytes() == (native / "tokenizer.json").read_bytes()


def test_a_native_model_of_dialogues_keeps_their_template(tmp_path: Path) -> None:
    native, tokenizer = tmp_path / "native", copy.deepcopy(tokenizer_of("decoder"))
    tokenizer.add_special_tokens({"extra_special_tokens": ["<end>", "[SEP]"]})
    ends = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<end>")]
    model = save_native(native, "GPT2LMHeadModel", GPT2, tokenizer)
    model.generation_config.eos_token_id = [*ends, 50]  # of which the last is text here
    model.generation_config.save_pretrained(native)
    rows = [{"turns": [f"hello {n}", "hi"]} for n in range(40)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    file = ["--train_file", str(tmp_path / "a.jsonl"), "--turns_column", "turns", "--block_size", "32"]
    command = [*STEPS.split(), *file, "--model_name_or_path", str(native), "--output_dir", str(tmp_path / "run")]
    words = "--turns_column turns: GPT2LMHeadModel .* would mix the texts of a row"  # which was of --packing
    refused(words, PROGRAMS["causal"][0].train, [*command, "--parallel", "fsdp=1"])
    PROGRAMS["causal"][0].train(command)
    saved: Any = AutoTokenizer.from_pretrained(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["architectures"] == ["GPT2LMHeadModel"]
    text = saved.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    assert text.endswith(f"a[SEP]{saved.eos_token}")
    settings = json.loads((tmp_path / "run" / "generation_config.json").read_text())
    assert settings["eos_token_id"] == [*ends, saved.convert_tokens_to_ids("[SEP]")]


def test_another_form_is_saved_where_it_is_asked_for(tmp_path: Path) -> None:
    run("gpt2", native_folder("gpt2", tmp_path / "native"), tmp_path / "first", "--save_as", "vanilla")
    assert type(AutoModelForCausalLM.from_pretrained(tmp_path / "first")).__name__ == "VanillaDecoderForCausalLM"
    for save_as, expected in (("vanilla", "VanillaDecoderForCausalLM"), ("native", "GPT2LMHeadModel")):
        out = tmp_path / f"as_{save_as}"
        run("gpt2", tmp_path / "first", out, "--save_as", save_as, "--max_steps", "1")
        assert json.loads((out / "config.json").read_text())["architectures"] == [expected]


def test_a_table_of_positions_that_begins_after_the_padding_is_that_much_shorter(tmp_path: Path) -> None:
    native, message = native_folder("roberta", tmp_path / "native"), "33 tokens do not fit max_position_embeddings=33"
    refused(f"{message} .* reads 32", run, "roberta", native, tmp_path / "run", "--block_size", "33")
