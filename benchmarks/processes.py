"""Tokens a second of a training program on one process and on several, with one thread each and the same batches.

Beside them as many runs of one process at the same time, each with its share of a batch, which say nothing to each
other: what the cores, their caches and their memory give.

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

BATCH = 8192  # tokens
PROGRAM = Path(__file__).parents[1] / "scripts" / "train_translation.py"


@dataclass
class Options:
    """What is run."""

    processes: list[int] = field(default_factory=lambda: [1, 2], metadata={"help": "Numbers of processes."})
    repeats: int = field(default=3, metadata={"help": "Runs of each; the best one counts."})
    options: str = field(default="", metadata={"help": "More options of the program."})


def begun(processes: int, options: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start a run without evaluations."""
    argv = "--use_cpu --packing true --max_steps 24 --eval_strategy no --save_strategy no"
    argv += " --set hidden_size=256 num_hidden_layers=4 --max_test_samples 1 --logging_steps 20"
    argv += f" {options} --output_dir {folder}"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*launch, str(PROGRAM), *argv.split()], env=environment, stdout=subprocess.DEVNULL)


def speed(runs: list[subprocess.Popen[bytes]], folders: list[Path]) -> float:
    """Return the tokens a second, sources and targets, of runs that go on at once, without what goes before."""
    codes = [run.wait() for run in runs]
    if any(codes):
        raise SystemExit("a run failed")
    records = [json.loads((folder / "run.json").read_text(encoding="utf-8")) for folder in folders]
    return sum(record["details"]["consumed"]["tokens"] / record["metrics"]["train_runtime"] for record in records)


def measured(processes: int, apart: bool, options: str, folder: Path) -> float:
    """Return the tokens a second of a run on several processes, or of as many runs apart, each with its share."""
    runs = processes if apart else 1
    folders = [folder / str(number) for number in range(runs)]
    share = f"--tokens_per_batch {BATCH // runs} {options}"
    return speed([begun(1 if apart else processes, share, each) for each in folders], folders)


def main(argv: list[str] | None = None) -> None:
    (options,) = HfArgumentParser(Options, description=__doc__).parse_args_into_dataclasses(argv)
    cases = [(count, apart) for count in options.processes for apart in (False, True) if count > 1 or not apart]
    found: dict[tuple[int, bool], list[float]] = {case: [] for case in cases}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.repeats):
            for (count, apart), speeds in found.items():
                speeds.append(measured(count, apart, options.options, Path(folder, f"{count}-{apart}-{number}")))
    first = max(found[cases[0]])
    print("| processes | tokens a second | ratio |\n|---|---|---|")
    for (count, apart), speeds in found.items():
        print(f"| {count}{' runs apart' if apart else ''} | {max(speeds):,.0f} | {max(speeds) / first:.2f} |")


if __name__ == "__main__":
    main()
