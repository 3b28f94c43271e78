"""Model cards that people edit: what a person wrote in a card stays when the card is written again, or pushed again.

The parts that are generated stand between HTML comments, which nobody sees on the page:

    <!-- vanillaformer:results 0a1b2c3d4e5f -->
    ## Results
    ...
    <!-- /vanillaformer:results -->

The number is the hash of what was written there: a part whose hash is another one was changed by a person and is left
alone. All that stands outside of parts is a person's. A last comment, the record, keeps what is needed to know the
rest: which parts there were (one that is gone was deleted), the hash of each metadata key and of the text outside,
and of the card that was last pushed.
"""

import itertools
import json
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

from .card_header import key_hashes, merged_header, text_hash
from .file_names import CARD
from .reporting import report

HEADER = re.compile(r"\A\s*---[ \t]*\n(?:(.*?)\n)??---[ \t]*(?:\n|\Z)", re.DOTALL)
PART = re.compile(r"<!-- vanillaformer:([\w-]+) ([0-9a-f]{12}) -->\n(.*?)\n<!-- /vanillaformer:\1 -->", re.DOTALL)
RECORD = re.compile(r"\n*<!-- vanillaformer: (\{.*\}) -->\s*\Z")
MARK = re.compile(r"<!-- /?vanillaformer:([\w-]+)")
USE = "use"
"""The part that names the folder, or the Hub id."""


class Card(NamedTuple):
    """A card taken apart: the YAML text of its header, its text, and the record."""

    header: str
    body: str
    record: dict[str, Any]


class Part(NamedTuple):
    """A generated part: all of it, its name, the hash of what was generated, and its text now."""

    whole: str
    name: str
    generated: str
    text: str

    @property
    def edited(self) -> bool:
        """Whether a person changed it."""
        return text_hash(self.text) != self.generated


# ------------------------------------------------------------------------------------------------------------ writing
def marked(name: str, text: str) -> str:
    """Return a generated part of a card between its marks, nothing of an empty one."""
    if not text.strip():
        return ""
    text = re.sub(r"<!-- (/?vanillaformer:)", r"<!--\1", _unix(text.strip()))  # as it stands it would end the part
    return f"<!-- vanillaformer:{name} {text_hash(text)} -->\n{text}\n<!-- /vanillaformer:{name} -->"


def generated_card(metadata: str, body: str, place: str) -> str:
    """Return the text of a card whose parts can be recognised again.

    Args:
        metadata: The header, as YAML.
        body: The text: parts between marks, and a heading, which is a person's to change.
        place: The folder or Hub id that the part `use` names, replaced by `card_to_push`.
    """
    header, body = metadata.strip("\n"), _unix(body).strip("\n")
    record = {"metadata": key_hashes(header), "parts": list(_parts(body)), "rest": text_hash(_outside(body))}
    return _joined(Card(header, body, record | {"place": place}))


# ------------------------------------------------------------------------------------------------------------ merging
def merged_card(new_text: str, old_text: str | None) -> str:
    """Return a new card with what a person wrote in the old one, and report what was left as the person wrote it.

    Args:
        new_text: The card to be written, as `generated_card` made it; a person may have edited it since.
        old_text: The card that it replaces, None if there is none.
    """
    if old_text is None or not old_text.strip():
        return new_text
    new, old = _taken_apart(new_text), _taken_apart(old_text)
    kept: list[str] = []
    header = merged_header(new.header, old.header, old.record.get("metadata", {}), kept)
    body = _merged_body(new, old, kept)
    record = dict(new.record or old.record)
    if "pushed" in old.record:
        record.setdefault("pushed", old.record["pushed"])
    if kept:
        report(f"The model card keeps what a person wrote: {', '.join(kept)}.")
    return _joined(Card(header, body, record))


def card_to_push(local_text: str, remote_text: str | None, repo_id: str | None = None) -> str:
    """Return the card to upload; written to the local folder too, later edits there are known to follow it.

    Args:
        local_text: The card in the folder that is pushed.
        remote_text: The card that the repo has, None if there is none.
        repo_id: The Hub id, to stand where the part `use` names the local folder.
    """
    local = _taken_apart(local_text)
    if repo_id is not None and local.record:
        local = _moved(local, repo_id)
    text, remote = _joined(local), _taken_apart(remote_text or "")
    last = local.record.get("pushed")
    if last is None or not last == remote.record.get("pushed") == _seal(remote):
        text = merged_card(text, remote_text)  # the repo's card is not the one that the local one follows
    card = _taken_apart(text)
    return _joined(card._replace(record=card.record | {"pushed": _seal(card)})) if card.record else text


def is_edited(text: str) -> bool:
    """Whether a card holds anything that a person wrote."""
    card = _taken_apart(text)
    parts = _parts(card.body)
    return not (
        card.record
        and key_hashes(card.header) == card.record["metadata"]
        and text_hash(_outside(card.body)) == card.record["rest"]
        and list(parts) == card.record["parts"]
        and not any(part.edited for part in parts.values())
    )


def lines_by_people(text: str) -> set[str]:
    """Return the lines of a card's text that a person may have written: all but those of unchanged parts."""
    body = _taken_apart(text).body
    texts = [_outside(body), *(part.text for part in _parts(body).values() if part.edited)]
    return {line.strip() for text in texts for line in text.splitlines() if line.strip()}


