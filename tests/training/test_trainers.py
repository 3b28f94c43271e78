import torch
from transformers import DataCollatorForLanguageModeling

from vanillaformer.training.trainers import RowMasking


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
    second = collator(batch)
    assert not torch.equal(second["labels"], first["labels"])
    with collator.evaluation():
        fixed = collator(batch)
    collator.set_epoch(2)
    with collator.evaluation():
        assert torch.equal(collator(batch)["labels"], fixed["labels"])
    assert collator.epoch == 2


def test_masks_do_not_depend_on_how_far_a_row_is_padded(encoder_tokenizer) -> None:
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


def test_masks_are_as_many_as_the_stock_collator_makes(encoder_tokenizer) -> None:
    batch = rows(encoder_tokenizer, 64)
    stock = DataCollatorForLanguageModeling(encoder_tokenizer, mlm_probability=0.5)(batch)
    ours = masking(encoder_tokenizer)(batch)
    assert ours.keys() == stock.keys()
    for collated in (ours, stock):
        hidden = collated["labels"] != -100
        assert 0.45 < hidden.float().mean() < 0.52
        masked = (collated["input_ids"] == encoder_tokenizer.mask_token_id) & hidden
        assert 0.75 < masked.sum() / hidden.sum() < 0.85
        special = torch.isin(collated["labels"], torch.tensor(encoder_tokenizer.all_special_ids))
        assert not special.any()
