"""Masks, targets and the loss on held-out data in whatever batches; and Admin's profiling pass."""

from functools import partial
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from transformers import DataCollatorForLanguageModeling, DataCollatorForSeq2Seq, DataCollatorWithPadding, Trainer

import vanillaformer
from vanillaformer.data.arguments import TranslationDataArguments as PairData
from vanillaformer.data.preprocessing.batching import RowMasking, epoch_seed
from vanillaformer.data.preprocessing.packing import PackedTexts
from vanillaformer.data.preprocessing.tokenizing import translation_rows
from vanillaformer.modeling.measured import profile_admin
from vanillaformer.training.arguments import ModelArguments
from vanillaformer.training.metrics.compute import language_model_metrics, token_scores
from vanillaformer.training.models import build_model
from vanillaformer.training.run_folder.run import Run
from vanillaformer.training.tasks.language_model import LanguageModelTrainingArguments
from vanillaformer.training.tasks.translation import TranslationTrainingArguments
from vanillaformer.training.trainer.adaptation import first_batches, measure_new_model
from vanillaformer.training.trainer.trainer import RunTrainer, TranslationTrainer

SIZE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def masking(tokenizer, **options) -> RowMasking:
    return RowMasking(tokenizer, mlm_probability=0.5, **options)


def test_masks_depend_on_row_seed_and_epoch_only(encoder_tokenizer) -> None:
    texts = [f"the quick brown fox jumps over the lazy dog {index}" for index in range(8)]
    batch = [{"input_ids": ids} for ids in encoder_tokenizer(texts)["input_ids"]]
    collator = masking(encoder_tokenizer)
    torch.manual_seed(1)
    first = collator(batch)
    torch.manual_seed(2)
    assert torch.equal(collator(batch)["input_ids"], first["input_ids"])
    assert torch.equal(collator(batch[2:4])["labels"], first["labels"][2:4])  # as another process would see them
    assert not torch.equal(masking(encoder_tokenizer, mask_seed=1)(batch)["labels"], first["labels"])
    collator.set_epoch(1)
    assert not torch.equal(collator(batch)["labels"], first["labels"])
    with collator.evaluation():
        fixed = collator(batch)
    collator.set_epoch(2)
    with collator.evaluation():
        assert torch.equal(collator(batch)["labels"], fixed["labels"])
    assert collator.epoch == 2


def test_every_row_has_a_target(encoder_tokenizer, tmp_path) -> None:
    """The draws of rows that have one anyway are the stock collator's from the row's seed."""
    collator = RowMasking(encoder_tokenizer, mlm_probability=0.02, mask_seed=3)
    batch = [{"input_ids": encoder_tokenizer(f"{number} go")["input_ids"]} for number in range(200)]
    ids = [torch.tensor([row["input_ids"]]) for row in batch]
    collated = collator(batch)
    assert collated.keys() == DataCollatorForLanguageModeling(encoder_tokenizer)(batch).keys()
    assert not torch.isin(collated["labels"], torch.tensor(encoder_tokenizer.all_special_ids)).any()
    kept = 0
    for number, row in enumerate(ids):
        width = row.shape[1]
        collator.generator = torch.Generator().manual_seed(crc32(row.numpy().tobytes(), epoch_seed(3, 0)))
        inputs, targets = DataCollatorForLanguageModeling.torch_mask_tokens(collator, row.clone())
        if (targets != -100).any():
            kept += 1
            assert torch.equal(collated["input_ids"][number, :width], inputs[0])
            assert torch.equal(collated["labels"][number, :width], targets[0])
        else:
            chosen = collated["labels"][number] != -100
            assert chosen.sum() == 1
            assert torch.equal(collated["labels"][number][chosen], row[0][chosen[:width]])
        for name, padding in (("input_ids", encoder_tokenizer.pad_token_id), ("labels", -100)):
            assert (collated[name][number, width:] == padding).all()
    assert 0 < kept < 100
    hidden = collated["labels"] != -100
    assert 0.7 < (collated["input_ids"][hidden] == encoder_tokenizer.mask_token_id).float().mean() < 0.9
    assert (collator([{"input_ids": encoder_tokenizer("")["input_ids"]}])["labels"] == -100).all()
    assert collator.mlm_probability == 0.02


LENGTHS = (3, 40, 5, 31, 4, 4, 22)
# Each with a model and what makes batches of rows
JOBS = {
    "causal": (vanillaformer.VanillaDecoderForCausalLM, partial(DataCollatorForLanguageModeling, mlm=False)),
    "masked": (vanillaformer.VanillaEncoderForMaskedLM, partial(RowMasking, mlm_probability=0.3)),
    "mlm+nsp": (vanillaformer.VanillaEncoderForPreTraining, partial(RowMasking, mlm_probability=0.3)),
    "translation": (vanillaformer.VanillaEncoderDecoderForConditionalGeneration,
                    partial(DataCollatorForSeq2Seq, label_pad_token_id=-100)),
}  # fmt: skip


