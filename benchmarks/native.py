"""Native models trained by our programs and by transformers' own trainer, on the same rows; memory of loading them.

    python benchmarks/native.py
    python benchmarks/native.py --tasks marian --repeats 5

Each trains for one epoch in a process of its own, in turns: ours with the defaults of its program, transformers as its
own example scripts do it, with rows padded to the longest of their batch. Both take the same number of rows (blocks of
a language model) a step, the same optimizer and rate; seconds are those from the first step's begin to the last one's
end, and tokens those of the rows without padding. Loading is measured by how much the process grows at most, beside
the size of the weights: in all, and without the pages of the file, which the system can take back at any time.
"""

import json
import math
import random
import statistics
import sys
import tempfile
import threading
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any, NamedTuple

import compare
import psutil
import torch
import transformers
from datasets import Dataset
from transformers import TrainingArguments
from transformers.trainer_callback import CallbackHandler

WORDS, BLOCK = 4000, 256
GPT2 = {"n_embd": 384, "n_layer": 6, "n_head": 6, "n_positions": 256}
BERT = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
MARIAN = {"d_model": 256, "encoder_layers": 3, "decoder_layers": 3, "encoder_attention_heads": 4, "max_length": None}
MARIAN |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 1024, "decoder_ffn_dim": 1024}
LARGE = {"gpt2": {"n_embd": 1024, "n_layer": 16, "n_head": 16}, "bert": {"hidden_size": 1024, "num_hidden_layers": 16}}
LARGE["bert"] |= {"num_attention_heads": 16}
LARGE |= {"marian": MARIAN | {"d_model": 1024, "encoder_layers": 8, "decoder_layers": 8}}


class Case(NamedTuple):
    """A native model, its task, and how many rows of which length (median, spread of its logarithm) it reads."""

    model: str
    head: str
    fields: dict[str, Any]
    kind: Any
    program: str
    columns: str
    rows: int
    batch: int
    median: float
    spread: float


CASES = {
    "marian": Case(
        "MarianMTModel", "MarianMTModel", MARIAN, "encoder_decoder", "train_translation",
        "--source_column source --target_column target", 2560, 64, 12, 0.5,
    ),
    "bert": Case(
        "BertForMaskedLM", "BertForSequenceClassification", BERT, "encoder", "train_classifier",
        "--text_column source --label_column label --max_length 256", 1280, 32, 50, 0.8,
    ),
    "gpt2": Case(
        "GPT2LMHeadModel", "GPT2LMHeadModel", GPT2, "decoder", "train_language_model",
        f"--text_column source --block_size {BLOCK}", 2560, 8, 30, 0.5,
    ),
}  # fmt: skip


