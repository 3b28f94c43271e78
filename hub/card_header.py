"""The YAML header of a model card: keys that a person added, changed or deleted stay so when it is written again."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

KEY = re.compile(r"([\w-]+):")


def mapping(header: str) -> dict[str, Any] | None:
    """Return the metadata of a header, None if it is no YAML mapping."""
    try:
        data = yaml.safe_load(header) if header.strip() else {}
    except yaml.YAMLError:
        return None
    return data if isinstance(data, dict) else None


def text_hash(text: str) -> str:
    """Return a short hash of a text, whatever white space is around it."""
    return hashlib.sha256(text.strip().encode()).hexdigest()[:12]


def key_hashes(header: str) -> dict[str, str]:
    """Return the hash of the value of each key."""
    return {key: _hash(value) for key, value in (mapping(header) or {}).items()}


def merged_header(new: str, old: str, recorded: Mapping[str, str], kept: list[str]) -> str:
    """Return the old header with the keys that nobody changed as they are in the new one.

    Args:
        new: The new header.
        old: The header that it replaces, whose lines and comments stay where nothing is new.
        recorded: The hashes of the keys as they were generated for the old one.
        kept: A list that gets a word on each key that is not as in the new header.
    """
    was, now = mapping(old), mapping(new) or {}
    if was is None:
        kept.append("a header that is no YAML mapping")
        return old
    wanted = dict(was)
    for key in dict.fromkeys([*was, *now, *recorded]):
        unchanged = key in was and recorded.get(key) == _hash(was[key])
        if unchanged or (key not in was and key not in recorded):
            wanted.pop(key, None)
            if key in now:
                wanted[key] = now[key]
        elif key in now and (key not in was or was[key] != now[key]):
            kept.append(f"metadata {key!r}")
    data = {key: wanted[key] for key in [*was, *now] if key in wanted}
    lines = _lines(new) | {key: text for key, text in _lines(old).items() if key in was and was[key] == data.get(key)}
    comments = [line for line in old.split("\n") if line.startswith("#")]
    header = "\n".join([*comments, *(lines.get(key, "") for key in data)])
    return header if mapping(header) == data else yaml.safe_dump(data, sort_keys=False, allow_unicode=True).strip()


def _lines(header: str) -> dict[str, str]:
    """Return the lines of each key of a YAML mapping as they are written."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in header.split("\n"):
        if match := KEY.match(line):
            current = found.setdefault(match[1], [])
        if line.strip() and not line.startswith("#"):
            current.append(line)
    return {key: "\n".join(lines) for key, lines in found.items()}


def _hash(value: Any) -> str:
    return text_hash(json.dumps(value, sort_keys=True, default=str))
