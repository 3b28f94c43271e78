"""Model cards that people edit: what a person wrote stays when the card is written or pushed again.

Generated parts are between HTML comments, which the page does not show:

    <!-- vanillaformer:results 0a1b2c3d4e5f -->
    ## Results
    ...
    <!-- /vanillaformer:results -->

The number is the hash of the generated text: a part with another hash was edited by a person and is not changed. All
text outside of parts is a person's. The last comment, the record, has the names of the parts (a missing one was
deleted) and the hashes of each metadata key, of the text outside and of the card that was last pushed.
"""

import itertools
import json
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

from vanillaformer.console.reporting import report

from .atomic_files import write_text
from .card_header import key_hashes, merged_header, text_hash
from .file_names import CARD

HEADER = re.compile(r"\A\s*---[ \t]*\n(?:(.*?)\n)??---[ \t]*(?:\n|\Z)", re.DOTALL)
PART = re.compile(r"<!-- vanillaformer:([\w-]+) ([0-9a-f]{12}) -->\n(.*?)\n<!-- /vanillaformer:\1 -->", re.DOTALL)
RECORD = re.compile(r"\n*<!-- vanillaformer: (\{.*\}) -->\s*\Z")
MARK = re.compile(r"<!-- /?vanillaformer:([\w-]+)")
USE = "use"
"""The part that names the folder or the Hub id."""


class Card(NamedTuple):
    """The YAML text of a card's header, its text, and the record."""

    header: str
    body: str
    record: dict[str, Any]


class Part(NamedTuple):
    """A generated part: all of it, its name, the hash of the generated text, and its text now."""

    whole: str
    name: str
    generated: str
    text: str

    @property
    def edited(self) -> bool:
        """Whether a person changed it."""
        return text_hash(self.text) != self.generated


def marked(name: str, text: str) -> str:
    """Return the text of a generated part between its marks; an empty text has none."""
    if not text.strip():
        return ""
    text = _normalize_line_ends(text.strip())
    text = re.sub(r"<!-- (/?vanillaformer:)", r"<!--\1", text)  # such a mark would end the part
    return f"<!-- vanillaformer:{name} {text_hash(text)} -->\n{text}\n<!-- /vanillaformer:{name} -->"


def generated_card(metadata: str, body: str, place: str) -> str:
    """Return the text of a card whose parts can be recognized again.

    Args:
        metadata: The header, as YAML.
        body: The text: parts between marks, and a heading, which people may change.
        place: The folder or Hub id that the part `use` names, replaced by `card_to_push`.
    """
    header, body = metadata.strip("\n"), _normalize_line_ends(body).strip("\n")
    record = {"metadata": key_hashes(header), "parts": list(_parts(body)), "rest": text_hash(_text_outside(body))}
    return render_card(Card(header, body, record | {"place": place}))


def merged_card(new_text: str, old_text: str | None) -> str:
    """Return a new card with a person's edits of the old one, and report them.

    Args:
        new_text: The new card, made by `generated_card` and perhaps edited since.
        old_text: The card that it replaces, if there is one.
    """
    if old_text is None or not old_text.strip():
        return new_text
    new, old = parse_card(new_text), parse_card(old_text)
    edits: list[str] = []
    header = merged_header(new.header, old.header, old.record.get("metadata", {}), edits)
    body = _merged_body(new, old, edits)
    record = dict(new.record or old.record)
    if "pushed" in old.record:
        record.setdefault("pushed", old.record["pushed"])
    if edits:
        report(f"The model card keeps a person's edits: {', '.join(edits)}.")
    return render_card(Card(header, body, record))


def card_to_push(local_text: str, remote_text: str | None, repo_id: str | None = None) -> str:
    """Return the card to upload; it is written to the local folder too, whose later edits are based on it.

    Args:
        local_text: The card in the folder that is pushed.
        remote_text: The card in the repository, if there is one.
        repo_id: The Hub id, which replaces the local folder in the part `use`.
    """
    local = parse_card(local_text)
    if repo_id is not None and local.record:
        local = _with_repo_id(local, repo_id)
    text, remote = render_card(local), parse_card(remote_text or "")
    last = local.record.get("pushed")
    if last is None or not last == remote.record.get("pushed") == _hash(remote):
        text = merged_card(text, remote_text)  # the local card is not based on the one in the repository
    card = parse_card(text)
    return render_card(card._replace(record=card.record | {"pushed": _hash(card)})) if card.record else text


def is_edited(text: str) -> bool:
    """Tell whether a person has edited a card."""
    card = parse_card(text)
    parts = _parts(card.body)
    return not (
        card.record
        and key_hashes(card.header) == card.record["metadata"]
        and text_hash(_text_outside(card.body)) == card.record["rest"]
        and list(parts) == card.record["parts"]
        and not any(part.edited for part in parts.values())
    )


def handwritten_lines(text: str) -> set[str]:
    """Return the lines of a card's text that a person may have written: all except those of unchanged parts."""
    body = parse_card(text).body
    texts = [_text_outside(body), *(part.text for part in _parts(body).values() if part.edited)]
    return {line.strip() for text in texts for line in text.splitlines() if line.strip()}


