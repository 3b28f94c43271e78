"""The page: an input, the answer, and one figure at a time of what happens inside."""

import json
import tempfile
import traceback
from collections.abc import Callable, Mapping
from html import escape
from inspect import Parameter, Signature, signature
from pathlib import Path
from textwrap import shorten
from typing import Any

from vanillaformer.console.drawing import embedded, save_figure

from ..examples import Example
from ..figures import FIGURES, Figure
from ..pictures import Drawing, NotApplicable
from .answers import LARGEST_TEXT, OPTIONS, Answers, ImageAnswers, sentence

GRADIO_NEEDED = "the page needs gradio: pip install 'vanillaformer[explore]'"
WAITING = 16
"""Requests that may wait for their turn."""
ONE_AT_A_TIME = {"concurrency_id": "model", "concurrency_limit": 1}
EXAMPLE = 60  # characters of an example on its button
CLASSES = 5
"""Classes that are shown, the likeliest."""
BUTTONS = {"translation": "Translate", "text-generation": "Continue", "fill-mask": "Fill in"}
"""By the pipeline of the task; the others classify."""
FAILED = "The model failed at this input. The output of the server says why."
HOUR = 3600  # seconds
PIXELS = 96  # of an inch, which makes all letters of one size
STYLE = """
.gradio-container { max-width: 60rem !important; margin: 0 auto; }
.classes :not(dd) { min-width: 0; overflow-wrap: anywhere; }
.figures figure { margin: 0 0 1.5rem; overflow-x: auto; }
.figures img { max-width: 100%; height: auto; background: white; }
.figures p { margin-bottom: 1rem; }
.examples button { flex: 0 1 auto; min-width: 0; white-space: normal; }
.message:not(:has(p)) { display: none; }
[role=alert] { padding: 0.6rem 0.8rem; border-left: 4px solid #d55e00; background: #d55e0018; }
"""


def library() -> Any:
    """Return the module `gradio`.

    Raises:
        ImportError: It is not installed.
    """
    try:
        import gradio
    except ImportError as error:
        raise ImportError(GRADIO_NEEDED) from error
    return gradio


def build_page(answers: Answers | ImageAnswers) -> Any:
    """Return the page of a model, a `gradio.Blocks`."""
    gradio, images = library(), isinstance(answers, ImageAnswers)
    with gradio.Blocks(title=answers.name, analytics_enabled=False, delete_cache=(HOUR, HOUR)) as page:
        gradio.Markdown(f"# {answers.name}\n\n{answers.introduction()}")
        question = image_field(gradio) if isinstance(answers, ImageAnswers) else text_field(gradio, answers)
        options = option_fields(gradio, answers)
        button = gradio.Button(BUTTONS.get(answers.task.pipeline_tag, "Classify"), variant="primary")
        message = gradio.HTML(elem_classes="message")
        answer = answer_field(gradio, answers)
        asked = gradio.State()
        sent = question.upload if images else question.submit
        asking = gradio.on(
            [button.click, sent, *(each.submit for each in options.values())],
            asker(answers, list(options)),
            [question, *options.values()],
            [answer, message, asked],
            api_name="answer",
            preprocess=not images,  # which would open a file that is no picture
            **ONE_AT_A_TIME,
        )
        add_figures(gradio, answers, asking, asked)
    page.queue(max_size=WAITING, api_open=False)
    return page


def asker(answers: Answers | ImageAnswers, options: list[str]) -> Callable[..., Any]:
    """Return the function that answers, or gives a sentence in place of an answer; and what was asked and answered."""

    def ask(question: Any, *values: str) -> tuple[Any, str, Any]:
        try:
            result = answers.answer(question, dict(zip(options, values)))
        except Exception as error:
            return None, alert(error), None
        notes = "".join(f"<p>{escape(sentence(note))}</p>" for note in answers.notes)
        return result, notes, (question, result, dict(zip(options, values)))

    # Clients of the API name the options
    first, _ = signature(ask).parameters.values()
    named = (Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=None) for name in options)
    ask.__signature__ = Signature([first, *named])  # type: ignore[attr-defined]
    return ask


