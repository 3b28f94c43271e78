from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard

from vanillaformer.hub.card_merging import card_to_push, generated_card, is_edited, marked, merged_card

HEADER = "license: mit\ntags:\n- vanillaformer\nlanguage: en"
PARTS = {"results": "## Results\n\n1", "limits": "## Limits\n\nnone known", "use": "## Use\n\nx"}


def generated(header: str = HEADER, title: str = "my model", place: str = "runs/a", **parts: str) -> str:
    texts = [f"# {title}", *(marked(name, text) for name, text in (PARTS | parts).items())]
    return generated_card(header, "\n\n".join(filter(None, texts)), place)


def data(text: str) -> dict:
    return ModelCard(text).data.to_dict()


def piece(card: str, name: str) -> str:
    return card[card.index(f"<!-- vanillaformer:{name} ") : card.index(f"<!-- /vanillaformer:{name} -->")]


def test_first_card() -> None:
    card = generated()
    assert merged_card(card, None) == merged_card(card, "\n") == card
    assert merged_card(card, card) == card
    assert data(card) == {"license": "mit", "tags": ["vanillaformer"], "language": "en"}
    assert ModelCard(card).text.strip().startswith("# my model\n\n<!-- vanillaformer:results ")
    assert "limits" not in generated(limits=" ")


def test_unchanged_parts_are_updated(capsys: pytest.CaptureFixture) -> None:
    new = generated(results="## Results\n\n2", more="## More")
    assert merged_card(new, generated()) == new
    assert not capsys.readouterr().out


def test_text_outside_stays_where_it_was(capsys: pytest.CaptureFixture) -> None:
    old = generated().replace("# my model", "# A better name\n\nFor my aunt.")
    old = old.replace("<!-- /vanillaformer:limits -->", "<!-- /vanillaformer:limits -->\n\n\n\nAsk me.  \n")
    new = generated(results="## Results\n\n2")
    assert merged_card(new, old) == old.replace(piece(generated(), "results"), piece(new, "results"))
    assert not capsys.readouterr().out


def test_changed_part_stays(capsys: pytest.CaptureFixture) -> None:
    old = generated().replace("none known", "it cannot count")
    for _ in range(2):  # and stays the next time
        old = merged_card(generated(results="## Results\n\n2", limits="## Limits\n\nmany"), old)
        assert "it cannot count" in old
        assert "many" not in old
        assert "## Results\n\n2" in old
        assert "part 'limits'" in capsys.readouterr().out


def test_moved_and_deleted_parts() -> None:
    card = generated()
    start, end = card.index("<!-- vanillaformer:limits"), card.index("<!-- vanillaformer:use")
    limits = card[start:end]
    moved = card.replace(limits, "").replace("# my model\n\n", "# my model\n\n" + limits)
    assert merged_card(card, moved) == moved
    deleted = card.replace(limits, "")
    assert merged_card(generated(limits="## Limits\n\nothers"), deleted) == deleted
    added = merged_card(generated(results="", more="## More"), deleted)
    assert "## More" in added
    assert "## Results" not in added
    assert "## Limits" not in added


def test_new_part_stands_where_it_is_generated() -> None:
    old = generated(limits="").replace("# my model", "# mine")
    card = merged_card(generated(), old)
    assert card.index("/vanillaformer:results") < card.index("## Limits") < card.index("## Use")


def test_somebody_elses_card_is_kept_whole() -> None:
    text = "---\nlicense: gpl\npets: [cat]\n---\n# Theirs\n\nhello\n"
    card = merged_card(generated(), text)
    assert "# Theirs\n\nhello\n\n<!-- vanillaformer:results" in card
    assert "# my model" not in card
    assert data(card) == {"license": "gpl", "pets": ["cat"], "tags": ["vanillaformer"], "language": "en"}
    assert merged_card(generated(), "just text").startswith("---\nlicense: mit\n")


def test_metadata(capsys: pytest.CaptureFixture) -> None:
    old = generated().replace("license: mit", "# ours\nlicense: apache-2.0  # not mit\npets: [cat]")
    old = old.replace("language: en\n", "")
    card = merged_card(generated(HEADER.replace("- vanillaformer", "- b\n- c") + "\nbase_model: d"), old)
    assert data(card) == {"license": "apache-2.0", "pets": ["cat"], "tags": ["b", "c"], "base_model": "d"}
    assert "# ours\nlicense: apache-2.0  # not mit\npets: [cat]\n" in card
    out = capsys.readouterr().out
    assert "metadata 'license', metadata 'language'" in out
    assert "tags" not in out
    again = merged_card(generated(HEADER.replace("- vanillaformer", "- e")), card)
    assert data(again) == {"license": "apache-2.0", "pets": ["cat"], "tags": ["e"]}


def test_metadata_key_that_is_no_longer_generated() -> None:
    assert "language" not in data(merged_card(generated("license: mit"), generated()))
    changed = generated().replace("language: en", "language: fr")
    assert data(merged_card(generated("license: mit"), changed))["language"] == "fr"


