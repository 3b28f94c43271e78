"""Model cards that people edit: metadata, one generated part between two marks, and a person's text around it.

    <!-- vanillaformer {"place": "runs/a", "hash": "0a1b2c3d4e5f"} generated: write above or below -->
    ## Limits
    ...
    <!-- /vanillaformer -->

When a card is written or pushed again, the metadata and the part are replaced; the text around the part and other
metadata stay. The record in the first mark has the folder or Hub id that the part names, the hash of the generated
part, and the hash of the rest of the card when it was last pushed.
"""

import hashlib
import itertools
import json
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from vanillaformer.console.parsing import SettingsLoader
from vanillaformer.console.reporting import report

from .atomic_files import write_text
from .file_names import CARD

HEADER = re.compile(r"\A\s*---[ \t]*\n(?:(.*?)\n)??---[ \t]*(?:\n|\Z)", re.DOTALL)
BEGIN, NOTE, END = "<!-- vanillaformer ", " generated: write above or below -->", "<!-- /vanillaformer -->"
PART = re.compile(rf"{BEGIN}(\{{.*\}}){NOTE}\n((?s:(?:(?!{BEGIN}).)*?))\n{END}")  # its end is not that of another
RENEWED = ("base_model", "metrics", "model-index")  # metadata of the last training, deleted if it does not state them


class Card(NamedTuple):
    """A card: its YAML header, the text before the generated part, the part, the text after it, and the record."""

    header: str
    before: str
    part: str
    after: str
    record: dict[str, Any]

    @property
    def words(self) -> set[str]:
        """The lines that a person wrote around the generated part: all except blank ones and the title."""
        lines = [line.strip() for line in f"{self.before}\n{self.after}".split("\n") if line.strip()]
        return set(lines[1:] if lines and lines[0].startswith("# ") else lines)

    @property
    def is_part_edited(self) -> bool:
        return bool(self.part) and self.record.get("hash") != text_hash(self.part)

    @property
    def hash_around(self) -> str:
        """The hash of everything except the generated part."""
        return text_hash(f"{self.header}\n{self.before.strip()}\n{self.after.strip()}")


def text_hash(text: str) -> str:
    """Return a short hash of a text without the white space around it."""
    return hashlib.sha256(text.strip().encode()).hexdigest()[:12]


def generated_card(metadata: str, title: str, text: str, place: str) -> str:
    """Return the text of a new card; `place` is the folder or Hub id that the generated part names."""
    part = re.sub(r"<!-- (/?vanillaformer)", r"<!--\1", _normalize_line_ends(text).strip())  # could end the part
    record = {"place": place, "hash": text_hash(part)}
    return render_card(Card(metadata.strip("\n"), f"# {' '.join(title.split())}", part, "", record))


def merged_card(new_text: str, old_text: str | None) -> str:
    """Return a new card with a person's words and metadata in the old one, if there is one."""
    if old_text is None or not old_text.strip():
        return new_text
    return render_card(_merged(parse_card(new_text), parse_card(old_text)))


def card_to_push(local_text: str, remote_text: str | None, repo_id: str | None = None) -> str:
    """Return the card to upload, in whose generated part `repo_id` replaces the local folder.

    It is also written to that folder, so that later edits are based on it.
    """
    card, remote = parse_card(local_text), parse_card(remote_text or "")
    if repo_id is not None and card.part and not card.is_part_edited:
        here = card.record.get("place", repo_id)
        part = card.part.replace(repr(here), repr(repo_id))
        part = part.replace(f"--model {shlex.quote(here)} ", f"--model {shlex.quote(repo_id)} ")
        card = card._replace(part=part, record=card.record | {"place": repo_id, "hash": text_hash(part)})
    if remote.is_part_edited:
        report("The generated part of the card on the Hub was edited: the edit is only in the repository's history.")
    if remote_text and card.record.get("pushed") != remote.hash_around:  # somebody has edited it since
        merged = _merged(card, remote)
        if card.words - merged.words:
            report("The text of the card on the Hub stays; that of the folder's card, which differs, is not uploaded.")
        card = merged
    return render_card(card._replace(record=card.record | {"pushed": card.hash_around}))


