"""Training and decoding beside transformers, bare torch and CTranslate2, on the same work in one run (`make bench`).

    python benchmarks/table.py
    python benchmarks/table.py --tasks greedy beam --repeats 9 --json table.json

Ours and transformers' have equal weights; before a task is timed both must give the same loss, and afterwards all that
decode in float32 the same tokens. torch.nn's and nanoGPT's models have equal sizes. Everyone is timed in turns, and
ratios are taken inside a repetition. `speed` is transformers' time through the contestant's: above 1 it is faster.
`limit` is the time of the bare matrix products on as many tokens without padding, one after the other, in the type of
the contestant's products and by the library of torch that is fastest for each shape, through the contestant's. The
first line says how fast the memory is read, which limits decoding. Everyone keeps freed memory for the next tensor, as
our programs do (`--keep_memory false`: times then depend on what the process did before). No token ends a text: all
decode the same number of steps, but for the task in which each text is ended after its own number of tokens.
"""

import copy
import json
import multiprocessing
import os
import platform
import statistics
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import compare
import torch
import transformers
from measuring import Call, measure, sample, undisturbed
from plain import PlainGPT, TorchClassifier, TorchTranslator
from torch import nn
from transformers import GenerationConfig, HfArgumentParser, LogitsProcessor, PreTrainedModel
from weights import END, FIRST_WORD, PAD, START, Size, pair

from vanillaformer.acceleration.int8 import to_int8
from vanillaformer.acceleration.plug_in import keep_freed_memory
from vanillaformer.conversion.exports import export, load_engine
from vanillaformer.data.preprocessing.packing import PackedPairs, PackedTexts

HALF = "ours, --bf16"
Rows = list[list[int]]
Batch = dict[str, torch.Tensor]


class Contest(NamedTuple):
    """What is timed against each other: calls by name, transformers' model first, and bare matrix products.

    `tokens` are the calls whose results, token ids, are to be equal.
    """

    calls: dict[str, Call]
    limits: dict[str, Call]
    tokens: dict[str, Callable[[], Rows]] | None = None


@dataclass
class Options:
    """What is timed, and how often."""

    tasks: list[str] = field(default_factory=lambda: list(TASKS), metadata={"help": "Which tasks."})
    repeats: int = field(default=5, metadata={"help": "Repetitions; the median of their ratios is reported."})
    seconds: float = field(default=0.2, metadata={"help": "Shortest sample in seconds; calls are repeated."})
    wait_idle: float = field(default=0.0, metadata={"help": "Longest wait for idle cores, in seconds."})
    threads: int = field(default=torch.get_num_threads(), metadata={"help": "CPU threads of torch."})
    keep_memory: bool = field(default=True, metadata={"help": "Keep freed memory for the next tensor, for everyone."})
    json: str | None = field(default=None, metadata={"help": "Write all that was measured to this file."})


# ---------------------------------------------------------------------------------------------------------------- data
def lengths(rows: int, median: float, spread: float, longest: int) -> list[int]:
    """Return log-normal lengths."""
    drawn = torch.exp(torch.randn(rows) * spread) * median
    return drawn.round().clamp(3, longest).int().tolist()


def texts(sizes: list[int], vocab: int) -> Rows:
    return [torch.randint(FIRST_WORD, vocab, (size,)).tolist() for size in sizes]


def padded(rows: Rows, fill: int = PAD, length: int = 0) -> torch.Tensor:
    length = max(length, *map(len, rows))
    return torch.tensor([row + [fill] * (length - len(row)) for row in rows])


def as_batch(sources: Rows, length: int = 0) -> Batch:
    ids = padded(sources, length=length)
    return {"input_ids": ids, "attention_mask": (ids != PAD).long()}


def even(sizes: list[int]) -> list[int]:
    """Return as many lengths with about the same sum, all equal."""
    return [round(sum(sizes) / len(sizes))] * len(sizes)