def write(name: str, folder: Path) -> None:
    """Write a small random native model with its tokenizer, and rows of random words."""
    from vanillaformer.tokenization import train

    case, draw = CASES[name], random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 8))) for _ in range(WORDS)]
    weights = [1 / rank for rank in range(1, WORDS + 1)]

    def text() -> str:
        length = round(case.median * math.exp(draw.gauss(0, case.spread)))
        return " ".join(draw.choices(words, weights, k=max(3, length)))

    rows = [{"source": text(), "target": text(), "label": draw.choice(["a", "b"])} for _ in range(case.rows)]
    for split, part in (("train", rows[64:]), ("validation", rows[:64])):
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in part))
    tokenizer = train([row["source"] for row in rows], kind=case.kind, vocab_size=8000)
    tokenizer.model_max_length = 256
    ids = {f"{token}_token_id": getattr(tokenizer, f"{token}_token_id") for token in ("pad", "bos", "eos")}
    ids["decoder_start_token_id"] = tokenizer.pad_token_id
    model_class = getattr(transformers, case.model)
    torch.manual_seed(0)
    model_class(model_class.config_class(vocab_size=len(tokenizer), **case.fields, **ids)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def tokens_of(name: str, folder: Path) -> Dataset:
    """Return the rows of token ids as transformers' scripts make them."""
    case, tokenizer = CASES[name], transformers.AutoTokenizer.from_pretrained(folder)
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    encoded: Any = tokenizer([row["source"] for row in rows], truncation=True)["input_ids"]
    if case.kind == "encoder_decoder":
        targets: Any = tokenizer(text_target=[row["target"] for row in rows], truncation=True)["input_ids"]
        return Dataset.from_dict({"input_ids": encoded, "labels": targets})
    if case.kind == "encoder":
        return Dataset.from_dict({"input_ids": encoded, "label": ["ab".index(row["label"]) for row in rows]})
    stream = [token for row in encoded for token in row]
    blocks = [stream[at : at + BLOCK] for at in range(0, len(stream) - BLOCK + 1, BLOCK)]
    return Dataset.from_dict({"input_ids": blocks, "labels": blocks})


def clock() -> list[float]:
    """Note the time at the begin and the end of every step of this process's trainer."""
    times: list[float] = []
    for event in ("on_step_begin", "on_step_end"):
        plain = getattr(CallbackHandler, event)

        def timed(self: Any, *others: Any, plain: Any = plain) -> Any:
            times.append(time.perf_counter())
            return plain(self, *others)

        setattr(CallbackHandler, event, timed)
    return times


def ours(name: str, folder: Path, out: Path) -> float:
    """Train with our program; return the seconds."""
    from importlib import import_module

    case, times = CASES[name], clock()
    files = f"--train_file {folder}/train.jsonl --validation_file {folder}/validation.jsonl"
    options = "--num_train_epochs 1 --eval_strategy no --save_strategy no --learning_rate 1e-4 --use_cpu --output_dir"
    steps = f"--per_device_train_batch_size {case.batch} --model_name_or_path {folder}"
    program = import_module(f"vanillaformer.scripts.{case.program}")
    program.train([*case.columns.split(), *files.split(), *steps.split(), *options.split(), str(out)])
    return times[-1] - times[0]


def theirs(name: str, folder: Path, out: Path) -> float:
    """Train with transformers' trainer; return the seconds."""
    case, times = CASES[name], clock()
    model = getattr(transformers, case.head).from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    options: dict[str, Any] = {"per_device_train_batch_size": case.batch, "learning_rate": 1e-4, "use_cpu": True}
    options |= {"num_train_epochs": 1, "report_to": [], "save_strategy": "no"}
    collator: Any = transformers.default_data_collator
    trainer_class, arguments_class = transformers.Trainer, TrainingArguments
    if case.kind == "encoder_decoder":
        collator = transformers.DataCollatorForSeq2Seq(tokenizer, model)
        trainer_class, arguments_class = transformers.Seq2SeqTrainer, transformers.Seq2SeqTrainingArguments
    elif case.kind == "encoder":
        collator = transformers.DataCollatorWithPadding(tokenizer)
    rows = tokens_of(name, folder)
    trainer_class(model, arguments_class(str(out), **options), train_dataset=rows, data_collator=collator).train()
    return times[-1] - times[0]


def loading(name: str, folder: Path) -> tuple[float, float, float]:
    """Return the MiB of the weights of a larger model, and by how much loading it as ours makes the process grow."""
    from vanillaformer.conversion import from_native

    small = folder / "small"
    model_class = getattr(transformers, CASES[name].model)
    for fields, target in ((CASES[name].fields, small), (LARGE[name], folder / "large")):
        model_class(model_class.config_class(**fields)).save_pretrained(target)
    from_native(small)  # what libraries load and keep
    process, peaks, running = psutil.Process(), [0.0, 0.0], True

    def now() -> tuple[float, float]:
        memory = process.memory_info()
        return memory.rss, memory.rss - memory.shared

    def watch() -> None:
        while running:
            peaks[:] = map(max, peaks, now())
            time.sleep(0.002)

    before, watcher = now(), threading.Thread(target=watch)
    watcher.start()
    model = from_native(folder / "large")
    running = False
    watcher.join()
    weights = sum(weight.nbytes for weight in model.parameters())
    return weights / 2**20, *((peak - start) / 2**20 for peak, start in zip(peaks, before))


def alone(call: Any, *arguments: Any) -> Any:
    """Return what a call returns in a process of its own."""
    with compare.fresh_processes() as processes:
        return processes.submit(call, *arguments).result()


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    print("| native model | task | tokens/s, transformers | tokens/s, ours | ratio | weights, MiB | loading |")
    print("|---|---|---|---|---|---|---|")
    for name in arguments.tasks:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            alone(write, name, folder)
            rows = tokens_of(name, folder)
            columns = ["input_ids", *(["labels"] if CASES[name].kind == "encoder_decoder" else [])]
            tokens = sum(len(row) for column in columns for row in rows[column])
            seconds = [
                [alone(call, name, folder, folder / f"{call.__name__}-{turn}") for call in (theirs, ours)]
                for turn in range(arguments.repeats)
            ]
            weights, whole, private = alone(loading, name, folder)
        speed = [tokens / statistics.median(column) for column in zip(*seconds)]
        ratio = statistics.median(their / our for their, our in seconds)
        memory = f"{whole / weights:.2f} ({private / weights:.2f}) x weights"
        program = CASES[name].program.replace("_", "-")
        print(f"| {name} | {program} | {speed[0]:,.0f} | {speed[1]:,.0f} | {ratio:.2f} | {weights:,.0f} | {memory} |")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
