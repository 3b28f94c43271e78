"""Inputs to try a model with: one for the card, which is public, and one for the terminal."""

from pathlib import Path

from datasets import Dataset

from vanillaformer.data.arguments import DataArguments
from vanillaformer.data.images import pillow
from vanillaformer.data.tasks import MASK, TASKS, TaskName

from ...run_folder.files import EXAMPLE

GREETING = "Hello, how are you?"
"""For models of dialogues."""
WIDTH = 100
"""Most characters of an example, of running text fewer."""
LOOKED_THROUGH = 100
"""Rows that an example is chosen from."""


def example_row(rows: Dataset, column: str) -> str:
    """Return a text of modest length that stands for the data: of the first rows that are one short line, the median.

    Without any, it is the first text that is not blank.
    """
    texts = [text.strip() for text in rows[:LOOKED_THROUGH][column] if text.strip()]
    short = sorted((text for text in texts if len(text) <= WIDTH and len(text.splitlines()) == 1), key=len)
    return short[len(short) // 2] if short else next(iter(texts), "")


def write_example(folder: Path, pixels: bytes, size: int) -> None:
    """Write an image, as a model sees it, into the folder of a run.

    Args:
        folder: The folder.
        pixels: Rows of columns of red, green and blue.
        size: Height and width.
    """
    pillow().frombytes("RGB", (size, size), pixels).save(folder / EXAMPLE)


def card_example(data_args: DataArguments, task: TaskName, row: str = "") -> str:
    """Return the example input in a model's card: never a row of the user's data, unless `--card_example` gives one.

    Args:
        data_args: The data arguments.
        task: What the model does.
        row: An input from the data, which is used if the data is embedded.

    Raises:
        ValueError: `--card_example` cannot be an input of such a model.
    """
    if data_args.card_example is not None:
        if not data_args.card_example.strip():
            raise ValueError("--card_example is empty")
        if MASK in TASKS[task].example and MASK not in data_args.card_example:
            raise ValueError(f"--card_example {data_args.card_example!r} needs a {MASK}, which the model fills in")
        return data_args.card_example
    if data_args.is_embedded and not TASKS[task].reads_images:
        return TASKS[task].embedded_example or row
    return TASKS[task].example if data_args.turns_column is None else GREETING


def terminal_example(data_args: DataArguments, task: TaskName, row: str = "") -> str | None:
    """Return the input of the command that a run ends with: the beginning of a row; None for a model to chat with.

    Args:
        data_args: The data arguments.
        task: What the model does.
        row: An input from the data, or an empty one.
    """
    if data_args.turns_column is not None:
        return None
    description = TASKS[task]
    if description.reads_images:
        return row or description.example
    if description.embedded_example and data_args.is_embedded:
        return description.embedded_example
    beginning = opening(row, WIDTH if description.whole_texts else 40)
    if MASK in description.example:
        before, _, last = beginning.rpartition(" ")
        return f"{before} {MASK}" if before and last else description.example
    return beginning or description.example


def opening(text: str, width: int) -> str:
    """Return the first words of a text in one line of at most `width` characters; a longer word is cut."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width + 1].rpartition(" ")[0] or line[:width]
