"""Each algorithm against something that is not ours."""

# ruff: noqa: RUF001  (Chinese has full-width punctuation)

import json
import re
from collections import Counter
from unicodedata import normalize

import pytest
from tokenizers.implementations import SentencePieceBPETokenizer
from transformers import BertTokenizerFast, GPT2TokenizerFast

from vanillaformer.tokenization import train

UNSEEN = [
    "The lazy quick dogs jump over 1987 foxes.",
    "Äpfel kosten 3,50 Euro (größer)!",
    "我用自然语言 PyTorch2024年，处理 foxDogs。",
    "naïve café don't",
]


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
