"""Speed and memory of our models beside transformers' own: equal size, equal weights, the same batches, one run.

    python benchmarks/compare.py
    python benchmarks/compare.py --tasks lm_train translation_beam --repeats 21 --wait_idle 30 --json results.json
    python benchmarks/compare.py --native true --bf16 true --keep_memory true --tasks lm_train classifier_train

First both sides must give the same logits. Then every repetition times both, in turns first and second, and the ratio
of the two times is taken inside the repetition, so that whatever else the machine does meets both; repetitions that
other processes disturbed are left out where 3 others remain. `speed` is their time through ours: above 1 we are
faster; differences of a few per cent mean nothing. `limit` is the time of the matrix products that our training step
cannot do without, one after the other, each by the library of torch that is fastest for it, through the time of our
step. `MiB` is the peak over what the process held
without a model.
"""

import copy
import itertools
import json
import multiprocessing
import os
import platform
import statistics
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import transformers
from measuring import Call, measure, peak_memory, sample, undisturbed
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GenerationConfig, HfArgumentParser, PreTrainedModel
from weights import CLASSES, FIRST_WORD, PAD, PEERS, START, Size, image_side, pair

from vanillaformer import speed_up
from vanillaformer.acceleration import gemv
from vanillaformer.acceleration.plain import is_marked
from vanillaformer.acceleration.plug_in import keep_freed_memory
from vanillaformer.modeling.base import VanillaPreTrainedModel

LOSS_ONLY: dict[str, Any] = {"labeled_only": True, "return_logits": False}
Batch = dict[str, torch.Tensor]
Models = dict[str, PreTrainedModel]
DTYPES = ["float32", "bfloat16", "float16"]


class Task(NamedTuple):
    """What is timed: peers, how a batch is made, what is done with it, and sizes that suit two cores."""

    peers: tuple[str, ...]
    inputs: Callable[[int, int, int], Batch]
    work: Callable[[PreTrainedModel, Batch, "Task"], Call]
    batch: int
    length: int
    beams: int = 1
    new_tokens: int = 0


def words(batch: int, length: int, vocab: int) -> torch.Tensor:
    return torch.randint(FIRST_WORD, vocab, (batch, length))


