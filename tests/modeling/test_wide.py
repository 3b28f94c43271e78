"""The logits beside the stack, against sets of n-grams in Python."""

import pytest
import torch

from vanillaformer import VanillaEncoderConfig
from vanillaformer.modeling import VanillaEncoderForSequenceClassification
from vanillaformer.modeling.parts.ngrams import HASH_FACTOR, HASH_PRIME, WideLogits

from .toys import toy

PAD = 0


def wide(longest: int = 3, buckets: int = 50) -> WideLogits:
    torch.manual_seed(0)
    part = WideLogits(longest, buckets, 4, PAD).double()
    torch.nn.init.normal_(part.ngram_logits.weight)
    return part


def by_sets(part: WideLogits, text: list[int]) -> torch.Tensor:
    """The formula, in Python's whole numbers."""
    rows = set()
    for place, number in enumerate(text):
        rows.add(number % part.buckets)
        for back in range(1, part.max_ngram):
            before = text[place - back] if place >= back else PAD
            number = (number * HASH_FACTOR + before) % HASH_PRIME
            rows.add(number % part.buckets)
    return part.ngram_logits.weight[sorted(rows)].sum(dim=0) / len(rows) ** 0.5


@pytest.mark.parametrize("longest", [1, 2, 4])
def test_each_ngram_of_a_text_counts_once(longest: int) -> None:
    part, ids, logits = wide(longest), torch.randint(1, 6, (3, 9)), torch.randn(3, 4, dtype=torch.double)
    expected = torch.stack([by_sets(part, text) for text in ids.tolist()])
    torch.testing.assert_close(part(logits, ids, None), logits + expected, rtol=1e-12, atol=1e-12)


def test_padding_and_what_it_hides_have_no_influence() -> None:
    part, text, logits = wide(), [5, 6, 7, 5], torch.zeros(1, 4, dtype=torch.double)
    expected = by_sets(part, text)[None]
    for before, after in ((0, 3), (3, 0), (2, 2)):
        ids = torch.tensor([[9] * before + text + [8] * after])
        mask = torch.tensor([[0] * before + [1] * len(text) + [0] * after])
        torch.testing.assert_close(part(logits, ids, mask), expected)
    assert torch.equal(part(logits, ids, torch.zeros_like(ids)), logits)  # a text of nothing


def test_a_new_model_is_the_one_without_and_trains_without_it() -> None:
    fields = toy("encoder").config.to_dict() | {"wide_max_ngram": 2, "wide_buckets": 64}
    torch.manual_seed(0)
    model = VanillaEncoderForSequenceClassification(VanillaEncoderConfig(**fields)).eval()
    plain = VanillaEncoderForSequenceClassification(VanillaEncoderConfig(**fields | {"wide_max_ngram": 0})).eval()
    missing = plain.load_state_dict(model.state_dict(), strict=False)
    assert missing.unexpected_keys == ["wide.ngram_logits.weight"]
    ids = torch.randint(4, 29, (2, 7))
    assert torch.equal(model(ids).logits, plain(ids).logits)
    assert [name for name, each in model.named_parameters() if not each.requires_grad] == missing.unexpected_keys


def test_it_is_saved_and_needs_tokens(tmp_path) -> None:
    model = toy("encoder", VanillaEncoderForSequenceClassification, wide_max_ngram=2, wide_buckets=64).eval()
    torch.nn.init.normal_(model.wide.ngram_logits.weight)
    model.save_pretrained(tmp_path)
    ids = torch.randint(4, 29, (2, 7))
    again = VanillaEncoderForSequenceClassification.from_pretrained(tmp_path).eval()
    assert torch.equal(again(ids).logits, model(ids).logits)
    with pytest.raises(ValueError, match="wide_max_ngram=2 needs input_ids"):
        model(inputs_embeds=torch.randn(1, 3, model.config.hidden_size))
