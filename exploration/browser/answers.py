"""What the page asks of a model: the answers of `vanillaformer generate`, with checks of what a stranger may send."""

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from vanillaformer.configuration.options import DECODING_CHOICES
from vanillaformer.console.limits import check_limits
from vanillaformer.data.images import pillow, read_image
from vanillaformer.data.tasks import MASK, TASKS, Task
from vanillaformer.hub.file_names import CARD
from vanillaformer.hub.loading import open_config, saved_folder
from vanillaformer.inference.arguments import LIMITS, GenerateArguments
from vanillaformer.inference.generation import call_options
from vanillaformer.inference.images import TASK as IMAGES
from vanillaformer.inference.images import image_probabilities, load_classifier
from vanillaformer.inference.tasks import (
    FUNCTIONS,
    check_options,
    class_probabilities,
    classify,
    continue_prompts,
    fill_masks,
    load,
    run,
    translate,
)
from vanillaformer.inference.text_files import check_text

from ..examples import Example, image_example, text_example
from ..page import model_name

AUTOREGRESSIVE = "autoregressive"
LARGEST_TEXT = 5_000  # characters
EXAMPLES = 2
LISTED = 10  # names of classes
EXAMPLE_FILES = (
    "predictions_test.jsonl",
    "predictions_validation.jsonl",
    "samples.jsonl",
)  # of a run, which no Space holds
EXAMPLE_COLUMNS = ("source", "text", "prompt")
OPENING = 6  # words of running text


@dataclass(frozen=True)
class Option:
    """An argument of `vanillaformer generate` that is a field of the page.

    Attributes:
        label: Its name on the page.
        info: What it does.
        largest: The largest value that a visitor may ask for.
        whole: Whether it is a whole number.
        decodings: The ways of decoding that have it.
    """

    label: str
    info: str
    largest: float
    whole: bool = True
    decodings: tuple[str, ...] = (AUTOREGRESSIVE,)

    def number(self, name: str, word: str) -> float:
        """Return the number that a visitor has written.

        Raises:
            ValueError: It is none, or too large.
        """
        try:
            value = float(word)
        except ValueError:
            raise ValueError(f"--{name} {word!r}: it must be a number") from None
        if value > self.largest:
            raise ValueError(f"--{name} {word}: it must be at most {self.largest:,}")
        if self.whole and not value.is_integer():
            raise ValueError(f"--{name} {word}: it must be a whole number")
        return int(value) if self.whole else value


OPTIONS = {
    "num_beams": Option("Beams", "1 is greedy search", 16, decodings=(AUTOREGRESSIVE, "mask_predict")),
    "max_new_tokens": Option("Maximum length", "In tokens", 512, decodings=tuple(DECODING_CHOICES)),
    "temperature": Option("Temperature", "Samples: above 1 more varied, below 1 less", 10, whole=False),
    "top_p": Option("Top-p", "Samples from the likeliest tokens with this total probability", 1, whole=False),
    "seed": Option("Seed", "Seed of the sampling", 2**32 - 1),
    "refinement_steps": Option("Refinement steps", "Passes over the output", 64, decodings=("mask_predict",)),
    "length_scale": Option(
        "Length scale", "Factor on the predicted length", 4, whole=False, decodings=("mask_predict",)
    ),
}
"""The fields of models that generate, by the name of the argument."""


def sentence(words: str) -> str:
    """Return a message as a sentence of the page, in which the options of the command line have the fields' labels."""
    message = " ".join(words.split())
    for name, option in OPTIONS.items():
        message = message.replace(f"--{name}", option.label)
    return message[:1].upper() + message[1:] + ("" if message.endswith((".", "?", "!")) else ".")


