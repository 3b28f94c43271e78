"""Serve a language model by the OpenAI protocol: transformers' own server, for one model and within limits.

POST to http://localhost:8000/v1/chat/completions (models with a chat template) or /v1/completions, with any client of
that protocol. No other model is loaded, and transformers' other endpoints are not there.

Examples:
  vanillaformer serve runs/language_model
  vanillaformer serve runs/chat --host 0.0.0.0 --port 80
  vanillaformer serve user/model@main --continuous-batching --device cuda
"""

import sys
from collections.abc import Sequence
from typing import Any

from vanillaformer.console.program import CommandParser, name, program
from vanillaformer.inference.serving.command import LIMITS, check_libraries, check_model, server_command

# Options of transformers' command that people use, by group; the others follow
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


@program
def main(argv: Sequence[str] | None = None) -> None:
    """Run the program."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = server_command()
    if {"--help", "-h"} & set(arguments):
        print(help_page(command))
        raise SystemExit(0)
    check_libraries()
    given = command.make_context(name(), list(arguments), resilient_parsing=True).params
    options = (bool(given.get(option)) for option in ("continuous_batching", "trust_remote_code"))
    check_model(given.get("force_model"), *options)
    command.main(arguments, prog_name=name())


if __name__ == "__main__":
    main()
