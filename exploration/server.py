"""The browser page, a `gradio.Blocks` that queries one model and shows what happens inside it, and its server.

The server is for this machine, and only has the paths of Gradio that the page needs.
"""

import json
import os
import socket
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from html import escape
from inspect import Parameter, Signature, signature
from pathlib import Path
from textwrap import shorten
from typing import Any

from vanillaformer.console.reporting import report, warn
from vanillaformer.inference.arguments import GenerateArguments

from .answers import MAX_CHARACTERS, OPTIONS, ImageModel, TextModel, open_model, sentence
from .examples import Example
from .figures import FIGURES, draw_all, model_name, written

HOST, PORT = "127.0.0.1", 7860
LOCAL = ("127.0.0.1", "localhost", "::1", "[::1]")
API = "/gradio_api"
# Paths of Gradio that the page and its clients need. Others fetch addresses of the network, read files or run code.
PATHS = (
    *("/", "/config", "/config/", "/theme.css", "/favicon.ico", "/manifest.json", "/robots.txt"),
    *("/assets/*", "/static/*", "/svelte/*"),
    *(f"{API}/{name}" for name in ("info", "info/", "startup-events", "app_id", "heartbeat/*", "theme.css")),
    *(f"{API}/{name}" for name in ("queue/join", "queue/data", "cancel", "reset")),
)
UPLOADS = (f"{API}/upload", f"{API}/upload_progress")
MAX_BYTES = 2**18  # size of a request, except for uploads
MAX_UPLOAD = "20mb"
POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; object-src 'none'"
"""The browser loads nothing from other hosts either."""
MAX_WAITING = 16  # requests in the queue
WITHOUT = ("run_history", "show_error", "enable_monitoring", "ssr_mode", "mcp_server", "pwa")  # features that are off
ONE_AT_A_TIME = {"concurrency_id": "model", "concurrency_limit": 1}
BUTTONS = {"translation": "Translate", "text-generation": "Continue", "fill-mask": "Fill in"}
FAILED = "The model failed on this input. The output of the server says why."
HOUR = 3600  # seconds
STYLE = """
.classes :not(dd) { min-width: 0; overflow-wrap: anywhere; }
.figures figure { margin: 0 0 1.5rem; overflow-x: auto; }
.figures img { max-width: 100%; height: auto; background: white; }
.examples button { flex: 0 1 auto; min-width: 0; white-space: normal; }
"""


# ------------------------------------------------------------------------------------------------------- the page
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
                    label, info, *_ = OPTIONS[option]  # a Textbox, as Gradio shows an empty number as 0
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

        first, _ = signature(ask).parameters.values()  # API clients pass options by name
        named = [Parameter(each, Parameter.POSITIONAL_OR_KEYWORD, default=None) for each in model.options]
        ask.__signature__ = Signature([first, *named])  # type: ignore[attr-defined]
        images = isinstance(model, ImageModel)
        events = [button.click, question.upload if images else question.submit, *(field.submit for field in fields)]
        # `preprocess` would open a file that is not a picture
        how = {"api_name": "answer", "preprocess": not images, **ONE_AT_A_TIME}
        asking = gradio.on(events, ask, [question, *fields], [answer, message, asked], **how)
        add_figures(gradio, model, asking, asked)
    page.queue(max_size=MAX_WAITING, api_open=False)
    return page


def text_field(gradio: Any, model: TextModel) -> Any:
    """Add the field of the text, with buttons of examples."""
    mask = f"{model.mask} stands for a token to fill in. " if model.mask else ""
    lines, keys = (1, "Enter") if model.task.whole_texts else (3, "Shift+Enter")
    info = f"{mask}Press {keys} to send."
    field = gradio.Textbox(label="Text", lines=lines, max_lines=12, max_length=MAX_CHARACTERS, info=info)
    with gradio.Row(elem_classes="examples"):
        for text in model.suggestions():
            button = gradio.Button(f"Example: {shorten(text, 60, placeholder=' ...')}", size="sm")
            # In the browser: Gradio's examples need an endpoint that bypasses the queue
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
    """Return a figure with its explanation as HTML that needs no file."""
    figure = next(each for each in FIGURES if each.name == name)
    with tempfile.TemporaryDirectory() as folder:
        pictures = [written(drawing, Path(folder)) for drawing in figure.function(example)]
    return "".join(f"<p>{escape(text)}</p>" for text in (*example.notes, figure.explanation)) + "".join(
        f'<figure><img src="{each.data}" alt="{escape(f"{figure.title}: {each.caption}")}" width="{each.width}">'
        f"<figcaption>{escape(each.remark)}</figcaption></figure>"
        for each in pictures
    )


