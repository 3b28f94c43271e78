"""Names of control tokens in texts are text; what a user has declared is found, and stays when decoding."""

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from vanillaformer.tokenization import train
from vanillaformer.tokenization.control_tokens import text_tokenizer

HTML = "use <s>old</s> text [MASK] [SEP] <pad> now"
TEXTS = [HTML, "the <s> is </s> of <pad> in [CLS] and [UNK] or <unk> of [PAD]"] * 9
LOSSLESS = ("byte_level_bpe", "bpe", "unigram", "character")
ALGORITHMS = (*LOSSLESS, "word", "wordpiece", "chinese_character")


@pytest.mark.parametrize("kind", ["encoder_decoder", "decoder", "encoder"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_names_of_control_tokens_are_text(algorithm, kind):
    tokenizer = train(TEXTS, algorithm=algorithm, kind=kind, vocab_size=340, min_frequency=1)
    ids = text_tokenizer(tokenizer)(TEXTS, add_special_tokens=False)["input_ids"]
    assert not {token for row in ids for token in row} & {*tokenizer.all_special_ids}
    assert tokenizer("")["input_ids"] == text_tokenizer(tokenizer)("")["input_ids"]  # the template stays
    if algorithm in LOSSLESS:
        assert tokenizer.decode(ids[0], skip_special_tokens=True) == HTML


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_encoder_decoders_tokenizer_takes_them_for_text_wherever_it_is_loaded(algorithm, tmp_path):
    train(TEXTS, algorithm=algorithm, vocab_size=340, min_frequency=1).save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    ids = loaded(HTML)["input_ids"]
    assert ids[-1] == loaded.eos_token_id
    assert not {*ids[:-1]} & {*loaded.all_special_ids}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_declared_tokens_are_found_and_stay(algorithm, tmp_path):
    text = "<2de> pay <num> euros now"
    declared = {"extra_special_tokens": ["<num>", "<2de>"], "min_frequency": 1}
    train([text, "a <num>"] * 3, algorithm=algorithm, vocab_size=340, **declared).save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    ids = loaded(text)["input_ids"]
    assert (ids.count(4), ids.count(5), ids[-1]) == (1, 1, loaded.eos_token_id)
    assert loaded.decode(ids, skip_special_tokens=True) == text
    assert text_tokenizer(loaded)(text)["input_ids"] == ids


def other_tokenizer():
    """A tokenizer with more special tokens than the named ones, such as of chat models."""
    vocabulary = {token: number for number, token in enumerate(["?", "<end>", "<turn>", "<", ">", "end", "turn", "a"])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ("<end>", "<turn>")])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")


def test_tokens_of_other_tokenizers_that_have_no_role_are_found_and_the_tokenizer_stays_as_it_is():
    tokenizer = other_tokenizer()
    assert tokenizer("a<turn>a<end>")["input_ids"] == [7, 2, 7, 1]
    assert text_tokenizer(tokenizer)("a<turn>a<end>")["input_ids"] == [7, 2, 7, 3, 5, 4]
    assert text_tokenizer(tokenizer, ["<end>"])("a<turn>a<end>")["input_ids"] == [7, 2, 7, 1]
    assert tokenizer("a<turn>a<end>")["input_ids"] == [7, 2, 7, 1]
    assert tokenizer.decode([7, 2, 1], skip_special_tokens=True) == "a"
    before = tokenizer.backend_tokenizer.to_str()
    assert text_tokenizer(tokenizer)("a a a a", truncation=True, max_length=2)["input_ids"] == [7, 7]
    assert tokenizer.backend_tokenizer.to_str() == before
    assert tokenizer.split_special_tokens is False
