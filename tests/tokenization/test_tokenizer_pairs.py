"""Pairs of tokenizers, and names of control tokens in texts, which are text unless a user has declared them."""

from typing import get_args

import pytest
from refusals import refused
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from vanillaformer.tokenization import ModelKind, TokenizerAlgorithm, load_pair, save_pair, train, train_pair
from vanillaformer.tokenization.passages import text_tokenizer

SOURCE = ["the fox", "the dogs", "quick fox"] * 4
TARGET = ["der fuchs", "die hunde", "flinker fuchs"] * 4
CONFIG = "tokenizer_config.json"


@pytest.fixture
def separate():
    return train_pair(SOURCE, TARGET, joint=False, algorithm="word", vocab_size=7)


@pytest.fixture
def joint():
    return train_pair(iter(SOURCE), iter(TARGET), joint=True, algorithm="word")


def test_separate_pair_in_a_subfolder(separate, tmp_path):
    save_pair(*separate, tmp_path / "deep" / "er")
    source, target = load_pair(tmp_path, subfolder="deep/er", padding_side="left")
    assert (source.padding_side, target.padding_side) == ("left", "left")
    assert len(source) == len(target) == 7
    assert "fox" in source.get_vocab().keys() - target.get_vocab().keys()
    assert "fuchs" in target.get_vocab().keys() - source.get_vocab().keys()
    assert source.get_vocab() == separate[0].get_vocab() != separate[1].get_vocab() == target.get_vocab()
    folders = (tmp_path / "deep" / "er", tmp_path / "deep" / "er" / "target_tokenizer")
    for folder, tokenizer in zip(folders, separate):
        assert AutoTokenizer.from_pretrained(folder).get_vocab() == tokenizer.get_vocab()
    assert target("der fuchs") == separate[1]("der fuchs")


