"""Pieces of Markdown for model cards."""

from typing import Any


def table(heading: tuple[str, ...], *rows: tuple[Any, ...]) -> str:
    """Return a table."""
    lines = [heading, ("---",) * len(heading), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def details(summary: str, text: str) -> str:
    """Return a text that is folded away behind its summary."""
    return f"<details>\n<summary>{summary}</summary>\n\n{text}\n\n</details>"


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
