"""A process in which the programs talk to a Hub: reads jobs as lines of JSON, answers each with a line of JSON.

A process of its own, because huggingface_hub reads the address of the Hub when it is imported. One for many jobs,
because importing everything takes seconds.
"""

import contextlib
import importlib
import io
import json
import os
import resource
import sys
import traceback
from pathlib import Path
from typing import Any

PROGRAMS = (
    *("push", "generate", "convert", "export", "train_translation", "train_language_model", "train_classifier"),
    "train_image_classifier",
)


@contextlib.contextmanager
def limited(more: int | None):
    """Let the process take no more than so many bytes on top of what it has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    if more is not None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])  # of addresses that it has in use
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Run a program as on a command line, or some lines of Python."""
    for name, value in job.get("environment", {}).items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    out, err = io.StringIO(), io.StringIO()
    answer = {"error": None, "traceback": None}
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), limited(job.get("memory")):
        try:
            if job["program"] == "python":
                exec(*job["argv"], {})
            else:
                importlib.import_module(f"vanillaformer.scripts.{job['program']}").main(job["argv"])
        except SystemExit as end:
            answer["error"] = None if end.code in (None, 0) else str(end.code)
        except BaseException as error:
            answer |= {"error": str(error), "traceback": traceback.format_exc(), "kind": type(error).__name__}
    return answer | {"out": out.getvalue(), "err": err.getvalue()}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else writes to standard output
    for program in PROGRAMS:
        importlib.import_module(f"vanillaformer.scripts.{program}")
    import torch

    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps(work(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
