"""The loss on held-out data is the mean over all targets, in whatever batches and order the rows come."""

from functools import partial

import pytest
import torch
from datasets import Dataset
from transformers import DataCollatorForLanguageModeling, DataCollatorForSeq2Seq, Trainer

from vanillaformer import (
    VanillaDecoderConfig,
    VanillaDecoderForCausalLM,
    VanillaEncoderConfig,
    VanillaEncoderDecoderConfig,
    VanillaEncoderDecoderForConditionalGeneration,
    VanillaEncoderForMaskedLM,
    VanillaEncoderForPreTraining,
)
from vanillaformer.data.preprocessing.batching import RowMasking
from vanillaformer.training.metrics.compute import language_model_metrics, token_scores
from vanillaformer.training.tasks.language_model import LanguageModelTrainingArguments
from vanillaformer.training.tasks.translation import TranslationTrainingArguments
from vanillaformer.training.trainer.trainer import RunTrainer, TranslationTrainer

SIZE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
LENGTHS = (3, 40, 5, 31, 4, 4, 22)


def texts(tokenizer) -> list[list[int]]:
    return [tokenizer("abc def ghi " * 4)["input_ids"][:length] for length in LENGTHS]


# Each with a model, its config and what makes batches of rows
JOBS = {
    "causal": (VanillaDecoderForCausalLM, VanillaDecoderConfig, partial(DataCollatorForLanguageModeling, mlm=False)),
    "masked": (VanillaEncoderForMaskedLM, VanillaEncoderConfig, partial(RowMasking, mlm_probability=0.3)),
    "translation": (
        VanillaEncoderDecoderForConditionalGeneration, VanillaEncoderDecoderConfig,
        partial(DataCollatorForSeq2Seq, label_pad_token_id=-100),
    ),
}  # fmt: skip


def made(name, tokenizer):
    torch.manual_seed(0)
    ids = texts(tokenizer)
    rows = Dataset.from_dict({"input_ids": ids, "labels": [row[::-1] for row in ids]})
    model_class, config_class, collator = JOBS[name]
    rows = rows if name == "translation" else rows.remove_columns("labels")
    return model_class(config_class(vocab_size=300, **SIZE)), rows, collator(tokenizer)


@pytest.fixture(params=JOBS)
def job(request, decoder_tokenizer, encoder_tokenizer, translator_tokenizer):
    tokenizers = {"causal": decoder_tokenizer, "masked": encoder_tokenizer, "translation": translator_tokenizer}
    return request.param, *made(request.param, tokenizers[request.param])


def trainer(name, model, rows, collator, folder, size) -> Trainer:
    settings = {"output_dir": str(folder), "per_device_eval_batch_size": size, "report_to": "none", "use_cpu": True}
    if name == "translation":
        arguments = TranslationTrainingArguments(**settings, generation_max_length=4)
        return TranslationTrainer(model=model, args=arguments, data_collator=collator, eval_dataset=rows)
    arguments = LanguageModelTrainingArguments(**settings)
    return RunTrainer(model=model, args=arguments, data_collator=collator, eval_dataset=rows)


def naive_loss(name, model, rows, collator) -> float:
    """One row after the other; every target counts once."""
    losses = []
    for row in rows:
        with collator.evaluation() if name == "masked" else torch.no_grad():
            batch = collator([row])
        labels = batch.pop("labels")
        with torch.no_grad():
            inputs = {**batch, "labels": labels} if name == "translation" else batch  # which the decoder's input is of
            logits = model.eval()(**inputs).logits
        if name == "causal":
            logits, labels = logits[:, :-1], labels[:, 1:]
        each = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        losses += each[labels.flatten() != -100].tolist()
    return sum(losses) / len(losses)


@pytest.mark.parametrize("size", [1, 3, 7])
def test_loss_is_the_mean_over_targets(job, size, tmp_path) -> None:
    name, model, rows, collator = job
    wanted = naive_loss(name, model, rows, collator)
    one = trainer(name, model, rows, collator, tmp_path, size)
    by_length = rows.select(sorted(range(len(rows)), key=lambda row: LENGTHS[row]))
    for order in (rows, by_length):
        assert one.evaluate(order)["eval_loss"] == pytest.approx(wanted, rel=1e-5)
    assert one.predict(by_length, metric_key_prefix="test").metrics["test_loss"] == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("size", [1, 3, 7])
def test_two_losses_are_the_means_over_the_targets_of_each(size, encoder_tokenizer, tmp_path) -> None:
    _, rows, collator = made("masked", encoder_tokenizer)
    rows = rows.add_column("next_sentence_label", [0, 1, 1, 0, 1, 0, 1])
    model = VanillaEncoderForPreTraining(VanillaEncoderConfig(vocab_size=300, **SIZE)).eval()
    tokens, pairs = [], []
    for row in rows:
        with collator.evaluation(), torch.no_grad():
            batch = collator([row])
            outputs = model(batch["input_ids"])
        labels = batch["labels"].flatten()
        each = torch.nn.functional.cross_entropy(outputs.prediction_logits[0], labels, reduction="none")
        tokens += each[labels != -100].tolist()
        pairs.append(torch.nn.functional.cross_entropy(outputs.seq_relationship_logits, batch["next_sentence_label"]))
    wanted = sum(tokens) / len(tokens) + float(sum(pairs) / len(pairs))
    found = trainer("mlm+nsp", model, rows, collator, tmp_path, size).evaluate()["eval_loss"]
    assert found == pytest.approx(wanted, rel=1e-5)


def test_without_a_target_there_is_no_loss(encoder_tokenizer, tmp_path) -> None:
    model, rows, collator = made("masked", encoder_tokenizer)
    empty = Dataset.from_dict({"input_ids": [encoder_tokenizer("")["input_ids"]] * 3})  # [CLS] [SEP]
    one = trainer("masked", model, rows, collator, tmp_path, 2)
    one.compute_metrics, one.preprocess_logits_for_metrics = language_model_metrics(), token_scores(causal=False)
    assert {"eval_loss", "eval_perplexity", "eval_accuracy"}.isdisjoint(one.evaluate(empty))
    assert {"eval_loss", "eval_perplexity", "eval_accuracy"} <= one.evaluate(rows).keys()
