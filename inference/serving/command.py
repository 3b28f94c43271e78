"""The command `transformers serve` for one model of this package: its libraries, refusals and limits."""

import copy
import sys
from importlib.util import find_spec
from typing import Any

from transformers import AutoConfig
from transformers.utils.import_utils import is_serve_available

import vanillaformer.modeling as modeling
from vanillaformer.hub.loading import saved_folder

SERVED = modeling.VanillaDecoderForCausalLM
NEEDED = ("fastapi", "uvicorn", "openai", "pydantic")
# Limits of a request: default and help
LIMITS = {
    "max_tokens": (2048, "Maximum and default number of tokens that a request may ask for"),
    "max_prompt_tokens": (8192, "Maximum length of a prompt in tokens, also limited by the model's"),
    "max_body_bytes": (2**18, "Maximum size of a request in bytes"),
}


def check_libraries() -> None:
    """Raise ImportError for a library of the server that is not installed."""
    if not is_serve_available():
        missing = ", ".join(name for name in NEEDED if find_spec(name) is None)
        raise ImportError(f"serving needs {missing}: pip install 'vanillaformer[serve]'")


def server_command() -> Any:
    """Return transformers' command with our limits, able to load our language models; no library is needed yet."""
    from click import IntRange, Option
    from transformers.cli.transformers import app

    # The server looks classes up in transformers itself, whose module is made anew while its parts are imported
    setattr(sys.modules["transformers"], SERVED.__name__, SERVED)
    command: Any = copy.copy(app.commands["serve"])
    options = [
        Option([f"--{name.replace('_', '-')}"], type=IntRange(1), default=default, help=text)
        for name, (default, text) in LIMITS.items()
    ]
    command.params = [*command.params, *options]
    serve_models = command.callback

    def run(**options: Any) -> Any:
        from transformers.cli.serving import server

        from .app import builder
        from .requests import Limits

        limits = Limits(**{name: options.pop(name) for name in LIMITS})
        server.build_server = builder(limits, options["host"])  # which `serve` looks up there
        return serve_models(**options)

    command.callback = run
    return command


def check_model(name: str | None, continuous_batching: bool = False, trust_remote_code: bool = False) -> None:
    """Raise ValueError for no model, or one that the server cannot run as it is asked to."""
    if name is None:
        raise ValueError("name the model to serve: vanillaformer serve MODEL, a folder or Hub id")
    if name.endswith(".gguf"):
        return
    path, _, revision = name.partition("@")
    try:
        options = {"revision": revision or "main", "trust_remote_code": trust_remote_code}
        config: Any = AutoConfig.from_pretrained(path, **options)
    except (OSError, ValueError) as error:
        if "trust_remote_code" in str(error):
            raise ValueError(
                f"{name} has code of its own: --trust-remote-code runs it, once you have read it"
            ) from error
        raise ValueError(f"{name} is not a model: {error}") from error
    if not trust_remote_code:
        saved_folder(path, revision or None, "MODEL")
    architecture = next(iter(config.architectures or []), "none")
    if architecture not in vars(modeling):
        return
    if architecture != SERVED.__name__:
        raise ValueError(
            f"{name} is a {architecture}, but only language models are served ({SERVED.__name__}); "
            "generate.py runs every model"
        )
    if continuous_batching and (reason := config.attention_obstacle("paged|eager")) is not None:
        raise ValueError(f"--continuous-batching cannot serve {name}: {reason}")
