"""Denoising: corrupted texts and targets are those of the papers, in exact numbers, and the same in any batch."""

import copy
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from modeling.toys import assert_close, toy
from refusals import refused
from scipy import stats
from tokenizers.processors import TemplateProcessing

from vanillaformer.data.arguments import LanguageModelDataArguments as LmData
from vanillaformer.data.preprocessing import denoising
from vanillaformer.data.preprocessing.denoising import DENOISING, packed_texts
from vanillaformer.data.preprocessing.language_model import block_rows, language_model_rows, packed_rows
from vanillaformer.data.tasks import MASK_TOKEN
from vanillaformer.tokenization import train

EOS, LENGTH, SURE = 3, 512, 1e-5
TEXT = "The cat sat on the mat. Was it a red mat? Nobody knew! "


@pytest.fixture(scope="module")
def tokenizer():
    names = dict.fromkeys(name for each in DENOISING.values() for name in each.tokens(settings(), LENGTH))
    return train([TEXT], vocab_size=2_000, kind="encoder_decoder", extra_special_tokens=list(names))


def settings(objective: str = "span", **options: Any) -> SimpleNamespace:
    values = {"noise_density": None, "mean_span_length": None, "noise": "mask", "seed": 7, "objective": objective}
    return SimpleNamespace(**values | options)


def collator(tokenizer: Any, objective: str, model: Any = None, **options: Any) -> Any:
    return DENOISING[objective](model, tokenizer, settings(objective, **options), LENGTH)


def texts(tokenizer: Any, count: int = 1_000, longest: int = 200) -> list[np.ndarray]:
    """Random rows of tokens that are neither special nor declared."""
    words = sorted(number for name, number in tokenizer.get_vocab().items() if number > 3 and name[0] not in "<[")
    draw = np.random.default_rng(0)
    return [draw.choice(words, draw.integers(2, longest)) for _ in range(count)]


def draws(count: int):
    return map(np.random.default_rng, range(count))


def t5_pair(ids: np.ndarray, noise: np.ndarray, sentinels: list[int]) -> tuple[list[int], list[int]]:
    """T5's two functions on a mask: each run of noise (of the rest, in the target) becomes the next sentinel."""

    def replaced(mask: np.ndarray) -> list[int]:
        out, used = [], 0
        for place, (token, hidden) in enumerate(zip(ids.tolist(), mask)):
            if not hidden:
                out.append(token)
            elif place == 0 or not mask[place - 1]:
                out.append(sentinels[used])
                used += 1
        return out

    return replaced(noise), replaced(~noise)


def test_spans_are_replaced_as_by_t5(tokenizer):
    span = collator(tokenizer, "span", noise_density=0.3, mean_span_length=2.0)
    for ids, draw, twin in zip(texts(tokenizer), draws(1_000), draws(1_000)):
        mask = np.zeros(len(ids), bool)
        for first, last in denoising.random_spans(len(ids), 0.3, 2.0, twin):
            mask[first:last] = True
        noise = min(max(round(0.3 * len(ids)), 1), len(ids) - 1)  # T5's numbers
        runs = int((np.diff(mask.astype(int)) == 1).sum())
        assert (mask.sum(), runs) == (noise, min(max(round(noise / 2), 1), noise, len(ids) - noise))
        assert (mask[0], mask[-1]) == (False, True)
        assert span.corrupt(ids, draw) == t5_pair(ids, mask, span.sentinels)


def test_all_noise_masks_are_equally_likely():
    """10 tokens, 4 of noise in 2 spans: 3 ways to divide these and 5 to divide the others."""
    found = Counter(tuple(denoising.random_spans(10, 0.4, 2.0, draw)) for draw in draws(6_000))
    assert len(found) == 15
    assert stats.chisquare(list(found.values())).pvalue > SURE


def test_poisson_spans():
    lengths = [denoising.poisson_spans(10_000, 3.0, draw)[:-1] for draw in draws(10)]
    counts = np.bincount(np.minimum(np.concatenate(lengths), 10), minlength=11)
    shares = stats.poisson(3.0).pmf(np.arange(10))
    assert stats.chisquare(counts, np.append(shares, 1 - shares.sum()) * counts.sum()).pvalue > SURE
    assert all(denoising.poisson_spans(budget, 3.0, np.random.default_rng(0)).sum() == budget for budget in range(50))


