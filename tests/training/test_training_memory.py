"""Predicted memory of a training step: against the tensors that a real one saves, and the memory of a process."""

import copy
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from modeling.toys import TARGET_VOCABULARY, attending, few_toys, shared_toy, tokens
from torch.autograd.graph import saved_tensors_hooks
from transformers import AutoModelForSeq2SeqLM

from vanillaformer import preset
from vanillaformer.modeling.counts import inputs_on_meta
from vanillaformer.training.memory import build, saved_bytes, training_memory

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
    predicted = saved_bytes(build(model.config, torch.float64), inputs, "cpu")
    assert predicted.total == pytest.approx(real, rel=0.2)
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
    with pytest.raises(ValueError, match="is counted for Transformers, not for recurrent models"):
        training_memory(preset("gru-tiny"), 4, 32)


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
