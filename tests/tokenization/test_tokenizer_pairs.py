import pytest
from transformers import AutoTokenizer

from vanillaformer.tokenization import load_pair, save_pair, train, train_pair

SOURCE = ["the fox", "the dogs", "quick fox"] * 4
TARGET = ["der fuchs", "die hunde", "flinker fuchs"] * 4
CONFIG = "tokenizer_config.json"


@pytest.fixture
def separate():
    return train_pair(SOURCE, TARGET, joint=False, algorithm="word", vocab_size=7)


@pytest.fixture
def joint():
    return train_pair(iter(SOURCE), iter(TARGET), joint=True, algorithm="word")


def test_separate_pair(separate, tmp_path):
    save_pair(*separate, tmp_path)
    source, target = load_pair(tmp_path)
    assert len(source) == len(target) == 7
    assert "fox" in source.get_vocab().keys() - target.get_vocab().keys()
    assert "fuchs" in target.get_vocab().keys() - source.get_vocab().keys()
    assert source.get_vocab() == separate[0].get_vocab() != separate[1].get_vocab() == target.get_vocab()
    assert AutoTokenizer.from_pretrained(tmp_path).get_vocab() == separate[0].get_vocab()
    assert AutoTokenizer.from_pretrained(tmp_path, subfolder="target_tokenizer").get_vocab() == target.get_vocab()
    assert target("der fuchs") == separate[1]("der fuchs")


def test_joint_pair_is_one_object_and_saved_once(joint, tmp_path):
    save_pair(*joint, str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokenizer.json", CONFIG]
    source, target = load_pair(str(tmp_path))
    assert joint[0] is joint[1]
    assert source is target
    assert source.get_vocab() == joint[0].get_vocab()
    assert {"fox", "fuchs"} <= source.get_vocab().keys()


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
    with pytest.raises(OSError, match="none could be loaded from its sub-folder target_tokenizer"):
        load_pair(tmp_path / "part")


def test_target_saved_by_hand_is_found(separate, tmp_path):
    separate[0].save_pretrained(tmp_path)
    separate[1].save_pretrained(tmp_path / "target_tokenizer")
    assert load_pair(tmp_path)[1].get_vocab() == separate[1].get_vocab()


def test_subfolder_and_keywords_are_passed_on(separate, tmp_path):
    save_pair(*separate, tmp_path / "deep" / "er")
    source, target = load_pair(tmp_path, subfolder="deep/er", padding_side="left")
    assert (source.padding_side, target.padding_side) == ("left", "left")
    assert target.get_vocab() == separate[1].get_vocab()


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


def test_folder_that_is_a_file(joint, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        save_pair(*joint, tmp_path / "file")