@pytest.mark.parametrize("density", [0.3, 0.9])
def test_infilling(tokenizer, density):
    """Sentences move as wholes; 30 % of the tokens are gone, each run of them behind one <mask>; the target is all."""
    infill = collator(tokenizer, "infill", noise_density=density)
    masks = 0
    for ids, draw, twin in zip(texts(tokenizer), draws(1_000), draws(1_000)):
        corrupted, wanted = infill.corrupt(ids, draw)
        assert wanted == ids.tolist()
        assert len(corrupted) <= len(ids)
        ends = [place + 1 for place, token in enumerate(wanted) if tokenizer.decode([token]).strip()[-1:] in (*".!?",)]
        parts = [part for part in np.split(ids, ends) if len(part)]
        moved = [int(token) for number in twin.permutation(len(parts)) for token in parts[number]]
        kept = [token for token in corrupted if token != infill.ids["<mask>"]]
        assert len(kept) == len(ids) - np.ceil(density * len(ids))
        following = iter(moved)
        assert all(token in following for token in kept)  # in the order of the moved sentences
        masks += len(corrupted) - len(kept)
    hidden = sum(np.ceil(density * len(ids)) for ids in texts(tokenizer))
    assert masks / hidden == pytest.approx(1 / 3, rel=0.05)  # spans of 3 on average


def test_spans_are_placed_anywhere():
    firsts = Counter(denoising.placed_spans(5, np.array([2]), draw)[0][0] for draw in draws(2_000))
    assert set(firsts) == {0, 1, 2, 3}
    assert stats.chisquare(list(firsts.values())).pvalue > SURE


@pytest.mark.parametrize("noise", ["mask", "delete", "rotate"])
def test_token_noise(tokenizer, noise):
    denoise = collator(tokenizer, "denoise", noise=noise)
    for ids, draw in zip(texts(tokenizer), draws(1_000)):
        corrupted, wanted = denoise.corrupt(ids, draw)
        assert wanted == ids.tolist()
        count = min(max(round(0.15 * len(ids)), 1), len(ids) - 1)
        if noise == "mask":
            hidden = [place for place, token in enumerate(corrupted) if token == denoise.ids["<mask>"]]
            assert len(hidden) == count
            assert all(token == ids[place] for place, token in enumerate(corrupted) if place not in hidden)
        elif noise == "delete":
            following = iter(wanted)
            assert len(corrupted) == len(ids) - count
            assert all(token in following for token in corrupted)
        else:
            assert corrupted in [[*wanted[cut:], *wanted[:cut]] for cut in range(len(ids))]


def test_prefixes_are_cut_anywhere(tokenizer):
    prefix, ids = collator(tokenizer, "prefix"), np.arange(10, 15)
    found = [prefix.corrupt(ids, draw) for draw in draws(2_000)]
    assert all(start + rest == ids.tolist() for start, rest in found)
    cuts = Counter(len(start) for start, _ in found)
    assert set(cuts) == {1, 2, 3, 4}
    assert stats.chisquare(list(cuts.values())).pvalue > SURE


def test_mixture_of_denoisers(tokenizer):
    """Table 1 of UL2: seven denoisers, each with its mode and share of noise; S writes the end of the text."""
    ul2, ids = collator(tokenizer, "ul2"), texts(tokenizer)[0][:128]
    names = {number: name for name, number in ul2.ids.items()}
    found = Counter()
    for draw in draws(3_500):
        (mode, *corrupted), wanted = ul2.corrupt(ids, draw)
        spans = sum(token in ul2.sentinels for token in wanted)
        found[names[mode], len(wanted) - spans, spans] += 1
        if names[mode] == "[S2S]":
            assert (corrupted, wanted) == ([*ids[:96], ul2.sentinels[0]], [ul2.sentinels[0], *ids[96:]])
    few, many, end = round(0.15 * 128), 64, 32
    numbers = {("[NLU]", few, 6), ("[NLU]", few, 2), ("[NLG]", many, 21), ("[NLG]", many, 8), ("[NLG]", few, 1)}
    assert set(found) == numbers | {("[NLG]", many, 1), ("[S2S]", end, 1)}
    assert stats.chisquare(list(found.values())).pvalue > SURE


@pytest.mark.parametrize("objective", DENOISING)
@pytest.mark.parametrize("length", [0, 1, 2, 3, 40])
def test_short_texts(tokenizer, objective, length):
    """No text is too short, and none becomes longer than its row."""
    each = collator(tokenizer, objective)
    row = [*(each.ids[name] for name in each.start), *texts(tokenizer, 1, 100)[0][:length].tolist(), EOS]
    for epoch in range(20):
        each.set_epoch(epoch)
        pair = each.pair(row)
        assert len(pair["input_ids"]) <= len(row)
        assert pair["input_ids"][-1] == pair["labels"][-1] == EOS
        assert len(pair["labels"]) <= max(length, 1) + 1 + (objective in ("span", "ul2"))


