"""The server of the page: one model, on this machine, and no paths of Gradio that the page does not need."""

import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from vanillaformer.console.reporting import report, warn
from vanillaformer.inference.arguments import GenerateArguments

from .answers import ImageModel, open_model
from .browser import STYLE, build_page

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
MAX_BYTES = 2**18  # of a request, except for uploads
MAX_UPLOAD = "20mb"
POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; object-src 'none'"
"""The browser loads nothing from other places either."""


def gate(folder: str | None) -> Callable[..., Any]:
    """Return the middleware that lets the requests through that the page needs, and refuses others.

    Args:
        folder: Folder of the uploads, `None` of pages without.
    """
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
        return False  # which Gradio refuses
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict) and str(value.get("path")).lower().startswith(("http:", "https:")):
            return True
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return False


@contextmanager
def private_gradio() -> Iterator[str]:
    """Have Gradio report nothing to its makers and keep uploads in a folder of this server, which is yielded."""
    with tempfile.TemporaryDirectory(prefix="vanillaformer_") as folder:
        os.environ |= {"GRADIO_TEMP_DIR": folder, "GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_EXAMPLES_CACHE": folder}
        yield folder


def build_app(arguments: GenerateArguments, folder: str, host: str) -> Any:
    """Return the ASGI app of a model's page.

    Args:
        arguments: The model.
        folder: Folder of the uploads.
        host: The address that the server listens on. On one of this machine's, other names are refused, so that no
            web page reaches the server by a name that it has made an address of this machine.

    Raises:
        ImportError: Gradio is not installed.
    """
    try:
        import gradio
    except ImportError as error:
        raise ImportError("the page needs gradio: pip install 'vanillaformer[explore]'") from error
    from fastapi import FastAPI
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    model = open_model(arguments, Path(folder))
    theme = gradio.themes.Default(primary_hue="blue", font=("system-ui", "sans-serif"), font_mono="monospace")
    theme.set(  # letters that everybody can read; no font is fetched
        button_primary_background_fill="*primary_700",
        block_info_text_color="*neutral_600",
        input_placeholder_color="*neutral_500",
    )
    app = gradio.mount_gradio_app(
        FastAPI(openapi_url=None),
        build_page(model),
        path="",
        theme=theme,
        css=STYLE,
        footer_links=[],
        run_history=False,
        allowed_paths=[],
        max_file_size=MAX_UPLOAD,
        show_error=False,
        enable_monitoring=False,
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
    )
    app.middleware("http")(gate(folder if isinstance(model, ImageModel) else None))
    if host in LOCAL:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(LOCAL), www_redirect=False)
    return app


def server_of(app: Any) -> Any:
    """Return the server of a page, a `uvicorn.Server` that ends although browsers stay connected."""
    import uvicorn

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            for route in app.routes:
                if page := getattr(route, "app", None):
                    page.stop_event.set()  # of Gradio's, which ends the stream that it keeps open to every browser
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
