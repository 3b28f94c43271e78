"""Texts in, results out: what `vanillaformer generate` does with a model."""

from pathlib import Path
from typing import Any

import torch

from vanillaformer.hub.loading import saved_folder

from .arguments import GenerateArguments
from .tasks import AUTO, load, run
from .text_files import STANDARD_INPUT, at_terminal, file_lines, hint, output_stream, standard_input


def read_texts(generate_args: GenerateArguments) -> list[str]:
    """Return the texts to work on.

    Raises:
        ValueError: There are none, or all are blank, or the file does not exist.
    """
    if generate_args.text and generate_args.input_file:
        raise ValueError(f"give --text or --input_file {generate_args.input_file}, not both")
    texts, source = generate_args.text, "--text"
    if generate_args.input_file is not None:
        source = f"--input_file {generate_args.input_file}"
        texts = file_lines(Path(generate_args.input_file), "--input_file")
    elif not texts:
        if at_terminal():
            hint("Type texts, one per line; Ctrl-D on an empty line ends the input.")
        texts, source = list(standard_input()), STANDARD_INPUT
    if not any(text.strip() for text in texts):
        raise ValueError(f"{source} has no text in it")
    return texts


def call_options(generate_args: GenerateArguments) -> dict[str, Any]:
    """Return the options that the function of a model's task is called with."""
    options = generate_args.options()
    if "max_new_tokens" in options:
        options["max_length"] = None  # saved with the model; of both, transformers warns at every batch
    if generate_args.reject_below is not None:
        options["reject_below"] = generate_args.reject_below
    return options


def generate_texts(generate_args: GenerateArguments) -> None:
    r"""Write the result for each text, several texts one line each (a line break within one as `\n`)."""
    texts = read_texts(generate_args)
    loaded, function, _ = load(generate_args)
    options = call_options(generate_args)
    if generate_args.engine == AUTO:
        from .fastest import fastest

        folder = saved_folder(generate_args.model_name_or_path, generate_args.revision, exported=True)
        with torch.inference_mode():
            loaded = fastest(loaded, folder, function, texts, **options)
    torch.manual_seed(generate_args.seed)
    results = run(loaded, function, texts, generate_args.batch_size, **options)
    with output_stream(generate_args.output_file) as stream:
        for result in results:
            print(result if len(texts) == 1 else result.replace("\n", "\\n"), file=stream, flush=True)
