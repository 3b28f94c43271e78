"""Compares a family with its native reference: which tests were missed, and which do not apply."""

from dataclasses import dataclass, field

from .family import Family
from .native import NativeFamily
from .results import NOT_APPLICABLE, Results


@dataclass(frozen=True)
class Comparison:
    """What became of the tests that the native family passes.

    Args:
        passed: Those that the family passes too.
        missed: Those that it does not pass, with the reason.
        not_applicable: Those that ask for a head which the family does not declare, with the reason.
    """

    passed: list[str] = field(default_factory=list)
    missed: dict[str, str] = field(default_factory=dict)
    not_applicable: dict[str, str] = field(default_factory=dict)


def compare(family: Family, results: Results, native: NativeFamily, whole: bool = True) -> Comparison:
    """Compare a family with its reference.

    Args:
        family: The family under test.
        results: What became of its tests.
        native: What the reference passes.
        whole: Whether all tests were to run; if not, one without a result is no miss.
    """
    comparison = Comparison()
    missing_heads = [head for head in native.heads if head not in family.auto_classes]
    for test in native.passed:
        result = results.get(test)
        if result is None:
            if whole:
                comparison.missed[test] = "absent"
        elif result.outcome == "skipped" and result.reason.startswith(NOT_APPLICABLE):
            comparison.not_applicable[test] = result.reason.removeprefix(NOT_APPLICABLE)
        elif result.outcome != "passed":
            comparison.missed[test] = f"{result.outcome}: {result.reason}"
        elif result.models_built or test in native.passed_without_a_model:
            comparison.passed.append(test)
        elif missing_heads:  # the test looked for a class that it could use, and found none
            comparison.not_applicable[test] = f"built no model; the family has no {' or '.join(missing_heads)}"
        else:
            comparison.missed[test] = "passed without building a model"
    return comparison
