"""Time and memory until rows are ready to train on: ours, and as transformers' run_clm.py makes them.

Each way runs in a process of its own with an empty cache, on the same text file (a text per line) and with the same
tokenizer, which is trained beforehand; imports are not in the times:

    python -m benchmarks.first_step corpus.txt

Ours are the steps of `vanillaformer train-language-model`: reading and checking the file, the validation part, texts
that occur in both, tokens, blocks and the report on them. run_clm.py's are `load_dataset("text")` and two batched
`map`: the tokenizer, then `group_texts`.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from itertools import chain, islice
from pathlib import Path
from typing import Any

from datasets import load_dataset
from transformers import AutoTokenizer

from vanillaformer.tokenization import train
from vanillaformer.training.data.arguments import LanguageModelDataArguments
from vanillaformer.training.data.loading import load_data
from vanillaformer.training.preprocessing.statistics import token_counts
from vanillaformer.training.preprocessing.tokenizing import causal_blocks

BLOCK = 128


def ours(file: str, tokenizer: Any) -> int:
    """Return how many blocks of training data our steps make."""
    texts = load_data(LanguageModelDataArguments(train_file=file, sample_by="line"), "causal").splits
    rows = causal_blocks(texts, tokenizer, block_size=BLOCK)
    token_counts(rows["train"], "input_ids", len(tokenizer))
    return len(rows["train"])


def run_clm(file: str, tokenizer: Any) -> int:
    """Return how many blocks of training data the steps of run_clm.py make."""

    def tokenize(batch: Any) -> Any:
        return tokenizer(batch["text"])

    def group_texts(batch: Any) -> Any:
        joined = {name: list(chain(*batch[name])) for name in batch}
        length = len(joined["input_ids"]) // BLOCK * BLOCK
        result = {name: [ids[i : i + BLOCK] for i in range(0, length, BLOCK)] for name, ids in joined.items()}
        result["labels"] = result["input_ids"].copy()
        return result

    parts = {"train": "train[5%:]", "validation": "train[:5%]"}
    blocks = {}
    for split, part in parts.items():
        rows = load_dataset("text", data_files=file, split=part)
        blocks[split] = rows.map(tokenize, batched=True, remove_columns=["text"]).map(group_texts, batched=True)
    return len(blocks["train"])


WAYS = {"ours": ours, "run_clm": run_clm}


def measure(way: str, file: str, tokenizer_folder: str) -> dict[str, float]:
    """Run one way in a new process; return its seconds, CPU seconds, and peak memory in MB."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "HF_DATASETS_CACHE": cache, "HF_DATASETS_OFFLINE": "1"}
        command = [sys.executable, "-m", "benchmarks.first_step", file, "--way", way, "--tokenizer", tokenizer_folder]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Print what each way takes, and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="Text file, a text per line.")
    parser.add_argument("--vocab_size", type=int, default=8_000, help="Size of the tokenizer.")
    parser.add_argument("--way", choices=WAYS, help="Only this one, in this process.")
    parser.add_argument("--tokenizer", help="Folder of the tokenizer, with --way.")
    arguments = parser.parse_args()
    if arguments.way:
        tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)
        before, start, cpu = peak(), time.perf_counter(), time.process_time()
        blocks = WAYS[arguments.way](arguments.file, tokenizer)
        found = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
        print(json.dumps({**found, "peak_mb": peak(), "imports_mb": before, "blocks": blocks}))
        return
    with tempfile.TemporaryDirectory() as folder, Path(arguments.file).open(encoding="utf-8") as lines:
        tokenizer = train(islice(lines, 50_000), kind="decoder", vocab_size=arguments.vocab_size)
        tokenizer.save_pretrained(folder)
        found = {way: measure(way, arguments.file, folder) for way in WAYS}
    for way, values in found.items():
        print(f"{way:8}", {name: round(value, 1) for name, value in values.items()})
    for name in ("seconds", "cpu_seconds"):
        print(f"run_clm / ours, {name}: {found['run_clm'][name] / found['ours'][name]:.2f}")


def peak() -> float:
    """Return the most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
