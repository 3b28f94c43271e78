"""Compare design choices: train every variant of a plan with several seeds, under one budget, and test what differs.

A plan is a YAML file: a training program, its arguments, the variants, a budget of tokens, flops, seconds or steps.
docs/comparing.md has an example. Runs are kept: the same command resumes an interrupted comparison. The report is
written as report.html, report.md and report.json, with its figures as PNG and their numbers as CSV.

With --transfer it only tunes the learning rate, at several widths. A plan with the key `ladder` trains small models
and predicts the loss of a larger one.

With --json the exit code is 0 if a variant (those of --add, if there are any) is better than the baseline, 3 if the
runs cannot tell, 4 if all are worse.

Examples:
  vanillaformer compare scripts/plans/norms.yaml
  vanillaformer compare plan.yaml --seeds 1 2 3 4 5 --jobs 2
  vanillaformer compare plan.yaml --tune learning_rate=5e-4,1e-3,2e-3 --equal parameters
  vanillaformer compare scripts/plans/widths.yaml --transfer widths=64,128,256,512
  vanillaformer compare scripts/plans/ladder.yaml
  vanillaformer compare plan.yaml --family 20 --json --add 'fast={learning_rate: 4.0e-3}'
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from vanillaformer.comparison.comparing import compare
from vanillaformer.comparison.plan import EQUAL, read_added, read_plan
from vanillaformer.comparison.report import write_report
from vanillaformer.console.parsing import SettingsLoader, read_settings
from vanillaformer.console.program import CommandParser, program
from vanillaformer.console.reporting import report
from vanillaformer.forecasting.ladder import forecast
from vanillaformer.forecasting.transfer import at_widths, write_transfer

BETTER, UNDECIDED, WORSE = 0, 3, 4  # exit codes of --json
WITHOUT = ("sequential", "family", "add", "json")  # options that need variants to be tested


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(__doc__ or "", "PLAN [--option value ...]")
    files = parser.add_argument_group("Input and output")
    files.add_argument("plan", metavar="PLAN", type=Path, help="Plan of the comparison (.yaml or .json)")
    files.add_argument("--output_dir", type=Path, help="Folder of runs and report (default: runs/PLAN)")
    runs = parser.add_argument_group("Comparison")
    runs.add_argument("--seeds", type=int, nargs="+", help="Seeds of every variant (default: those of the plan)")
    runs.add_argument("--jobs", type=int, default=1, help="Parallel runs, which share the cores (default: 1)")
    words = "Tune an option for every variant, with equally many runs and separate seeds; may be repeated"
    runs.add_argument("--tune", action="append", type=grid, metavar="OPTION=A,B,...", help=words)
    words = "Tuning: if the best number is at an end, try up to three beyond it"
    runs.add_argument("--extend", action="store_true", default=None, help=words)
    words = "Begin with two seeds; train only undecided variants with more, up to all"
    runs.add_argument("--sequential", action="store_true", default=None, help=words)
    words = "Add a variant to the folder's plan permanently; may be repeated"
    runs.add_argument("--add", action="append", type=variant, default=[], metavar="NAME={OPTIONS}", help=words)
    words = "Number of variants that will be tested in all (needed for --add)"
    runs.add_argument("--family", type=int, metavar="N", help=words)
    words = "Only tune learning_rate, at these widths, and draw how far the best rate moves"
    runs.add_argument("--transfer", type=widths, metavar="widths=A,B,...", help=words)
    words = "Share the work with the same command in other processes and on other hosts"
    runs.add_argument("--share", action="store_true", help=words)
    words = "Train again runs of other settings, data or versions; move the old ones to replaced/"
    runs.add_argument("--overwrite", action="store_true", help=words)
    runs.add_argument("--equal", choices=EQUAL, help="Match the baseline's parameters or FLOPs by intermediate_size")
    words = "Print report.json instead of the table, messages to standard error; see above for the exit code"
    files.add_argument("--json", action="store_true", help=words)
    return parser


def read(form: str, kind: type, example: str, word: str) -> tuple[str, Any]:
    """Return the name and the value of an argument, read as in a plan."""
    name, _, text = word.lstrip("-").partition("=")
    try:
        found = yaml.load(form.replace("{}", text), SettingsLoader)
    except (ValueError, yaml.YAMLError):
        found = None
    if not name or not isinstance(found, kind):
        raise argparse.ArgumentTypeError(f"{word!r}: write it as {example}")
    return name, found


variant = partial(read, "{}", dict, "name={option: value, ...}")
grid = partial(read, "[{}]", list, "option=a,b,c")


def widths(word: str) -> list[int]:
    name, _, values = word.partition("=")
    found = {int(value) if value.isdecimal() else 0 for value in values.split(",")}
    if name != "widths" or 0 in found or len(found) < 2:
        raise argparse.ArgumentTypeError(f"{word!r}: write it as widths=64,128,256")
    return sorted(found)


@program
def main(argv: Sequence[str] | None = None) -> None:
    args = build_parser().parse_args(argv)
    if args.jobs < 1:
        raise ValueError(f"--jobs {args.jobs}: it must be at least 1")
    if twice := [name for name in ("tune", "add") if len(given := getattr(args, name) or []) > len(dict(given))]:
        raise ValueError(f"--{twice[0]}: a name is given twice")
    folder, new = args.output_dir or Path("runs") / args.plan.stem, dict(args.add)
    replaced = {"seeds": args.seeds, "tune": dict(args.tune) if args.tune else None, "equal": args.equal}
    replaced |= {"sequential": args.sequential, "family": args.family, "extend": args.extend}
    ladder = "ladder" in read_settings(args.plan)
    without = (*WITHOUT, *(("tune", "equal", "extend", "share", "transfer") if ladder else ("seeds",)))
    if names := [name for name in without if (ladder or args.transfer) and getattr(args, name)]:
        raise ValueError(f"--{names[0]} cannot be used with {'a plan that has a ladder' if ladder else '--transfer'}")
    if ladder:
        report(forecast(args.plan, folder, jobs=args.jobs, overwrite=args.overwrite, seeds=args.seeds))
        return
    plan = read_plan(args.plan, read_added(folder, new), **replaced)
    if args.transfer:
        plan = at_widths(plan, args.transfer)
        found = compare(plan, folder, jobs=args.jobs, overwrite=args.overwrite, shared=args.share)
        report(write_transfer(plan, found.tuning, folder))
        return
    with redirect_stdout(sys.stderr) if args.json else nullcontext():
        comparison = compare(plan, folder, jobs=args.jobs, overwrite=args.overwrite, shared=args.share)
        text = write_report(comparison, folder).rstrip()
    if args.json:
        print((folder / "report.json").read_text(encoding="utf-8"), end="")
        words = {comparison.verdicts[name].word for name in new or comparison.verdicts}
        raise SystemExit(BETTER if "better" in words else WORSE if words == {"worse"} else UNDECIDED)
    report(text)
    report(f"The report is {folder / 'report.html'}, also as report.md; figures and their numbers are next to it.")


if __name__ == "__main__":
    main()
