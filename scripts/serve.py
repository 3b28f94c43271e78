"""Serve a language model by the OpenAI protocol: transformers' own server, which is told of our models.

    vanillaformer-serve runs/language_model --port 8000

Then POST to http://localhost:8000/v1/chat/completions (models with a chat template) or /v1/completions, with any
client of that protocol. Options are those of `transformers serve`; `vanillaformer-serve --help` lists them. Without a
model named here, the server loads the ones that requests name.
"""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from transformers import AutoConfig
from transformers.utils.import_utils import is_serve_available

from vanillaformer import modeling
from vanillaformer.scripts.console import program

SERVED = modeling.VanillaDecoderForCausalLM
NEEDED = ("fastapi", "uvicorn", "openai", "pydantic")


def check_libraries() -> None:
    """Raise ImportError for a library of the server that is not installed."""
    if not is_serve_available():
        missing = ", ".join(name for name in NEEDED if find_spec(name) is None)
        raise ImportError(f"serving needs {missing}: pip install 'vanillaformer[serve]'")


def server_command() -> Any:
    """Return transformers' command, able to load our language models; its `--help` needs no library of the server."""
    from transformers.cli.transformers import app

    # The server looks classes up in transformers itself, whose module is made anew while its parts are imported
    setattr(sys.modules["transformers"], SERVED.__name__, SERVED)
    return app.commands["serve"]


def check_model(name: str | None, continuous_batching: bool = False, trust_remote_code: bool = False) -> None:
    """Raise ValueError for a model that is none, or one of ours that the server cannot run as it is asked to."""
    if name is None or name.endswith(".gguf"):
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
        raise ValueError(f"{name} is no model: {error}") from error
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


@program
def main(argv: Sequence[str] | None = None) -> None:
    """Run the program."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "--help" not in arguments:
        check_libraries()
    command = server_command()
    given = command.make_context("vanillaformer-serve", list(arguments), resilient_parsing=True).params
    options = (bool(given.get(option)) for option in ("continuous_batching", "trust_remote_code"))
    check_model(given.get("force_model"), *options)
    command.main(arguments, prog_name="vanillaformer-serve")


if __name__ == "__main__":
    main()
