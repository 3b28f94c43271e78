import re
from itertools import chain
from pathlib import Path
from typing import get_args

import pytest
from refusals import refused
from transformers import PreTrainedTokenizerFast

from vanillaformer import tokenization
from vanillaformer.tokenization import ModelKind, TokenizerAlgorithm, train, train_pair

ALL_ALGORITHMS = get_args(TokenizerAlgorithm)
ALL_KINDS = get_args(ModelKind)
WITH_UNKNOWNS = [name for name in ALL_ALGORITHMS if name != "byte_level_bpe"]
SEQUENCE_TOKENS = ["<pad>", "<unk>", "<s>", "</s>"]
ENCODER_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def json_of(tokenizer):
    return tokenizer.backend_tokenizer.to_str()


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("algorithm", ALL_ALGORITHMS)
class TestEveryAlgorithmAndKind:
    def test_is_a_stock_tokenizer_with_the_standard_ids_and_a_dense_vocabulary(self, trained, algorithm, kind):
        tokenizer = trained(algorithm=algorithm, kind=kind)
        expected = ENCODER_TOKENS if kind == "encoder" else SEQUENCE_TOKENS
        assert type(tokenizer) is PreTrainedTokenizerFast
        assert tokenizer.convert_ids_to_tokens(list(range(len(expected)))) == expected
        assert sorted(tokenizer.all_special_ids) == list(range(len(expected)))
        assert (tokenizer.pad_token_id, tokenizer.unk_token_id) == (0, 1)
        assert tokenizer.clean_up_tokenization_spaces is False
        assert tokenizer.padding_side == "right"
        assert len(tokenizer) <= 400
        assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))

    def test_template_around_texts(self, trained, algorithm, kind):
        tokenizer = trained(algorithm=algorithm, kind=kind)
        bare = tokenizer("the lazy dogs", add_special_tokens=False)["input_ids"]
        before, after = {"encoder_decoder": ([], [3]), "decoder": ([2], []), "encoder": ([2], [3])}[kind]
        encoded = tokenizer("the lazy dogs")
        assert bare
        assert encoded["input_ids"] == [*before, *bare, *after]
        assert tokenizer(text_target="the lazy dogs")["input_ids"] == encoded["input_ids"]
        assert ("token_type_ids" in encoded) == (kind == "encoder")
        a, b = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("the fox", "lazy dogs"))
        encoded = tokenizer("the fox", "lazy dogs", return_token_type_ids=True)
        ids, types = {
            "encoder_decoder": ([*a, 3, *b, 3], [0] * (len(a) + 1) + [1] * (len(b) + 1)),
            "decoder": ([2, *a, *b], [0] * (len(a) + 1) + [1] * len(b)),
            "encoder": ([2, *a, 3, *b, 3], [0] * (len(a) + 2) + [1] * (len(b) + 1)),
        }[kind]
        assert (encoded["input_ids"], encoded["token_type_ids"]) == (ids, types)


@pytest.mark.parametrize("algorithm", ALL_ALGORITHMS)
class TestEveryAlgorithm:
    def test_order_empty_texts_and_a_generator_change_nothing(self, texts, trained, algorithm):
        with_empty = chain.from_iterable(("", text, "") for text in texts)
        for given in ((text for text in texts), with_empty, texts[::-1]):
            made = train(given, algorithm=algorithm, vocab_size=400)
            assert json_of(made) == json_of(trained(algorithm=algorithm))

    @pytest.mark.parametrize("vocab_size", [12, 20, 31, 45])
    def test_cap_below_the_alphabet_keeps_the_frequent_characters(self, texts, algorithm, vocab_size):
        if algorithm == "byte_level_bpe":
            vocab_size += 256
        first = train(texts, algorithm=algorithm, vocab_size=vocab_size)
        assert json_of(first) == json_of(train(texts, algorithm=algorithm, vocab_size=vocab_size))
        assert len(first) in {vocab_size, vocab_size - 1}  # WordPiece takes a letter with its ## form or not at all
        if algorithm not in {"word", "byte_level_bpe"}:
            assert "e" in first.get_vocab()  # the most frequent letter

    def test_split_digits(self, trained, algorithm):
        tokenizer = trained(algorithm=algorithm, split_digits=True)
        pieces = tokenizer.tokenize("since 1987 12 and 2024")
        digits = [piece.removeprefix("##") for piece in pieces if any(c.isdigit() for c in piece)]
        assert digits == list("1987122024")
        assert not [token for token in tokenizer.get_vocab() if sum(c.isdigit() for c in token) > 1]
        together = any(sum(c.isdigit() for c in token) > 1 for token in trained(algorithm=algorithm).get_vocab())
        assert together == ("character" not in algorithm)

    def test_lowercase(self, trained, algorithm):
        tokenizer = trained(algorithm=algorithm, lowercase=True)
        assert tokenizer("QUICK Brown")["input_ids"] == tokenizer("quick brown")["input_ids"]
        assert tokenizer.decode(tokenizer("QUICK Brown")["input_ids"], skip_special_tokens=True) == "quick brown"
        cased = trained(algorithm=algorithm)
        assert (cased("Der")["input_ids"] == cased("der")["input_ids"]) == (algorithm == "word")

    @pytest.mark.parametrize(("texts", "options", "message"), [
        (["some text"], {"vocab_size": 4}, r"vocab_size=4 .*4 special tokens"),
        *((empty, {}, "texts must hold some text") for empty in ([], (), ["", ""], [" ", "\n"])),
        *((["fine", "", bad, "fine"], {}, rf"texts\[2\] must be a string, not {type(bad).__name__}")
          for bad in (None, 3, b"raw", ["a"])),
        (["fine", "broken \ud800"], {}, r"texts\[1\] is not valid Unicode"),
        ("oops", {}, "texts must be an iterable of strings, not one str: 'oops'"),
    ])  # fmt: skip
    def test_texts_that_cannot_be_learned_from_are_named(self, algorithm, texts, options, message):
        refused(message, train, texts, algorithm=algorithm, **options)


