"""Runs transformers' own model tests, and checks of our own, on our models.

python tools/contract/run.py                                       # everything; 1 on a failure or a miss
python tools/contract/run.py --families encoder -k "config or save_load"
python tools/contract/run.py --families decoder -k resize -n 0 -x  # in one process, with its output
python tools/contract/run.py --record-native                       # writes native_passed.json again
python tools/contract/run.py --record-native --families t5         # and this one of its families
"""

import argparse
import importlib.util
import sys
import time
from pathlib import Path

from harness.comparison import compare
from harness.family import Family, load_families
from harness.native import NativeRecord
from harness.report import print_family, print_table
from harness.sdist import Unavailable, fetch_tests, transformers_version
from harness.session import Session, SessionFailed

NEEDED = ("parameterized", "peft", "pytest", "xdist")
FOLDER = Path(__file__).resolve().parent
NATIVE_PASSED = FOLDER / "native_passed.json"
CACHE = FOLDER.parents[1] / ".cache" / "contract"


def main(argv: list[str] | None = None) -> int:
    """Run what the command line asks for; return the exit code."""
    arguments = parse(argv)
    missing = [module for module in NEEDED if importlib.util.find_spec(module) is None]
    if missing:
        print(f"the contract tests need {', '.join(missing)}: pip install -e '.[contract]'", file=sys.stderr)
        return 2
    try:
        sdist_tests = fetch_tests(arguments.cache)
    except Unavailable as error:
        print(f"skipped: could not fetch the source distribution of transformers {transformers_version()}: {error}")
        return 0
    try:
        return record_native(arguments, sdist_tests) if arguments.record_native else check(arguments, sdist_tests)
    except SessionFailed as error:
        print(error, file=sys.stderr)
        return 2


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--families", nargs="+", metavar="NAME", help="only these (default all; with --record-native too)"
    )
    parser.add_argument("-k", dest="expression", default="", help="run only the tests that match, as in pytest")
    parser.add_argument("-n", dest="workers", type=int, default=2, help="number of processes (default 2)")
    parser.add_argument("-x", dest="stop_early", action="store_true", help="stop at the first failure")
    parser.add_argument("--timeout", type=int, default=300, help="seconds that one test may take (default 300)")
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder for transformers' tests (default .cache)")
    parser.add_argument("--record-native", action="store_true", help="run the native models and keep what they pass")
    arguments = parser.parse_args(argv)
    if arguments.record_native and (arguments.expression or arguments.stop_early):
        parser.error("--record-native runs all tests of a family: leave -k and -x away")
    return arguments


def chosen(arguments: argparse.Namespace, module: str) -> list[Family]:
    """Return the families that the command line names.

    Raises:
        SystemExit: One of them does not exist.
    """
    families = load_families(module)
    names = [family.name for family in families]
    if unknown := set(arguments.families or []) - set(names):
        sys.exit(f"--families {' '.join(sorted(unknown))}: choose from {' '.join(names)}")
    return [family for family in families if family.name in (arguments.families or names)]


def check(arguments: argparse.Namespace, sdist_tests: Path) -> int:
    """Run our families and compare them with the native ones; return 1 on a failure or a miss."""
    record = NativeRecord.load(NATIVE_PASSED)
    families = chosen(arguments, "families")
    whole = not (arguments.expression or arguments.stop_early)
    start = time.monotonic()
    results = session(arguments, "families", [family.name for family in families]).run(sdist_tests)
    comparisons = {
        family.name: compare(family, results.get(family.name, {}), record.families[family.reference], whole)
        for family in families
    }
    for family in families:
        print_family(family, results.get(family.name, {}), comparisons[family.name])
    print_table(results, comparisons)
    print(f"transformers {transformers_version()}, {time.monotonic() - start:.0f} s")
    if record.transformers != transformers_version():
        print(f"the native results are of transformers {record.transformers}: take new ones with --record-native")
    failed = any(result.outcome == "failed" for tests in results.values() for result in tests.values())
    return int(failed or any(comparison.missed for comparison in comparisons.values()))


def record_native(arguments: argparse.Namespace, sdist_tests: Path) -> int:
    """Run the native families and write down what they pass, beside what is known of the others."""
    families = chosen(arguments, "native_families")
    results = session(arguments, "native_families", [family.name for family in families]).run(sdist_tests)
    record = NativeRecord.of(families, results)
    if arguments.families and NATIVE_PASSED.exists():
        record = record.with_others(NativeRecord.load(NATIVE_PASSED))
    record.save(NATIVE_PASSED)
    for name in results:
        print(f"{name} passes {len(record.families[name].passed)} of {len(results[name])} tests")
    return 0


def session(arguments: argparse.Namespace, module: str, families: list[str]) -> Session:
    """Make the session that the command line asks for."""
    return Session(module, families, arguments.expression, arguments.workers, arguments.stop_early, arguments.timeout)


if __name__ == "__main__":
    sys.exit(main())
