"""Each algorithm against something that is not ours, and texts that come back from their tokens."""

# ruff: noqa: RUF001  (Chinese has full-width punctuation)

import json
import re
from collections import Counter
from unicodedata import normalize

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers.implementations import SentencePieceBPETokenizer
from transformers import BertTokenizerFast, GPT2TokenizerFast

from vanillaformer.tokenization import train

UNSEEN = [
    "The lazy quick dogs jump over 1987 foxes.", "Äpfel kosten 3,50 Euro (größer)!", "naïve café don't",
    "我用自然语言 PyTorch2024年，处理 foxDogs。",
]  # fmt: skip


def model_of(tokenizer):
    return json.loads(tokenizer.backend_tokenizer.to_str())["model"]


def bare_ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def test_byte_level_bpe_is_gpt2(trained, texts):
    ours = trained(algorithm="byte_level_bpe", kind="decoder")
    model = model_of(ours)
    theirs = GPT2TokenizerFast(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]])
    for text in [*texts, *UNSEEN, "  two  spaces\n\n and\ttabs "]:
        assert bare_ids(ours, text) == bare_ids(theirs, text)


def test_bpe_is_sentencepiece_bpe(trained, texts):
    ours = trained(algorithm="bpe")
    model = model_of(ours)
    theirs = SentencePieceBPETokenizer(model["vocab"], [tuple(pair) for pair in model["merges"]], fuse_unk=True)
    compared = [text for text in [*texts, *UNSEEN] if normalize("NFKC", text) == text]  # theirs normalizes, ours not
    assert len(compared) > 80
    for text in compared:
        assert bare_ids(ours, text) == theirs.encode(text).ids


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("algorithm", ["wordpiece", "chinese_character"])
def test_wordpiece_is_bert(trained, texts, algorithm, lowercase):
    ours = trained(algorithm=algorithm, kind="encoder", lowercase=lowercase)
    theirs = BertTokenizerFast(vocab=model_of(ours)["vocab"], do_lower_case=lowercase)
    for text in [*texts, *UNSEEN]:
        assert dict(ours(text)) == dict(theirs(text))
    assert dict(ours(texts[0], texts[1])) == dict(theirs(texts[0], texts[1]))


def test_words_and_characters_are_the_most_frequent_of_the_text(texts):
    counts = Counter(word for text in texts for word in re.findall(r"\w+|[^\w\s]", text.lower()))
    ranked = sorted((word for word in counts if counts[word] >= 2), key=lambda word: (-counts[word], word))
    tokenizer = train(texts, algorithm="word", vocab_size=30)
    expected = ["<pad>", "<unk>", "<s>", "</s>", *ranked[:26]]
    assert tokenizer.convert_ids_to_tokens(list(range(30))) == expected
    for text in texts:
        words = re.findall(r"\w+|[^\w\s]", text.lower())
        assert tokenizer.tokenize(text) == [word if word in expected else "<unk>" for word in words]
    counts = Counter("".join(texts))
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    tokenizer = train(texts, algorithm="character", vocab_size=24)
    assert tokenizer.convert_ids_to_tokens(list(range(4, 24))) == ranked[:20]


def test_chinese_characters_and_their_parts():
    tokenizer = train(["我爱NLP，我 用 AI"], algorithm="chinese_character", kind="encoder")
    assert tokenizer.tokenize("我爱NLP，AI") == ["我", "爱", "N", "##L", "##P", "，", "A", "##I"]
    continued = {token for token in tokenizer.get_vocab() if token.startswith("##")}
    assert continued == {"##N", "##L", "##P", "##A", "##I"}
    assert tokenizer.tokenize("PAIN") == ["P", "##A", "##I", "##N"]


QUICK = settings(max_examples=150, deadline=None, derandomize=True)
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
LETTERS = " etaoin EH.,!'\n\t0123äß我爱😀"

any_text = st.text() | st.lists(st.sampled_from([*SPECIAL, "<", "s>", " "])).map("".join)
known_text = st.text(alphabet=LETTERS)


def round_trip(tokenizer, text):
    return tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True)


@pytest.fixture(scope="module")
def byte_level():
    return [train(["the heat in the tea", "12 12"] * 3, vocab_size=290, split_digits=split) for split in (False, True)]


@pytest.fixture(scope="module", params=["bpe", "unigram", "character"])
def knows_letters(request):
    texts = ["the heat in the ton", "no one ate ten", f"{LETTERS} 12"] * 3
    tokenizers = [train(texts, algorithm=request.param, vocab_size=80, split_digits=split) for split in (False, True)]
    assert all(set(LETTERS.replace(" ", "")) <= set(tokenizer.get_vocab()) for tokenizer in tokenizers)
    return tokenizers


@QUICK
@given(text=any_text)
def test_byte_level_keeps_any_text(byte_level, text):
    for tokenizer in byte_level:
        assert round_trip(tokenizer, text) == text


@QUICK
@given(text=known_text)
def test_known_characters_are_kept_with_all_white_space(knows_letters, text):
    for tokenizer in knows_letters:
        assert round_trip(tokenizer, text) == text
        assert tokenizer.unk_token_id not in tokenizer(text)["input_ids"]


@QUICK
@given(texts=st.lists(any_text, min_size=1, max_size=5))
def test_characters_keep_every_text_they_were_trained_on(texts):
    assume(any(text.strip() for text in texts))
    tokenizer = train(texts, algorithm="character")
    for text in texts:
        assert round_trip(tokenizer, text) == text
        assert len(tokenizer(text, add_special_tokens=False)["input_ids"]) == len(text)


@QUICK
@given(text=known_text)
def test_offsets_cover_the_text(byte_level, knows_letters, text):
    for tokenizer in (*byte_level, *knows_letters):
        offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        assert {index for start, end in offsets for index in range(start, end)} == set(range(len(text)))


@pytest.mark.parametrize(("algorithm", "text"), [
    ("word", "it's a small test, isn't it? yes (of course): 12 eggs."),
    ("wordpiece", "It's a small test, isn't it? Yes (of course): 12 eggs."),
    ("wordpiece", "我爱自然语言处理，用PyTorch训练。"),
    ("chinese_character", "我爱自然语言处理，用PyTorch训练。Deep Learning 2024!"),
    ("chinese_character", "It's a small test, isn't it?"),
])  # fmt: skip
def test_lossy_algorithms_decode_to_natural_text(algorithm, text):
    for split_digits in (False, True):
        tokenizer = train([text] * 3, algorithm=algorithm, vocab_size=300, split_digits=split_digits)
        expected = text.replace("12", "1 2") if split_digits and algorithm == "word" else text
        assert round_trip(tokenizer, text) == expected


def test_decoding_stays_with_the_tokens_after_an_apostrophe_used_as_a_quote():
    tokenizer = train(["he said ' yes ' to us ' s"] * 3, algorithm="word")
    assert round_trip(tokenizer, "he said 'yes' to us") == "he said ' yes ' to us"
