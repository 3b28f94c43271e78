"""What became of each test: read from pytest's JUnit file, and skips sorted by reason."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

NOT_APPLICABLE = "not applicable: "  # starts the reason of a skip that follows from what the family declares

# Kind of a skip by "test name: reason"; the first match counts.
SKIP_KINDS = {
    "not applicable": rf": {NOT_APPLICABLE}",
    "no accelerator": r"requires (multiple )?(accelerator|GPU|MPS|CUDA|XPU)",
    "library not installed": r"[Rr]equires .*(Flash|deepspeed|kernels|torchao)|not installed",
    "slow": r"is slow",
    "too few CPUs": r"at least \d+ CPUs",
    "no mixture of experts": r"grouped_mm|experts?\b|expert_parallel|MoE|router",
    "no composite model": r"composite|subconfig",
    "another kind of model": r"axial RoPE|No sequence-to-sequence|No decoder-only",
    "feature not there": r"",
}


@dataclass(frozen=True)
class Result:
    """The outcome of one test.

    Args:
        outcome: What pytest says.
        reason: Why it failed or was skipped.
        trace: Where it failed.
        seconds: Its duration.
        models_built: The number of models that it built in its own process.
    """

    outcome: Literal["passed", "failed", "skipped"]
    reason: str = ""
    trace: str = ""
    seconds: float = 0.0
    models_built: int = 1


Results = dict[str, Result]  # by the name of the test


def skip_kind(test: str, reason: str) -> str:
    """Sort a skip into one of `SKIP_KINDS`."""
    return next(kind for kind, pattern in SKIP_KINDS.items() if re.search(pattern, f"{test}: {reason}"))


def read_junit(path: Path) -> dict[str, Results]:
    """Read the results of each family from pytest's JUnit file."""
    results: dict[str, Results] = {}
    for case in ElementTree.parse(path).iter("testcase"):
        module, _, family = case.attrib["classname"].rpartition(".")
        if module.endswith("test_contract"):  # otherwise the test file itself could not be imported
            results.setdefault(family, {})[case.attrib["name"]] = read_case(case)
    return results


def read_case(case: ElementTree.Element) -> Result:
    """Read the result of one test."""
    seconds = float(case.attrib["time"])
    built = [int(entry.attrib["value"]) for entry in case.iter("property") if entry.attrib["name"] == "models_built"]
    for tag, outcome in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        entry = case.find(tag)
        if entry is not None:
            text = entry.text or ""
            reason = entry.get("message") or text[-400:]
            return Result(outcome, reason.strip(), text, seconds, sum(built))
    return Result("passed", seconds=seconds, models_built=sum(built))
