"""Predicted memory of a training step against that of real ones, and what is asked of the machine."""

import copy
import os
import random
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from modeling.toys import TARGET_VOCABULARY, attending, few_toys, shared_toy, tokens
from refusals import refused
from torch.autograd.graph import saved_tensors_hooks
from transformers import AutoModelForSeq2SeqLM

from vanillaformer import preset
from vanillaformer.modeling.counts import inputs_on_meta, on_meta
from vanillaformer.training import hardware
from vanillaformer.training.memory import COUNTED, saved_bytes, training_memory

BATCH, LENGTH = 16, 24


def really_saved(model: torch.nn.Module, step: Callable[[], object]) -> int:
    """Return the bytes of numbers that a step saves for the gradients, without weights and buffers."""
    known = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    saved = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if tensor.is_floating_point() and storage.data_ptr() not in known:
            saved[storage.data_ptr()] = storage
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        step()
    return sum(storage.nbytes() for storage in saved.values())


@few_toys()
def test_activations_are_what_a_step_saves(kind, overrides):
    model = copy.deepcopy(shared_toy(kind, overrides)).requires_grad_(True).train()
    inputs = {"input_ids": tokens(BATCH, LENGTH)}
    if kind == "encoder_decoder":
        inputs["decoder_input_ids"] = tokens(BATCH, LENGTH, TARGET_VOCABULARY)
    fused = "sdpa" if model.config.attn_logit_softcapping is None else "eager"
    with attending(model, fused):
        real = really_saved(model, lambda: model.base_model(**inputs))
    inputs = inputs_on_meta(model.config, BATCH, LENGTH, LENGTH)
    config = copy.deepcopy(model.config)
    config._attn_implementation = COUNTED
    predicted = saved_bytes(on_meta(config).to(torch.float64).train(), inputs, "cpu")
    assert predicted.outside + sum(predicted.layers) == pytest.approx(real, rel=0.2)
    assert training_memory(model.config, BATCH, LENGTH).weights == 4 * model.num_parameters()


MEASURED = """
from pathlib import Path
import ctypes, gc, torch
from vanillaformer import VanillaDecoderForCausalLM, preset
ctypes.CDLL(None).mallopt(-3, 2**16)  # what is freed goes back to the system
torch.set_num_threads(1)

def step(**sizes):
    model = VanillaDecoderForCausalLM(preset("gpt-tiny", attention_dropout=0.0, **sizes)).train()
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(9, (8, 128))
    for _ in range(2):
        model(input_ids=ids, labels=ids, return_logits=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

step(hidden_size=16, num_attention_heads=2, vocab_size=9)  # what libraries load and keep
status = Path("/proc/self/status")
for sizes in SIZES:
    gc.collect()
    before = int(status.read_text().split("VmRSS:")[1].split()[0])
    Path("/proc/self/clear_refs").write_text("5")
    step(**sizes)
    print((int(status.read_text().split("VmHWM:")[1].split()[0]) - before) * 1024)
"""
SIZES = [
    {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "vocab_size": 500},
    {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 30000},
]


def test_the_peaks_are_those_of_a_process():
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("this system does not tell the peak of a process's memory")
    command = [sys.executable, "-c", MEASURED.replace("in SIZES", f"in {SIZES}")]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    for sizes, found in zip(SIZES, map(int, printed), strict=True):
        assert training_memory(preset("gpt-tiny", **sizes), 8, 128).peak == pytest.approx(found, rel=0.2), sizes