# ------------------------------------------------------------------------------------------------------------ training
def step(model: nn.Module, loss: Callable[[], torch.Tensor], dtype: torch.dtype = torch.float32) -> Call:
    """Return a training step: forward, backward, AdamW; with products in `dtype`, of weights in float32."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def call() -> None:
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            value = loss()
        value.backward()
        optimizer.step()
        optimizer.zero_grad()

    return call


def loss_of(model: Any, batch: Batch, **options: Any) -> Callable[[], torch.Tensor]:
    return lambda: model(**batch, **options).loss


def products(call: Call, model: nn.Module) -> dict[str, Call]:
    """Return the bare products of a call in float32 and in bfloat16, each by the library that is fastest for it."""
    names = ("float32", "bfloat16")
    return {f"limit, {name}": compare.matrix_products(call, model, compare.Options(dtype=name)) for name in names}


def check_losses(ours: Any, theirs: Any, batch: Batch, packed: Batch | None = None, **options: Any) -> None:
    """Raise SystemExit if two models with equal weights have different losses, or ours another one of packed rows."""
    calls = [(theirs, batch), (ours, batch | options)] + ([(ours, packed | options)] if packed else [])
    with torch.inference_mode():
        losses = [model.eval()(**inputs).loss.item() for model, inputs in calls]
    if max(abs(loss / losses[0] - 1) for loss in losses) > 1e-6:
        raise SystemExit(f"equal weights, but the losses are {', '.join(f'{loss:.8f}' for loss in losses)}")


def language_model(vocab: int) -> Contest:
    """6 layers of width 384, 4 rows of 256 tokens."""
    size = Size(layers=6, width=384, heads=6, vocab=vocab)
    models, plain = pair("gpt2", size), PlainGPT(size)
    batch = compare.texts(4, 256, vocab)
    check_losses(models["ours"], models["theirs"], batch, return_logits=False)
    ours = step(models["ours"], loss_of(models["ours"], batch, return_logits=False))
    calls = {
        "GPT-2": step(models["theirs"], loss_of(models["theirs"], batch)),
        "ours": ours,
        HALF: step(models["ours"], loss_of(models["ours"], batch, return_logits=False), torch.bfloat16),
        "nanoGPT's way": step(plain, lambda: plain(**batch)),
    }
    return Contest(calls, products(ours, models["ours"]))


def translation() -> Contest:
    """4 + 4 layers of width 256, 64 pairs as they come."""
    size = Size(vocab=10_000, max_length=64)
    models, plain = pair("marian", size), TorchTranslator(size)
    sizes = [lengths(64, 15, 0.45, 60), lengths(64, 15, 0.45, 60)]
    sources, targets = (texts(some, size.vocab) for some in sizes)
    batch = as_batch(sources) | {"labels": padded(targets, -100)}
    collator = PackedPairs(models["ours"], lambda rows: rows)
    packed = collator([{"input_ids": source, "labels": target} for source, target in zip(sources, targets)])
    like_trainer: Any = {"labeled_only": True, "return_logits": False, "use_cache": False}
    check_losses(models["ours"], models["theirs"], batch, packed, **like_trainer)
    full = compare.words(64, even(sizes[0])[0], size.vocab), compare.words(64, even(sizes[1])[0], size.vocab)
    whole = step(models["ours"], loss_of(models["ours"], dict(zip(("input_ids", "labels"), full)), **like_trainer))
    calls = {
        "Marian": step(models["theirs"], loss_of(models["theirs"], batch)),
        "ours": step(models["ours"], loss_of(models["ours"], batch, **like_trainer)),
        "ours, --packing": step(models["ours"], loss_of(models["ours"], packed, **like_trainer)),
        HALF: step(models["ours"], loss_of(models["ours"], batch, **like_trainer), torch.bfloat16),
        f"{HALF} --packing": step(models["ours"], loss_of(models["ours"], packed, **like_trainer), torch.bfloat16),
        "torch.nn": step(plain, lambda: plain(**batch)),
    }
    return Contest(calls, products(whole, models["ours"]))


def classifier(median: float, spread: float, length: int) -> Contest:
    """One layer of width 32, 64 texts, dropout 0.1; BERT has it on attention too, our tiny presets do not."""
    size = Size(layers=1, width=32, heads=2, vocab=20_000, max_length=200, dropout=0.1)
    models, plain = pair("bert", size), TorchClassifier(size)
    theirs = pair("bert", Size(**asdict(size) | {"attention_dropout": 0.1}))
    sizes, labels = lengths(64, median, spread, 200), {"labels": torch.randint(4, (64,))}
    rows = texts(sizes, size.vocab)
    batch = as_batch(rows, length) | labels
    collator = PackedTexts(models["ours"], lambda rows: rows)
    packed = collator([{"input_ids": row, "labels": int(label)} for row, label in zip(rows, labels["labels"])])
    check_losses(models["ours"], theirs["theirs"], batch, packed)
    full = {"input_ids": compare.words(64, even(sizes)[0], size.vocab)} | labels
    calls = {
        "BERT": step(theirs["theirs"], loss_of(theirs["theirs"], batch)),
        "ours": step(models["ours"], loss_of(models["ours"], batch)),
        "ours, --packing": step(models["ours"], loss_of(models["ours"], packed)),
        f"{HALF} --packing": step(models["ours"], loss_of(models["ours"], packed), torch.bfloat16),
        "ours, attention_dropout 0.1": step(theirs["ours"], loss_of(theirs["ours"], batch)),
        "torch.nn": step(plain, lambda: plain(**batch)),
    }
    return Contest(calls, products(step(models["ours"], loss_of(models["ours"], full)), models["ours"]))


# ------------------------------------------------------------------------------------------------------------ decoding
def endless(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model, ready to decode without an end."""
    model.eval().requires_grad_(False)
    model.config.eos_token_id = None
    model.generation_config = GenerationConfig(pad_token_id=PAD, decoder_start_token_id=START, do_sample=False)
    return model