def alert(error: Exception) -> str:
    """Return an error as a sentence for the page; one that no input should cause is printed by the server."""
    if not isinstance(error, ValueError):
        traceback.print_exception(error)
    return f"<p role='alert'>{escape(sentence(str(error)) if isinstance(error, ValueError) else FAILED)}</p>"


# ----------------------------------------------------------------------------------------------------- the server
def gate(folder: str | None) -> Callable[..., Any]:
    """Return middleware that only passes the requests that a page needs, with uploads if it has a folder for them."""
    from fastapi.responses import JSONResponse

    def allowed(path: str) -> bool:
        file = path.removeprefix(f"{API}/file=")
        if folder and file != path and os.path.realpath(file).startswith(os.path.realpath(folder) + os.sep):
            return True
        return any(fnmatchcase(path, pattern) for pattern in (*PATHS, *(UPLOADS if folder else ())))

    async def check(request: Any, call_next: Any) -> Any:
        path = request.url.path
        if not allowed(path):
            return JSONResponse({"error": "not found"}, 404)
        if request.method == "POST" and path not in UPLOADS:
            if int(request.headers.get("content-length", MAX_BYTES + 1)) > MAX_BYTES:
                return JSONResponse({"error": f"the request must declare at most {MAX_BYTES:,} bytes"}, 413)
            if names_address(await request.body()):
                return JSONResponse({"error": "files are uploaded, not fetched from an address"}, 400)
        response = await call_next(request)
        response.headers["content-security-policy"] = POLICY
        return response

    return check


def names_address(body: bytes) -> bool:
    """Return whether a request has a file that Gradio would fetch from the network."""
    try:
        waiting = [json.loads(body or b"null")]
    except (ValueError, RecursionError):
        return False  # Gradio refuses it
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict) and str(value.get("path")).lower().startswith(("http:", "https:")):
            return True
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return False


@contextmanager
def private_gradio() -> Iterator[str]:
    """Turn off Gradio's telemetry and keep uploads in a folder of this server, which is yielded."""
    with tempfile.TemporaryDirectory(prefix="vanillaformer_") as folder:
        os.environ |= {"GRADIO_TEMP_DIR": folder, "GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_EXAMPLES_CACHE": folder}
        yield folder


def build_app(arguments: GenerateArguments, folder: str, host: str) -> Any:
    """Return the ASGI app of a model's page, with a folder of uploads, for a server that listens on an address.

    On a local address, other host names are refused, so that no web page reaches the server by pointing its own name
    to this machine (DNS rebinding).
    """
    try:
        import gradio
    except ImportError as error:
        raise ImportError("the page needs gradio: pip install 'vanillaformer[explore]'") from error
    from fastapi import FastAPI
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    model = open_model(arguments, Path(folder))
    theme = gradio.themes.Default(primary_hue="blue", font=("system-ui", "sans-serif"), font_mono="monospace")
    theme.set(  # readable contrast; no font is fetched
        button_primary_background_fill="*primary_700",
        block_info_text_color="*neutral_600",
        input_placeholder_color="*neutral_500",
    )
    looks: dict[str, Any] = {"theme": theme, "css": STYLE, "footer_links": []}
    limits: dict[str, Any] = {"allowed_paths": [], "max_file_size": MAX_UPLOAD} | dict.fromkeys(WITHOUT, False)
    app = gradio.mount_gradio_app(FastAPI(openapi_url=None), build_page(model), path="", **looks, **limits)
    app.middleware("http")(gate(folder if isinstance(model, ImageModel) else None))
    if host in LOCAL:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(LOCAL), www_redirect=False)
    return app


def server_of(app: Any) -> Any:
    """Return the server of a page, a `uvicorn.Server` that shuts down even while browsers are connected."""
    import uvicorn

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            for route in app.routes:
                if page := getattr(route, "app", None):
                    page.stop_event.set()  # ends the stream that Gradio keeps open to every browser
            await super().shutdown(sockets)

    return Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; raises ValueError for an address of another machine, or one that is taken."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"--host {host} --port {port} cannot be used: {str(reason).lower()}") from error


def serve(arguments: GenerateArguments, host: str = HOST, port: int = PORT) -> None:
    """Serve the page of a model until it is interrupted."""
    with private_gradio() as folder, listen(host, port) as listener:
        app = build_app(arguments, folder, host)
        if host not in LOCAL:
            warn(f"Warning: everyone who can reach {host} can use the page: it asks for no password")
        address = f"[{host}]" if ":" in host else host
        report(f"{arguments.model_name_or_path} is at http://{address}:{listener.getsockname()[1]} (Ctrl-C ends it)")
        with suppress(KeyboardInterrupt):
            server_of(app).run(sockets=[listener])
