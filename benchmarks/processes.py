"""Tokens a second of a training program on one process and on several, with one thread each and the same batches.

python benchmarks/processes.py                       # packed translation, 1 and 2 processes, on two idle cores
python benchmarks/processes.py --repeats 1 --options "--max_steps 5"       # that it runs
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from transformers import HfArgumentParser

PROGRAM = Path(__file__).parents[1] / "scripts" / "train_translation.py"


@dataclass
class Options:
    """What is run."""

    processes: list[int] = field(default_factory=lambda: [1, 2], metadata={"help": "Numbers of processes."})
    repeats: int = field(default=3, metadata={"help": "Runs of each; the best one counts."})
    options: str = field(default="", metadata={"help": "More options of the program."})


def speed(processes: int, options: str, folder: Path) -> float:
    """Return the tokens a second of a run, sources and targets, without evaluations and what goes before."""
    argv = "--use_cpu --packing true --tokens_per_batch 8192 --max_steps 24 --eval_strategy no --save_strategy no"
    argv += " --set hidden_size=256 num_hidden_layers=4 --max_test_samples 1 --logging_steps 20"
    argv += f" {options} --output_dir {folder}"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*launch, str(PROGRAM), *argv.split()], check=True, env=environment, stdout=subprocess.DEVNULL)
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return run["details"]["consumed"]["tokens"] / run["metrics"]["train_runtime"]


def main(argv: list[str] | None = None) -> None:
    (options,) = HfArgumentParser(Options, description=__doc__).parse_args_into_dataclasses(argv)
    found: dict[int, list[float]] = {count: [] for count in options.processes}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.repeats):
            for count, speeds in found.items():
                speeds.append(speed(count, options.options, Path(folder, f"{count}-{number}")))
    first = max(found[options.processes[0]])
    print("| processes | tokens a second | ratio |\n|---|---|---|")
    for count, speeds in found.items():
        print(f"| {count} | {max(speeds):,.0f} | {max(speeds) / first:.2f} |")


if __name__ == "__main__":
    main()
