"""How often a comparison finds a difference that is not there: real trainings of one and the same variant.

Trains a tiny classifier with one seed after the other (resumable: scores are kept in --folder), and draws plans from
the runs, in which every variant is the same. For each number of variants and seeds it prints the share of plans in
which a test, or an interval, finds a difference in the loss or the accuracy.

    python benchmarks/null_plans.py --runs 200 --plans 200
"""

import argparse
import contextlib
import json
import random
import shutil
from pathlib import Path

import numpy as np
import yaml

from vanillaformer.comparison.statistics import against_baseline, interval
from vanillaformer.scripts.train_classifier import train

SCORES = ("loss", "accuracy")
WORDS = (("good", "fine", "warm", "nice"), ("bad", "dark", "cold", "grim"))


def write_rows(path: Path, count: int, seed: int) -> None:
    """Write texts of two classes, of which one word in three is of the other class."""
    numbers = random.Random(seed)
    lines = ["text,label"]
    for row in range(count):
        words = (numbers.choice(WORDS[(row + (numbers.random() < 1 / 3)) % 2]) for _ in range(numbers.randint(3, 8)))
        lines.append(f"{' '.join(words)},{row % 2}")
    path.write_text("\n".join(lines))


def scores_of_runs(folder: Path, runs: int) -> list[dict[str, float]]:
    """Return the scores of runs that differ in their seeds, training those that are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / "train.csv", 300, 0)
    write_rows(folder / "validation.csv", 100, 1)
    known = folder / "scores.jsonl"
    found = [json.loads(line) for line in known.read_text().splitlines()] if known.is_file() else []
    for seed in range(len(found), runs):
        settings = {
            "train_file": str(folder / "train.csv"),
            "validation_file": str(folder / "validation.csv"),
            "preset": "bert-tiny",
            "overrides": {
                "hidden_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "intermediate_size": 32,
            },
            **{"max_steps": 40, "learning_rate": 1e-2, "seed": seed, "per_device_train_batch_size": 16},
            **{"tokenizer_algorithm": "word", "eval_steps": 1.0, "use_cpu": True, "load_best_model_at_end": False},
            **{"disable_tqdm": True, "output_dir": str(folder / "run")},
        }
        (folder / "settings.yaml").write_text(yaml.safe_dump(settings))
        shutil.rmtree(folder / "run", ignore_errors=True)
        with (folder / "log").open("a") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            run = train([str(folder / "settings.yaml")])
        found.append({name: run.metrics[f"eval_{name}"] for name in SCORES})
        with known.open("a") as file:
            print(json.dumps(found[-1]), file=file)
    return found


def main() -> None:
    """Print the shares of false differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--plans", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=Path("runs/null_plans"))
    args = parser.parse_args()
    runs, rng = scores_of_runs(args.folder, args.runs), np.random.default_rng(0)
    print(f"{len(runs)} trainings, {args.plans} plans of each kind")
    for name in SCORES:
        pool = np.array([run[name] for run in runs])
        for variants, seeds in ((2, 3), (2, 5), (3, 3), (3, 5), (6, 3), (6, 5)):
            by_p = by_interval = missed = 0
            for _ in range(args.plans):
                drawn = rng.choice(pool, (variants, seeds), replace=False)
                tests = against_baseline({str(number): row.tolist() for number, row in enumerate(drawn)}, "0").values()
                by_p += any(test.found for test in tests)
                by_interval += any(test.low > 0 or test.high < 0 for test in tests)
                missed += abs(drawn[0].mean() - pool.mean()) > interval(drawn[0])
            shares = ", ".join(f"{100 * count / args.plans:.1f} %" for count in (by_p, by_interval, missed))
            print(f"{name}, {variants} variants, {seeds} seeds: by p, by intervals, means outside of theirs: {shares}")


if __name__ == "__main__":
    main()