@pytest.mark.parametrize("algorithm", ["byte_level_bpe", "bpe", "unigram", "wordpiece"])
def test_cap_is_reached_when_the_texts_offer_enough(texts, algorithm):
    size = 300 if algorithm == "byte_level_bpe" else 130
    assert len(train(texts, algorithm=algorithm, vocab_size=size)) == size


def test_byte_level_needs_all_bytes_and_has_no_unknowns(texts, trained):
    message = "vocab_size=259 is too small.*the 256 bytes need at least 260"
    refused(message, train, texts, algorithm="byte_level_bpe", vocab_size=259)
    assert len(train(texts, algorithm="byte_level_bpe", vocab_size=260)) == 260
    tokenizer = trained(algorithm="byte_level_bpe")
    assert tokenizer.unk_token_id not in tokenizer("fox ✈ \x00")["input_ids"]


@pytest.mark.parametrize("algorithm", WITH_UNKNOWNS)
def test_unknown_character_becomes_the_unknown_token(trained, algorithm):
    for kind in ALL_KINDS:
        tokenizer = trained(algorithm=algorithm, kind=kind)
        ids = tokenizer("fox ✈ dogs", add_special_tokens=False)["input_ids"]
        assert ids.count(tokenizer.unk_token_id) == 1
        assert tokenizer.decode(ids, skip_special_tokens=True).split() == ["fox", "dogs"]


@pytest.mark.parametrize("algorithm", ["wordpiece", "chinese_character"])
@pytest.mark.parametrize("letters", ["ก", "กขคงจฉ"])
def test_long_words_are_known_and_decoded_whole(algorithm, letters):
    tokenizer = train([letters * 3 + " ab"] * 3, algorithm=algorithm, vocab_size=60)
    for count in (99, 100, 101, 250, 2000):
        text = f"ab {(letters * count)[:count]}"
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_min_frequency():
    words = ["rare", *["often"] * 3]
    assert "rare" in train(words, algorithm="word", min_frequency=1).get_vocab()
    assert "rare" not in train(words, algorithm="word").get_vocab()
    nothing = "word found nothing to put in the vocabulary.*min_frequency=9"
    refused(nothing, train, words, algorithm="word", min_frequency=9)
    assert {"x", "y"} <= set(train(["xy", "y"], algorithm="character").get_vocab())
    assert "x" not in train(["xy", "y"], algorithm="character", min_frequency=2).get_vocab()
    assert "爱" not in train(["我爱", "我"], algorithm="chinese_character", min_frequency=2).get_vocab()


@pytest.mark.parametrize(("arguments", "message"), [
    ({"algorithm": "bytes"}, "algorithm='bytes' is not one of byte_level_bpe, bpe, unigram, wordpiece, word, "),
    ({"kind": "gpt"}, "kind='gpt' is not one of encoder_decoder, decoder, encoder"),
    ({"vocab_size": 0}, "vocab_size=0 must be a whole number above 0"),
    ({"vocab_size": 8e3}, "vocab_size=8000.0 must be a whole number above 0"),
    ({"min_frequency": 0}, "min_frequency=0 must be a whole number above 0 or None"),
    ({"model_max_length": -1}, "model_max_length=-1 must be a whole number above 0 or None"),
    ({"extra_special_tokens": "<x>"}, "extra_special_tokens must be a list of strings, not one string: '<x>'"),
    ({"extra_special_tokens": ["<x>", ""]}, r"extra_special_tokens\[1\]='' must be a string with visible"),
    ({"extra_special_tokens": ["</s>"]}, r"extra_special_tokens\[0\]='</s>' is a special token already"),
    ({"extra_special_tokens": ["<x>", "<x>"]}, r"extra_special_tokens\[1\]='<x>' is a special token already"),
])  # fmt: skip
def test_wrong_arguments_are_named_before_any_text_is_read(arguments, message):
    refused(message, train, (pytest.fail("a text was read") for _ in range(1)), **arguments)


@pytest.mark.parametrize("joint", [True, False])
def test_errors_of_a_pair_name_the_side(joint):
    sides, message = (["fox", "fox"], ["fine", 1.5]), r"target_texts\[1\] must be a string, not float"
    refused(message, train_pair, *sides, joint=joint, algorithm="word")
    refused("source_texts must hold some text", train_pair, [], ["fuchs"], joint=joint, algorithm="word")


def test_punctuation_left_out():
    text = "It's a film -- <br /> isn't it? Don\u2019t 'go', 10/10!"
    tokenizer = train([text] * 2, algorithm="word", strip_punctuation=True)
    words = tokenizer.convert_ids_to_tokens(tokenizer(text, add_special_tokens=False)["input_ids"])
    assert words == ["it's", "a", "film", "br", "isn't", "it", "don\u2019t", "go", "10", "10"]
    message = "strip_punctuation=True is for algorithm 'word', not 'bpe'"
    refused(message, train, [text] * 2, algorithm="bpe", strip_punctuation=True)


def test_folder_needs_no_torch():
    for path in Path(tokenization.__file__).parent.glob("*.py"):
        names = re.findall(r"^\s*(?:import|from) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert "torch" not in names, path
