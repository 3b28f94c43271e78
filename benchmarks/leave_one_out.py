"""Whether a rule suits data that did not choose it: each set gets the rule that the other sets' validation prefers.

    python -m benchmarks.defaults train-classifier FILES --test --output_dir runs/rule -- --split_column split
    python -m benchmarks.defaults train-classifier FILES --test --output_dir runs/other -- --split_column split OPTIONS
    python -m benchmarks.leave_one_out runs/rule runs/other

Every folder holds the runs of one rule, as `benchmarks.defaults` keeps them. Of sets and seeds those are compared that
every rule has.
"""

import argparse
import json
from pathlib import Path
from statistics import mean

Scores = dict[str, dict[str, float]]  # by split and data set


def scores_of(folder: Path, score: str, runs: list[str]) -> Scores:
    """Return the mean score over seeds for each split and data set."""
    by_split: dict[str, dict[str, list[float]]] = {"eval": {}, "test": {}}
    for run in runs:
        metrics = json.loads((folder / run / "run.json").read_text(encoding="utf-8"))["metrics"]
        for split, found in by_split.items():
            found.setdefault(run.rpartition("-")[0], []).append(metrics[f"{split}_{score}"])
    return {split: {name: mean(values) for name, values in found.items()} for split, found in by_split.items()}


def chosen_without(name: str, rules: dict[Path, Scores]) -> Path:
    """Return the rule with the highest mean validation score over all sets but one."""
    return max(rules, key=lambda rule: mean(value for key, value in rules[rule]["eval"].items() if key != name))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rules", nargs="+", type=Path, help="folders of runs; the first is the rule in use")
    parser.add_argument("--score", default="accuracy", help="name of the score, more is better")
    arguments = parser.parse_args()
    runs = sorted(
        set.intersection(*({path.parent.name for path in rule.glob("*/run.json")} for rule in arguments.rules))
    )
    if not runs:
        parser.error("these folders have no run in common")
    rules = {rule: scores_of(rule, arguments.score, runs) for rule in arguments.rules}
    own = rules[arguments.rules[0]]
    print(f"| data ({len(runs)} runs each) | chosen by the other sets | its test | {arguments.rules[0].name}, test |")
    print("| --- | --- | --- | --- |")
    left_out = {name: chosen_without(name, rules) for name in own["test"]}
    for name, rule in left_out.items():
        print(f"| {name} | {rule.name} | {rules[rule]['test'][name]:.4g} | {own['test'][name]:.4g} |")
    unseen = mean(rules[rule]["test"][name] for name, rule in left_out.items())
    print(f"| mean | | **{unseen:.4g}** | {mean(own['test'].values()):.4g} |")
    print("\n| rule | validation, mean | test, mean |\n| --- | --- | --- |")
    for rule, scores in rules.items():
        print(f"| {rule.name} | {mean(scores['eval'].values()):.4g} | {mean(scores['test'].values()):.4g} |")


if __name__ == "__main__":
    main()
