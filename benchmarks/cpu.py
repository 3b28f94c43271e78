"""What habits are worth on a CPU: dropout from 16 random bits, memory kept for the next tensor, eager bfloat16.

python benchmarks/cpu.py
python benchmarks/cpu.py --threads 1 --steps 20 --repeats 5

A training step of a translator (4 + 4 layers of width 128, 6,000 tokens, label smoothing, AdamW) in processes of their
own, with each habit and without. Printed is the time without all through the time with it, in the same repetition.
bfloat16 is that of --bf16 (autocast), with torch's fused attention and with eager attention.
"""

import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field

import torch
from torch import nn
from transformers import HfArgumentParser

from vanillaformer import VanillaEncoderDecoderConfig, VanillaEncoderDecoderForConditionalGeneration
from vanillaformer.modeling.parts.dropout import Dropout
from vanillaformer.training.machine import keep_freed_memory

VARIANTS = {
    "torch's dropout": "",
    "memory kept": "kept",
    "our dropout": "dropout",
    "both": "dropout+kept",
    "both, bfloat16, fused attention": "dropout+kept+bf16",
    "both, bfloat16, eager attention": "dropout+kept+bf16+eager",
}


@dataclass
class Options:
    """How much is measured."""

    threads: int = field(default=2, metadata={"help": "Threads of torch."})
    steps: int = field(default=10, metadata={"help": "Steps of a measurement."})
    repeats: int = field(default=3, metadata={"help": "Measurements of each variant, in turn."})
    variant: str | None = field(default=None, metadata={"help": "Measure one variant and print seconds per step."})


def seconds(variant: str, options: Options) -> float:
    """Return the seconds of a training step in this process."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    if "kept" in variant and not keep_freed_memory():
        raise SystemExit("this C library has no mallopt, or the environment says how it works: nothing to compare")
    config = VanillaEncoderDecoderConfig(
        vocab_size=6000, hidden_size=128, num_hidden_layers=4, encoder_layers=4, intermediate_size=512,
        num_attention_heads=4, norm_placement="pre", position_embedding_type="rotary", dropout=0.3,
    )  # fmt: skip
    model = VanillaEncoderDecoderForConditionalGeneration(config)
    model.set_attn_implementation("eager" if "eager" in variant else "sdpa")
    if "dropout" not in variant:
        for module in [module for module in model.modules() if isinstance(module, Dropout)]:
            module.__class__ = nn.Dropout  # type: ignore[assignment]
    ids = torch.randint(4, 6000, (128, 16))
    batch = {"input_ids": ids, "labels": ids, "labeled_only": True, "return_logits": False, "label_smoothing": 0.1}
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(options.steps + 3):
        if step == 3:
            start = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cpu", enabled="bf16" in variant):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
    return (time.perf_counter() - start) / options.steps


def measured(variant: str, options: Options) -> float:
    """Return the seconds of a step in a process of its own."""
    command = [sys.executable, __file__, "--variant", variant or "none"]
    command += ["--threads", str(options.threads), "--steps", str(options.steps)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def main() -> None:
    """Measure and print."""
    (options,) = HfArgumentParser(Options, description=__doc__).parse_args_into_dataclasses()
    if options.variant is not None:
        print(seconds(options.variant, options))
        return
    times = [{name: measured(how, options) for name, how in VARIANTS.items()} for _ in range(options.repeats)]
    print("| | ms per step | faster by |\n| --- | --- | --- |")
    for name in VARIANTS:
        ratios = [row["torch's dropout"] / row[name] for row in times]
        spread = f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
        print(f"| {name} | {1000 * statistics.median(row[name] for row in times):.0f} | {spread} |")


if __name__ == "__main__":
    main()
