"""Serve a language model with the OpenAI protocol: transformers' own server, for one model and within limits.

POST to http://localhost:8000/v1/chat/completions (models with a chat template) or /v1/completions, with any client of
that protocol. No other model is loaded, and transformers' other endpoints are removed.

Examples:
  vanillaformer serve runs/language_model
  vanillaformer serve runs/chat --host 0.0.0.0 --port 80
  vanillaformer serve user/model@main --continuous-batching --device cuda
"""

import copy
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig
from transformers.utils.import_utils import is_serve_available

import vanillaformer.modeling as modeling
from vanillaformer.console.program import CommandParser, name, program
from vanillaformer.hub.loading import saved_folder

SERVED = modeling.VanillaDecoderForCausalLM
NEEDED = ("fastapi", "uvicorn", "openai", "pydantic")
# Limits of a request: default and help
LIMITS = {
    "max_tokens": (2048, "Maximum and default number of tokens that a request may ask for"),
    "max_prompt_tokens": (8192, "Maximum length of a prompt in tokens, also limited by the model's"),
    "max_body_bytes": (2**18, "Maximum size of a request in bytes"),
}
WITHOUT_EFFECT = ("decision_config", "model_timeout")  # options for what is removed
# Most used options of transformers' command, by group; the others follow
GROUPS = {
    "Model": ("device", "dtype", "attn_implementation", "quantization", "compile", "trust_remote_code"),
    "Server": ("host", "port", "enable_cors", "log_level", "continuous_batching"),
    "Limits of a request": tuple(LIMITS),
}


def help_page(command: Any) -> str:
    """Return the help page of the server's command."""
    parser = CommandParser(__doc__, "MODEL [--option value ...]")
    options = {option.name: option for option in command.params if option.name not in ("force_model", "non_blocking")}
    model = parser.add_argument_group("Model")
    model.add_argument("force_model", metavar="MODEL", help="Language model (folder or Hub id)")
    shown = [option for names in GROUPS.values() for option in names]
    others = [option for option in options if option not in shown]
    for title, names in {**GROUPS, "Other options of the server": others}.items():
        group = model if title == "Model" else parser.add_argument_group(title)
        for option in map(options.__getitem__, names):
            words = (option.help or "").replace("%", "%%").rstrip(".")
            group.add_argument(option.opts[0], dest=option.name, default=option.default, help=words)
    return parser.format_help()


def server_command() -> Any:
    """Return transformers' command with our limits, able to load our language models; imports no library of it."""
    from click import IntRange, Option
    from transformers.cli.transformers import app

    # The server looks classes up in transformers itself, whose module is created again while its parts are imported
    setattr(sys.modules["transformers"], SERVED.__name__, SERVED)
    command: Any = copy.copy(app.commands["serve"])
    options = [
        Option([f"--{name.replace('_', '-')}"], type=IntRange(1), default=default, help=text)
        for name, (default, text) in LIMITS.items()
    ]
    kept = [option for option in command.params if option.name not in WITHOUT_EFFECT]
    command.params = [*kept, *options]
    serve_models = command.callback

    def run(**options: Any) -> Any:
        from transformers.cli.serving import server

        from vanillaformer.inference.requests import Limits
        from vanillaformer.inference.serving import builder

        check_model(*(options[name] for name in ("force_model", "continuous_batching", "trust_remote_code")))
        limits = Limits(**{name: options.pop(name) for name in LIMITS})
        server.build_server = builder(limits, options["host"])  # `serve` looks it up there
        return serve_models(**options)

    command.callback = run
    return command


def check_model(name: str | None, continuous_batching: bool = False, trust_remote_code: bool = False) -> None:
    """Raise ValueError if no model is named, or if the server cannot run it as requested."""
    if name is None:
        raise ValueError("name the model to serve: vanillaformer serve MODEL, a folder or Hub id")
    if name.endswith(".gguf"):
        return
    if "@" in name and Path(name).exists():
        raise ValueError(f"{name}: an @ precedes a revision here; give a path without one, such as a link to it")
    path, _, revision = name.partition("@")
    try:
        options = {"revision": revision or "main", "trust_remote_code": trust_remote_code}
        config: Any = AutoConfig.from_pretrained(path, **options)
    except (OSError, ValueError) as error:
        if "trust_remote_code" in str(error):
            raise ValueError(f"{name} has its own code: --trust-remote-code runs it, once you have read it") from error
        raise ValueError(f"{name} is not a model: {error}") from error
    if not trust_remote_code:
        saved_folder(path, revision or None, "MODEL")
    architecture = next(iter(config.architectures or []), "none")
    is_ours, native = architecture in vars(modeling), getattr(transformers, architecture, None)
    generates = native is None or (native.can_generate() and not config.is_encoder_decoder)
    if architecture != SERVED.__name__ and (is_ours or not generates):
        raise ValueError(
            f"{name} is a {architecture}, but only language models are served ({SERVED.__name__}); "
            "vanillaformer generate runs every model"
        )
    if is_ours and continuous_batching and (reason := config.attention_obstacle("paged|eager")) is not None:
        raise ValueError(f"--continuous-batching cannot serve {name}: {reason}")


@program
def main(argv: Sequence[str] | None = None) -> None:
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = server_command()
    if {"--help", "-h"} & set(arguments):
        print(help_page(command))
        raise SystemExit(0)
    if not is_serve_available():
        missing = ", ".join(library for library in NEEDED if find_spec(library) is None)
        raise ImportError(f"serving needs {missing}: pip install 'vanillaformer[serve]'")
    command.main(arguments, prog_name=name())


if __name__ == "__main__":
    main()