def made(name, tokenizer):
    torch.manual_seed(0)
    ids = [tokenizer("abc def ghi " * 4)["input_ids"][:length] for length in LENGTHS]
    rows = Dataset.from_dict({"input_ids": ids, "labels": [row[::-1] for row in ids]})
    model_class, collator = JOBS[name]
    rows = rows if name == "translation" else rows.remove_columns("labels")
    if name == "mlm+nsp":
        rows = rows.add_column("next_sentence_label", [0, 1, 1, 0, 1, 0, 1])
    return model_class(model_class.config_class(vocab_size=300, **SIZE)), rows, collator(tokenizer)


def trainer(name, model, rows, collator, folder, size, **options) -> Trainer:
    settings = {"output_dir": str(folder), "per_device_eval_batch_size": size, "report_to": "none", "use_cpu": True}
    settings |= options
    if name == "translation":
        arguments = TranslationTrainingArguments(**settings, generation_max_length=4)
        return TranslationTrainer(model=model, args=arguments, data_collator=collator, eval_dataset=rows)
    arguments = LanguageModelTrainingArguments(**settings)
    return RunTrainer(model=model, args=arguments, data_collator=collator, eval_dataset=rows)


@pytest.mark.parametrize("strategy", ["group_by_length", "random"])
def test_references_stand_beside_their_predictions(strategy: str, translator_tokenizer, tmp_path) -> None:
    sources = ["abc", "a", "abcdefgh", "ab", "abcd"]
    data = DatasetDict(test=Dataset.from_dict({"source": sources, "target": [text * 2 for text in sources]}))
    rows = translation_rows(data, (translator_tokenizer,) * 2, PairData())["test"]
    seen: list[tuple[list[str], list[str]]] = []

    def compute(prediction: Any, references: list[str]) -> dict[str, float]:
        labels = np.where(prediction.label_ids == -100, 0, prediction.label_ids)
        seen.append((references, translator_tokenizer.batch_decode(labels, skip_special_tokens=True)))
        return {"bleu": 1.0}

    model, _, collator = made("translation", translator_tokenizer)
    options = {"train_sampling_strategy": strategy, "dataloader_drop_last": True, "remove_unused_columns": False}
    one = trainer("translation", model, rows, collator, tmp_path, 2, **options)
    one.compute_metrics = compute
    one.evaluate()
    one.predict(rows.select([3, 0]))
    assert [len(references) for references, _ in seen] == [5, 2]
    assert all(references == decoded for references, decoded in seen)
    assert seen[0][0] == [sources[number] * 2 for number in (2, 4, 0, 3, 1)]  # the longest first
    assert one.compute_metrics is compute


def naive_loss(name, model, rows, collator) -> float:
    """One row after the other; every target counts once."""
    losses, pairs = [], [0.0]
    for row in rows:
        with collator.evaluation() if name.startswith("m") else torch.no_grad():
            batch = collator([row])
        labels, second = batch.pop("labels"), batch.pop("next_sentence_label", None)
        with torch.no_grad():
            inputs = {**batch, "labels": labels} if name == "translation" else batch  # which the decoder's input is of
            outputs = model.eval()(**inputs)
        logits = outputs.logits if second is None else outputs.prediction_logits
        if name == "causal":
            logits, labels = logits[:, :-1], labels[:, 1:]
        each = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        losses += each[labels.flatten() != -100].tolist()
        if second is not None:
            pairs.append(torch.nn.functional.cross_entropy(outputs.seq_relationship_logits, second).item())
    return sum(losses) / len(losses) + sum(pairs) / len(rows)


@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize("name", JOBS)
def test_loss_is_the_mean_over_targets(name, size, request, tmp_path) -> None:
    kind = {"causal": "decoder", "translation": "translator"}.get(name, "encoder")
    model, rows, collator = made(name, request.getfixturevalue(f"{kind}_tokenizer"))
    wanted = naive_loss(name, model, rows, collator)
    one = trainer(name, model, rows, collator, tmp_path, size)
    by_length = rows.select(sorted(range(len(rows)), key=lambda row: LENGTHS[row]))
    for order in (rows, by_length):
        assert one.evaluate(order)["eval_loss"] == pytest.approx(wanted, rel=1e-5)
    assert one.predict(by_length, metric_key_prefix="test").metrics["test_loss"] == pytest.approx(wanted, rel=1e-5)


def test_without_a_target_there_is_no_loss_and_that_of_a_step_is_0(encoder_tokenizer, tmp_path) -> None:
    model, rows, collator = made("masked", encoder_tokenizer)
    empty = Dataset.from_dict({"input_ids": [encoder_tokenizer("")["input_ids"]] * 3})  # [CLS] [SEP]
    training = {"objective": "masked", "max_steps": 2, "learning_rate": 0.0}
    strategies = {"eval_strategy": "no", "save_strategy": "no"}
    one = trainer("masked", model, rows, collator, tmp_path, 2, **training, **strategies)
    one.compute_metrics, one.preprocess_logits_for_metrics = language_model_metrics(), token_scores(causal=False)
    assert {"eval_loss", "eval_perplexity", "eval_accuracy"}.isdisjoint(one.evaluate(empty))
    assert {"eval_loss", "eval_perplexity", "eval_accuracy"} <= one.evaluate(rows).keys()
    one.train_dataset = empty
    assert one.train().training_loss == 0