def test_what_divides_memory_and_recurrent_models_are_refused():
    config = preset("gpt-tiny", num_hidden_layers=12, vocab_size=200)
    whole = training_memory(config, 4, 64)
    assert training_memory(config, 8, 64).activations > 1.8 * whole.activations
    assert training_memory(config, 4, 64, dtype=torch.bfloat16).activations < 0.6 * whole.activations
    assert training_memory(config, 4, 64, gradient_checkpointing=True).activations < 0.3 * whole.activations
    assert training_memory(config, 4, 64, optimizer_values=1).optimizer == whole.optimizer // 2
    parts = training_memory(config, 4, 64, devices=8)
    assert (parts.gradients, parts.optimizer) == (whole.gradients // 8, whole.optimizer // 8)
    assert whole.weights // 8 < parts.weights < whole.weights // 2
    refused("is counted for Transformers, not for recurrent models", training_memory, preset("gru-tiny"), 4, 32)


@pytest.mark.parametrize("name", ["vit-tiny", "swin-tiny", "gemma2", "modernbert", "t5", "bloom"])
def test_every_kind_of_model_has_an_answer(name):
    config = preset(name)
    whole = training_memory(config, 4, 32)
    again = training_memory(config, 4, 32, gradient_checkpointing=True)
    assert whole.peak > whole.weights > 0
    assert again.activations < whole.activations


@pytest.mark.parametrize(
    "fields",
    [{"output_distribution": "pointer_generator", "share_encoder_decoder_embeddings": True}, {"decoding": "ctc"}],
)
def test_logits_that_no_loss_computes_in_chunks_are_counted(fields):
    config = preset("transformer-tiny", vocab_size=3000, num_hidden_layers=1, dropout=0.0, **fields)
    model = AutoModelForSeq2SeqLM.from_config(config)
    ids = torch.randint(4, 3000, (8, 32), generator=torch.Generator().manual_seed(0))
    real = really_saved(model, lambda: model(input_ids=ids, labels=ids, return_logits=False))
    memory = training_memory(config, 8, 32)
    assert real < memory.activations + memory.workspace < 5 * real  # gradients by logits come on top


# Prints the page faults of six tensors of 64 MiB, one after the other, before freed memory is kept and afterwards.
FAULTS = """
import resource
import ctypes
import torch
from vanillaformer.acceleration.plug_in import keep_freed_memory
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: whether there are huge pages depends on the moment
for prepare in (bool, keep_freed_memory):
    kept = prepare()
    for _ in range(12):  # the first few may not fit in the gaps that others left
        torch.ones(2**24)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(6):
        torch.ones(2**24)
    print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.fixture
def set_threads(monkeypatch) -> list[int]:
    """The numbers of threads that are set, on a machine where torch starts with eight."""
    numbers: list[int] = []
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)
    return numbers


@pytest.mark.parametrize(("cores", "busy", "allowed", "threads"), [
    *((8, 0, 8, 8), (8, 3, 8, 5), (8, 3.4, 8, 5), (8, 7, 8, 1)),
    *((2, 1, 2, 1), (2, 0.1, 2, 2), (64, 0, 4, 4), (64, 0, 99, 8)),
])  # fmt: skip
def test_threads_are_as_many_as_cores_are_free(monkeypatch, set_threads, cores, busy, allowed, threads) -> None:
    """On a machine on which other processes keep some of its cores busy, and this one another."""
    process = SimpleNamespace(cpu_percent=lambda: 100.0, cpu_affinity=lambda: range(cores))
    monkeypatch.setattr(psutil, "Process", lambda: process)
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval, percpu: [100 * (1 + busy) / cores] * cores)
    monkeypatch.setattr(hardware, "cpu_count", lambda: allowed)
    hardware.set_free_threads()
    assert set_threads == [threads]


def test_a_number_of_threads_that_is_given_stays(monkeypatch, set_threads) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    hardware.set_free_threads()
    assert set_threads == []


@pytest.mark.skipif("linux" not in sys.platform or os.confstr("CS_GNU_LIBC_VERSION") is None, reason="not glibc")
@pytest.mark.parametrize("own", [{}, {"MALLOC_ARENA_MAX": "4"}])
def test_memory_is_taken_from_the_system_once_but_settings_of_the_users_own_stay(own: dict[str, str]) -> None:
    """A tensor in new memory costs a fault for each page."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run([sys.executable, "-c", FAULTS], env=others | own, check=True, capture_output=True, text=True)
    (_, before), (kept, after) = map(str.split, done.stdout.splitlines())
    pages = 64 * 2**20 // resource.getpagesize()
    assert kept == str(not own)
    assert int(before) >= 6 * pages
    assert own or int(after) < pages


# Prints the MiB that five hundred products of different shapes leave in memory.
PRODUCTS = """
import sys
import psutil
import torch
from vanillaformer.acceleration.plug_in import limit_kernels
if sys.argv[1] == "limited":
    limit_kernels()
weight, memory = torch.ones(64, 64, dtype=torch.bfloat16), []
for rows in (600, *range(64, 564)):
    torch.nn.functional.linear(weight.new_ones(rows, 64), weight)
    memory.append(psutil.Process().memory_info().rss)
print((memory[-1] - memory[0]) >> 20)
"""


@pytest.mark.skipif(not hardware.has_bfloat16(), reason="needs instructions for bfloat16")
def test_training_keeps_few_kernels_but_limits_of_the_user_stay():
    names = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
    others = {name: value for name, value in os.environ.items() if name not in names}

    def growth(kind: str, **limits: str) -> int:
        command = [sys.executable, "-c", PRODUCTS, kind]
        return int(subprocess.run(command, env=others | limits, check=True, capture_output=True, text=True).stdout)

    free = growth("free")
    assert growth("limited") < free / 2
    assert growth("limited", **dict.fromkeys(names, "1024")) > free / 2


@pytest.mark.parametrize(
    ("mkldnn", "avx2", "avx512_bf16", "expected"),
    [(True, True, True, True), (True, True, False, False), (False, True, True, False), (True, False, False, True)],
)
def test_bfloat16_needs_instructions_for_it(monkeypatch, mkldnn, avx2, avx512_bf16, expected) -> None:
    """oneDNN says yes for every AVX-512 CPU, and on Arm for those that have them."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: mkldnn)
    monkeypatch.setattr(torch.cpu, "_is_avx2_supported", lambda: avx2)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)
    assert hardware.has_bfloat16() is expected


@pytest.mark.parametrize(("device", "fast", "bf16", "dtype", "warned"), [
    ("cpu", False, False, torch.float32, False), ("cpu", False, True, torch.bfloat16, True),
    ("cpu", True, False, "auto", False), ("cpu", True, True, torch.bfloat16, False),
    ("cuda:1", False, False, "auto", False), ("cuda", False, True, torch.bfloat16, False),
])  # fmt: skip
def test_bfloat16_is_avoided_where_it_is_emulated(monkeypatch, capsys, device, fast, bf16, dtype, warned) -> None:
    monkeypatch.setattr(hardware, "has_bfloat16", lambda: fast)
    assert hardware.inference_dtype(device, bf16) == dtype
    assert ("--bf16: this CPU has no instructions" in capsys.readouterr().err) is warned


# From a file to rows, as the programs do it; printed is the most memory that was the process's own, in bytes.
PROGRAM = """
import sys, threading, time
import datasets
from types import SimpleNamespace
from vanillaformer.tokenization import train
from vanillaformer.data.caching import TextColumn, fingerprints
from vanillaformer.data.arguments import DATA_ARGUMENTS
from vanillaformer.data.loading import load_data
from vanillaformer.data.preprocessing.statistics import describe_data
from vanillaformer.data.preprocessing.language_model import block_rows
from vanillaformer.data.preprocessing.tokenizing import classification_rows

def memory():
    return 1024 * int(next(line for line in open("/proc/self/status") if line.startswith("RssAnon")).split()[1])

def watch():
    while True:
        found[0] = max(found[0], memory())
        time.sleep(0.002)

datasets.disable_progress_bars()
task, file = sys.argv[1:]
before = memory()
found = [before]
threading.Thread(target=watch, daemon=True).start()
arguments = DATA_ARGUMENTS[task](train_file=file)
texts = load_data(arguments, task).splits
fingerprints(texts)
tokenizer = train(TextColumn(texts["train"], "text"), kind="encoder", vocab_size=500)
tokenizer.eos_token = "[SEP]"
arguments.block_size = arguments.max_length = 64
rows = (block_rows if task == "causal" else classification_rows)(texts, tokenizer, arguments)
settings = SimpleNamespace(
    train_batch_size=8, gradient_accumulation_steps=1, data_processes=1, data_process=0, tokens_per_batch=None,
    train_sampling_strategy="random", seed=0, data_seed=None,
)
describe_data(rows, (tokenizer, tokenizer), settings)
rows["train"][[5, 3]]
print(len(texts["train"]), found[0] - before)
"""
BYTES_PER_ROW = 64
"""Hashes, numbers and orders of a row, 4 or 8 bytes each, of which no more than eight are in memory at once."""
NOISE = 24 * 2**20
"""What allocators keep and threads hold: measured are 3 to 12 MB."""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is told apart by Linux only")
@pytest.mark.parametrize("task", ["causal", "classification"])
def test_four_times_the_data_takes_no_more_memory(task, tmp_path):
    rng, words = random.Random(0), [f"word{number}" for number in range(300)]
    lines = [f"{' '.join(rng.choices(words, k=25))} {number}" for number in range(10_000)]
    peaks, rows = [], []
    for times in (1, 4):
        if task == "causal":
            file = tmp_path / f"{times}.txt"
            file.write_text("\n".join(f"{line}{copy}" for copy in range(times) for line in lines))
        else:
            file = tmp_path / f"{times}.csv"
            cells = (f"{line}{copy},{'ab'[len(line) % 2]}" for copy in range(times) for line in lines)
            file.write_text("text,label\n" + "\n".join(cells))
        settings = {"HF_DATASETS_CACHE": str(tmp_path), "RAYON_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
        command = [sys.executable, "-c", PROGRAM, task, str(file)]
        done = subprocess.run(command, env={**os.environ, **settings}, stdout=subprocess.PIPE, text=True, check=True)
        count, peak = map(int, done.stdout.split()[-2:])
        peaks.append(peak)
        rows.append(count)
    assert rows[1] == 4 * rows[0]
    assert peaks[1] - peaks[0] < BYTES_PER_ROW * (rows[1] - rows[0]) + NOISE
