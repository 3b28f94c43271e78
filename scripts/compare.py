"""Compare design choices: train every variant of a plan with several seeds, under one budget, and test what differs.

A plan is a YAML file: a training program, its arguments, the variants, a budget of tokens, flops, seconds or steps.
docs/comparing.md has an example. Runs are kept: the same command resumes an interrupted comparison. The report is
written as report.html and report.md, with its figures as PNG and their numbers as CSV.

Examples:
  vanillaformer compare scripts/plans/norms.yaml
  vanillaformer compare plan.yaml --seeds 1 2 3 4 5 --jobs 2
  vanillaformer compare plan.yaml --tune learning_rate=5e-4,1e-3,2e-3 --equal parameters
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from vanillaformer.comparison.comparing import compare
from vanillaformer.comparison.plan import EQUAL, read_plan
from vanillaformer.comparison.report import write_report
from vanillaformer.console.program import CommandParser, program
from vanillaformer.console.reporting import report


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(__doc__ or "", "PLAN [--option value ...]")
    files = parser.add_argument_group("Input and output")
    files.add_argument("plan", metavar="PLAN", type=Path, help="Plan of the comparison (.yaml or .json)")
    files.add_argument("--output_dir", type=Path, help="Folder of runs and report (default: runs/PLAN)")
    runs = parser.add_argument_group("Comparison")
    runs.add_argument("--seeds", type=int, nargs="+", help="Seeds of every variant (default: those of the plan)")
    runs.add_argument("--jobs", type=int, default=1, help="Parallel runs, which share the cores (default: 1)")
    words = "Tune an option for every variant by as many runs, with other seeds; may be repeated"
    runs.add_argument("--tune", action="append", type=grid, metavar="OPTION=A,B,...", help=words)
    words = "Train again what was made with other settings, data or another version; move it to replaced/"
    runs.add_argument("--overwrite", action="store_true", help=words)
    runs.add_argument("--equal", choices=EQUAL, help="Match the baseline's parameters or FLOPs by intermediate_size")
    return parser


def grid(word: str) -> tuple[str, list[Any]]:
    name, sign, values = word.partition("=")
    if not sign:
        raise argparse.ArgumentTypeError(f"{word!r}: write it as option=a,b,c")
    return name.lstrip("-"), [yaml.safe_load(value) for value in values.split(",")]


@program
def main(argv: Sequence[str] | None = None) -> None:
    args = build_parser().parse_args(argv)
    if args.jobs < 1:
        raise ValueError(f"--jobs {args.jobs}: it must be at least 1")
    tune = dict(args.tune) if args.tune else None
    plan = read_plan(args.plan, seeds=args.seeds, tune=tune, equal=args.equal)
    folder = args.output_dir or Path("runs") / args.plan.stem
    comparison = compare(plan, folder, jobs=args.jobs, overwrite=args.overwrite)
    report(write_report(comparison, folder).rstrip())
    report(f"The report is {folder / 'report.html'}, also as report.md; figures and their numbers are next to it.")


if __name__ == "__main__":
    main()
