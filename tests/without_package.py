"""For programs of the tests that run in a process of their own, where the package cannot be imported."""

import copy
import importlib.abc
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

FOLDER = str(Path(__file__).parent)  # on the path of such a process, which imports this file


class Absent(importlib.abc.MetaPathFinder):
    """Makes the package look as if it were not installed."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "vanillaformer":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@torch.no_grad()
def answers(model, inputs):
    """Return what the model computes, and what it generates if it does.

    A copy computes, whose tensors are aligned: those of a mapped file begin anywhere, by which a product with one
    column is rounded otherwise.
    """
    model = copy.deepcopy(model)
    found = {"output": model(**inputs)[0]}
    if model.can_generate():
        ids = {name: inputs[name] for name in ("input_ids", "attention_mask") if name in inputs}
        found["generated"] = model.generate(**ids, max_new_tokens=5, do_sample=False)
    return found


def same_answers(model, expected):
    """Return whether a model answers its inputs as the package's did, bit for bit."""
    found = answers(model, expected["inputs"])
    return all(torch.equal(value, expected["answers"][name]) for name, value in found.items())


def refusal(auto_class, name, **options):
    """Return what is said instead of a model."""
    try:
        auto_class.from_pretrained(name, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def do_jobs(work: Callable[[Any], dict[str, Any]]) -> None:
    """What such a program does: its arguments are a file with the jobs, and one for the report."""
    sys.meta_path.insert(0, Absent())
    report = work(json.loads(Path(sys.argv[1]).read_text()))
    report["ours"] = [module for module in sys.modules if module.partition(".")[0] == "vanillaformer"]
    Path(sys.argv[2]).write_text(json.dumps(report))


def report_of(program: Path, jobs: Any, folder: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """Run such a program."""
    (folder / "jobs.json").write_text(json.dumps(jobs))
    result = subprocess.run(
        [sys.executable, program, folder / "jobs.json", folder / "report.json"],
        env={**environment, "PYTHONPATH": FOLDER}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads((folder / "report.json").read_text())
