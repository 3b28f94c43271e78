"""The memory that preparing data takes does not grow with the data."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

# From a file to rows, as the programs do it; printed is the most memory that was the process's own, in bytes.
PROGRAM = """
import sys, threading, time
import datasets
from types import SimpleNamespace
from vanillaformer.tokenization import train
from vanillaformer.data.caching import TextColumn
from vanillaformer.data.arguments import DATA_ARGUMENTS
from vanillaformer.data.loading import load_data
from vanillaformer.data.preprocessing.statistics import describe_data
from vanillaformer.data.preprocessing.language_model import block_rows
from vanillaformer.data.preprocessing.tokenizing import classification_rows
from vanillaformer.data.caching import fingerprints

def memory():
    return 1024 * int(next(line for line in open("/proc/self/status") if line.startswith("RssAnon")).split()[1])

def watch():
    while True:
        found[0] = max(found[0], memory())
        time.sleep(0.002)

datasets.disable_progress_bars()
task, file = sys.argv[1:]
before = memory()
found = [before]
threading.Thread(target=watch, daemon=True).start()
texts = load_data(DATA_ARGUMENTS[task](train_file=file), task).splits
fingerprints(texts)
tokenizer = train(TextColumn(texts["train"], "text"), kind="encoder", vocab_size=500)
tokenizer.eos_token = "[SEP]"
if task == "causal":
    rows = block_rows(texts, tokenizer, block_size=64)
else:
    rows = classification_rows(texts, tokenizer, max_length=64)
settings = SimpleNamespace(
    train_batch_size=8, gradient_accumulation_steps=1, data_processes=1, data_process=0, tokens_per_batch=None,
    train_sampling_strategy="random", seed=0, data_seed=None,
)
describe_data(rows, (tokenizer, tokenizer), settings)
rows["train"][[5, 3]]
print(len(texts["train"]), found[0] - before)
"""
BYTES_PER_ROW = 64
"""Hashes, numbers and orders of a row, 4 or 8 bytes each, of which no more than eight are in memory at once."""
NOISE = 24 * 2**20
"""What allocators keep and threads hold: measured are 3 to 12 MB."""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is told apart by Linux only")
@pytest.mark.parametrize("task", ["causal", "classification"])
def test_four_times_the_data_takes_no_more_memory(task, tmp_path):
    rng, words = random.Random(0), [f"word{number}" for number in range(300)]
    lines = [f"{' '.join(rng.choices(words, k=25))} {number}" for number in range(10_000)]
    peaks, rows = [], []
    for times in (1, 4):
        if task == "causal":
            file = tmp_path / f"{times}.txt"
            file.write_text("\n".join(f"{line}{copy}" for copy in range(times) for line in lines))
        else:
            file = tmp_path / f"{times}.csv"
            cells = (f"{line}{copy},{'ab'[len(line) % 2]}" for copy in range(times) for line in lines)
            file.write_text("text,label\n" + "\n".join(cells))
        settings = {"HF_DATASETS_CACHE": str(tmp_path), "RAYON_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
        command = [sys.executable, "-c", PROGRAM, task, str(file)]
        done = subprocess.run(command, env={**os.environ, **settings}, stdout=subprocess.PIPE, text=True, check=True)
        count, peak = map(int, done.stdout.split()[-2:])
        peaks.append(peak)
        rows.append(count)
    assert rows[1] == 4 * rows[0]
    assert peaks[1] - peaks[0] < BYTES_PER_ROW * (rows[1] - rows[0]) + NOISE
