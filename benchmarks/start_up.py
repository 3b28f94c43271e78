"""CPU time until `vanillaformer generate` is ready, beside that of transformers' own imports in the same run.

    python -m benchmarks.start_up
    python -m benchmarks.start_up --model runs/translation --text 'May 6, 2031'

Each line is the least of several fresh processes, taken in turns: CPU seconds, which other programs stretch less, and
seconds on the clock. Ratios are to the imports that every program with a translation model of transformers needs.
"""

import argparse
import resource
import subprocess
import sys
import time
from typing import NamedTuple

REFERENCE = "import torch, transformers; from transformers import AutoModelForSeq2SeqLM"
PROGRAMS = {
    REFERENCE: REFERENCE,
    "import torch; from transformers import MarianMTModel": "import torch; from transformers import MarianMTModel",
    "import vanillaformer": "import vanillaformer",
    "vanillaformer generate: imports": "from vanillaformer_cli import *; load_program('generate', ['--model', 'x'])",
}
RUN = "import vanillaformer_cli; vanillaformer_cli.main(['generate', *{words!r}])"


class Spent(NamedTuple):
    """CPU seconds and seconds on the clock of a process."""

    cpu: float
    seconds: float


def spent(code: str) -> Spent:
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Spent(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="model to run; by default only the imports are measured")
    parser.add_argument("--text", default="A sentence.", help="its input")
    parser.add_argument("--repeats", type=int, default=3, help="processes per line (default: 3)")
    arguments = parser.parse_args()
    programs = dict(PROGRAMS)
    if arguments.model is not None:
        words = ["--model", arguments.model, "--text", arguments.text]
        programs["vanillaformer generate --model ... --text ..."] = RUN.format(words=words)
    samples = [[spent(code) for code in programs.values()] for _ in range(1 + arguments.repeats)][1:]  # warm files
    best = [Spent(*map(min, zip(*row))) for row in zip(*samples)]
    print(f"{'CPU s':>6} {'s':>6} {'ratio':>6}")
    for name, one in zip(programs, best):
        print(f"{one.cpu:6.2f} {one.seconds:6.2f} {one.cpu / best[0].cpu:6.2f}  {name}")


if __name__ == "__main__":
    main()