def _merged_body(new: Card, old: Card, edits: list[str]) -> str:
    """Return the merged text: each part as a person edited it, otherwise as in the new card."""
    new_parts, old_parts = _parts(new.body), _parts(old.body)
    chosen = dict(new_parts)
    for name, part in old_parts.items():
        if part.edited and (name not in new_parts or part.text != new_parts[name].text):
            edits.append(f"part {name!r}")
            chosen[name] = part
    deleted = set(old.record.get("parts", ())) - set(MARK.findall(old.body))
    if gone := [name for name in new_parts if name in deleted]:
        edits.append(f"parts that were deleted ({', '.join(gone)})")
    body = new.body if _is_newer(new, old, edits) else old.body
    present = set(MARK.findall(body))
    if broken := sorted((present & chosen.keys()) - _parts(body).keys()):
        edits.append(f"parts with incomplete marks ({', '.join(broken)})")
    for part in _parts(body).values():
        stays = part.name in chosen and part.name not in gone
        body = body.replace(part.whole, chosen[part.name].whole) if stays else _remove(body, part)
    before = None
    for name in chosen:
        if name not in present and name not in gone:
            body = _insert_after(body, chosen[name].whole, before)
        before = name if name in _parts(body) else before
    return body


def _is_newer(new: Card, old: Card, edits: list[str]) -> bool:
    """Tell whether the text outside of parts is taken from the new card: a person has edited only that one."""
    new_text, old_text = _text_outside(new.body), _text_outside(old.body)
    if text_hash(new_text) == new.record.get("rest") or new_text == old_text:
        return False
    if text_hash(old_text) == old.record.get("rest") or set(old_text.splitlines()) <= set(new_text.splitlines()):
        return True
    if not set(new_text.splitlines()) <= set(old_text.splitlines()):
        edits.append("the text outside of generated parts, which differs in both cards")
    return False


def _insert_after(body: str, text: str, before: str | None) -> str:
    """Put a part after the one named `before`, or at the end."""
    found = _parts(body).get(before or "")
    if found is None:
        return f"{body.rstrip()}\n\n{text}".lstrip()
    return body.replace(found.whole, f"{found.whole}\n\n{text}")


def _remove(body: str, part: Part) -> str:
    start, _, end = body.partition(part.whole)
    return f"{start.rstrip()}\n\n{end.lstrip()}".strip()


def _normalize_line_ends(text: str) -> str:
    """Return a text with the line ends that it has after it was written and read again."""
    return re.sub(r"\r\n?", "\n", text)


def parse_card(text: str) -> Card:
    text = _normalize_line_ends(text.removeprefix("\ufeff"))
    match = HEADER.match(text)
    header, body = (match[1] or "", text[match.end() :]) if match else ("", text)
    found = RECORD.search(body)
    record = _parse_record(found[1]) if found else {}
    return Card(header, (body[: found.start()] if found and record else body).strip("\n"), record)


def _parse_record(text: str) -> dict[str, Any]:
    """Return the record; an empty one if a person has damaged it."""
    try:
        record = json.loads(text)
    except ValueError:
        return {}
    kinds = {"metadata": dict, "parts": list, "rest": str, "place": str}
    return record if all(isinstance(record.get(name), kind) for name, kind in kinds.items()) else {}


def render_card(card: Card) -> str:
    record = json.dumps(card.record).replace(">", "\\u003e")  # it could end the comment
    end = f"\n\n<!-- vanillaformer: {record} -->\n" if card.record else "\n"
    return (f"---\n{card.header}\n---\n\n" if card.header else "") + card.body + end


def _parts(body: str) -> dict[str, Part]:
    """Return the parts by name."""
    return {match[1]: Part(match[0], *match.groups()) for match in PART.finditer(body)}


def _with_repo_id(card: Card, repo_id: str) -> Card:
    """Replace the folder by the Hub id in the part on loading the model, unless a person edited it."""
    here, part, body = card.record["place"], _parts(card.body).get(USE), card.body
    if part is not None and not part.edited:
        option = "--model {} "
        text = part.text.replace(repr(here), repr(repo_id))
        text = text.replace(option.format(shlex.quote(here)), option.format(shlex.quote(repo_id)))
        body = body.replace(part.whole, marked(USE, text))
    return card._replace(body=body, record=card.record | {"place": repo_id})


def _text_outside(body: str) -> str:
    """Return the lines outside of parts."""
    return "\n".join(line for line in PART.sub("", body).split("\n") if line.strip())


def _hash(card: Card) -> str:
    return text_hash(f"{card.header}\n{card.body}")


def read_card(path: Path, where: str) -> str:
    """Return the text of a card.

    Raises:
        ValueError: It is not UTF-8 text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"the {CARD} {where} is not UTF-8 text: {error}") from error


def write_card(path: Path, text: str) -> None:
    """Replace a card as a whole; a link, as in the Hub's cache, stays one.

    A card with a person's words that are not in the new one is kept next to it.
    """
    old = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    if path.is_symlink() or old == text:
        return
    if handwritten_lines(old) - handwritten_lines(text):
        keep_edited_card(path.parent)
    write_text(path, text)


def keep_edited_card(folder: Path, into: Path | None = None) -> Path | None:
    """Rename a model card that a person has edited, and return its new path (in another folder, if given)."""
    card, into = folder / CARD, into or folder
    if not card.is_file() or not is_edited(card.read_text(encoding="utf-8", errors="replace")):
        return None
    names = (f"README.edited{number}.md" for number in itertools.chain([""], itertools.count(2)))
    kept = next(into / name for name in names if not (into / name).exists())
    card.rename(kept)
    report(f"{into / CARD} was edited by hand: it is {kept.name} now.")
    return kept
