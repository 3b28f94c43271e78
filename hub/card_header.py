"""The YAML header of a model card: keys that a person added, changed or deleted stay so when it is written again."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

KEY = re.compile(r"([\w-]+):")


def parse_header(header: str) -> dict[str, Any] | None:
    """Return the metadata of a header; None if it is not a YAML mapping."""
    try:
        data = yaml.safe_load(header) if header.strip() else {}
    except yaml.YAMLError:
        return None
    return data if isinstance(data, dict) else None


def text_hash(text: str) -> str:
    """Return a short hash of a text without the white space around it."""
    return hashlib.sha256(text.strip().encode()).hexdigest()[:12]


def key_hashes(header: str) -> dict[str, str]:
    """Return the hash of the value of each key."""
    return {key: _hash(value) for key, value in (parse_header(header) or {}).items()}


def merged_header(new: str, old: str, recorded: Mapping[str, str], edits: list[str]) -> str:
    """Return the old header with the keys that nobody changed as they are in the new one.

    Args:
        new: The new header.
        old: The header that it replaces, whose lines and comments stay where nothing is new.
        recorded: The hashes of the keys as they were generated for the old one.
        edits: Gets a description of each key that differs from the new header.
    """
    old_data, new_data = parse_header(old), parse_header(new) or {}
    if old_data is None:
        edits.append("a header that is not a YAML mapping")
        return old
    wanted = dict(old_data)
    for key in dict.fromkeys([*old_data, *new_data, *recorded]):
        unchanged = key in old_data and recorded.get(key) == _hash(old_data[key])
        if unchanged or (key not in old_data and key not in recorded):
            wanted.pop(key, None)
            if key in new_data:
                wanted[key] = new_data[key]
        elif key in new_data and (key not in old_data or old_data[key] != new_data[key]):
            edits.append(f"metadata {key!r}")
    data = {key: wanted[key] for key in [*old_data, *new_data] if key in wanted}
    unchanged_keys = {key for key in old_data if old_data[key] == data.get(key)}
    lines = _lines_by_key(new) | {key: text for key, text in _lines_by_key(old).items() if key in unchanged_keys}
    comments = [line for line in old.split("\n") if line.startswith("#")]
    header = "\n".join([*comments, *(lines.get(key, "") for key in data)])
    if parse_header(header) == data:
        return header
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True).strip()


def _lines_by_key(header: str) -> dict[str, str]:
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