@pytest.mark.parametrize("objective", DENOISING)
def test_draws_depend_on_text_seed_and_epoch_only(tokenizer, objective):
    each, other = collator(tokenizer, objective), collator(tokenizer, objective)
    rows = [{"input_ids": [5, *ids.tolist(), EOS]} for ids in texts(tokenizer, 6, 60)]
    pairs = [each.pair(row["input_ids"]) for row in rows]
    assert pairs == [other.pair(row["input_ids"]) for row in reversed(rows)][::-1]
    each.set_epoch(1)
    assert pairs != [each.pair(row["input_ids"]) for row in rows]
    other = collator(tokenizer, objective, seed=8)
    with each.evaluation(), other.evaluation():
        assert [each.pair(row["input_ids"]) for row in rows] == [other.pair(row["input_ids"]) for row in rows]
    assert pairs != [collator(tokenizer, objective, seed=8).pair(row["input_ids"]) for row in rows]


@pytest.mark.parametrize("objective", DENOISING)
def test_packed_texts_are_those_apart(tokenizer, objective):
    """Loss of a packed batch is that of the same texts padded; the texts are those of the data."""
    data = DatasetDict(train=Dataset.from_dict({"text": [TEXT, "a mat", "Nobody knew! The cat", TEXT[5:30]]}))
    options = SimpleNamespace(packing=True, long_texts="cut", block_size=64, block_stride=None)
    options.preprocessing_num_workers = None
    rows = list(language_model_rows(data, tokenizer, options, settings(objective))["train"])
    size = len(tokenizer)
    model = toy("encoder_decoder", vocab_size=size, decoder_vocab_size=size, max_position_embeddings=64)
    model.config.pad_token_id, model.config.decoder_start_token_id = tokenizer.pad_token_id, tokenizer.bos_token_id
    each = collator(tokenizer, objective, model.eval())
    apart = [{"input_ids": text} for row in rows for text in packed_texts(row)]
    assert len(rows) < len(apart) == len(data["train"])
    decoded = sorted(tokenizer.decode(row["input_ids"][len(each.start) : -1]) for row in apart)
    assert decoded == sorted(data["train"]["text"])
    with torch.no_grad():
        assert_close(model(**each(rows)).loss, model(**each(apart)).loss, "loss")


def test_blocks_are_of_text_only(tokenizer):
    """The stream has no token between texts, and names of sentinels in a text are text."""
    words = ["one <extra_id_0> two", f"{MASK_TOKEN} three", "[S2S]"]
    data = DatasetDict(train=Dataset.from_dict({"text": words}))
    rows = block_rows(data, tokenizer, LmData(block_size=16), "ul2")["train"]["input_ids"]
    assert all((row[0], row[-1]) == (tokenizer.convert_tokens_to_ids("[NLU]"), EOS) for row in rows)
    assert {len(row) for row in rows[:-1]} == {16}
    inner = [token for row in rows for token in row[1:-1]]
    assert tokenizer.decode(inner) == "".join(words)
    assert not {tokenizer.convert_tokens_to_ids(name) for name in ("<extra_id_0>", MASK_TOKEN, "[S2S]")} & set(inner)
    assert tokenizer("<extra_id_0>")["input_ids"] == [tokenizer.convert_tokens_to_ids("<extra_id_0>"), EOS]


def test_tokenizers_without_an_end_or_tokens_of_the_objective_are_refused(tokenizer):
    endless = copy.deepcopy(tokenizer)
    endless.backend_tokenizer.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    for objective in DENOISING:
        refused(f"--objective {objective}: the tokenizer puts no end token after a text", collator, endless, objective)
    plain = train([TEXT], vocab_size=300, kind="encoder_decoder", extra_special_tokens=["<extra_id_0>"])
    refused("--objective span: the tokenizer has no token <extra_id_1>, and needs 26 such", collator, plain, "span")


def test_the_frame_is_the_tokenizers(tokenizer):
    """BART's `<s> text </s>`, on both sides, as when it is fine-tuned."""
    framed = copy.deepcopy(tokenizer)
    framed.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", tokenizer.bos_token_id), ("</s>", EOS)]
    )
    data = DatasetDict(train=Dataset.from_dict({"text": ["a mat", "Nobody knew!"]}))
    for objective in DENOISING:
        each = collator(framed, objective)
        packed = packed_rows(data, framed, LmData(block_size=16), objective)["train"]
        for row in [*packed, *block_rows(data, framed, LmData(block_size=16), objective)["train"]]:
            for text in packed_texts(row) if "position_ids" in row else [row["input_ids"]]:
                assert (text[0], text[-1]) == (framed.bos_token_id, EOS)
                for side in each.pair(text).values():
                    assert (side[0], side[-1]) == (framed.bos_token_id, EOS)
                    assert framed.bos_token_id not in side[1:]
                    assert EOS not in side[:-1]
                labels = framed.decode(each.pair(text)["labels"][1:-1])
                assert objective != "denoise" or labels in "".join(data["train"]["text"])
