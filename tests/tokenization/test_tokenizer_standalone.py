"""What is saved loads where this package is not installed."""

import json
import os
import subprocess
import sys
from typing import get_args

import pytest
from without_package import FOLDER

from vanillaformer.tokenization import ModelKind, TokenizerAlgorithm

TEXTS = ["The quick brown fox, it's 1987!", " 我爱 PyTorch  (2024) ✈", ""]
LOADER = """
import json, sys
from without_package import Absent
sys.meta_path.insert(0, Absent())
from transformers import AutoTokenizer
results = {}
for folder in json.load(sys.stdin)["folders"]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    encoded = [dict(tokenizer(text)) for text in TEXTS]
    decoded = [tokenizer.decode(e["input_ids"], skip_special_tokens=True) for e in encoded]
    results[folder] = [type(tokenizer).__name__, len(tokenizer), tokenizer.model_max_length, encoded, decoded]
assert not [name for name in sys.modules if name.partition(".")[0] == "vanillaformer"]
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def loaded(trained, tmp_path_factory):
    root = tmp_path_factory.mktemp("tokenizers")
    folders = {}
    for algorithm in get_args(TokenizerAlgorithm):
        for kind in get_args(ModelKind):
            folder = folders[algorithm, kind] = root / f"{algorithm}-{kind}"
            trained(algorithm=algorithm, kind=kind).save_pretrained(folder)
            # As beside a model of ours: a model type that is unknown without the package.
            (folder / "config.json").write_text(json.dumps({"model_type": f"vanilla_{kind}"}))
    code = LOADER.replace("TEXTS", repr(TEXTS))
    job = json.dumps({"folders": [str(folder) for folder in folders.values()]})
    environment = os.environ | {"PYTHONPATH": FOLDER}
    result = subprocess.run([sys.executable, "-c", code], input=job, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    results = json.loads(result.stdout.splitlines()[-1])
    return {key: results[str(folder)] for key, folder in folders.items()}


@pytest.mark.parametrize("kind", get_args(ModelKind))
@pytest.mark.parametrize("algorithm", get_args(TokenizerAlgorithm))
def test_auto_tokenizer_loads_it_unchanged(trained, loaded, algorithm, kind):
    here = trained(algorithm=algorithm, kind=kind)
    name, size, max_length, encoded, decoded = loaded[algorithm, kind]
    assert name == type(here).__name__ == "TokenizersBackend"
    assert (size, max_length) == (len(here), here.model_max_length)
    assert encoded == [dict(here(text)) for text in TEXTS]
    assert decoded == [here.decode(e["input_ids"], skip_special_tokens=True) for e in encoded]
