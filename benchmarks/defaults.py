"""What a training program reaches with its defaults: one file, one command, for each of several files and seeds.

    python -m benchmarks.defaults train-classifier clinc150.parquet subj.parquet -- --split_column split
    python -m benchmarks.defaults train-translation fra.parquet -- --source_column en --target_column fr

What follows `--` goes to the program. Validation scores choose a rule; `--test` shows the scores of the test parts
too. Runs are kept, so that an interrupted benchmark is continued.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean
from typing import Any

SCORES = {"train-classifier": "accuracy", "train-translation": "bleu", "train-language-model": "bits_per_byte"}
PROGRAM = "import vanillaformer_cli; vanillaformer_cli.main()"


def run(program: str, file: Path, seed: int, folder: Path, options: list[str]) -> tuple[dict[str, Any], float]:
    """Return the record of a run and the seconds that it took, which are 0 for one that was there."""
    words = [program, "--train_file", str(file), "--seed", str(seed), "--output_dir", str(folder), *options]
    if program == "train-classifier":
        words.append("--baseline")
    start = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "benchmark.log").open("a") as log:
        subprocess.run([sys.executable, "-c", PROGRAM, *words], check=True, stdout=log, stderr=log)
    return json.loads((folder / "run.json").read_text(encoding="utf-8")), time.perf_counter() - start


def columns(record: dict[str, Any], name: str) -> dict[str, float]:
    """Return the score of the model and those of the baselines."""
    found = {"model": record["metrics"], **record["details"]["baselines"]}
    return {system: scores[name] for system, scores in found.items() if name in scores}


def main() -> None:
    """Train, and print a table."""
    own, options = sys.argv[1:], []
    if "--" in own:
        own, options = own[: own.index("--")], own[own.index("--") + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=SCORES)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--test", action="store_true", help="score the test parts too")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/defaults"), help="folder of the runs")
    arguments = parser.parse_args(own)
    print(
        "| data | split | seconds | "
        + f"{SCORES[arguments.program]}, mean of {len(arguments.seeds)} (each) | baselines |"
    )
    print("| --- | --- | --- | --- | --- |")
    for file in arguments.files:
        folders = [arguments.output_dir / f"{file.stem}-{seed}" for seed in arguments.seeds]
        runs = [run(arguments.program, file, seed, folder, options) for seed, folder in zip(arguments.seeds, folders)]
        for split, prefix in {"validation": "eval", **({"test": "test"} if arguments.test else {})}.items():
            found = [columns(record, f"{prefix}_{SCORES[arguments.program]}") for record, _ in runs]
            scores = [systems.pop("model") for systems in found]
            each = ", ".join(f"{score:.4g}" for score in scores)
            others = ", ".join(f"{system} {score:.4g}" for system, score in found[0].items())
            seconds = mean(spent for _, spent in runs)
            print(
                f"| {file.stem} | {split} | {seconds:.0f} | **{mean(scores):.4g}** ({each}) | {others} |", flush=True
            )


if __name__ == "__main__":
    main()