ENGINES: dict[str, Any] = {}
"""In a process of its own: beside an engine, two threads of torch were a third slower."""


def open_engines(model: PreTrainedModel, forms: dict[str, str], threads: int) -> None:
    torch.set_num_threads(threads)
    for name, form in forms.items():
        with tempfile.TemporaryDirectory() as folder:
            export(model, Path(folder, "export"), "ctranslate2", quantization=form)
            ENGINES[name] = load_engine(Path(folder, "export"))


def decode_on_engine(name: str, batches: list[Rows], search: dict[str, Any]) -> Rows:
    found = [row for batch in batches for row in ENGINES[name].generate(batch, **search)]
    return [row[-search["max_new_tokens"] :] for row in found]


def on_engine(model: PreTrainedModel, batches: list[Rows], search: dict[str, Any]) -> dict[str, Callable[[], Rows]]:
    """Return the decoding of batches by our model on CTranslate2, in float32 and int8."""
    forms = {"ours on CTranslate2": "float32", "ours on CTranslate2, int8": "int8"}
    context = multiprocessing.get_context("spawn")
    process = ProcessPoolExecutor(1, context, open_engines, (model, forms, torch.get_num_threads()))

    def call(name: str) -> Rows:
        return process.submit(decode_on_engine, name, batches, search).result()

    return {name: partial(call, name) for name in forms}


def decoding(peer: str, name: str, size: Size, rows: list[Rows], new_tokens: int, beams: int = 1) -> Contest:
    """Return a contest of decoding batches of rows."""
    models = {side: endless(model) for side, model in pair(peer, size).items()}
    search = {"max_new_tokens": new_tokens, "num_beams": beams}

    def generate(model: PreTrainedModel, batches: list[Batch]) -> Rows:
        found = [model.generate(**batch, **search)[:, -new_tokens:].tolist() for batch in batches]
        return [row for batch in found for row in batch]

    batches = [as_batch(batch) for batch in rows]
    whole = [as_batch(texts(even([len(row) for row in batch]), size.vocab)) for batch in rows]
    calls: dict[str, Callable[[], Rows]] = {name: partial(generate, models["theirs"], batches)}
    calls["ours"] = partial(generate, models["ours"], batches)
    halved = copy.deepcopy(models["ours"]).bfloat16()
    calls |= on_engine(models["ours"], rows, search)
    exact = {key: call for key, call in calls.items() if "int8" not in key}
    calls[HALF] = partial(generate, halved, batches)
    calls["ours, --quantization int8"] = partial(generate, to_int8(copy.deepcopy(models["ours"])), batches)
    return Contest(dict(calls), products(lambda: generate(models["ours"], whole), models["ours"]), exact)


def translations(beams: int) -> Contest:
    """128 sentences in batches of 64, 24 tokens each."""
    size = Size(vocab=10_000, max_length=96)
    rows = texts(lengths(128, 15, 0.45, 60), size.vocab)
    return decoding("marian", "Marian", size, [rows[:64], rows[64:]], 24, beams)


class Ends(LogitsProcessor):
    """Ends each text after its number of tokens, and none before."""

    def __init__(self, lengths: list[int]):
        self.lengths = torch.tensor(lengths)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, END] = torch.where(self.lengths <= input_ids.shape[1], 1e9, -1e9)
        return scores


def ended_translations() -> Contest:
    """128 sentences in batches of 64, of 16 tokens on average."""
    size = Size(vocab=10_000, max_length=96)
    rows, ends = texts(lengths(128, 15, 0.45, 60), size.vocab), lengths(128, 15, 0.45, 60)
    models = {side: endless(model) for side, model in pair("marian", size).items()}
    for model in models.values():
        model.generation_config.eos_token_id = END
    halves = [(as_batch(rows[:64]), ends[:64]), (as_batch(rows[64:]), ends[64:])]
    whole = [(as_batch(texts(even([len(row) for row in rows]), size.vocab)), [1_000] * 128)]

    def generate(model: PreTrainedModel, batches: list[tuple[Batch, list[int]]], longest: int = 64) -> Rows:
        search = {"max_new_tokens": longest}
        found = [model.generate(**batch, **search, logits_processor=[Ends(own)]).tolist() for batch, own in batches]
        return [row for batch in found for row in batch]

    calls = {name: partial(generate, models[side], halves) for name, side in (("Marian", "theirs"), ("ours", "ours"))}
    return Contest(
        dict(calls), products(lambda: generate(models["ours"], whole, even(ends)[0]), models["ours"]), calls
    )


