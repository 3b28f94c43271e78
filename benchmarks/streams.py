"""What a stream costs: bytes that each of two processes reads, and the time of a resumed run to its next batch.

    python benchmarks/streams.py --gigabytes 10

A file of documents of about 4,000 characters; each process reads until 80 % of it are trained on, without a tokenizer;
then one process continues, with blocks of 1,024 tokens.
"""

import argparse
import random
import tempfile
import time
from itertools import islice
from pathlib import Path

from vanillaformer.data.arguments import LanguageModelDataArguments
from vanillaformer.data.loading import load_data
from vanillaformer.data.preprocessing.language_model import block_cutter
from vanillaformer.data.streaming import PLACES, StreamedRows, with_places
from vanillaformer.tokenization import train

PROCESSES, ROWS, SHARE = 2, 16, 0.8


def write(path: Path, size: int) -> int:
    """Write documents of random words until the file has that size; return how many."""
    draw, count = random.Random(0), 0
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(20_000)]
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < size:
            text = " ".join(draw.choices(words, k=600))
            file.writelines(f'{{"text": "{number} {text}"}}\n' for number in range(count, count + 20))
            count += 20
    return count


def bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def batches(rows: StreamedRows, process: int, processes: int):
    rows.process, rows.processes = process, processes
    iterator = iter(rows)
    while True:
        yield with_places(list(islice(iterator, ROWS)), lambda found: {"rows": found})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=10)
    with tempfile.TemporaryDirectory() as name:
        path, other, folder = Path(name, "rows.jsonl"), Path(name, "other.txt"), Path(name)
        count = write(path, int(parser.parse_args().gigabytes * 1e9))
        other.write_text("other\n")
        options = {"train_file": [str(path)], "validation_file": [str(other)], "tokenizer_samples": 500}
        arguments = LanguageModelDataArguments(streaming=True, block_size=1_024, **options)
        data = load_data(arguments, "causal", 0)
        steps = int(SHARE * count) // (ROWS * PROCESSES)
        for process in range(PROCESSES):
            rows = StreamedRows(data.stream, lambda columns: {"text": columns["text"]})
            before, start = bytes_read(), time.perf_counter()
            for batch in islice(batches(rows, process, PROCESSES), steps):
                rows.train_on(batch[PLACES], ROWS * PROCESSES)
            seconds, share = time.perf_counter() - start, (bytes_read() - before) / path.stat().st_size
            print(f"process {process} of {PROCESSES}: {share:.1%} of the file in {seconds:.0f} s", flush=True)
            rows.save(folder)
        tokenizer = train(data.splits["train"]["text"], vocab_size=4_000, kind="decoder")
        resumed = StreamedRows(data.stream, *block_cutter(tokenizer, arguments, "causal"))
        before, start = bytes_read(), time.perf_counter()
        resumed.resume(folder, steps * ROWS * PROCESSES)
        next(batches(resumed, 0, 1))
        seconds, size = time.perf_counter() - start, (bytes_read() - before) / 1e6
        print(f"resumed at {SHARE:.0%}: {seconds:.1f} s and {size:.0f} MB to the next batch")


if __name__ == "__main__":
    main()
