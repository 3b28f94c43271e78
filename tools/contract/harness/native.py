"""The record of what the native families pass: `native_passed.json`."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers

from .family import Family
from .results import Results


@dataclass(frozen=True)
class NativeFamily:
    """What one native family passes.

    Args:
        heads: The names of its Auto classes.
        passed: The tests that it passes.
        passed_without_a_model: Those of them that build no model in their own process.
    """

    heads: list[str]
    passed: list[str]
    passed_without_a_model: list[str]


@dataclass(frozen=True)
class NativeRecord:
    """What the native families pass, and the versions that this was seen with."""

    transformers: str
    torch: str
    families: dict[str, NativeFamily]

    @classmethod
    def of(cls, families: list[Family], results: dict[str, Results]) -> "NativeRecord":
        """Make a record of the results of a whole run."""
        natives = {}
        for family in sorted(families, key=lambda family: family.name):
            passed = {test: result for test, result in results[family.name].items() if result.outcome == "passed"}
            natives[family.name] = NativeFamily(
                heads=sorted(family.auto_classes),
                passed=sorted(passed),
                passed_without_a_model=sorted(test for test, result in passed.items() if not result.models_built),
            )
        return cls(transformers.__version__, torch.__version__, natives)

    def with_others(self, other: "NativeRecord") -> "NativeRecord":
        """Return this record with the families that only the other one has."""
        families = dict(sorted((other.families | self.families).items()))
        return NativeRecord(self.transformers, self.torch, families)

    @classmethod
    def load(cls, path: Path) -> "NativeRecord":
        """Read a record."""
        fields = json.loads(path.read_text())
        families = {name: NativeFamily(**family) for name, family in fields.pop("families").items()}
        return cls(families=families, **fields)

    def save(self, path: Path) -> None:
        """Write the record, one name a line."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")
