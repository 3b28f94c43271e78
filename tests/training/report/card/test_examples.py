"""Inputs to try a model with: the card, which may be published, holds no row of the user's data."""

import shlex

import pytest
from datasets import Dataset

from vanillaformer.console.parsing import parse
from vanillaformer.data.arguments import DataArguments, LanguageModelDataArguments
from vanillaformer.data.tasks import MASK, TASKS
from vanillaformer.inference.arguments import GenerateArguments
from vanillaformer.training.finishing import input_option
from vanillaformer.training.report.card.facts import card_example, example_row, first_words, terminal_example

OWN = {"train_file": "own.csv"}
ROW = "a secret   of\nthe data that goes on for longer than is good for a command line, " * 3


@pytest.mark.parametrize("task", TASKS)
def test_own_rows_stay_out_of_the_card(task: str) -> None:
    example = card_example(DataArguments(**OWN), task, ROW)
    assert "secret" not in example
    assert (MASK in example) == (task in ("masked", "mlm+nsp"))
    assert card_example(DataArguments(dataset="imdb"), task, ROW) == example
    asked = DataArguments(**OWN, card_example=f"my {MASK} text")
    assert card_example(asked, task, ROW) == f"my {MASK} text"


def test_examples_of_embedded_data_own_rows_and_dialogues() -> None:
    data = DataArguments()
    assert card_example(data, "translation", "May 3") == terminal_example(data, "translation", "May 3") == "May 3"
    assert card_example(data, "causal") == terminal_example(data, "causal", "import os") == "def "
    data = DataArguments(**OWN)
    assert terminal_example(data, "causal", ROW) == "a secret of the data that goes on for"
    assert terminal_example(data, "masked", "the old ship") == "the old [MASK]"
    assert terminal_example(data, "masked", "") == TASKS["masked"].example
    translation = terminal_example(data, "translation", ROW)
    assert translation is not None
    assert translation.startswith("a secret of the data")
    assert "\n" not in translation
    assert len(translation) <= 100
    data = LanguageModelDataArguments(**OWN, turns_column="turns")
    assert terminal_example(data, "causal", ROW) is None
    assert card_example(data, "causal", ROW) == "Hello, how are you?"


@pytest.mark.parametrize(("text", "wanted"), [("汉字" * 60, "汉字" * 5), ("one two three", "one two"), ("one", "one")])
def test_first_words(text: str, wanted: str) -> None:
    assert first_words(text, 10) == wanted


@pytest.mark.parametrize(("task", "text", "message"), [("masked", "no mask", "needs a"), ("causal", " ", "is empty")])
def test_examples_that_cannot_be(task: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"--card_example.*{message}"):
        card_example(DataArguments(card_example=text), task)


LINE = "a line of the usual length"


@pytest.mark.parametrize(("texts", "wanted"), [
    ([ROW, "", "two\nlines", " ", "ah", f" {LINE}\n", f"{LINE}, but longer"], LINE),
    (["", ROW, "two\nlines"], ROW.strip()), (["", " "], ""),
])  # fmt: skip
def test_an_example_is_a_short_line_where_there_is_one(texts: list[str], wanted: str) -> None:
    assert example_row(Dataset.from_dict({"source": texts}), "source") == wanted


@pytest.mark.parametrize("text", ["it's $HOME", "-5 degrees", "--text", "plain"])
def test_an_example_survives_the_shell(text: str) -> None:
    (arguments,) = parse(GenerateArguments, ["--model", "m", *shlex.split(input_option(text))])
    assert arguments.text == [text]
