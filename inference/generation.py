"""Texts in, results out: what `vanillaformer generate` does with a model."""

from typing import Any

import torch

from .arguments import GenerateArguments
from .tasks import AUTO, load, run
from .text_files import output_stream, read_texts


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
    texts = read_texts(generate_args.text, generate_args.input_file)
    loaded, function, _ = load(generate_args)
    options = call_options(generate_args)
    if generate_args.engine == AUTO:
        from .fastest import fastest

        with torch.inference_mode():
            loaded = fastest(loaded, function, texts, **options)
    torch.manual_seed(generate_args.seed)
    results = run(loaded, function, texts, generate_args.batch_size, **options)
    with output_stream(generate_args.output_file) as stream:
        for result in results:
            print(result if len(texts) == 1 else result.replace("\n", "\\n"), file=stream, flush=True)
