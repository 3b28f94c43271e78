"""Prints what became of the tests, family by family."""

from collections import defaultdict

from .comparison import Comparison
from .family import Family
from .results import Results, skip_kind

OUTCOMES = ("passed", "failed", "skipped")
TRACE_LENGTH = 3000
REASON_LENGTH = 250


def print_table(results: dict[str, Results], comparisons: dict[str, Comparison]) -> None:
    """Print the numbers, one line for each family."""
    columns = ("family", "passed", "failed", "missed", "not applicable", "skipped", "seconds")
    print("\n" + columns[0].ljust(18) + "".join(name.rjust(len(name) + 3) for name in columns[1:]))
    for name, tests in results.items():
        count = {outcome: sum(test.outcome == outcome for test in tests.values()) for outcome in OUTCOMES}
        numbers = {
            **count,
            "missed": len(comparisons[name].missed),
            "not applicable": len(comparisons[name].not_applicable),
            "seconds": round(sum(test.seconds for test in tests.values())),
        }
        print(name.ljust(18) + "".join(str(numbers[column]).rjust(len(column) + 3) for column in columns[1:]))


def print_family(family: Family, results: Results, comparison: Comparison) -> None:
    """Print what one family failed, missed and skipped, and why."""
    considered = len(comparison.passed) + len(comparison.missed) + len(comparison.not_applicable)
    print(f"\n[{family.name}] passes {len(comparison.passed)} of {considered} tests that {family.reference} passes")
    for test, reason in comparison.missed.items():
        print(f"  MISSED {test}: {shorten(reason)}")
    for test, reason in comparison.not_applicable.items():
        print(f"  not applicable: {reason} ({test})")
    print_skips(results)
    for test, result in results.items():
        if result.outcome == "failed":
            print(f"  FAILED {test}: {shorten(result.reason)}\n{result.trace[-TRACE_LENGTH:]}\n")


def print_skips(results: Results) -> None:
    """Print the reasons of the skips with their numbers, and the tests where a reason is about the model."""
    tests_by_reason = defaultdict(list)
    for test, result in results.items():
        if result.outcome == "skipped":
            tests_by_reason[skip_kind(test, result.reason), shorten(result.reason)].append(test)
    for (kind, reason), tests in sorted(tests_by_reason.items()):
        names = f" ({', '.join(sorted(tests))})" if kind == "feature not there" else ""
        print(f"  skipped {len(tests):>2}, {kind}: {reason.removeprefix(f'{kind}: ')}{names}")


def shorten(text: str) -> str:
    """Put a text on one line of limited length."""
    line = " ".join(text.split())
    return line if len(line) <= REASON_LENGTH else line[: REASON_LENGTH - 1] + "…"
