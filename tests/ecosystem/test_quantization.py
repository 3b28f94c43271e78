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
import torch
from modeling.toys import toy
from transformers import ContinuousBatchingConfig, GenerationConfig

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


PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12, 13, 14], [15], [9, 8, 7, 6, 5, 20, 21, 22, 23, 24, 25]]
# One prompt after the other is let in: the blocks do not hold them all, and the longest is read in two parts.
SMALL = {"block_size": 4, "num_blocks": 8, "max_batch_tokens": 8}


def settings(model) -> GenerationConfig:
    ids = {"eos_token_id": model.config.eos_token_id, "pad_token_id": model.config.pad_token_id}
    return GenerationConfig(max_new_tokens=8, do_sample=False, **ids)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("overrides", [
    {"position_embedding_type": "rotary"},
    {"position_embedding_type": "rotary", "num_key_value_heads": 1},
    {"position_embedding_type": "rotary", "sliding_window": 4},
    {"position_embedding_type": "learned", "num_key_value_heads": 4},
    {"position_embedding_type": "sinusoidal"}, {"position_embedding_type": "none"},
], ids=lambda fields: "-".join(map(str, fields.values())))  # fmt: skip
def test_tokens_are_those_of_generate(overrides, implementation):
    model = toy("decoder", tie_word_embeddings=False, **overrides)
    model.set_attn_implementation(implementation)
    expected = [
        model.generate(torch.tensor([prompt]), generation_config=settings(model))[0, len(prompt) :].tolist()
        for prompt in PROMPTS
    ]
    assert len({token for row in expected for token in row}) > 3, "the same token over and over: nothing is compared"
    results = model.generate_batch(
        PROMPTS, generation_config=settings(model), continuous_batching_config=ContinuousBatchingConfig(**SMALL)
    )
    by_prompt = {tuple(result.prompt_ids): result.generated_tokens for result in results.values()}
    assert [by_prompt[tuple(prompt)] for prompt in PROMPTS] == expected