class ModelAnswers:
    """What the page knows of a model.

    Attributes:
        arguments: Those of `vanillaformer generate`: the model and the options that the page starts from.
        model: The model.
        task: What it does.
        classifies: Whether an answer is the probability of each class.
    """

    arguments: GenerateArguments
    model: Any
    task: Task
    classifies: bool
    latest: tuple[str, Example] | None = None
    """What was recorded last, which several figures show."""
    notes: list[str]
    """What there is to say about the latest answer, such as that the text was cut."""

    @property
    def name(self) -> str:
        """The name of the model, without the folders that it is in."""
        return model_name(self.arguments.model_name_or_path)

    def example(self, question: Any, answer: Any, options: Mapping[str, Any]) -> Example:
        """Return a question and its answer as the figures have them."""
        raise NotImplementedError

    def recorded(self, question: Any, answer: Any, options: Mapping[str, Any]) -> Example:
        """Return the same, once recorded for all figures."""
        asked = repr((question, answer, options))
        if self.latest is None or self.latest[0] != asked:
            self.latest = asked, self.example(question, answer, options)
        return self.latest[1]

    def introduction(self) -> str:
        """Return what the model does, and what cannot be expected of it, in Markdown."""
        names = [str(name) for name in self.model.config.id2label.values()]
        listed = ", ".join(names[:LISTED]) + (", ..." if len(names) > LISTED else "")
        size = sum(parameter.numel() for parameter in self.model.parameters())
        return (
            f"This model {self.task.does.format(count=len(names), names=listed)}. {self.task.limits}\n\n"
            f"`{type(self.model).__name__}`, {size:,} parameters."
        )