def test_a_score_of_minus_100_counts_as_a_target(encoder_tokenizer, tmp_path) -> None:
    one = trainer("masked", *made("masked", encoder_tokenizer), tmp_path, 1)
    batches = [{"labels": torch.tensor([-100.0, 2.0])}, {"labels": torch.tensor([-100.0])}]
    _, items = one.get_batch_samples(iter(batches), 2, one.args.device)
    assert items == 3


SMALL = ["hidden_size=16", "num_hidden_layers=2", "num_attention_heads=2", "dropout=0.1"]


def trainer_of(tokenizer, folder, *overrides: str, **settings) -> RunTrainer:
    model = build_model("masked", ModelArguments(overrides=[*SMALL, *overrides]), tokenizer, length=16, seed=0)
    texts = [f"text number {number} {'x' * (number % 5)}"[:14] for number in range(30)]
    rows = Dataset.from_dict({"input_ids": tokenizer(texts)["input_ids"]})
    settings = {"per_device_train_batch_size": 8, "output_dir": str(folder), "use_cpu": True, **settings}
    return RunTrainer(
        model=model, args=LanguageModelTrainingArguments(**settings), train_dataset=rows, eval_dataset=rows,
        data_collator=RowMasking(tokenizer, mlm_probability=0.15),
    )  # fmt: skip


def run_of(folder, checkpoint=None, started_from=None) -> Run:
    return Run(folder, "", {"model": {"model_name_or_path": started_from}}, checkpoint=checkpoint)


def test_a_new_admin_model_gets_the_factors_of_its_first_batch(encoder_tokenizer, tmp_path, capsys):
    trainer = trainer_of(encoder_tokenizer, tmp_path, "norm_placement=admin")
    states = torch.get_rng_state()
    factors = measure_new_model(run_of(tmp_path), trainer)
    assert torch.equal(torch.get_rng_state(), states), "later draws would be others than those of a resumed run"
    assert (len(factors), min(factors.values())) == (4, 1)
    assert max(factors.values()) > 1.2
    for name, value in factors.items():
        assert torch.equal(trainer.model.get_parameter(f"{name}.omega"), torch.full((16,), value))
    largest = f"{max(factors.values()):.2f}"
    reported = f"Admin: factors of 4 residual connections from 1.00 to {largest}, measured on 8 rows."
    assert capsys.readouterr().out.splitlines() == [reported]
    # the same as by hand, from the rows that training begins with
    again = trainer_of(encoder_tokenizer, tmp_path, "norm_placement=admin")
    assert profile_admin(again.model, **next(iter(again.get_train_dataloader()))) == pytest.approx(factors)


@pytest.mark.parametrize("strategy", ["random", "group_by_length", "sequential"])
def test_the_first_batch_is_that_of_the_training(strategy, encoder_tokenizer, tmp_path):
    trainer = trainer_of(encoder_tokenizer, tmp_path, train_sampling_strategy=strategy)
    (batch,) = first_batches(trainer, 1)
    trained = next(iter(trainer.get_train_dataloader()))
    assert batch.keys() == trained.keys()
    assert all(torch.equal(batch[name], value) for name, value in trained.items())


def test_gradinit_takes_parts_of_texts_not_of_packed_rows(encoder_tokenizer, tmp_path):
    trainer = trainer_of(encoder_tokenizer, tmp_path)
    trainer.train_dataset = trainer.train_dataset.map(lambda row: {"labels": 0})
    trainer.data_collator = PackedTexts(trainer.model, DataCollatorWithPadding(encoder_tokenizer))
    assert len(first_batches(trainer, 1)[0]["input_ids"]) < 8
    assert [len(batch["input_ids"]) for batch in first_batches(trainer, 2)] == [8, 8]


@pytest.mark.parametrize(
    ("overrides", "run"),
    [((), {}), (("norm_placement=admin", "initialization=xavier"), {}),
     (("norm_placement=admin",), {"checkpoint": "checkpoint-2"}),
     (("norm_placement=admin",), {"started_from": "runs/model"})],
    ids=["another placement", "another initialization", "going on", "from a saved model"],
)  # fmt: skip
def test_no_other_model_is_touched(overrides, run, encoder_tokenizer, tmp_path, capsys):
    trainer = trainer_of(encoder_tokenizer, tmp_path, *overrides)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    assert measure_new_model(run_of(tmp_path, **run), trainer) == {}
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())
    assert "Admin" not in capsys.readouterr().out
