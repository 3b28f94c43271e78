"""Time and memory until rows are ready to train on: ours, and as transformers' example scripts make them.

Each way runs in a process of its own with an empty cache, on the same file and with the same tokenizer, which is
trained beforehand; imports are not in the figures:

    python -m benchmarks.first_step corpus.txt
    python -m benchmarks.first_step labeled.csv

A text file has a text per line, of which blocks for a language model are made; a .csv file has the columns `text` and
`label`. Ours are the steps of the training programs: reading and checking the file, the validation part, texts that
occur in both, tokens, and the report on them. The others are those of run_clm.py (two batched `map`: the tokenizer,
then `group_texts`) and run_classification.py (one). Memory is the process's own (RssAnon: no mapped files).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from threading import Thread
from typing import Any

from datasets import load_dataset
from transformers import AutoTokenizer

from vanillaformer.data.arguments import ClassifierDataArguments, LanguageModelDataArguments
from vanillaformer.data.loading import load_data
from vanillaformer.data.preprocessing.blocks import block_rows
from vanillaformer.data.preprocessing.statistics import token_counts
from vanillaformer.data.preprocessing.tokenizing import classification_rows
from vanillaformer.tokenization import train

BLOCK = 128


def ours(file: str, tokenizer: Any) -> Iterator[tuple[str, int]]:
    """Prepare rows as our programs do; yield what was done, and how many rows of training data there are."""
    if file.endswith(".csv"):
        texts = load_data(ClassifierDataArguments(train_file=[file]), "classification").splits
        yield "data", len(texts["train"])
        rows = classification_rows(texts, tokenizer, max_length=BLOCK)
    else:
        texts = load_data(LanguageModelDataArguments(train_file=[file], sample_by="line"), "causal").splits
        yield "data", len(texts["train"])
        rows = block_rows(texts, tokenizer, block_size=BLOCK)
    yield "rows", len(rows["train"])
    token_counts(rows["train"], "input_ids", len(tokenizer))
    yield "report", len(rows["train"])


def examples(file: str, tokenizer: Any) -> Iterator[tuple[str, int]]:
    """Prepare rows as the example scripts of transformers do."""

    def tokenize(batch: Any) -> Any:
        if file.endswith(".csv"):
            return tokenizer(batch["text"], truncation=True, max_length=BLOCK)
        return tokenizer(batch["text"])

    def group_texts(batch: Any) -> Any:
        joined = {name: list(chain(*batch[name])) for name in batch}
        length = len(joined["input_ids"]) // BLOCK * BLOCK
        result = {name: [ids[i : i + BLOCK] for i in range(0, length, BLOCK)] for name, ids in joined.items()}
        result["labels"] = result["input_ids"].copy()
        return result

    kind = "csv" if file.endswith(".csv") else "text"
    parts = {"train": "train[5%:]", "validation": "train[:5%]"}
    texts = {split: load_dataset(kind, data_files=file, split=part) for split, part in parts.items()}
    yield "data", len(texts["train"])
    rows = {split: part.map(tokenize, batched=True, remove_columns=["text"]) for split, part in texts.items()}
    if kind == "text":
        rows = {split: part.map(group_texts, batched=True) for split, part in rows.items()}
    yield "rows", len(rows["train"])


WAYS = {"ours": ours, "examples": examples}


def measure(way: str, file: str, tokenizer_folder: str) -> dict[str, float]:
    """Run one way in a new process; return its seconds, CPU seconds and most memory in MB, by stage and in all."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "HF_DATASETS_CACHE": cache, "HF_DATASETS_OFFLINE": "1"}
        command = [sys.executable, "-m", "benchmarks.first_step", file, "--way", way, "--tokenizer", tokenizer_folder]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def run(way: str, file: str, tokenizer_folder: str) -> dict[str, float]:
    """Run one way in this process."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    imports = memory()
    most = [imports]
    Thread(target=watch, args=(most,), daemon=True).start()
    start, cpu, found = time.perf_counter(), time.process_time(), {}
    for stage, rows in WAYS[way](file, tokenizer):
        found[stage], count = time.perf_counter() - start - sum(found.values()), rows
    totals = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
    return {**found, **totals, "memory_mb": most[0] - imports, "count": count}


def watch(most: list[float]) -> None:
    """Keep the most memory that this process has had."""
    while True:
        most[0] = max(most[0], memory())
        time.sleep(0.005)


def memory() -> float:
    """Return the anonymous memory of this process in MB, without mapped files."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("RssAnon:")[1].split()[0]) / 1024


def main() -> None:
    """Print what each way takes, and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="Text file, a text per line, or .csv file.")
    parser.add_argument("--vocab_size", type=int, default=8_000, help="Size of the tokenizer.")
    parser.add_argument("--way", choices=WAYS, help="Only this one, in this process.")
    parser.add_argument("--tokenizer", help="Folder of the tokenizer, with --way.")
    arguments = parser.parse_args()
    if arguments.way:
        print(json.dumps(run(arguments.way, arguments.file, arguments.tokenizer)))
        return
    with tempfile.TemporaryDirectory() as folder, Path(arguments.file).open(encoding="utf-8") as lines:
        tokenizer = train(islice(lines, 50_000), kind="decoder", vocab_size=arguments.vocab_size)
        tokenizer.save_pretrained(folder)
        found = {way: measure(way, arguments.file, folder) for way in WAYS}
    for way, values in found.items():
        print(f"{way:8}", {name: round(value, 1) for name, value in values.items()})
    for name in ("seconds", "cpu_seconds"):
        print(f"examples / ours, {name}: {found['examples'][name] / found['ours'][name]:.2f}")


if __name__ == "__main__":
    main()
