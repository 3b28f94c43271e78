"""N-gram embeddings and logits beside the stack against tables looked up token by token, and what a hash must be."""

from collections.abc import Iterator

import pytest
import torch
from refusals import refused
from scipy.stats import chisquare

from vanillaformer import VanillaEncoderConfig
from vanillaformer.modeling import VanillaEncoderForSequenceClassification, VanillaEncoderModel
from vanillaformer.modeling.parts.ngrams import HASH_FACTOR, HASH_PRIME, NgramEmbeddings, WideLogits

from .toys import toy

PAD = 0


def table(longest: int = 3, buckets: int = 50, padding: int | None = PAD) -> NgramEmbeddings:
    torch.manual_seed(0)
    sizes = {"max_ngram": longest, "ngram_buckets": buckets, "hidden_size": 8}
    return NgramEmbeddings(VanillaEncoderConfig(**sizes, pad_token_id=padding)).double()


def numbers_of(text: list[int], place: int, longest: int, padding: int = PAD) -> Iterator[int]:
    """The numbers of the n-grams that end at a place, the shortest first, in Python's whole numbers."""
    number = text[place]
    yield number
    for back in range(1, longest):
        before = text[place - back] if place >= back else padding
        number = (number * HASH_FACTOR + before) % HASH_PRIME
        yield number


def looked_up(ngrams: NgramEmbeddings, text: list[int], place: int) -> torch.Tensor:
    _, *numbers = numbers_of(text, place, ngrams.max_ngram, ngrams.padding)
    rows = [number % ngrams.buckets + table * ngrams.buckets for table, number in enumerate(numbers)]
    return ngrams.embed_ngrams.weight[rows].sum(0)


@pytest.mark.parametrize("padding", [PAD, None])
@pytest.mark.parametrize("longest", [2, 3, 5])
def test_each_token_gets_the_vectors_of_what_ends_in_it(longest: int, padding: int | None) -> None:
    ngrams = table(longest, padding=padding)
    ids, x = torch.randint(2**28, (2, 9)), torch.randn(2, 9, 8, dtype=torch.double)
    found = ngrams(x, ids.int(), torch.arange(9)[None])  # of any type
    expected = torch.stack([torch.stack([looked_up(ngrams, row, t) for t in range(9)]) for row in ids.tolist()])
    assert torch.allclose(found, x + expected, rtol=1e-12)


def test_packed_texts_share_no_ngrams() -> None:
    ngrams, first, second = table(), torch.tensor([[5, 6, 7]]), torch.tensor([[8, 9]])
    rows = [ngrams.hash_ngrams(text, torch.arange(text.shape[1])[None]) for text in (first, second)]
    packed = ngrams.hash_ngrams(torch.cat([first, second], dim=1), torch.tensor([[0, 1, 2, 0, 1]]))
    assert torch.equal(packed, torch.cat(rows, dim=2))


def test_hash_spreads_evenly_and_tells_orders_apart() -> None:
    """All pairs of 1,000 tokens, in 64, 1,000 and 2¹² buckets: as even as chance would be, and not more."""
    first, second = torch.meshgrid(torch.arange(1000), torch.arange(1000), indexing="ij")
    pairs = torch.stack([first.flatten(), second.flatten()], dim=1)
    for buckets in (64, 1000, 4096):
        rows = table(2, buckets, padding=None).hash_ngrams(pairs, torch.arange(2)[None])[0, :, 1]
        assert chisquare(torch.bincount(rows, minlength=buckets)).pvalue > 1e-4
        turned = table(2, buckets, padding=None).hash_ngrams(pairs.flip(1), torch.arange(2)[None])[0, :, 1]
        distinct = pairs[:, 0] != pairs[:, 1]
        assert (rows == turned)[distinct].float().mean() < 3 / buckets


@pytest.mark.parametrize(("model_class", "fields", "without", "name"), [
    (VanillaEncoderModel, {"max_ngram": 3}, {"max_ngram": 1}, "embeddings.ngrams.embed_ngrams.weight"),
    (VanillaEncoderForSequenceClassification, {"wide_max_ngram": 2, "wide_buckets": 64}, {"wide_max_ngram": 0},
     "wide.ngram_logits.weight"),
], ids=["embeddings", "logits"])  # fmt: skip
def test_a_new_model_is_the_one_without(model_class, fields, without, name) -> None:
    fields = toy("encoder").config.to_dict() | fields
    torch.manual_seed(0)
    model = model_class(VanillaEncoderConfig(**fields)).eval()
    plain = model_class(VanillaEncoderConfig(**fields | without)).eval()
    missing = plain.load_state_dict(model.state_dict(), strict=False)
    assert (missing.unexpected_keys, missing.missing_keys) == ([name], [])
    assert not model.get_parameter(name).any()
    ids = torch.randint(4, 29, (2, 7))
    assert torch.equal(model(ids)[0], plain(ids)[0])
    frozen = [name] if "wide" in name else []
    assert [each for each, value in model.named_parameters() if not value.requires_grad] == frozen


@pytest.mark.parametrize("field", ["max_ngram", "wide_max_ngram"])
def test_embeddings_alone_do_not_say_which_tokens(field: str) -> None:
    model = toy("encoder", VanillaEncoderForSequenceClassification, **{field: 2})
    refused(f"{field}=2 needs input_ids", model, inputs_embeds=torch.randn(1, 3, model.config.hidden_size))


def wide(longest: int = 3, buckets: int = 50) -> WideLogits:
    torch.manual_seed(0)
    config = VanillaEncoderConfig(wide_max_ngram=longest, wide_buckets=buckets, num_labels=4, pad_token_id=PAD)
    part = WideLogits(config).double()
    torch.nn.init.normal_(part.ngram_logits.weight)
    return part


def by_sets(part: WideLogits, text: list[int]) -> torch.Tensor:
    numbers = {number for place in range(len(text)) for number in numbers_of(text, place, part.max_ngram)}
    rows = {number % part.buckets for number in numbers}
    return part.ngram_logits.weight[sorted(rows)].sum(dim=0) / len(rows) ** 0.5


@pytest.mark.parametrize("longest", [1, 2, 4])
def test_each_ngram_of_a_text_counts_once_in_the_logits(longest: int) -> None:
    part, ids, logits = wide(longest), torch.randint(1, 6, (3, 9)), torch.randn(3, 4, dtype=torch.double)
    expected = torch.stack([by_sets(part, text) for text in ids.tolist()])
    torch.testing.assert_close(part(logits, ids, None), logits + expected, rtol=1e-12, atol=1e-12)


def test_padding_and_what_it_hides_have_no_influence_on_the_logits_beside_the_stack() -> None:
    part, text, logits = wide(), [5, 6, 7, 5], torch.zeros(1, 4, dtype=torch.double)
    expected = by_sets(part, text)[None]
    for before, after in ((0, 3), (3, 0), (2, 2)):
        ids = torch.tensor([[9] * before + text + [8] * after])
        mask = torch.tensor([[0] * before + [1] * len(text) + [0] * after])
        torch.testing.assert_close(part(logits, ids, mask), expected)
    assert torch.equal(part(logits, ids, torch.zeros_like(ids)), logits)  # a text of nothing
