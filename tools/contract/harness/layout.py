"""Lays transformers' test files out as the importable package `tests`."""

import shutil
from pathlib import Path

# The source distribution lacks these modules, which its tests import.
STAND_INS = {
    "__init__.py": "",
    "generation/__init__.py": "",
    # The tests only ask whether a family's class inherits from it: those of `generate()` are in tests/modeling.
    "generation/test_utils.py": "class GenerationTesterMixin:\n    pass\n",
    "exporters/__init__.py": "",
    "exporters/test_export.py": "from harness.checks.exporting import ExportTesterMixin\n",
    "utils/__init__.py": "",
    "utils/test_configuration_utils.py": "from harness.checks.configuration import config_common_kwargs\n",
    "distributed_testing_utils.py": """
import torch

from harness.distributed import run_distributed
from harness.distributed import start_rank_processes as _start_rank_processes


def _get_distributed_backend():
    return "gloo"


def _get_distributed_device_type():
    return "cpu"


def _get_rank_device(rank):
    return torch.device("cpu")


def _set_rank_device(rank):
    pass
""",
}


def lay_out(sdist_tests: Path, folder: Path) -> Path:
    """Write the package `tests`, a pytest.ini and the test file that pytest is to run; return that file."""
    package = folder / "tests"
    shutil.copytree(sdist_tests, package, ignore=lambda _, names: [name for name in names if not name.endswith(".py")])
    for name, source in STAND_INS.items():
        path = package / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings =\n    ignore\n")
    test_file = folder / "test_contract.py"
    test_file.write_text("from harness.cases import build_cases\n\nglobals().update(build_cases())\n")
    return test_file