def padded(batch: int, longest: int, vocab: int, pad: int = PAD) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows of log-normal lengths, half of them below a third of the longest, and their mask."""
    lengths = (torch.randn(batch).mul(0.45).exp() * longest / 3).round().clamp(3, longest)
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    return words(*mask.shape, vocab).masked_fill(~mask, pad), mask.long()


def texts(batch: int, length: int, vocab: int) -> Batch:
    ids = words(batch, length, vocab)
    return {"input_ids": ids, "labels": ids}


def prompts(batch: int, length: int, vocab: int) -> Batch:
    ids = words(batch, length, vocab)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def sentences(batch: int, length: int, vocab: int) -> Batch:
    ids, mask = padded(batch, length, vocab)
    return {"input_ids": ids, "attention_mask": mask}


def sentence_pairs(batch: int, length: int, vocab: int) -> Batch:
    return sentences(batch, length, vocab) | {"labels": padded(batch, length, vocab, pad=-100)[0]}


def labeled_sentences(batch: int, length: int, vocab: int) -> Batch:
    return sentences(batch, length, vocab) | {"labels": torch.randint(4, (batch,))}


def labeled_images(batch: int, length: int, vocab: int) -> Batch:
    """Return images of `length` patches at most."""
    side = image_side(length)
    return {"pixel_values": torch.randn(batch, 3, side, side), "labels": torch.randint(CLASSES, (batch,))}


def training(model: PreTrainedModel, batch: Batch, task: Task) -> Call:
    """Return one step: forward, backward, AdamW; ours as its training programs do, who ask for no logits."""
    model.train()
    predicts_tokens = batch["labels"].ndim == 2
    loss_only = LOSS_ONLY if predicts_tokens and isinstance(model, VanillaPreTrainedModel) else {}
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, fused=True)

    def step() -> None:
        model(**batch, **loss_only).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def forward(model: PreTrainedModel, batch: Batch, task: Task) -> Call:
    """Return a pass without labels: logits alone."""
    model.eval()
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = batch["labels"].clamp(min=PAD)  # -100, no loss, stands on padding
    return torch.inference_mode()(lambda: model(**inputs).logits)


def generation(model: PreTrainedModel, batch: Batch, task: Task) -> Call:
    """Return a call of `generate`; with no token to stop at, both sides do the same number of steps."""
    model.eval()
    model.config.use_cache = True
    model.generation_config = GenerationConfig(
        max_new_tokens=task.new_tokens, num_beams=task.beams, pad_token_id=PAD, decoder_start_token_id=START
    )
    return lambda: model.generate(**batch)


TASKS = {
    "lm_train": Task(("gpt2", "llama"), texts, training, 8, 128),
    "lm_forward": Task(("gpt2", "llama"), texts, forward, 8, 128),
    "lm_greedy": Task(("gpt2", "llama"), prompts, generation, 32, 16, new_tokens=32),
    "lm_batch1": Task(("gpt2", "llama"), prompts, generation, 1, 16, new_tokens=64),
    "translation_train": Task(("marian",), sentence_pairs, training, 32, 42),
    "translation_forward": Task(("marian",), sentence_pairs, forward, 32, 42),
    "translation_greedy": Task(("marian",), sentences, generation, 32, 42, new_tokens=24),
    "translation_beam": Task(("marian",), sentences, generation, 8, 42, beams=5, new_tokens=24),
    "classifier_train": Task(("bert",), labeled_sentences, training, 32, 120),
    "classifier_forward": Task(("bert",), labeled_sentences, forward, 32, 120),
    "image_train": Task(("vit",), labeled_images, training, 64, 64),
    "image_forward": Task(("vit",), labeled_images, forward, 64, 64),
}


@dataclass
class Options:
    """The comparison's command line."""

    tasks: list[str] = field(
        default_factory=lambda: list(TASKS), metadata={"help": "What to time.", "choices": list(TASKS)}
    )
    peers: list[str] = field(
        default_factory=lambda: list(PEERS), metadata={"help": "With whom.", "choices": list(PEERS)}
    )
    repeats: int = field(default=9, metadata={"help": "Repetitions; the median of their ratios is reported."})
    seconds: float = field(default=0.2, metadata={"help": "A sample repeats its call until so many seconds are over."})
    wait_idle: float = field(
        default=0.0, metadata={"help": "Wait up to so many seconds for idle cores before each sample."}
    )
    threads: int = field(default=torch.get_num_threads(), metadata={"help": "CPU threads of torch."})
    device: str = field(default="cpu", metadata={"help": "Where the models run.", "choices": ["cpu", "cuda"]})
    dtype: str = field(default="float32", metadata={"help": "Type of the weights.", "choices": DTYPES})
    native: bool = field(default=False, metadata={"help": "Ours is the peer after `speed_up`."})
    bf16: bool = field(default=False, metadata={"help": "Products of ours, not the peer's, in bfloat16 by autocast."})
    attention: str = field(default="sdpa", metadata={"help": "Any attn_implementation of transformers."})
    layers: int = field(default=4, metadata={"help": "Blocks of each stack."})
    width: int = field(default=256, metadata={"help": "Model width; feed-forward layers are four times as wide."})
    heads: int = field(default=4, metadata={"help": "Attention heads; Llama has half as many for keys and values."})
    vocab: int = field(default=8000, metadata={"help": "Tokens in the vocabulary."})
    batch: int | None = field(default=None, metadata={"help": "Rows of a batch; each task has its default."})
    length: int | None = field(default=None, metadata={"help": "Longest row in tokens; each task has its default."})
    new_tokens: int | None = field(default=None, metadata={"help": "Tokens to generate; each task has its default."})
    dropout: float = field(default=0.0, metadata={"help": "On embeddings and sublayer outputs, in training."})
    attention_dropout: float = field(default=0.0, metadata={"help": "On attention probabilities, in training."})
    keep_memory: bool = field(default=False, metadata={"help": "Keep freed memory for the next tensor, for both."})
    memory: bool = field(default=True, metadata={"help": "Measure peak memory too."})
    json: str | None = field(default=None, metadata={"help": "Write all that was measured to this file."})

    def task(self, name: str) -> Task:
        """Return the task with the sizes of the command line."""
        task = TASKS[name]
        new_tokens = (self.new_tokens or task.new_tokens) if task.new_tokens else 0
        return task._replace(batch=self.batch or task.batch, length=self.length or task.length, new_tokens=new_tokens)

    def size(self, task: Task) -> Size:
        """Return the models' size, with room for the task's rows."""
        names = ("layers", "width", "heads", "vocab", "dropout", "attention_dropout", "attention")
        return Size(**{name: getattr(self, name) for name in names}, max_length=task.length + task.new_tokens)


