"""Samples of what a causal language model writes."""

import json
from pathlib import Path
from textwrap import indent
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase, set_seed

from vanillaformer.console.reporting import report

from ..run_folder.files import SAMPLES, write_lines
from ..trainer.trainer import RunTrainer

COUNT, TOKENS = 8, 64
"""Samples, and the tokens of each."""
SHOWN, PROMPT_END = 3, 60
"""Samples that are printed, and characters of the text before each."""


def write_samples(folder: Path, trainer: RunTrainer, rows: Dataset, tokenizer: PreTrainedTokenizerBase) -> None:
    """Continue the first half of some rows as the saved model samples; one process cannot with a sharded model."""
    if not trainer.is_world_process_zero() or trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        return
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    model.eval()
    set_seed(trainer.args.seed)
    records = []
    for row in rows.select(range(min(COUNT, len(rows)))):
        starts = [index for index, number in enumerate(row.get("position_ids", [])) if index and not number]
        ids = row["input_ids"][: starts[0] if starts else None]  # of texts packed into a row the first
        prompt, rest = ids[: (len(ids) + 1) // 2], ids[(len(ids) + 1) // 2 :][:TOKENS]
        if not rest:
            continue
        inputs = torch.tensor([prompt], device=model.device)
        with torch.inference_mode():
            options = {"max_new_tokens": len(rest), "max_length": None}
            new = model.generate(inputs, attention_mask=torch.ones_like(inputs), **options)[0, len(prompt) :].tolist()
        texts = [tokenizer.decode(part, skip_special_tokens=True) for part in (prompt, rest, new)]
        records.append(dict(zip(("prompt", "reference", "prediction"), texts)))
    write_lines(folder / SAMPLES, records)


def read_samples(folder: Path) -> list[dict[str, str]]:
    """Return the samples of a run to show, with `prompt` and `prediction`: none blank, without control characters."""
    path = folder / SAMPLES
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    records = list(map(json.loads, lines))
    for record in records:
        signs = (sign if sign.isprintable() or sign in "\n\t" else "\ufffd" for sign in record["prediction"])
        record["prediction"] = "".join(signs).strip()
    return [record for record in records if record["prediction"]][:SHOWN]


def print_samples(folder: Path) -> None:
    """Print what the model of a run wrote after the beginnings of some held-out texts."""
    for sample in read_samples(folder):
        before = sample["prompt"][-PROMPT_END:]
        report(f"Sample, after {before!r}:\n{indent(sample['prediction'], '  | ', lambda line: True)}")