def continuations(batch: int, **sizes: int) -> Contest:
    """Prompts of 32 tokens, 128 more."""
    size = Size(**{"layers": 6, "width": 384, "heads": 6, "vocab": 10_000} | sizes)
    return decoding("gpt2", "GPT-2", size, [texts([32] * batch, size.vocab)], 128)


TASKS: dict[str, tuple[str, Callable[[], Contest]]] = {
    "lm_50k": ("language model, training, vocabulary 50,257", partial(language_model, 50_257)),
    "lm_256": ("the same, vocabulary 256", partial(language_model, 256)),
    "translation": ("translation, training, 64 pairs as they come", translation),
    "greedy": ("translation, greedy, 128 sentences", partial(translations, 1)),
    "greedy_ends": ("the same, each ended at a length of its own", ended_translations),
    "beam": ("translation, 5 beams, 128 sentences", partial(translations, 5)),
    "generate_1": ("continuation, batch 1", partial(continuations, 1)),
    "generate_8": ("continuation, batch 8", partial(continuations, 8)),
    "generate_124m": (
        "the same, batch 1, 124 million parameters",
        partial(continuations, 1, layers=12, width=768, heads=12, vocab=50_257),
    ),
    "classifier": ("small classifier, training, texts padded to 200", partial(classifier, 174, 0.6, 200)),
    "classifier_short": ("the same, short texts", partial(classifier, 20, 0.5, 0)),
}


# ----------------------------------------------------------------------------------------------------------- measuring
def bandwidth() -> float:
    """Return how many GB a second are read from a tensor that no cache holds."""
    numbers = torch.ones(2**26)
    return round(numbers.nbytes / min(sample(numbers.sum).seconds for _ in range(5)) / 1e9, 1)


def run(name: str, options: Options) -> list[dict[str, Any]]:
    """Time one task and return a row for each contestant."""
    torch.manual_seed(0)
    contest = TASKS[name][1]()
    samples = measure(contest.calls | contest.limits, options.repeats, options.seconds, "cpu", options.wait_idle)
    quiet = undisturbed(samples)
    counted = [dict(zip([*contest.calls, *contest.limits], row)) for row in (quiet if len(quiet) >= 3 else samples)]
    first = next(iter(contest.calls))
    tokens = {key: call() for key, call in (contest.tokens or {}).items()}
    rows = []
    for key in contest.calls:
        speeds = [row[first].seconds / row[key].seconds for row in counted]
        limit = f"limit, {'bfloat16' if HALF in key else 'float32'}"
        rows.append(
            {
                "task": TASKS[name][0],
                "contestant": key,
                "ms": 1e3 * statistics.median(row[key].seconds for row in counted),
                "speed": [statistics.median(speeds), min(speeds), max(speeds)],
                "limit": statistics.median(row[limit].seconds / row[key].seconds for row in counted),
                "same_tokens": tokens[key] == tokens[first] if key in tokens else None,
                "undisturbed": len(quiet),
            }
        )
    return rows


HEADER = "| task | | ms | speed | [min, max] | limit | same tokens |\n|---|---|---|---|---|---|---|"


def table_row(row: dict[str, Any]) -> str:
    median, least, most = row["speed"]
    same = {None: "", True: "yes", False: "no"}[row["same_tokens"]]
    cells = [row["task"], row["contestant"], f"{row['ms']:.0f}", f"{median:.2f}", f"[{least:.2f}, {most:.2f}]"]
    return " | ".join(["", *cells, f"{row['limit']:.0%}", same, ""]).strip()


def main(argv: list[str] | None = None) -> None:
    (options,) = HfArgumentParser(Options, description=__doc__).parse_args_into_dataclasses(argv)
    if unknown := set(options.tasks) - set(TASKS):
        raise SystemExit(f"--tasks {' '.join(sorted(unknown))}: known are {', '.join(TASKS)}")
    torch.set_num_threads(options.threads)
    if options.keep_memory:
        keep_freed_memory()
    transformers.logging.set_verbosity_error()
    machine = {"torch": torch.__version__, "transformers": transformers.__version__, "machine": platform.machine()}
    machine |= {"capability": torch.backends.cpu.get_cpu_capability(), "cores": os.cpu_count()}
    machine["memory, GB/s"] = bandwidth()
    print(f"{machine}\n{asdict(options)}\n\n{HEADER}", flush=True)
    rows = []
    for name in options.tasks:
        for row in run(name, options):
            rows.append(row)
            print(table_row(row), flush=True)
    if options.json:
        found = {"machine": machine, "options": asdict(options), "rows": rows}
        Path(options.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
