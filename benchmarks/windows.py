"""Time and memory of a training step on long sources: full attention and windows, with and without our way to compute.

    python benchmarks/windows.py

A forward and backward pass over two sources of 4,000 tokens; width 128, two layers on each side, one thread. Each
measurement is a process of its own; memory is how much the process grows.
"""

import argparse
import contextlib
import resource
import subprocess
import sys
import time

import torch

from vanillaformer import VanillaEncoderDecoderConfig, VanillaEncoderDecoderForConditionalGeneration
from vanillaformer.acceleration import switched_off

CASES = [(window, dropout, plain) for dropout in (0.0, 0.1) for window in (0, 128) for plain in (False, True)]


def measure(window: int, dropout: float, plain: bool) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = VanillaEncoderDecoderConfig(
        **{"vocab_size": 300, "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4},
        **{"encoder_layers": 2, "num_hidden_layers": 2, "max_position_embeddings": 4096},
        **{"position_embedding_type": "rotary", "dropout": 0.1, "attention_dropout": dropout},
        sliding_window=window or None,
    )
    model = VanillaEncoderDecoderForConditionalGeneration(config).train()
    ids, labels = torch.randint(2, 300, (2, 4000)), torch.randint(2, 300, (2, 20))
    mask = torch.ones_like(ids)
    mask[0, 3900:] = 0
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    with switched_off() if plain else contextlib.nullcontext():
        model(input_ids=ids, attention_mask=mask, labels=labels).loss.backward()
    seconds = time.perf_counter() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
    print(
        f"| {window or 'all'} | {dropout} | {'SDPA' if plain else 'ours'} | {seconds:.1f} | {grown:.1f} |", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--case", type=int, choices=range(len(CASES)), help="Measure one case in this process")
    case = parser.parse_args().case
    if case is not None:
        return measure(*CASES[case])
    print("| window | attention_dropout | computed by | seconds | GiB |\n| --- | --- | --- | --- | --- |", flush=True)
    for number in range(len(CASES)):
        subprocess.run([sys.executable, __file__, "--case", str(number)], check=True)


if __name__ == "__main__":
    main()