class Answers(ModelAnswers):
    """A model of texts and its answers.

    Args:
        arguments: The model and the options that the page starts from.

    Raises:
        ValueError: The folder does not exist, or `generate` cannot use its model.
    """

    def __init__(self, arguments: GenerateArguments):
        self.arguments = arguments
        self.loaded, self.function, self.generates = load(arguments)
        self.model = self.loaded.model
        self.notes = []
        self.loaded.report = self.notes.append
        self.task = next(TASKS[name] for name, function in FUNCTIONS.items() if function is self.function)
        self.classifies = self.function is classify

    def hint(self) -> str:
        """Return how the text is written and sent."""
        mask = f"{self.loaded.tokenizer.mask_token} stands for a token to fill in. " if self.fills else ""
        return f"{mask}Press {'Enter' if self.task.whole_texts else 'Shift+Enter'} to send."

    @property
    def fills(self) -> bool:
        """Whether the model fills in masked tokens."""
        return self.function is fill_masks

    def options(self) -> list[str]:
        """Return the names of the options that the model has."""
        decoding = getattr(self.model.config, "decoding", AUTOREGRESSIVE)
        return [name for name, option in OPTIONS.items() if self.generates and decoding in option.decodings]

    def answer(self, text: str | None, options: Mapping[str, Any] | None = None) -> Any:
        """Return what `vanillaformer generate` prints, of a classifier the probability of each class.

        Args:
            text: The text.
            options: Options of the page as numbers or words; those that are `None` or empty are the model's.

        Raises:
            ValueError: The text or an option cannot be used, in words for the page.
        """
        arguments = replace(self.arguments, **self.given(options or {}))
        check_limits(arguments, LIMITS)
        check_options(arguments, self.model.config, self.loaded.architecture, self.function, self.generates)
        text = self.checked(text)
        self.notes.clear()
        if self.classifies:
            with torch.inference_mode():
                return named(self.model, class_probabilities(self.loaded, [text])[0])
        torch.manual_seed(arguments.seed)
        return next(run(self.loaded, self.function, [text], 1, **call_options(arguments)))

    def example(self, question: Any, answer: Any, options: Mapping[str, Any]) -> Example:
        """Return the text with the answer, which an encoder-decoder reads if it decodes token by token."""
        reads = self.function is translate and getattr(self.model.config, "decoding", AUTOREGRESSIVE) == AUTOREGRESSIVE
        cut = self.cut(replace(self.arguments, **self.given(options)))
        return text_example(self.loaded, question, answer if reads and answer.strip() else None, cut)

    def cut(self, arguments: GenerateArguments) -> dict[str, Any]:
        """Return how `generate` cuts a long text."""
        return {"side": "left", "room": arguments.max_new_tokens or 1} if self.function is continue_prompts else {}

    def sample(self) -> Example:
        """Return an example of any text, which tells what figures there are."""
        return text_example(self.loaded, self.task.example.replace(MASK, str(self.loaded.tokenizer.mask_token)))

    def given(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that are filled in, as numbers.

        Raises:
            ValueError: One is not a number, or larger than a visitor may ask for.
        """
        words = {name: str(value).strip() for name, value in options.items() if value is not None}
        return {name: OPTIONS[name].number(name, word) for name, word in words.items() if word}

    def checked(self, text: str | None) -> str:
        """Return a text that can be sent to the model, which may cut it.

        Raises:
            ValueError: It is empty or larger than the page allows.
        """
        if not text or not text.strip():
            raise ValueError("Type a text first")
        if len(text) > LARGEST_TEXT:
            raise ValueError(f"The text has {len(text):,} characters, but at most {LARGEST_TEXT:,} are allowed")
        check_text("The text", [text])
        return text

    def examples(self) -> list[str]:
        """Return texts to start with: from the model's card and, of a run, from its held-out rows."""
        folder = saved_folder(self.arguments.model_name_or_path, self.arguments.revision, exported=True)
        rows = held_out(folder) if self.task.whole_texts else [opening(text) for text in held_out(folder)]
        found = dict.fromkeys(text for text in (*card_examples(folder), *rows) if self._fits(text))
        return list(found)[:EXAMPLES]

    def _fits(self, text: str) -> bool:
        self.notes.clear()
        try:
            self.loaded.encode([self.checked(text)], **self.cut(self.arguments))
        except ValueError:
            return False
        lacks_mask = self.fills and str(self.loaded.tokenizer.mask_token) not in text
        return not (self.notes or text == self.task.example or lacks_mask)


class ImageAnswers(ModelAnswers):
    """A classifier of images and its answers.

    Args:
        arguments: The model.
        uploads: The folder that pictures are uploaded to.

    Raises:
        ValueError: The folder does not exist, or has no classifier of images.
    """

    classifies = True
    task = IMAGES

    def __init__(self, arguments: GenerateArguments, uploads: Path):
        self.arguments, self.uploads, self.notes = arguments, uploads.resolve(), []
        self.model, self.processor = load_classifier(arguments)

    def options(self) -> list[str]:
        """Return the names of the options that the model has: none."""
        return []

    def answer(self, file: Any, options: Mapping[str, Any] | None = None) -> dict[str, float]:
        """Return the probability of each class.

        Args:
            file: The picture as the page sends it, which has been uploaded.
            options: None.

        Raises:
            ValueError: No picture is given, or the file is not a picture.
        """
        path = self.uploaded(file)
        try:
            image = read_image(path)
        except ValueError as error:
            raise ValueError(f"This picture cannot be read: {error}") from error
        with torch.inference_mode():
            return named(self.model, image_probabilities(self.model, self.processor, [image])[0])

    def example(self, question: Any, answer: Any, options: Mapping[str, Any]) -> Example:
        """Return the picture."""
        return image_example(self.model, self.processor, self.uploaded(question))

    def sample(self) -> Example:
        """Return an example of a black picture, which tells what figures there are."""
        path = self.uploads / "sample.png"
        pillow().new("RGB", (8, 8)).save(path)
        return image_example(self.model, self.processor, path)

    def uploaded(self, file: Any) -> Path:
        """Return the path of an uploaded picture.

        Raises:
            ValueError: There is none, or it was not uploaded.
        """
        if file is None:
            raise ValueError("Drop a picture first")
        path = Path(str(file.get("path") if isinstance(file, dict) else file)).resolve()
        if not path.is_relative_to(self.uploads):
            raise ValueError("This picture was not uploaded here")
        return path


def named(model: Any, probabilities: torch.Tensor) -> dict[str, float]:
    """Return probabilities (classes) by the names of the classes."""
    return {model.config.id2label[label]: value for label, value in enumerate(probabilities.tolist())}


def open_answers(arguments: GenerateArguments, uploads: Path = Path()) -> Answers | ImageAnswers:
    """Return the answers of a model of texts or of images; raises as their classes do."""
    config = open_config(saved_folder(arguments.model_name_or_path, arguments.revision))
    architecture = next(iter(config.architectures or []), "none")
    if architecture.endswith(IMAGES.architectures):
        return ImageAnswers(arguments, uploads)
    return Answers(arguments)


def card_examples(folder: Path) -> Iterable[str]:
    """Yield the text of the command in a model's card, `generate --model ... --text ...`."""
    card = folder / CARD
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    for command in re.findall(r"`([^`\n]*generate --model [^`\n]*)`", text):
        with suppress(ValueError):  # of quotes without an end
            words = shlex.split(command)
            yield from words[words.index("--text") + 1 :][:1] if "--text" in words else ()


def opening(text: str) -> str:
    """Return the first words of a text."""
    return " ".join(text.split()[:OPENING])


def held_out(folder: Path) -> Iterable[str]:
    """Yield the inputs of the first held-out rows that a run has written."""
    for name in EXAMPLE_FILES:
        if (folder / name).is_file():
            with (folder / name).open(encoding="utf-8") as stream:
                rows = [json.loads(line) for line in islice(stream, EXAMPLES)]
            yield from (row[column] for row in rows for column in EXAMPLE_COLUMNS if column in row)
            return
