from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from transformers import DataCollatorForLanguageModeling, DataCollatorForSeq2Seq

import vanillaformer
from vanillaformer.data.preprocessing.batching import RowMasking, epoch_seed
from vanillaformer.data.preprocessing.tokenizing import translation_rows
from vanillaformer.training.tasks.language_model import LanguageModelTrainingArguments
from vanillaformer.training.tasks.translation import TranslationTrainingArguments
from vanillaformer.training.trainer.trainer import RunTrainer, TranslationTrainer

SIZE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def masking(tokenizer, **options) -> RowMasking:
    return RowMasking(tokenizer, mlm_probability=0.5, **options)


def rows(tokenizer, count: int = 8) -> list[dict]:
    text = "the quick brown fox jumps over the lazy dog"
    return [{"input_ids": tokenizer(f"{text} {index}")["input_ids"]} for index in range(count)]


def test_masks_depend_on_row_seed_and_epoch_alone(encoder_tokenizer) -> None:
    batch = rows(encoder_tokenizer)
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
    short, long = (
        rows(encoder_tokenizer, 1)[0],
        {"input_ids": encoder_tokenizer("a much longer text " * 9)["input_ids"]},
    )
    collator = masking(encoder_tokenizer)
    alone, beside = collator([short]), collator([short, long])
    length = len(short["input_ids"])
    assert beside["input_ids"].shape[1] > 2 * length
    for name, padding in (("input_ids", encoder_tokenizer.pad_token_id), ("labels", -100)):
        assert torch.equal(beside[name][0, :length], alone[name][0])
        assert (beside[name][0, length:] == padding).all()
    assert (alone["labels"] != -100).any()


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
        seed = crc32(row.numpy().tobytes(), epoch_seed(3, 0))
        collator.generator = torch.Generator().manual_seed(seed)
        inputs, targets = DataCollatorForLanguageModeling.torch_mask_tokens(collator, row.clone())
        if (targets != -100).any():
            kept += 1
            assert torch.equal(collated["input_ids"][number, :width], inputs[0])
            assert torch.equal(collated["labels"][number, :width], targets[0])
        else:
            chosen = collated["labels"][number] != -100
            assert chosen.sum() == 1
            assert torch.equal(collated["labels"][number][chosen], row[0][chosen[:width]])
    assert 0 < kept < 100
    hidden = collated["labels"] != -100
    assert 0.7 < (collated["input_ids"][hidden] == encoder_tokenizer.mask_token_id).float().mean() < 0.9
    assert (collator([{"input_ids": encoder_tokenizer("")["input_ids"]}])["labels"] == -100).all()
    assert collator.mlm_probability == 0.02


def test_a_step_without_a_target_has_loss_0(encoder_tokenizer, tmp_path) -> None:
    empty = Dataset.from_dict({"input_ids": [encoder_tokenizer("")["input_ids"]] * 4})
    model = vanillaformer.VanillaEncoderForMaskedLM(vanillaformer.VanillaEncoderConfig(vocab_size=300, **SIZE))
    args = LanguageModelTrainingArguments(
        **{"output_dir": str(tmp_path), "objective": "masked", "use_cpu": True, "max_steps": 2},
        **{"eval_strategy": "no", "save_strategy": "no", "learning_rate": 0.0, "report_to": "none"},
    )
    trainer = RunTrainer(model=model, args=args, train_dataset=empty, data_collator=masking(encoder_tokenizer))
    assert trainer.train().training_loss == 0


@pytest.mark.parametrize("strategy", ["group_by_length", "random"])
def test_references_stand_beside_their_predictions(strategy: str, translator_tokenizer, tmp_path) -> None:
    texts = ["abc", "a", "abcdefgh", "ab", "abcd"]
    data = DatasetDict(train=Dataset.from_dict({"source": texts, "target": [text * 2 for text in texts]}))
    data["test"] = data["train"]
    rows = translation_rows(data, translator_tokenizer, max_source_length=32, max_target_length=32)
    seen: list[tuple[list[str], list[str]]] = []

    def compute(prediction: Any, references: list[str]) -> dict[str, float]:
        labels = np.where(prediction.label_ids == -100, 0, prediction.label_ids)
        seen.append((references, translator_tokenizer.batch_decode(labels, skip_special_tokens=True)))
        return {"bleu": 1.0}

    args = TranslationTrainingArguments(
        **{"output_dir": str(tmp_path), "use_cpu": True, "report_to": "none", "generation_max_length": 4},
        **{"per_device_eval_batch_size": 2, "train_sampling_strategy": strategy},
        **{"dataloader_drop_last": True, "remove_unused_columns": False},
    )
    model = vanillaformer.VanillaEncoderDecoderForConditionalGeneration(
        vanillaformer.VanillaEncoderDecoderConfig(vocab_size=300, **SIZE)
    )
    collator = DataCollatorForSeq2Seq(translator_tokenizer)
    options = {"eval_dataset": rows["test"], "data_collator": collator, "compute_metrics": compute}
    trainer = TranslationTrainer(model=model, args=args, **options)
    trainer.evaluate()
    trainer.predict(rows["test"].select([3, 0]))
    assert [len(references) for references, _ in seen] == [5, 2]
    assert all(references == decoded for references, decoded in seen)
    assert seen[0][0] == [texts[number] * 2 for number in (2, 4, 0, 3, 1)]  # the longest first
    assert trainer.compute_metrics is compute
    assert rows["train"].column_names == ["input_ids", "attention_mask", "labels"]
