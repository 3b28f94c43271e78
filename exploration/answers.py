"""The models behind the browser page, which answer as `vanillaformer generate` does, and checks of their inputs."""

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from vanillaformer.configuration.options import DECODING_CHOICES
from vanillaformer.console.limits import check_limits
from vanillaformer.data.images import pillow, read_image
from vanillaformer.data.tasks import MASK, TASKS
from vanillaformer.hub.file_names import CARD
from vanillaformer.hub.loading import open_config, saved_folder
from vanillaformer.inference import tasks
from vanillaformer.inference.arguments import LIMITS, GenerateArguments
from vanillaformer.inference.generation import call_options
from vanillaformer.inference.images import TASK as IMAGES
from vanillaformer.inference.images import image_probabilities, load_classifier
from vanillaformer.inference.text_files import check_text

from .examples import Example, image_example, text_example

AUTOREGRESSIVE = "autoregressive"
MAX_CHARACTERS = 5_000
MAX_SUGGESTIONS = 2


class Option(NamedTuple):
    """An argument of `vanillaformer generate` that is a field of the page, for some decodings."""

    label: str
    info: str
    largest: float
    is_whole: bool = True
    decodings: tuple[str, ...] = (AUTOREGRESSIVE,)


OPTIONS = {
    "num_beams": Option("Beams", "1 is greedy search", 16, decodings=(AUTOREGRESSIVE, "mask_predict")),
    "max_new_tokens": Option("Maximum length", "In tokens", 512, decodings=tuple(DECODING_CHOICES)),
    "temperature": Option("Temperature", "Sampling: above 1 more varied, below 1 less", 10, is_whole=False),
    "top_p": Option("Top-p", "Sampling from the likeliest tokens with this total probability", 1, is_whole=False),
    "seed": Option("Seed", "Random seed of sampling", 2**32 - 1),
    "refinement_steps": Option("Refinement steps", "Passes over the output", 64, decodings=("mask_predict",)),
    "length_scale": Option("Length scale", "Factor on the predicted length", 4, False, ("mask_predict",)),
}


