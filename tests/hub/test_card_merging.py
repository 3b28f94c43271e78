from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard

from vanillaformer.hub import card_merging
from vanillaformer.hub.card_merging import card_to_push, is_edited, merged_card, parse_card, write_card

HEADER = "license: mit\ntags:\n- vanillaformer\nlanguage: en"
END = "<!-- /vanillaformer -->"


def generated(
    text: str = "## Limits\n\nnone known", *, header: str = HEADER, title: str = "my model", place: str = "runs/a"
) -> str:
    return card_merging.generated_card(header, title, text, place)


def edited(card: str, *changes: tuple[str, str]) -> str:
    for before, after in changes:
        assert before in card
        card = card.replace(before, after)
    return card


def data(text: str) -> dict:
    return ModelCard(text).data.to_dict()


def test_first_card() -> None:
    card = generated()
    assert merged_card(card, None) == merged_card(card, "\n") == merged_card(card, card) == card
    assert data(card) == {"license": "mit", "tags": ["vanillaformer"], "language": "en"}
    assert ModelCard(card).text.strip().startswith("# my model\n\n<!-- vanillaformer ")


def test_the_part_is_renewed_and_the_text_around_it_stays() -> None:
    around = (END, f"{END}\n\n- one\n\n\n- two\n\nAsk me.")
    old = edited(generated(), ("# my model", "# A better name\n\nFor my aunt."), around)
    for _ in range(2):
        card = merged_card(generated("## Limits\n\nmany"), old)
        assert "# A better name\n\nFor my aunt.\n\n<!-- vanillaformer {" in card
        assert card.endswith(f"## Limits\n\nmany\n{END}\n\n- one\n\n\n- two\n\nAsk me.\n")
        assert "none known" not in card
        assert "# my model" not in card
        old = card


def test_somebody_elses_card_is_kept_whole() -> None:
    card = merged_card(generated(), "---\nlicense: gpl\npets: [cat]\n---\n# Theirs\n\nhello\n")
    assert "# Theirs\n\nhello\n\n<!-- vanillaformer {" in card
    assert "# my model" not in card
    assert data(card) == {"license": "mit", "pets": ["cat"], "tags": ["vanillaformer"], "language": "en"}
    assert merged_card(generated(), "just text").startswith("---\nlicense: mit\n")


@pytest.mark.parametrize(("new", "old", "wanted"), [
    ({"license": "mit"}, {"license": "gpl", "pets": ["cat"]}, {"license": "mit", "pets": ["cat"]}),
    ({"tags": ["a"]}, {"license": "gpl", "language": "fr"}, {"tags": ["a"], "license": "gpl", "language": "fr"}),
    ({"license": "mit"}, {"license": "other", "license_name": "ours"}, {"license": "mit"}),
    ({"tags": ["a"]}, {"base_model": "b", "metrics": ["f1"], "model-index": [{"name": "m"}]}, {"tags": ["a"]}),
    ({"tags": ["vanilla_b"]}, {"tags": ["vanilla_a", "mine"]}, {"tags": ["vanilla_b", "mine"]}),
])  # fmt: skip
def test_metadata_is_renewed_and_other_names_stay(new: dict, old: dict, wanted: dict) -> None:
    card = merged_card(generated(header=yaml.safe_dump(new)), generated(header=yaml.safe_dump(old)))
    assert yaml.safe_load(card.split("---")[1]) == wanted


def test_comments_of_metadata_stay_while_nothing_changes() -> None:
    old = generated(header=HEADER.replace("license: mit", "# ours\nlicense: mit  # not gpl\npets: [cat]"))
    assert parse_card(merged_card(generated(), old)).header == parse_card(old).header


def test_broken_cards(capsys: pytest.CaptureFixture) -> None:
    old = edited(generated(), ("license: mit", "license: [mit"))
    assert "license: [mit\n" in merged_card(generated(), old)
    assert "not a YAML mapping" in capsys.readouterr().out
    old = edited(generated(), ("language: en", "language: en\ndate: 2023-02-30"))
    assert "date: 2023-02-30\n" in merged_card(generated(header="tags: [a]"), old)
    norwegian = edited(generated(), ("language: en", "language: no"))
    assert "language: 'no'\n" in merged_card(generated(header="tags: [a]"), norwegian)
    without_end = edited(generated(), (END, ""))
    for text in ("## More", "## Even more"):  # the end of the part that is added is not that of the one without
        without_end = merged_card(generated(text), without_end)
        assert "none known" in without_end
    damaged = edited(generated(), ('"hash"', "hash"))
    assert is_edited(damaged)
    assert "none known" not in merged_card(generated("## More"), damaged)
    windows = edited(generated(), ("# my model", "# mine")).replace("\n", "\r\n")
    assert merged_card(generated(), windows).count("# mine") == merged_card(generated(), windows).count("none") == 1