def _merged_body(new: Card, old: Card, kept: list[str]) -> str:
    """Return the text of one of the two cards with each part as it is to be: a person's, or else the new card's."""
    fresh, earlier = _parts(new.body), _parts(old.body)
    chosen = dict(fresh)
    for name, part in earlier.items():
        if part.edited and (name not in fresh or part.text != fresh[name].text):
            kept.append(f"part {name!r}")
            chosen[name] = part
    deleted = set(old.record.get("parts", ())) - set(MARK.findall(old.body))
    if gone := [name for name in fresh if name in deleted]:
        kept.append(f"parts that were deleted ({', '.join(gone)})")
    body = new.body if _is_newer(new, old, kept) else old.body
    present = set(MARK.findall(body))
    if broken := sorted((present & chosen.keys()) - _parts(body).keys()):
        kept.append(f"parts with incomplete marks ({', '.join(broken)})")
    for part in _parts(body).values():
        stays = part.name in chosen and part.name not in gone
        body = body.replace(part.whole, chosen[part.name].whole) if stays else _without(body, part)
    before = None
    for name in chosen:
        if name not in present and name not in gone:
            body = _inserted(body, chosen[name].whole, before)
        before = name if name in _parts(body) else before
    return body


def _is_newer(new: Card, old: Card, kept: list[str]) -> bool:
    """Whether the text outside of parts is to be the new card's: only there has a person written some."""
    ours, theirs = _outside(new.body), _outside(old.body)
    if text_hash(ours) == new.record.get("rest") or ours == theirs:
        return False
    if text_hash(theirs) == old.record.get("rest") or set(theirs.splitlines()) <= set(ours.splitlines()):
        return True
    if not set(ours.splitlines()) <= set(theirs.splitlines()):
        kept.append("the text outside of generated parts, which differs in both cards")
    return False


def _inserted(body: str, text: str, before: str | None) -> str:
    """Put a part after the one named `before`, or at the end."""
    found = _parts(body).get(before or "")
    if found is None:
        return f"{body.rstrip()}\n\n{text}".lstrip()
    return body.replace(found.whole, f"{found.whole}\n\n{text}")


def _without(body: str, part: Part) -> str:
    start, _, end = body.partition(part.whole)
    return f"{start.rstrip()}\n\n{end.lstrip()}".strip()


# ------------------------------------------------------------------------------------------------------- taking apart
def _unix(text: str) -> str:
    """Return a text with the line ends that it has once it was written and read again."""
    return re.sub(r"\r\n?", "\n", text)


def _taken_apart(text: str) -> Card:
    text = _unix(text.removeprefix("\ufeff"))
    match = HEADER.match(text)
    header, body = (match[1] or "", text[match.end() :]) if match else ("", text)
    found = RECORD.search(body)
    record = _record(found[1]) if found else {}
    return Card(header, (body[: found.start()] if found and record else body).strip("\n"), record)


def _record(text: str) -> dict[str, Any]:
    """Return the record, empty if a person has made something else of it."""
    try:
        record = json.loads(text)
    except ValueError:
        return {}
    kinds = {"metadata": dict, "parts": list, "rest": str, "place": str}
    return record if all(isinstance(record.get(name), kind) for name, kind in kinds.items()) else {}


def _joined(card: Card) -> str:
    record = json.dumps(card.record).replace(">", "\\u003e")  # which might end the comment
    end = f"\n\n<!-- vanillaformer: {record} -->\n" if card.record else "\n"
    return (f"---\n{card.header}\n---\n\n" if card.header else "") + card.body + end


def _parts(body: str) -> dict[str, Part]:
    """Return the parts by name."""
    return {match[1]: Part(match[0], *match.groups()) for match in PART.finditer(body)}


def _moved(card: Card, place: str) -> Card:
    """Name another place in the part that tells how to load the model, unless a person changed it."""
    here, part, body = card.record["place"], _parts(card.body).get(USE), card.body
    if part is not None and not part.edited:
        option = "--model {} "
        text = part.text.replace(repr(here), repr(place))
        text = text.replace(option.format(shlex.quote(here)), option.format(shlex.quote(place)))
        body = body.replace(part.whole, marked(USE, text))
    return card._replace(body=body, record=card.record | {"place": place})


def _outside(body: str) -> str:
    """Return the lines outside of parts."""
    return "\n".join(line for line in PART.sub("", body).split("\n") if line.strip())


def _seal(card: Card) -> str:
    return text_hash(f"{card.header}\n{card.body}")


def keep_edited_card(folder: Path, into: Path | None = None) -> Path | None:
    """Rename a model card that holds what a person wrote, and return its new path (in another folder, if given)."""
    card, into = folder / CARD, into or folder
    if not card.is_file() or not is_edited(card.read_text(encoding="utf-8", errors="replace")):
        return None
    names = (f"README.edited{number}.md" for number in itertools.chain([""], itertools.count(2)))
    kept = next(into / name for name in names if not (into / name).exists())
    card.rename(kept)
    report(f"{into / CARD} was edited by hand: it is {kept.name} now.")
    return kept