@torch.inference_mode()
def check_equal(models: Models, batch: Batch, tolerance: float = 1e-4) -> float:
    """Return the relative error between both sides' logits.

    Raises:
        SystemExit: It is above `tolerance`: there is nothing to compare.
    """
    ids = {"decoder_input_ids": batch["input_ids"]} if models["ours"].config.is_encoder_decoder else {}
    inputs = {key: value for key, value in batch.items() if key != "labels"} | ids
    ours, theirs = (model.eval()(**inputs).logits.double() for model in models.values())
    error = ((ours - theirs).norm() / theirs.norm()).item()
    if not error <= tolerance:
        raise SystemExit(f"equal weights, but logits differ by {error:.1e} (relative; at most {tolerance:.0e})")
    return error


def prepare(task: Task, model: PreTrainedModel, options: Options) -> Call:
    """Return what is timed: the task's work of `model` on the task's batch."""
    torch.manual_seed(1)
    inputs = task.inputs(task.batch, task.length, getattr(model.config, "vocab_size", 0))
    batch = {key: value.to(options.device) for key, value in inputs.items()}
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False
    if options.bf16 and is_marked(model):
        model.forward = torch.autocast(options.device, torch.bfloat16)(model.forward)  # as accelerate does
    return task.work(model.to(options.device, getattr(torch, options.dtype)), batch, task)