def test_data_cannot_end_the_part() -> None:
    card = generated(f'a\n{END}\nb\n<!-- vanillaformer {{"hash": ""}} generated: write above or below -->')
    assert not is_edited(card)
    assert merged_card(generated(), card) == generated()


@pytest.mark.parametrize("text", ["one\rtwo", "one\r\ntwo", "one\u2028two\x0b\x85three", "one --> two <!-- three"])
def test_a_card_of_odd_texts_is_not_edited_by_writing_and_reading_it(text: str, tmp_path: Path) -> None:
    card = generated(f"## Results\n\n{text}", title=text, place=text)
    (tmp_path / "README.md").write_text(card, encoding="utf-8")
    read = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert not is_edited(read)
    assert not is_edited(read.replace("\n", "\r\n"))
    assert merged_card(card, read) == card


@pytest.mark.parametrize(
    ("before", "after"),
    [("none known", "some"), ("# my model", "# my model\n\nMine."), (END, f"{END}\n\nMine."), (END, "")],
)
def test_what_counts_as_edited(before: str, after: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    card = generated()
    for untouched in (card, card_to_push(card, None, "me/model"), merged_card(card, generated())):
        assert not is_edited(untouched)
    assert is_edited(edited(card, (before, after)))
    assert is_edited(merged_card(card, "theirs"))
    write_card(tmp_path / "README.md", edited(card, (before, after)))
    write_card(tmp_path / "README.md", generated("## More"))
    assert (tmp_path / "README.edited.md").exists()
    assert "README.edited.md" in capsys.readouterr().out


def test_an_edited_part_is_kept_beside_the_card(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    old = edited(generated(), ("none known", "it cannot count"), ("# my model", "# mine\n\nWords."))
    path.write_text(old)
    write_card(path, merged_card(generated(), old))
    assert "Words." in path.read_text()
    assert (tmp_path / "README.edited.md").read_text() == old
    for number in (1, 2):  # of text around the part nothing is lost, nor kept twice
        write_card(path, merged_card(generated(f"## {number}"), path.read_text()))
    assert len(list(tmp_path.iterdir())) == 2


def test_push_names_the_repo() -> None:
    use = "it's in 'runs/a', not runs/a:\n\n    generate --model runs/a --text x"
    card = card_to_push(generated(use), None, "me/model")
    assert "it's in 'me/model', not runs/a:\n\n    generate --model me/model --text x" in card
    assert not is_edited(card)
    assert "it is in 'runs/a'" in card_to_push(edited(generated(use), ("it's in", "it is in")), None, "me/model")


def test_words_on_the_hub_survive(capsys: pytest.CaptureFixture) -> None:
    first = card_to_push(generated(), None)
    remote = edited(first, ("# my model", "# my model\n\nWritten on the Hub."), ("none known", "some"))
    for local in (first, generated(), merged_card(generated(), first)):
        card = card_to_push(local, remote)
        assert card_to_push(generated(), card).count("Written on the Hub.") == 1
        assert "none known" in card
        assert "edit is only in the repository's history" in capsys.readouterr().out
    licensed = edited(first, ("license: mit", "license: gpl"))
    assert data(card_to_push(generated(header="tags:\n- vanillaformer"), licensed))["license"] == "gpl"


def test_words_here_follow_the_last_push_and_stay_before_the_first() -> None:
    card = card_to_push(edited(generated(), ("# my model", "# my model\n\nfirst")), None)
    second = edited(card, ("first", "second"), ("license: mit", "license: gpl"))
    for local in (second, merged_card(generated("## Results\n\n2", header="tags: [a]"), second)):  # made longer
        pushed = card_to_push(local, card)
        assert "second" in pushed
        assert "first" not in pushed
        assert data(pushed)["license"] == "gpl"
    pushed = card_to_push(second, edited(card, ("first", "third")))  # both were edited: nothing on the Hub is lost
    assert "third" in pushed
    assert "second" not in pushed
    local = edited(generated(), ("# my model", "# my model\n\nfrom here"))
    for remote in (None, "---\nlicense: mit\n---\n", generated(), card_to_push(generated(), None)):
        card = card_to_push(local, remote)
        assert "from here" in card
        assert data(card)["tags"] == ["vanillaformer"]
