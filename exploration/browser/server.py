"""The server of the page: one model, on this machine, and nothing of Gradio that the page does not need."""

import json
import os
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from vanillaformer.console.reporting import report, warn
from vanillaformer.inference.arguments import GenerateArguments

from .answers import ImageAnswers, open_answers
from .page import STYLE, build_page, library

HOST, PORT = "127.0.0.1", 7860
LOCAL = ("127.0.0.1", "localhost", "::1", "[::1]")
API = "/gradio_api"
# Paths of Gradio that the page and its clients need. Others fetch addresses of the network, read files or run code.
PATHS = (
    *("/", "/config", "/config/", "/theme.css", "/favicon.ico", "/manifest.json", "/robots.txt"),
    *("/assets/*", "/static/*", "/svelte/*"),
    *(f"{API}/{name}" for name in ("info", "info/", "startup-events", "app_id", "heartbeat/*", "theme.css")),
    *(f"{API}/queue/{name}" for name in ("join", "data")),
    *(f"{API}/{name}" for name in ("cancel", "reset")),
)
UPLOAD_PATHS = (f"{API}/upload", f"{API}/upload_progress")
LARGEST_BODY = 2**18  # bytes of a request, but for uploads
LARGEST_UPLOAD = "20mb"
POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; object-src 'none'"
"""The browser loads nothing from other places either."""
SECONDS_TO_END = 1


class Gate:
    """Lets requests through to the page that it needs, and answers 404, 413 or 400 to others (an ASGI middleware).

    Args:
        app: The app behind it.
        folder: Where files are uploaded to; `None` of pages without uploads.
    """

    def __init__(self, app: Any, folder: str | None):
        self.app = app
        self.folder = folder

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http" or not self.has(scope["path"]):
            return await refuse(send, 404, "not found")
        if scope["method"] == "POST" and scope["path"] not in UPLOAD_PATHS:
            body = await content(receive)
            if body is None:
                return await refuse(send, 413, f"the request has more than {LARGEST_BODY:,} bytes")
            if names_address(body):
                return await refuse(send, 400, "files are uploaded, not fetched from an address")
            receive = given(body, receive)

        async def with_policy(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"content-security-policy", POLICY.encode())]
            await send(message)

        await self.app(scope, receive, with_policy)

    def has(self, path: str) -> bool:
        """Tell whether a path is one of the page's."""
        if self.folder is None:
            return any(fnmatchcase(path, allowed) for allowed in PATHS)
        file = path.removeprefix(f"{API}/file=")
        inside = file != path and os.path.realpath(file).startswith(os.path.realpath(self.folder) + os.sep)
        return inside or any(fnmatchcase(path, allowed) for allowed in (*PATHS, *UPLOAD_PATHS))


async def content(receive: Any) -> bytes | None:
    """Return the body of a request, `None` of one that is too large."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > LARGEST_BODY:
            return None
        if not message.get("more_body"):
            return bytes(body)


def given(body: bytes, receive: Any) -> Callable[[], Awaitable[Any]]:
    """Return a channel with a body that was read already, and after it what comes."""
    messages: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Any:
        return messages.pop() if messages else await receive()

    return next_message


def names_address(body: bytes) -> bool:
    """Tell whether a request has a file that Gradio would fetch from the network."""
    try:
        waiting = [json.loads(body or b"null")]
    except (ValueError, RecursionError):
        return False  # which Gradio refuses
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict) and str(value.get("path")).lower().startswith(("http:", "https:")):
            return True
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return False


async def refuse(send: Any, status: int, message: str) -> None:
    """Answer a request with an error."""
    body = json.dumps({"error": message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def private_gradio() -> Iterator[str]:
    """Have Gradio report nothing to its makers and keep uploads in a folder of this server, which is given."""
    with tempfile.TemporaryDirectory(prefix="vanillaformer_") as folder:
        os.environ |= {"GRADIO_TEMP_DIR": folder, "GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_EXAMPLES_CACHE": folder}
        yield folder


def build_app(arguments: GenerateArguments, folder: str, host: str) -> Any:
    """Return the ASGI app of a model's page.

    Args:
        arguments: The model.
        folder: Where files are uploaded to.
        host: The address that the server listens on. On one of this machine's, other names are refused, so that no
            web page reaches the server by a name that it has made an address of this machine.
    """
    gradio = library()
    from fastapi import FastAPI
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    answers = open_answers(arguments, Path(folder))
    theme = gradio.themes.Default(  # in fonts of the system: none is fetched
        primary_hue="blue", font=("system-ui", "sans-serif"), font_mono=("ui-monospace", "monospace")
    )
    theme.set(
        button_primary_background_fill="*primary_700",
        block_info_text_color="*neutral_600",
        input_placeholder_color="*neutral_500",
    )
    app = gradio.mount_gradio_app(
        FastAPI(openapi_url=None),
        build_page(answers),
        path="",
        theme=theme,
        css=STYLE,
        footer_links=[],
        run_history=False,
        allowed_paths=[],
        max_file_size=LARGEST_UPLOAD,
        show_error=False,
        enable_monitoring=False,
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
    )
    if host in LOCAL:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(LOCAL), www_redirect=False)
    app.add_middleware(Gate, folder=folder if isinstance(answers, ImageAnswers) else None)
    return app


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        ValueError: The address is not one of this machine, or something listens there already.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        if os.name != "nt":  # where it would take the port away from another program
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"--host {host} --port {port} cannot be used: {str(reason).lower()}") from error
    return listener


def server_of(app: Any) -> Any:
    """Return the server of a page, a `uvicorn.Server` that ends although browsers stay connected."""
    import uvicorn

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            for route in app.routes:
                if page := getattr(route, "app", None):
                    page.stop_event.set()  # of Gradio's, which ends the stream that it keeps open to every browser
            await super().shutdown(sockets)

    return Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=SECONDS_TO_END))


def serve(arguments: GenerateArguments, host: str = HOST, port: int = PORT) -> None:
    """Serve the page of a model until it is interrupted.

    Raises:
        ImportError: Gradio is not installed.
        ValueError: The model cannot be used, or the address is not free.
    """
    with private_gradio() as folder, listen(host, port) as listener:
        app = build_app(arguments, folder, host)
        if host not in LOCAL:
            warn(f"Warning: everybody who can reach {host} can use the page: it asks for no password")
        address = f"[{host}]" if ":" in host else host
        report(f"{arguments.model_name_or_path} is at http://{address}:{listener.getsockname()[1]} (Ctrl-C ends it)")
        with suppress(KeyboardInterrupt):
            server_of(app).run(sockets=[listener])