def native_card(text: str, class_name: str, model_type: str) -> str:
    """Return the card of one of our models for the native one that it became, which needs no code of ours."""
    card = parse_card(text)
    if not card.part or card.is_part_edited:  # by a person
        return text
    part = re.sub(
        r"`Vanilla\w+` of the package vanillaformer", f"`{class_name}` of the package transformers", card.part
    )
    part = re.sub(r"With the package vanillaformer:\n\n(```python\n)import vanillaformer .*\n", r"\1", part)
    part = re.sub(r"\n+Without it, with the code that is stored [^\n]*\n\n```python\n(?s:.*?)```", "", part)
    header = re.sub(r"(?m)^- vanilla_\w+$", f"- {model_type}", card.header)
    return render_card(card._replace(header=header, part=part, record=card.record | {"hash": text_hash(part)}))


def is_edited(text: str) -> bool:
    card = parse_card(text)
    return not card.part or card.is_part_edited or bool(card.words)


def _merged(new: Card, old: Card) -> Card:
    """Return a card with the text around the part of the old one, or of the new one if that has all of it and more."""
    around = new if new.words > old.words else old
    record = {name: value for name, value in old.record.items() if name == "pushed"} | new.record
    return Card(_merged_header(new.header, old.header), around.before, new.part, around.after, record)


def _merged_header(new: str, old: str) -> str:
    new_data, old_data = _parse_header(new) or {}, _parse_header(old)
    if old_data is None:
        report("The metadata of the model card is not a YAML mapping, and stays unchanged.")
        return old
    replaced = {*RENEWED, *new_data, *(["license_name"] if "license" in new_data else [])}
    data = {**{name: value for name, value in old_data.items() if name not in replaced}, **new_data}
    tags = [old_data["tags"], new_data["tags"]] if "tags" in old_data and "tags" in new_data else []
    if all(isinstance(each, list) for each in tags) and tags:
        added = [tag for tag in tags[0] if tag not in tags[1] and not str(tag).startswith("vanilla")]
        data["tags"] = [*tags[1], *added]
    for text, known in ((old, old_data), (new, new_data)):
        if data == known:
            return text  # with comments, if there are any
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True).strip()


def _parse_header(header: str) -> dict[str, Any] | None:
    """Return the metadata of a header; None if it is not a YAML mapping."""
    try:
        data = yaml.load(header, SettingsLoader) if header.strip() else {}
    except (ValueError, yaml.YAMLError):  # as of a day that is not in the calendar
        return None
    return data if isinstance(data, dict) else None


def parse_card(text: str) -> Card:
    """Return the parts of a card; without marks all of its text is a person's."""
    text = _normalize_line_ends(text.removeprefix("\ufeff"))
    match = HEADER.match(text)
    header, body = (match[1] or "", text[match.end() :]) if match else ("", text)
    if (found := PART.search(body)) is None:
        return Card(header, body, "", "", {})
    try:
        record = json.loads(found[1])
    except ValueError:  # a person has damaged it
        record = {}
    return Card(header, body[: found.start()], found[2], body[found.end() :], record)


def render_card(card: Card) -> str:
    record = json.dumps(card.record).replace(">", "\\u003e")  # which could end the comment
    part = f"{BEGIN}{record}{NOTE}\n{card.part}\n{END}" if card.part else ""
    body = "\n\n".join(filter(None, (card.before.strip("\n"), part, card.after.strip("\n"))))
    return (f"---\n{card.header}\n---\n\n" if card.header else "") + body + "\n"


def _normalize_line_ends(text: str) -> str:
    """Return a text with the line ends that writing and reading it leaves."""
    return re.sub(r"\r\n?", "\n", text)


def read_card(path: Path, source: str) -> str:
    """Return the text of a card; raise ValueError if it is not UTF-8 text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"the {CARD} {source} is not UTF-8 text: {error}") from error


def write_card(path: Path, text: str) -> None:
    """Replace a card completely or not at all, unless it is a link, as in the Hub's cache.

    A card with a person's words that the new one lacks is kept next to it.
    """
    old = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    if path.is_symlink() or old == text:
        return
    card = parse_card(old)
    written = card.words | ({line.strip() for line in card.part.split("\n")} if card.is_part_edited else set())
    if written - {line.strip() for line in text.split("\n")}:
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
