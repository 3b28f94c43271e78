"""How often a comparison finds a difference that is not there, and how soon it finds one that is.

Trains a tiny classifier with one seed after the other (resumable: scores are kept in --folder), and draws plans from
the runs, in which every variant is the same. For each number of variants and seeds it prints the share of plans in
which a test, or an interval, finds a difference in the loss or the accuracy; and the share in which `sequential`
does, which looks after every seed from the second on. With --simulated it draws scores instead, and plants differences
of some standard deviations: in which share of plans are they found, and with how many of the runs of the fixed plan?

    python benchmarks/null_plans.py --runs 200 --plans 200
    python benchmarks/null_plans.py --simulated --plans 10000
"""

import argparse
import contextlib
import json
import random
import shutil
from pathlib import Path

import numpy as np
import yaml

from vanillaformer.comparison.plan import Plan
from vanillaformer.comparison.statistics import against_baseline, interval
from vanillaformer.comparison.verdicts import Verdict, judge
from vanillaformer.scripts.train_classifier import train
from vanillaformer.training.metrics.scores import SCORES as KNOWN

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


def verdicts(drawn: np.ndarray, *, added: int = 0, sequential: bool = True) -> dict[str, Verdict]:
    """Return the verdicts on scores (variants, seeds): the first variant is the baseline, the last ones are added."""
    names = [str(number) for number in range(len(drawn))]
    seeds = tuple(range(drawn.shape[1]))
    plan = Plan(
        program="train-classifier", arguments={}, variants={name: {} for name in names}, budget="steps", amount=1,
        baseline="0", score=KNOWN["loss"], seeds=seeds, sequential=sequential, family=len(names) - 1,
        added=tuple(names[len(names) - added :]),
    )  # fmt: skip
    return judge(plan, {name: dict(zip(seeds, row)) for name, row in zip(names, drawn.tolist())})


def simulate(plans: int) -> None:
    """Print the shares of false and of planted differences in drawn scores."""
    for kind in ("equal", "wide baseline", "wide variant", "heavy tails"):
        for variants, seeds, added, share in ((2, 8, 0, 1), (4, 5, 0, 5), (4, 8, 0, 5), (6, 4, 4, 5)):
            false, rng, count = 0, np.random.default_rng(0), plans // share
            for _ in range(count):
                shape = (variants, seeds)
                drawn = rng.standard_t(3, shape) if kind == "heavy tails" else rng.normal(size=shape)
                drawn[0 if kind == "wide baseline" else -1] *= 4 if kind.startswith("wide") else 1
                false += any(verdict.decided for verdict in verdicts(drawn, added=added).values())
            more = f", {added} of them added one by one" if added else ""
            found = f"{100 * false / count:.2f} % of {count:,} plans"
            print(f"{kind}: {variants} variants{more}, 2 to {seeds} seeds: a false difference in {found}", flush=True)
    for far in (2, 3, 4, 6):
        rng, found, needed, fixed = np.random.default_rng(1), 0, 0, 0
        for _ in range(plans // 10):
            drawn = rng.normal(size=(2, 8)) - far * np.array([[0], [1]])
            verdict = verdicts(drawn)["1"]
            found, needed = found + (verdict.word == "better"), needed + len(verdict.seeds)
            fixed += verdicts(drawn, sequential=False)["1"].word == "better"
        shares = (100 * number / (plans // 10) for number in (found, fixed, needed / 8))
        print(
            "better by {} deviations: found in {:.1f} % (fixed: {:.1f} %), with {:.0f} % of the runs".format(
                far, *shares
            )
        )


def main() -> None:
    """Print the shares of false differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--plans", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=Path("runs/null_plans"))
    parser.add_argument("--simulated", action="store_true")
    args = parser.parse_args()
    if args.simulated:
        simulate(args.plans)
        return
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
        for variants in (2, 4):
            draws = (rng.choice(pool, (variants, 8), replace=False) for _ in range(args.plans))
            false = sum(any(verdict.decided for verdict in verdicts(drawn).values()) for drawn in draws)
            print(f"{name}, {variants} variants, 2 to 8 seeds, looked at each: {100 * false / args.plans:.1f} %")


if __name__ == "__main__":
    main()