def test_broken_cards(capsys: pytest.CaptureFixture) -> None:
    old = generated().replace("license: mit", "license: [mit")
    assert "license: [mit\n" in merged_card(generated(), old)
    assert "not a YAML mapping" in capsys.readouterr().out
    old = generated().replace("<!-- /vanillaformer:limits -->", "")
    card = merged_card(generated(limits="## Limits\n\nothers", results="## Results\n\n2"), old)
    assert "none known" in card
    assert "others" not in card
    assert "## Results\n\n2" in card
    assert "incomplete marks (limits)" in capsys.readouterr().out
    for record in ("{not json}", '{"parts": 3}', "{}"):
        old = generated()[: generated().index("<!-- vanillaformer: ")] + f"<!-- vanillaformer: {record} -->\n"
        assert "## Limits" in merged_card(generated(), old)
    windows = generated().replace("none known", "it cannot count").replace("\n", "\r\n")
    assert "it cannot count" in merged_card(generated(limits="## Limits\n\nothers"), windows)
    assert merged_card(generated(limits="## Limits\n\nothers"), generated().replace("\n", "\r\n")).count("others") == 1


def test_data_cannot_end_a_part() -> None:
    card = generated(results="a\n<!-- /vanillaformer:results -->\nb\n<!-- vanillaformer:use 0123456789ab -->")
    assert not is_edited(card)
    assert merged_card(generated(), card) == generated()


@pytest.mark.parametrize("text", ["one\rtwo", "one\r\ntwo", "one\u2028two\x0b\x85three", "one --> two <!-- three"])
def test_a_card_of_odd_texts_is_not_edited_by_writing_and_reading_it(text, tmp_path: Path) -> None:
    card = generated(title=text, place=text, results=f"## Results\n\n{text}")
    (tmp_path / "README.md").write_text(card, encoding="utf-8")
    read = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert not is_edited(read)
    assert not is_edited(read.replace("\n", "\r\n"))
    assert merged_card(card, read) == card


def test_what_counts_as_edited() -> None:
    card = generated(use="in 'runs/a'")
    for untouched in (
        card,
        card.replace("\n", "\r\n"),
        card_to_push(card, None, "me/model"),
        merged_card(card, generated()),
    ):
        assert not is_edited(untouched)
    for change in (
        ("# my model", "# My model"),
        ("none known", "some"),
        ("license: mit", "license: gpl"),
        ("license: mit", "license: mit\npets: cat"),
        ("- vanillaformer", "- [vanillaformer"),
        ("<!-- vanillaformer: {", "<!-- {"),
    ):
        assert change[0] in card
        assert is_edited(card.replace(*change)), change
    assert is_edited(card.replace(piece(card, "limits") + "<!-- /vanillaformer:limits -->", ""))
    assert is_edited(merged_card(card, "mine"))


# --------------------------------------------------------------------------------------------------------- pushing
def test_push_names_the_repo() -> None:
    use = "it's in 'runs/a', not runs/a:\n\n    generate --model runs/a --text x"
    card = card_to_push(generated(use=use), None, "me/model")
    assert "it's in 'me/model', not runs/a:\n\n    generate --model me/model --text x" in card
    assert merged_card(generated(use="new"), card).count("new") == 1  # it still counts as generated
    edited = generated(use=use).replace("it's in", "it is in")
    assert "it is in 'runs/a'" in card_to_push(edited, None, "me/model")


def test_edits_on_the_hub_survive() -> None:
    first = card_to_push(generated(), None)
    remote = first.replace("# my model", "# my model\n\nWritten on the Hub.").replace("none known", "some")
    for local in (first, generated(), merged_card(generated(), first)):
        card = card_to_push(local, remote)
        assert "Written on the Hub." in card
        assert "some" in card
        assert card_to_push(generated(), card).count("Written on the Hub.") == 1


def test_edits_here_follow_the_last_push(capsys: pytest.CaptureFixture) -> None:
    card = card_to_push(generated().replace("# my model", "# my model\n\nfirst").replace("none known", "one"), None)
    edited = card.replace("first", "second").replace("## Limits\n\none", "## Limits\n\ntwo")
    pushed = card_to_push(edited, card)
    assert "second" in pushed
    assert "two" in pushed
    assert "first" not in pushed
    longer = merged_card(generated(results="## Results\n\n2"), edited)  # the run was made longer
    pushed = card_to_push(longer, card)
    assert "second" in pushed
    assert "two" in pushed
    assert "## Results\n\n2" in pushed
    capsys.readouterr()
    elsewhere = card.replace("first", "third")
    pushed = card_to_push(edited, elsewhere)  # both were edited: nothing on the Hub is lost
    assert "third" in pushed
    assert "second" not in pushed
    assert "differs in both cards" in capsys.readouterr().out


def test_edits_here_before_the_first_push() -> None:
    local = generated().replace("# my model", "# my model\n\nfrom here").replace("none known", "one")
    for remote in (None, "---\nlicense: mit\n---\n", generated(), card_to_push(generated(), None)):
        card = card_to_push(local, remote)
        assert "from here" in card
        assert "## Limits\n\none" in card
        assert yaml.safe_load(card.split("---")[1])["tags"] == ["vanillaformer"]
