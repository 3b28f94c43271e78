"""A page in the browser: a `gradio.Blocks` that asks one model and shows what happens inside it."""

import json
import tempfile
import traceback
from html import escape
from inspect import Parameter, Signature, signature
from pathlib import Path
from textwrap import shorten
from typing import Any

from .answers import MAX_CHARACTERS, OPTIONS, ImageModel, TextModel, sentence
from .examples import Example
from .figures import FIGURES, draw_all
from .page import model_name, written

MAX_WAITING = 16  # requests
ONE_AT_A_TIME = {"concurrency_id": "model", "concurrency_limit": 1}
BUTTONS = {"translation": "Translate", "text-generation": "Continue", "fill-mask": "Fill in"}
FAILED = "The model failed at this input. The output of the server says why."
HOUR = 3600  # seconds
STYLE = """
.classes :not(dd) { min-width: 0; overflow-wrap: anywhere; }
.figures figure { margin: 0 0 1.5rem; overflow-x: auto; }
.figures img { max-width: 100%; height: auto; background: white; }
.examples button { flex: 0 1 auto; min-width: 0; white-space: normal; }
"""


def build_page(model: TextModel | ImageModel) -> Any:
    """Return the page of a model, a `gradio.Blocks`."""
    import gradio

    name, labels = model_name(model.arguments.model_name_or_path), model.model.config.id2label.values()
    does = model.task.does.format(count=len(labels), names=shorten(", ".join(map(str, labels)), 200))
    about = f"`{type(model.model).__name__}`, {sum(each.numel() for each in model.model.parameters()):,} parameters"
    with gradio.Blocks(title=name, analytics_enabled=False, delete_cache=(HOUR, HOUR)) as page:
        gradio.Markdown(f"# {name}\n\nThis model {does}. {model.task.limits}\n\n{about}.")
        if isinstance(model, ImageModel):
            question: Any = gradio.Image(label="Picture", type="filepath", sources=["upload", "clipboard"], buttons=[])
        else:
            question = text_field(gradio, model)
        fields = []
        if model.options:
            with gradio.Accordion("Options", open=False, elem_classes="options"), gradio.Row():
                for option in model.options:
                    default = getattr(model.arguments, option)
                    hint = "model default" if default is None else str(default)
                    label, info, *_ = OPTIONS[option]  # in a Textbox: Gradio shows an empty number as 0
                    fields.append(gradio.Textbox(label=label, info=info, placeholder=hint, max_lines=1, min_width=200))
        button = gradio.Button(BUTTONS.get(model.task.pipeline_tag, "Classify"), variant="primary")
        message = gradio.HTML(elem_classes="message")
        if model.classifies:
            answer: Any = gradio.Label(label="Answer", num_top_classes=5, elem_classes="classes")
        else:
            answer = gradio.Textbox(label="Answer", interactive=False, buttons=["copy"], elem_classes="answer")
        asked = gradio.State()

        def ask(question: Any, *values: Any) -> tuple[Any, str, Any]:
            options = dict(zip(model.options, values))
            try:
                result = model.answer(question, options)
            except Exception as error:
                return None, alert(error), None
            notes = "".join(f"<p>{escape(sentence(note))}</p>" for note in model.notes)
            return result, notes, (question, result, options)

        first, _ = signature(ask).parameters.values()  # clients of the API name the options
        named = [Parameter(each, Parameter.POSITIONAL_OR_KEYWORD, default=None) for each in model.options]
        ask.__signature__ = Signature([first, *named])  # type: ignore[attr-defined]
        images = isinstance(model, ImageModel)
        asking = gradio.on(
            [button.click, question.upload if images else question.submit, *(field.submit for field in fields)],
            ask,
            [question, *fields],
            [answer, message, asked],
            api_name="answer",
            preprocess=not images,  # which would open a file that is not a picture
            **ONE_AT_A_TIME,
        )
        add_figures(gradio, model, asking, asked)
    page.queue(max_size=MAX_WAITING, api_open=False)
    return page


def text_field(gradio: Any, model: TextModel) -> Any:
    """Add the field of the text, with buttons of examples."""
    mask = f"{model.mask} stands for a token to fill in. " if model.mask else ""
    field = gradio.Textbox(
        label="Text",
        lines=1 if model.task.whole_texts else 3,
        max_lines=12,
        max_length=MAX_CHARACTERS,
        info=f"{mask}Press {'Enter' if model.task.whole_texts else 'Shift+Enter'} to send.",
    )
    with gradio.Row(elem_classes="examples"):
        for text in model.suggestions():
            button = gradio.Button(f"Example: {shorten(text, 60, placeholder=' ...')}", size="sm")
            # In the browser: Gradio's own examples need an endpoint that passes by the queue
            button.click(None, None, field, js=f"() => {json.dumps(text)}", api_visibility="private")
    return field


def add_figures(gradio: Any, model: TextModel | ImageModel, asking: Any, asked: Any) -> None:
    """Add the choice of a figure, which is drawn after an answer and when another is chosen."""
    try:
        drawn, missing = draw_all(model.sample())
        if not drawn:
            raise ValueError(list(missing.values())[-1])
    except ValueError as error:
        gradio.Markdown(f"There are no figures: {sentence(str(error))}")
        return
    titles = [(figure.title, figure.name) for figure, _ in drawn]
    choice = gradio.Radio(titles, value=titles[0][1], label="Inside the model")
    pictures = gradio.HTML(elem_classes="figures")
    latest: dict[str, Example] = {}  # recorded once for all figures

    def look(name: str, question: Any) -> str:
        if not question:
            return ""
        try:
            if repr(question) not in latest:
                example = model.example(*question)
                latest.clear()
                latest[repr(question)] = example
            return figure_html(name, latest[repr(question)])
        except Exception as error:
            return alert(error)

    asking.then(look, [choice, asked], pictures, api_name="figure", **ONE_AT_A_TIME)
    choice.change(look, [choice, asked], pictures, api_visibility="private", **ONE_AT_A_TIME)


def figure_html(name: str, example: Example) -> str:
    """Return a figure as HTML that needs no file, with what it shows."""
    figure = next(each for each in FIGURES if each.name == name)
    with tempfile.TemporaryDirectory() as folder:
        pictures = [written(drawing, Path(folder)) for drawing in figure.function(example)]
    return "".join(f"<p>{escape(text)}</p>" for text in (*example.notes, figure.explanation)) + "".join(
        f'<figure><img src="{each.data}" alt="{escape(f"{figure.title}: {each.caption}")}" width="{each.width}">'
        f"<figcaption>{escape(each.remark)}</figcaption></figure>"
        for each in pictures
    )


def alert(error: Exception) -> str:
    """Return an error as a sentence of the page; one that no input should cause is written out on the server."""
    if not isinstance(error, ValueError):
        traceback.print_exception(error)
    return f"<p role='alert'>{escape(sentence(str(error)) if isinstance(error, ValueError) else FAILED)}</p>"
