r"""Use a trained model: translate lines, continue prompts, classify texts or images, find entities.

What is done follows from the model: an encoder-decoder translates, a causal language model continues, a masked one
fills in every [MASK], a classifier prints label and probability, a token classifier the entities it finds. Input is
`--text ...`, the lines of `--input_file`, or standard input. Several texts give one line of output each (a line break
within one is written `\n`). With --input_file and --output_file, a command that was stopped continues where it was. An
image classifier takes `--image ...`, files or folders.

A folder made by `vanillaformer export` runs on its engine, with the same options.

Examples:
  vanillaformer generate --model runs/translation --text 'May 6, 2031'
  vanillaformer generate --model runs/causal_language_model --text 'def ' --top_p 0.9
  vanillaformer generate --model runs/chat --chat
  vanillaformer generate --model runs/image_classification --image photo.png folder
"""

from collections.abc import Sequence

from vanillaformer.console.parsing import parse
from vanillaformer.console.program import program
from vanillaformer.inference.arguments import GenerateArguments, check_arguments
from vanillaformer.inference.chat import converse
from vanillaformer.inference.generation import generate_texts
from vanillaformer.inference.images import classify_images
from vanillaformer.training.hardware import configure_cpu


@program
def main(argv: Sequence[str] | None = None) -> None:
    (generate_args,) = parse(GenerateArguments, argv, description=__doc__)
    check_arguments(generate_args)
    configure_cpu()
    if generate_args.image:
        classify_images(generate_args)
    else:
        (converse if generate_args.chat else generate_texts)(generate_args)


if __name__ == "__main__":
    main()
