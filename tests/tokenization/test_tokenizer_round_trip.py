# ruff: noqa: RUF001  (Chinese has full-width punctuation)
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vanillaformer.tokenization import train

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