def add_figures(gradio: Any, answers: Answers | ImageAnswers, asking: Any, asked: Any) -> None:
    """Add the choice of a figure, which is drawn after an answer and when another is chosen."""
    try:
        figures = applicable(answers.sample())
    except ValueError as error:
        gradio.Markdown(f"There are no figures: {sentence(str(error))}")
        return
    figure = gradio.Radio(
        [(each.title, each.name) for each in figures], value=figures[0].name, label="Inside the model"
    )
    pictures = gradio.HTML(elem_classes="figures")

    def look(name: str, question: Any) -> str:
        try:
            return shown(answers, name, *question) if question else ""
        except Exception as error:
            return alert(error)

    asking.then(look, [figure, asked], pictures, api_name="figure", **ONE_AT_A_TIME)
    figure.change(look, [figure, asked], pictures, api_visibility="private", **ONE_AT_A_TIME)


def applicable(example: Example) -> list[Figure]:
    """Return the figures that a model has.

    Raises:
        NotApplicable: It has none.
    """
    found, reason = [], NotApplicable("the model has none")
    for figure in FIGURES:
        try:
            figure.function(example)
            found.append(figure)
        except NotApplicable as error:
            reason = error
    if not found:
        raise reason
    return found


def answer_field(gradio: Any, answers: Answers | ImageAnswers) -> Any:
    """Add the field of the answer."""
    if answers.classifies:
        return gradio.Label(label="Answer", num_top_classes=CLASSES, elem_classes="classes")
    looks: dict[str, Any] = {"lines": 2, "max_lines": 20, "buttons": ["copy"], "elem_classes": "answer"}
    return gradio.Textbox(label="Answer", interactive=False, **looks)


def text_field(gradio: Any, answers: Answers) -> Any:
    """Add the field of the text, with examples."""
    field = gradio.Textbox(
        label="Text",
        lines=1 if answers.task.whole_texts else 3,
        max_lines=12,
        max_length=LARGEST_TEXT,
        autofocus=True,
        info=answers.hint(),
    )
    if examples := answers.examples():
        with gradio.Row(elem_classes="examples"):
            for text in examples:
                button = gradio.Button(f"Example: {shorten(text, EXAMPLE, placeholder=' ...')}", size="sm")
                # In the browser: Gradio's own examples need an endpoint that passes by the queue
                button.click(None, None, field, js=f"() => {json.dumps(text)}", api_visibility="private")
    return field


def image_field(gradio: Any) -> Any:
    """Add the field of the picture."""
    return gradio.Image(label="Picture", type="filepath", sources=["upload", "clipboard"], height=280, buttons=[])


def option_fields(gradio: Any, answers: Answers | ImageAnswers) -> dict[str, Any]:
    """Add the fields of the options, by their names."""
    defaults = {name: getattr(answers.arguments, name) for name in answers.options()}
    if not defaults:
        return {}
    with gradio.Accordion("Options", open=False, elem_classes="options"), gradio.Row():
        return {
            name: gradio.Textbox(  # Gradio shows an empty number as 0
                label=option.label,
                info=option.info,
                placeholder="model default" if defaults[name] is None else str(defaults[name]),
                max_lines=1,
                min_width=200,
            )
            for name, option in OPTIONS.items()
            if name in defaults
        }


def shown(answers: Answers | ImageAnswers, name: str, question: Any, answer: Any, options: Mapping[str, Any]) -> str:
    """Return a figure of an answer as HTML, with what it shows; of one that does not apply the reason."""
    figure = next(each for each in FIGURES if each.name == name)
    example = answers.recorded(question, answer, options)
    try:
        drawings = figure.function(example)
    except NotApplicable as reason:
        return f"<p>{escape(sentence(str(reason)))}</p>"
    texts = [*example.notes, figure.explanation]
    return "".join([*(f"<p>{escape(text)}</p>" for text in texts), *(framed(figure.title, each) for each in drawings)])


def framed(title: str, drawing: Drawing) -> str:
    """Return a picture with its caption as HTML, which needs no file."""
    with tempfile.TemporaryDirectory() as folder:
        address = embedded(save_figure(drawing.figure, Path(folder) / "figure.png"))
    caption, words = escape(drawing.remark), escape(f"{title}: {drawing.caption}")
    width = round(drawing.figure.get_figwidth() * PIXELS)
    picture = f'<img src="{address}" alt="{words}" width="{width}">'
    return f"<figure>{picture}<figcaption>{caption}</figcaption></figure>"


def alert(error: Exception) -> str:
    """Return an error as a sentence of the page; one that no input should cause is written out on the server."""
    if not isinstance(error, ValueError):
        traceback.print_exception(error)
    return f"<p role='alert'>{escape(sentence(str(error)) if isinstance(error, ValueError) else FAILED)}</p>"
