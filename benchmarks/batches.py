"""How long a training step waits for its batch: reading, encoding, packing and collating, beside the step itself.

    python benchmarks/batches.py
    python benchmarks/batches.py --tasks translation --sizes 64 512

Our programs with their defaults, except for the width, train on the data that they embed for some steps, each in a
process of its own. `batch` is the time from the end of a step to the begin of the next one, in which the Trainer takes
a batch, and `step` that of its work on it; both are medians of all steps but the first. Nothing is evaluated or saved
between them.
"""

import io
import statistics
import tempfile
from argparse import ArgumentParser
from contextlib import redirect_stdout
from importlib import import_module

from native import alone, clock

HEADS = 4
PROGRAMS = {
    "translation": "train_translation --packing true",
    "language model": "train_language_model",
    "masked model": "train_language_model --objective masked",
    "classification": "train_classifier --max_ngram 1 --wide_max_ngram 0",
    "images": "train_image_classifier",
}


def times(program: str, width: int, steps: int) -> tuple[float, float]:
    """Return the seconds that a step takes, and those that it waits for its batch."""
    name, *options = program.split()
    fields = [f"hidden_size={width}", f"num_attention_heads={HEADS}", f"intermediate_size={4 * width}"]
    options += ["--eval_strategy", "no", "--save_strategy", "no", "--use_cpu", "--max_steps", str(steps)]
    noted = clock()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        module = import_module(f"vanillaformer.scripts.{name}")
        module.train([*options, "--set", *fields, "--output_dir", folder])
    begins, ends = noted[::2], noted[1::2]
    waits = [begin - end for end, begin in zip(ends, begins[1:])]
    return statistics.median(end - begin for begin, end in zip(begins[1:], ends[1:])), statistics.median(waits)


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=list(PROGRAMS), choices=PROGRAMS)
    parser.add_argument("--sizes", nargs="+", type=int, default=[64, 256], help="Widths of the models.")
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    print("| task | width | step, ms | batch, ms | batch / step |\n|---|---|---|---|---|")
    for name in arguments.tasks:
        for width in arguments.sizes:
            step, batch = alone(times, PROGRAMS[name], width, arguments.steps)
            print(f"| {name} | {width} | {1e3 * step:.1f} | {1e3 * batch:.1f} | {batch / step:.1%} |", flush=True)


if __name__ == "__main__":
    main()
