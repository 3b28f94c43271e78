"""Runs `quantized_models.py` in a process of its own, where torchao and bitsandbytes can be imported.

transformers imports both wherever they are installed, and both write to stderr then, so `make` keeps them in a folder
beside the environment's packages: every other program starts without them.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ASIDE = Path(sys.prefix, "quantizers")
LIBRARIES = ("torchao", "bitsandbytes")


def test_models_in_8_bits():
    missing = [name for name in LIBRARIES if find_spec(name) is None and not (ASIDE / name).is_dir()]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed: make test installs them in {ASIDE}")
    paths = [str(ASIDE), os.environ.get("PYTHONPATH")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    cases = Path(__file__).with_name("quantized_models.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(cases)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "skipped" not in done.stdout, done.stdout[-4000:]