class TextModel:
    """A text model, which answers and raises ValueError as `vanillaformer generate` does."""

    def __init__(self, arguments: GenerateArguments):
        self.arguments = arguments
        self.loaded, self.function, self.generates = tasks.load(arguments)
        self.model, self.notes = self.loaded.model, list[str]()
        self.loaded.report = self.notes.append
        self.task = next(TASKS[name] for name, function in tasks.FUNCTIONS.items() if function is self.function)
        problem = getattr(self.model.config, "problem_type", None)
        self.classifies = self.function is tasks.classify and problem not in tasks.UNREJECTED
        self.mask = str(self.loaded.tokenizer.mask_token) if self.function is tasks.fill_masks else ""
        self.decoding = getattr(self.model.config, "decoding", AUTOREGRESSIVE)
        self.options = [name for name, field in OPTIONS.items() if self.generates and self.decoding in field.decodings]

    def answer(self, text: str | None, options: Mapping[str, Any]) -> Any:
        """Return the output for a text; for a classifier, the probability of each class."""
        arguments = replace(self.arguments, **numbers(options))
        check_limits(arguments, LIMITS)
        tasks.check_options(arguments, self.model.config, self.loaded.architecture, self.function, self.generates)
        text = checked(text)
        self.notes.clear()
        if self.classifies:
            with torch.inference_mode():
                return by_class(self.model, tasks.class_probabilities(self.loaded, [text])[0])
        torch.manual_seed(arguments.seed)
        return next(tasks.run(self.loaded, self.function, [text], 1, **call_options(arguments)))

    def example(self, text: str, answer: Any, options: Mapping[str, Any]) -> Example:
        """Return an example of the text, truncated as in `answer`, with the answer if the model reads it by token."""
        reads = self.function is tasks.translate and self.decoding == AUTOREGRESSIVE
        return text_example(self.loaded, text, answer if reads and answer.strip() else None, self.cut(options))

    def cut(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return how `generate` truncates a long text."""
        room = numbers(options).get("max_new_tokens", self.arguments.max_new_tokens) or 1
        return {"side": "left", "room": room} if self.function is tasks.continue_prompts else {}

    def sample(self) -> Example:
        return text_example(self.loaded, self.task.example.replace(MASK, self.mask))

    def suggestions(self) -> list[str]:
        """Return texts to start with, which the model can read without truncation."""
        folder = saved_folder(self.arguments.model_name_or_path, self.arguments.revision, exported=True)
        found = []
        for text in dict.fromkeys(card_texts(folder)):
            self.notes.clear()
            with suppress(ValueError):
                self.loaded.encode([checked(text)], **self.cut({}))
                found += [text] if not self.notes and text != self.task.example and self.mask in text else []
        return found[:MAX_SUGGESTIONS]


class ImageModel:
    """An image classifier; raises ValueError if the folder has none."""

    task, classifies, options = IMAGES, True, ()

    def __init__(self, arguments: GenerateArguments, uploads: Path):
        self.arguments, self.uploads, self.notes = arguments, uploads.resolve(), list[str]()
        self.model, self.processor = load_classifier(arguments)

    def answer(self, file: Any, options: Mapping[str, Any]) -> dict[str, float]:
        """Return the probability of each class; raises ValueError unless it is an uploaded picture."""
        path = self.path_of(file)
        try:
            image = read_image(path)
        except ValueError as error:
            raise ValueError(f"This picture cannot be read: {error}") from error
        with torch.inference_mode():
            return by_class(self.model, image_probabilities(self.model, self.processor, [image])[0])

    def example(self, file: Any, answer: Any, options: Mapping[str, Any]) -> Example:
        return image_example(self.model, self.processor, self.path_of(file))

    def sample(self) -> Example:
        """Return an example of a black picture."""
        path = self.uploads / "sample.png"
        pillow().new("RGB", (8, 8)).save(path)
        return image_example(self.model, self.processor, path)

    def path_of(self, file: Any) -> Path:
        """Return the path of a picture as Gradio sends it; raises ValueError unless it was uploaded."""
        if file is None:
            raise ValueError("Drop a picture first")
        path = Path(str(file.get("path") if isinstance(file, dict) else file)).resolve()
        if not path.is_relative_to(self.uploads):
            raise ValueError("This picture was not uploaded here")
        return path


def open_model(arguments: GenerateArguments, uploads: Path) -> TextModel | ImageModel:
    config = open_config(saved_folder(arguments.model_name_or_path, arguments.revision))
    reads_images = next(iter(config.architectures or []), "none").endswith(IMAGES.architectures)
    return ImageModel(arguments, uploads) if reads_images else TextModel(arguments)


def by_class(model: Any, probabilities: torch.Tensor) -> dict[str, float]:
    """Return probabilities (classes) by class name."""
    return {model.config.id2label[label]: value for label, value in enumerate(probabilities.tolist())}


def checked(text: str | None) -> str:
    """Return a text that can be sent to the model, which may truncate it, or raise ValueError."""
    if not text or not text.strip():
        raise ValueError("Type a text first")
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"The text has {len(text):,} characters, but at most {MAX_CHARACTERS:,} are allowed")
    check_text("The text", [text])
    return text


def numbers(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are filled in, as numbers; one above the page's limit is a ValueError."""
    found: dict[str, Any] = {}
    for name, word in ((name, str(value).strip()) for name, value in options.items() if value is not None):
        if not word:
            continue
        try:
            value = float(word)
        except ValueError:
            raise ValueError(f"--{name} {word!r}: it must be a number") from None
        if value > OPTIONS[name].largest:
            raise ValueError(f"--{name} {word}: it must be at most {OPTIONS[name].largest:,}")
        if OPTIONS[name].is_whole and not value.is_integer():
            raise ValueError(f"--{name} {word}: it must be a whole number")
        found[name] = int(value) if OPTIONS[name].is_whole else value
    return found


def card_texts(folder: Path) -> Iterator[str]:
    """Yield the texts of the commands in a model's card, `generate --model ... --text ...`."""
    card = folder / CARD
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    for command in re.findall(r"`([^`\n]*generate --model [^`\n]*)`", text):
        with suppress(ValueError):  # unclosed quotes, or no --text
            words = shlex.split(command)
            yield from words[words.index("--text") + 1 :][:1]


def sentence(words: str) -> str:
    """Return a message as a sentence for the page, with labels of fields in place of command-line options."""
    message = " ".join(words.split())
    for name, option in OPTIONS.items():
        message = message.replace(f"--{name}", option.label)
    return message[:1].upper() + message[1:] + ("" if message.endswith((".", "?", "!")) else ".")
