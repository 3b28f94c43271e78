"""Long stages print lines off a terminal, and leave a bar's place to it on one."""

import re
from itertools import islice
from threading import Event

import datasets
import pytest
from datasets import Dataset

from vanillaformer.console import reporting
from vanillaformer.console.reporting import stage
from vanillaformer.data.caching import TextColumn, cached_map


@pytest.fixture
def lines(monkeypatch):
    """The lines of a stage, which prints them all the time, and an event that comes with the third."""
    printed, third = [], Event()

    def report(line):
        printed.append(line)
        if len(printed) >= 3:
            third.set()

    monkeypatch.setattr(reporting, "EVERY", 0.001)
    monkeypatch.setattr(reporting, "report", report)
    return printed, third


def test_lines_say_stage_count_and_speed(lines):
    printed, third = lines
    with stage("Tokenizing train data", 1_234_567) as advance:
        advance(1_000)
        for _ in range(2):  # the next line may have been begun before
            third.clear()
            assert third.wait(60)
    pattern = r"Tokenizing train data: 1,000 of 1,234,567 texts in \d+ s, [\d,.]+ a second, [\d,]+ s left"
    assert re.fullmatch(pattern, printed[-1])
    count = len(printed)
    Event().wait(0.02)
    assert len(printed) == count


def test_a_stage_that_cannot_count_says_how_long_it_takes_and_an_error_ends_it(lines):
    printed, third = lines
    with stage("Reading the data"):
        assert third.wait(60)
    assert re.fullmatch(r"Reading the data: \d+ s", printed[-1])
    with pytest.raises(KeyError), stage("Reading the data"):
        raise KeyError("x")
    count = len(lines[0])
    Event().wait(0.02)
    assert len(lines[0]) == count


@pytest.mark.parametrize("terminal", [False, True])
def test_tokenizing_prints_lines_and_on_a_terminal_shows_a_bar(terminal, lines):
    printed, third = lines

    def sizes(batch):
        for _ in range(0 if len(batch["text"]) == 1_000 else 2):  # the next line may have been begun before
            third.clear()
            third.wait(0.02 if terminal else 60)
        return {"size": [len(text) for text in batch["text"]]}

    if terminal:
        datasets.enable_progress_bars()
    try:
        rows = Dataset.from_dict({"text": ["a"] * 1500})
        mapped = cached_map(rows, sizes, desc="Tokenizing train data", remove_columns=["text"])
    finally:
        datasets.disable_progress_bars()
    assert list(mapped["size"]) == [1] * 1500
    counted = [line for line in printed if re.match(r"Tokenizing train data: 1,000 of 1,500 texts in \d+ s, ", line)]
    assert bool(counted) is not terminal
    assert bool(printed) is not terminal


def test_a_column_of_texts_is_read_as_often_as_asked():
    texts = [f"text {number}" for number in range(2500)]
    rows = Dataset.from_dict({"text": texts, "label": range(2500)}).select(range(2499, -1, -1))
    column = TextColumn(rows, "text")
    assert len(column) == 2500
    assert list(column) == list(column) == texts[::-1]
    assert list(islice(column, 1)) == ["text 2499"]