def test_joint_pair_is_one_object_and_saved_once(joint, tmp_path):
    save_pair(*joint, str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokenizer.json", CONFIG]
    source, target = load_pair(str(tmp_path))
    assert joint[0] is joint[1]
    assert source is target
    assert source.get_vocab() == joint[0].get_vocab()
    assert {"fox", "fuchs"} <= source.get_vocab().keys()
    with pytest.raises(FileExistsError):
        save_pair(*joint, tmp_path / CONFIG)  # no folder


def test_equal_tokenizers_are_a_joint_pair_but_not_with_different_templates(tmp_path):
    save_pair(train(SOURCE, algorithm="word"), train(SOURCE, algorithm="word"), tmp_path)
    assert not (tmp_path / "target_tokenizer").exists()
    save_pair(train(SOURCE, algorithm="word"), train(SOURCE, algorithm="word", kind="decoder"), tmp_path)
    source, target = load_pair(tmp_path)
    assert (source("the fox")["input_ids"][-1], target("the fox")["input_ids"][0]) == (3, 2)


@pytest.mark.parametrize("folder", ["separate", "other"])
def test_joint_pair_replaces_a_separate_one_that_was_loaded(folder, separate, tmp_path):
    save_pair(*separate, tmp_path / "separate")
    source, _ = load_pair(tmp_path / "separate")
    save_pair(source, source, tmp_path / folder)
    source, target = load_pair(tmp_path / folder)
    assert source is target
    assert not (tmp_path / folder / "target_tokenizer").exists()


def test_missing_target_is_not_taken_for_a_joint_vocabulary(separate, tmp_path):
    save_pair(*separate, tmp_path / "whole")
    source, _ = load_pair(tmp_path / "whole")
    source.save_pretrained(tmp_path / "part")
    refused("none could be loaded from its sub-folder target_tokenizer", load_pair, tmp_path / "part", error=OSError)


@pytest.mark.parametrize("name", ["separate", "joint"])
def test_pair_from_the_hub_cache_without_internet(request, name, tmp_path):
    pair = request.getfixturevalue(name)
    repository = tmp_path / "models--someone--something"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("a" * 40)
    save_pair(*pair, repository / "snapshots" / ("a" * 40))
    (repository / "snapshots" / ("a" * 40) / "config.json").write_text("{}")  # the model's
    source, target = load_pair("someone/something", cache_dir=tmp_path, local_files_only=True)
    assert (source.get_vocab(), target.get_vocab()) == (pair[0].get_vocab(), pair[1].get_vocab())
    assert (source is target) == (name == "joint")


def test_a_tokenizer_without_padding_pads_with_its_end(joint, tmp_path):
    joint[0].pad_token = None
    joint[0].save_pretrained(tmp_path / "none")
    source, target = load_pair(tmp_path / "none")
    assert source is target
    assert (source.pad_token, source.pad_token_id) == ("</s>", 3)
    source.save_pretrained(tmp_path / "saved")
    assert AutoTokenizer.from_pretrained(tmp_path / "saved").pad_token_id == 3


HTML = "use <s>old</s> text [MASK] [SEP] <pad> now"
TEXTS = [HTML, "the <s> is </s> of <pad> in [CLS] and [UNK] or <unk> of [PAD]"] * 9
LOSSLESS = ("byte_level_bpe", "bpe", "unigram", "character")
ALGORITHMS, KINDS = get_args(TokenizerAlgorithm), get_args(ModelKind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_names_of_control_tokens_are_text(algorithm, kind, tmp_path):
    tokenizer = train(TEXTS, algorithm=algorithm, kind=kind, vocab_size=340, min_frequency=1)
    ids = text_tokenizer(tokenizer)(TEXTS, add_special_tokens=False)["input_ids"]
    assert not {token for row in ids for token in row} & {*tokenizer.all_special_ids}
    assert tokenizer("")["input_ids"] == text_tokenizer(tokenizer)("")["input_ids"]  # the template stays
    if algorithm in LOSSLESS:
        assert tokenizer.decode(ids[0], skip_special_tokens=True) == HTML
    if kind == "encoder_decoder":  # whose texts have no control tokens, wherever the tokenizer is loaded
        tokenizer.save_pretrained(tmp_path)
        loaded = AutoTokenizer.from_pretrained(tmp_path)
        assert loaded(HTML)["input_ids"] == [*ids[0], loaded.eos_token_id]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_declared_tokens_come_next_are_found_and_stay(algorithm, kind, tmp_path):
    text = "<2de> pay <num> euros now"
    options = {"extra_special_tokens": ("<num>", "<2de>"), "min_frequency": 1, "model_max_length": 64}
    made = train([text, "a <num>"] * 3, algorithm=algorithm, kind=kind, vocab_size=300, **options)
    made.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert len(loaded) <= 300
    assert loaded.model_max_length == 64
    first = 5 if kind == "encoder" else 4
    assert loaded.convert_tokens_to_ids(["<num>", "<2de>"]) == [first, first + 1]
    ids = loaded(text)["input_ids"]
    assert (ids.count(first), ids.count(first + 1)) == (1, 1)
    assert loaded.decode(ids, skip_special_tokens=True) == text
    assert text_tokenizer(loaded)(text)["input_ids"] == ids


def test_tokens_of_other_tokenizers_that_have_no_role_are_found_and_the_tokenizer_stays_as_it_is():
    """With more special tokens than the named ones, such as of chat models."""
    vocabulary = {token: number for number, token in enumerate(["?", "<end>", "<turn>", "<", ">", "end", "turn", "a"])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ("<end>", "<turn>")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")
    assert tokenizer("a<turn>a<end>")["input_ids"] == [7, 2, 7, 1]
    assert text_tokenizer(tokenizer)("a<turn>a<end>")["input_ids"] == [7, 2, 7, 3, 5, 4]
    assert text_tokenizer(tokenizer, ["<end>"])("a<turn>a<end>")["input_ids"] == [7, 2, 7, 1]
    assert tokenizer("a<turn>a<end>")["input_ids"] == [7, 2, 7, 1]
    assert tokenizer.decode([7, 2, 1], skip_special_tokens=True) == "a"
    before = tokenizer.backend_tokenizer.to_str()
    assert text_tokenizer(tokenizer)("a a a a", truncation=True, max_length=2)["input_ids"] == [7, 7]
    assert tokenizer.backend_tokenizer.to_str() == before
    assert tokenizer.split_special_tokens is False
