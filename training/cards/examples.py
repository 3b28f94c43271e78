"""Inputs to try a model with: for the card, which anyone may read, and for the terminal of who has trained it."""

from ..data.arguments import DataArguments
from ..models import Job

MASK = "[MASK]"
CODE: dict[Job, str] = {"causal": "def ", "masked": f"import {MASK}", "mlm+nsp": f"import {MASK}"}
"""For language models of the embedded data, which is Python source text."""
NEUTRAL: dict[Job, str] = {
    "translation": "A sentence to translate.",
    "classification": "A text to classify.",
    "causal": "Once upon a time",
    "masked": f"A sentence with a {MASK} word.",
    "mlm+nsp": f"A sentence with a {MASK} word.",
}
GREETING = "Hello, how are you?"
"""For models of dialogues."""


def card_example(data: DataArguments, job: Job, row: str = "") -> str:
    """Return the input in a model's card: no row of the user's data, unless `--card_example` gives one.

    Args:
        data: The data arguments.
        job: What the model does.
        row: An input from the data, which is used if the data is embedded.

    Raises:
        ValueError: `--card_example` cannot be an input of such a model.
    """
    if data.card_example is not None:
        if not data.card_example.strip():
            raise ValueError("--card_example is empty")
        if job in ("masked", "mlm+nsp") and MASK not in data.card_example:
            raise ValueError(f"--card_example {data.card_example!r} needs a {MASK}, which the model fills in")
        return data.card_example
    if data.is_embedded:
        return CODE.get(job, row)
    return NEUTRAL[job] if data.turns_column is None else GREETING


def terminal_example(data: DataArguments, job: Job, row: str = "") -> str | None:
    """Return the input of the command that a run ends with: the beginning of a row; None for one to chat with.

    Args:
        data: The data arguments.
        job: What the model does.
        row: An input from the data, empty if none is at hand.
    """
    if data.turns_column is not None:
        return None
    if job in CODE and data.is_embedded:
        return CODE[job]
    beginning = opening(row, 40 if job in CODE else 100)
    if job in ("masked", "mlm+nsp"):
        before, _, last = beginning.rpartition(" ")
        return f"{before} {MASK}" if before and last else NEUTRAL[job]
    return beginning or NEUTRAL[job]


def opening(text: str, width: int) -> str:
    """Return the first words of a text in one line of at most `width` characters; a longer word is cut."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width + 1].rpartition(" ")[0] or line[:width]