class MatrixProducts(TorchDispatchMode):
    """Records the matrix products that a step cannot do without: two shapes for `torch.matmul`, and which weight.

    Attention is two products, and four in the backward pass, without the scores that fused kernels compute again.
    """

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.weights = {parameter.data_ptr() for parameter in parameters}
        self.shapes: list[tuple[tuple[int, ...], tuple[int, ...], int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("mm", "bmm", "addmm", "baddbmm"):
            left, right = args[-2:] if name in ("mm", "bmm") else args[1:3]
            weight = right.untyped_storage().data_ptr()
            self.shapes.append((tuple(left.shape), tuple(right.shape), weight if weight in self.weights else 0))
        elif name.startswith("_scaled_dot_product"):
            backward = "backward" in name
            query, key = args[1:3] if backward else args[:2]
            scores, states = (query.shape[-2], query.shape[-1], key.shape[-2]), query.shape[:-2].numel()
            rows, width, columns = scores
            one = (
                ((states, rows, width), (states, width, columns), 0),
                ((states, rows, columns), (states, columns, width), 0),
            )
            self.shapes += one * (1 + backward)
        elif name in ("convolution", "convolution_backward"):  # patches: none of the images' gradient is needed
            pixels, weight = args[1:3] if name.endswith("backward") else args[:2]
            patches = pixels.numel() // weight[0].numel()
            self.shapes.append(((patches, weight[0].numel()), (weight[0].numel(), len(weight)), 0))
        return func(*args, **(kwargs or {}))


def matrix_products(step: Call, model: torch.nn.Module, options: Options) -> Call:
    """Return the bare matrix products of a step of a model, of tensors of the same shapes, each weight its own.

    Each is computed in the type of the options by the library that is fastest for its shape.
    """
    plain = torch.backends.mkldnn.flags(enabled=False, allow_tf32=False), patch.object(gemv, "MAX_ROWS", {})
    with warnings.catch_warnings(action="ignore"), plain[0], plain[1], MatrixProducts(model.parameters()) as products:
        step()
    like: Any = {"device": options.device, "dtype": getattr(torch, options.dtype)}
    lefts = {left: torch.randn(left, **like) for left, _, _ in products.shapes}
    fastest: dict[Any, str] = {}
    calls: dict[Any, Call] = {}
    for left, right, weight in products.shapes:
        if (left, right, weight) not in calls:
            found = ways(lefts[left], torch.randn(right, **like))
            if (left, right) not in fastest:
                fastest[left, right] = min(found, key=lambda name: min(sample(found[name]).seconds for _ in range(4)))
            calls[left, right, weight] = found[fastest[left, right]]

    def call() -> None:
        for key in products.shapes:
            calls[key]()

    return call


def ways(left: torch.Tensor, right: torch.Tensor) -> dict[str, Call]:
    """Return the product of two matrices by each library that torch has, the right one stored as that one likes."""
    found: dict[str, Call] = {"matmul": partial(torch.matmul, left, right)}
    if left.ndim == right.ndim == 2 and left.is_cpu and left.dtype in gemv.BLOCKS:
        weight = right.t().contiguous()
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, len(left))
        found["oneDNN"] = lambda: nn.functional.linear(left.to_mkldnn(), weight).to_dense()
        found["packed oneDNN"] = lambda: torch.ops.mkldnn._linear_pointwise(left, packed, None, "none", [], "")
        if len(left) <= 8:
            found["sum of rows"] = partial(gemv.sum_of_rows, left, right, None)
    return found


def weigh(name: str, peer: str, side: str, options: Options) -> float | None:
    """Return the MiB that building one model and doing the task twice takes; runs in a process of its own."""
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    task = options.task(name)
    build: Any = getattr(PEERS[peer], "theirs" if options.native else side)

    def twice(size: Size) -> None:
        model = build(size)
        call = prepare(task, speed_up(model) if side == "ours" else model, options)
        call()
        call()

    twice(
        Size(layers=1, width=32, vocab=100, max_length=task.length + task.new_tokens)
    )  # what libraries load and keep
    return peak_memory(lambda: twice(options.size(task)), options.device)


def compare(name: str, peer: str, options: Options, processes: ProcessPoolExecutor) -> dict[str, Any]:
    """Check, time and weigh one task with one peer."""
    task = options.task(name)
    models = pair(peer, options.size(task))
    if options.native:
        models["ours"] = speed_up(copy.deepcopy(models["theirs"]))
    error = check_equal(models, task.inputs(4, task.length, options.vocab))
    calls = {side: prepare(task, model, options) for side, model in models.items()}
    if task.work is training:
        calls["limit"] = matrix_products(calls["ours"], models["ours"], options)
    samples = measure(calls, options.repeats, options.seconds, options.device, options.wait_idle)
    quiet = undisturbed(samples)
    counted = quiet if len(quiet) >= 3 else samples
    speeds = [theirs.seconds / ours.seconds for ours, theirs, *_ in counted]
    clock = "cpu" if options.device == "cpu" else "seconds"
    limits = [getattr(limit, clock) / getattr(ours, clock) for ours, _, *bare in counted for limit in bare]
    ms = [1e3 * statistics.median(one.seconds for one in side) for side in zip(*counted)]
    mib = [processes.submit(weigh, name, peer, side, options).result() if options.memory else None for side in models]
    return {
        "task": name,
        "peer": peer,
        "error": error,
        "ms": dict(zip(models, ms)),
        "speed": {"median": statistics.median(speeds), "min": min(speeds), "max": max(speeds)},
        "cpu_speed": statistics.median(theirs.cpu / ours.cpu for ours, theirs, *_ in counted),
        "limit": statistics.median(limits) if limits else None,
        "memory": dict(zip(models, mib)),
        "undisturbed": len(quiet),
        "same_tokens": bool((calls["ours"]() == calls["theirs"]()).all()) if task.new_tokens else None,
        "samples": samples,
    }


HEADER = """\
| task | peer | ours ms | theirs ms | speed | [min, max] | by CPU time | limit | ours MiB | theirs MiB | quiet \
| same tokens |
|---|---|---|---|---|---|---|---|---|---|---|---|"""


def table_row(row: dict[str, Any]) -> str:
    speed, same = row["speed"], row["same_tokens"]
    mib = ["-" if value is None else f"{value:.0f}" for value in row["memory"].values()]
    cells = [row["task"], row["peer"], *(f"{value:.1f}" for value in row["ms"].values()), f"{speed['median']:.2f}"]
    cells += [f"[{speed['min']:.2f}, {speed['max']:.2f}]", f"{row['cpu_speed']:.2f}"]
    cells += ["-" if row["limit"] is None else f"{row['limit']:.0%}", *mib]
    cells += [f"{row['undisturbed']}/{len(row['samples'])}", "-" if same is None else "yes" if same else "no"]
    return f"| {' | '.join(cells)} |"


def fresh_processes() -> ProcessPoolExecutor:
    """Return a pool whose every process is a fork of one that has imported the libraries and done nothing else."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["vanillaformer", *(f"transformers.models.{n}.modeling_{n}" for n in PEERS)])
    return ProcessPoolExecutor(1, context, max_tasks_per_child=1)


def main(argv: list[str] | None = None) -> None:
    (options,) = HfArgumentParser(Options).parse_args_into_dataclasses(argv)
    torch.set_num_threads(options.threads)
    if options.keep_memory:
        keep_freed_memory()
    transformers.logging.set_verbosity_error()
    machine = {"torch": torch.__version__, "transformers": transformers.__version__, "machine": platform.machine()}
    machine |= {"cores": os.cpu_count(), "load": os.getloadavg()[0]}
    print(f"{machine}\n{asdict(options)}\n\n{HEADER}", flush=True)
    rows = []
    with fresh_processes() as processes:
        for name, peer in itertools.product(options.tasks, options.peers):
            if peer in TASKS[name].peers:
                rows.append(compare(name, peer, options, processes))
                print(table_row(rows[-1]), flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"machine": machine, "options": asdict(options), "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
