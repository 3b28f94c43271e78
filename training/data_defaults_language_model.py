"""Defaults of a causal language model that follow its text and the time to train."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from joblib import cpu_count
from transformers.utils import is_torch_bf16_gpu_available

from .data.files import find_files
from .machine import has_bfloat16
from .parsing import was_given
from .run_folder.files import RECORD

BYTES_PER_CORE_SECOND = 15_000
"""Bytes of text that a processor core trains the smallest model on, in a second."""
ACCELERATOR = 150
"""Cores that an accelerator stands for."""
# Hidden size, layers: the core-seconds and bytes of text from which on it is the better one. Ten minutes of two cores
# are 1,200. The compute-optimal number of parameters grows with the root of the compute (Hoffmann et al. 2022), and
# more of them than a text can determine learn it by heart.
MODELS = ((192, 4, 0, 0), (256, 4, 4_000, 500_000), (384, 6, 16_000, 3_000_000), (512, 8, 64_000, 30_000_000))
# Passes over the text in the time, from which on this dropout is the better one
DROPOUT = ((0.0, 0), (0.1, 3), (0.2, 8))
BLOCK = 256
HEAD = 64
EMBEDDED, UNKNOWN = 3_600_000, 10_000_000
"""Bytes of text in the embedded corpus, and where they are not known."""
COMPRESSED = 3
"""Bytes of text in a byte of a compressed file."""
WIDTH = ("hidden_size", "num_attention_heads", "intermediate_size")
# Options that replace the default of another one, besides that one
INSTEAD = {
    **dict.fromkeys(("optim", "learning_rate", "weight_decay"), ("optim", "learning_rate", "weight_decay")),
    "tokenizer_vocab_size": ("tokenizer_name_or_path", "tokenizer_algorithm"),
    "per_device_train_batch_size": ("tokens_per_batch",),
    "bf16": ("fp16", "dtype"),
}


class Default(NamedTuple):
    """The value of an option that the user did not give, and why."""

    option: str
    value: Any
    reason: str


FIXED = (
    Default("per_device_train_batch_size", 8, "many small steps"),
    Default("optim", "muon", "fewer steps than AdamW to the same loss"),
    Default("learning_rate", 4e-3, "for Muon"),
    Default("weight_decay", 0.1, "for Muon"),
)


def chosen_defaults(args: Any) -> list[Default]:
    """Return the defaults for a run: those recorded in its folder, if there is one, or else those for its data.

    A run of a named preset or a saved model, or of so many steps or epochs, has none.

    Args:
        args: The `Arguments` that were given.
    """
    model, data, _, training = args
    if training.objective != "causal" or training.max_time is None or model.preset or model.model_name_or_path:
        return []
    record = Path(training.output_dir, RECORD)
    if record.is_file() and not training.overwrite_output_dir:
        found = [Default(*each) for each in recorded(record)]
    else:
        accelerator = torch.accelerator.is_available()
        found = language_model_defaults(
            text_size(data),
            training.max_time,
            cores=min(torch.get_num_threads(), cpu_count()),
            accelerator=accelerator,
            bfloat16=is_torch_bf16_gpu_available() if accelerator else has_bfloat16(),
            block=data.block_size if was_given(data, "block_size") else BLOCK,
            stream=not data.packing and data.turns_column is None,
        )
    if "hidden_size" in model.config_overrides():  # heads and feed-forward layers of another width may not fit
        found = [
            each._replace(value=_without_width(each.value)) if each.option == "overrides" else each for each in found
        ]
    return [
        each
        for each in found
        if each.option == "overrides"  # to which a user's are added
        or not any(name in part.given for part in args for name in (each.option, *INSTEAD.get(each.option, ())))
    ]


def _without_width(fields: list[str]) -> list[str]:
    return [field for field in fields if field.partition("=")[0] not in WIDTH]


def recorded(record: Path) -> list[tuple[str, Any, str]]:
    """Return the defaults in the record of a run; none in one that cannot be read, as opening the folder will say."""
    try:
        return json.loads(record.read_text(encoding="utf-8"))["details"].get("defaults", [])
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def text_size(data: Any) -> int:
    """Return about how many bytes of text there are to train on, by the sizes of the files."""
    if data.is_embedded:
        return EMBEDDED
    if data.train_file is None:
        return UNKNOWN
    files = find_files("train_file", data.train_file)
    size = sum(path.stat().st_size * (COMPRESSED if path.suffix in (".gz", ".parquet") else 1) for path in files)
    held_out = 0 if data.validation_file or data.split_column else data.validation_fraction
    return round(size * (1 - held_out - data.test_fraction))


def vocabulary_size(size: int) -> int:
    """Return the tokens of a byte-level vocabulary for a text of so many bytes: 2,000 for a megabyte."""
    return max(500, min(8_000, round(20 * (size / 1e6) ** 0.7) * 100))


def language_model_defaults(
    size: int, seconds: float, *, cores: int, accelerator: bool, bfloat16: bool, block: int, stream: bool
) -> list[Default]:
    """Return the defaults of a new causal language model; docs/training.md has them as a table.

    Args:
        size: UTF-8 bytes of the training text.
        seconds: Time to train.
        cores: Processor cores to train on.
        accelerator: Whether there is an accelerator.
        bfloat16: Whether bfloat16 is fast on the device.
        block: Tokens in a block.
        stream: Whether blocks are cut from the stream of all texts, and may overlap.
    """
    compute = seconds * (ACCELERATOR if accelerator else cores)
    width, layers = [model[:2] for model in MODELS if compute >= model[2] and size >= model[3]][-1]
    cost = (width / MODELS[0][0]) ** 2 * layers / MODELS[0][1]
    passes = compute * BYTES_PER_CORE_SECOND / cost / max(1, size)
    dropout = [value for value, least in DROPOUT if passes >= least][-1]
    amount, often = f"{size / 1e6:.1f} MB of text", f"about {passes:.2g} passes over the text in the time"
    device = "an accelerator" if accelerator else "one core" if cores == 1 else f"{cores} cores"
    time = f"{seconds / 60:.3g} minutes on {device}"
    found = [
        Default("tokenizer_vocab_size", vocabulary_size(size), amount),
        Default("overrides", overrides(width, layers, dropout, block), f"{amount}, {time}; {often}"),
        Default("block_size", block, "a context of some hundred characters"),
        *FIXED,
    ]
    if stream and passes >= 2:
        found.append(Default("block_stride", max(1, block // 4), f"each token is seen in four contexts: {often}"))
    if bfloat16:
        found.append(Default("bf16", True, "the device multiplies bfloat16 faster than float32"))
    return found


def overrides(width: int, layers: int, dropout: float, block: int) -> list[str]:
    """Return the fields of the model as `--set` takes them: a decoder as Llama's, with tied embeddings."""
    fields = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // HEAD,
        "intermediate_size": 64 * round(width * 8 / 3 / 64),
        "feed_forward": "gated",
        "hidden_act": "silu",
        "norm": "rms_norm",
        "position_embedding_type": "rotary",
        "max_position_embeddings": block,
        "attention_bias": "false",
        "mlp_bias": "false",
        "dropout": dropout,
    }
    return [f"{name}={value}" for name, value in fields.items()]
