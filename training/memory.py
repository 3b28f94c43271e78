"""Memory of a training step, from a forward pass on torch's meta device, which computes and allocates nothing."""

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask
from transformers.modeling_layers import GradientCheckpointingLayer

from vanillaformer.acceleration.chunked_loss import chunk_size
from vanillaformer.configuration import VanillaConfig, VanillaImageEncoderConfig, VanillaRecurrentEncoderDecoderConfig
from vanillaformer.configuration.options import DECODING_CHOICES
from vanillaformer.modeling.counts import inputs_on_meta, on_meta
from vanillaformer.modeling.parts.attention import eager_attention

FLOAT32 = 4  # bytes
COUNTED = "vanillaformer_counted"
"""Name of the attention that saves for its backward pass what fused kernels do."""


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes of a training step on one device."""

    weights: int  # those that the optimizer updates, and whole layers that FSDP gathers
    gradients: int  # one value for each weight, from the backward pass to the optimizer's step
    optimizer: int  # its state
    # What the forward pass keeps for the backward pass: no logits, but the output layer's gradient, made with the loss
    activations: int
    workspace: int  # what exists for a moment: a chunk of logits, or gradients by the widest activations

    @property
    def peak(self) -> int:
        """The most at any time: activations shrink while gradients grow."""
        return self.weights + self.optimizer + max(self.activations, self.gradients) + self.workspace


class FusedAttention(torch.autograd.Function):
    """Saves queries, keys, values, output and a sum for each query, and not the probabilities."""

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        output = query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[3])
        sums = query.new_empty(query.shape[:3], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, output, sums)
        return output


def counted_attention(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return an output (B, T, H, K) as the kernel makes it that torch would choose: a fused one where there is one."""
    bias = kwargs.get("position_bias")
    trained_bias = bias is not None and bias.requires_grad
    if trained_bias or kwargs.get("softcap") is not None or kwargs.get("dropout"):
        return eager_attention(module, query, key, value, *args, **kwargs)  # type: ignore[arg-type]
    return FusedAttention.apply(query, key, value), None


AttentionInterface.register(COUNTED, counted_attention)
AttentionMaskInterface.register(COUNTED, sdpa_mask)


def training_memory(
    config: VanillaConfig,
    batch: int,
    length: int = 1,
    source_length: int | None = None,
    *,
    optimizer_values: int = 2,
    dtype: torch.dtype = torch.float32,
    gradient_checkpointing: bool = False,
    devices: int = 1,
    device: str = "cpu",
) -> TrainingMemory:
    """Return the memory that a training step of `batch` rows takes on each device, with the usual head of the model.

    Rows have `length` tokens, in an encoder-decoder those of the target (the source has as many, or `source_length`);
    images have the size of the config. Weights, gradients and the state of the optimizer (2 values per weight for
    AdamW, 1 for Muon, 0 for SGD) are float32, as with automatic mixed precision, and divided among `devices` (FSDP);
    activations have `dtype`. The kind of `device`, `cpu` or `cuda`, decides how large a chunk of logits is.

    Raises ValueError for a recurrent model: what torch's kernels of recurrent layers keep depends on the machine.
    """
    if isinstance(config, VanillaRecurrentEncoderDecoderConfig):
        raise ValueError("the memory of a training step is counted for Transformers, not for recurrent models")
    config = copy.deepcopy(config)
    config._attn_implementation = COUNTED
    model: Any = on_meta(config).to(dtype).train()
    saved = saved_bytes(model, inputs_on_meta(config, batch, length, source_length or length), device)
    weights = size_of(model)
    layers = list(map(size_of, layers_of(model)))
    # Gathered at a time: a layer, and the weights outside of layers, which stay gathered until their backward pass
    gathered = max(layers, default=0) + weights - sum(layers) if devices > 1 else 0
    kept = saved.inputs + max(saved.layers, default=0) if gradient_checkpointing else sum(saved.layers)
    activations = saved.outside + kept
    logits, copies = 0, 2 if device == "cpu" else 4  # logits and probabilities, which the gradients may replace
    if not isinstance(config, VanillaImageEncoderConfig):
        vocabulary = getattr(config, "decoder_vocab_size", None) or config.vocab_size  # of the output
        tokens, width = batch * length, config.hidden_size
        logits = min(tokens, chunk_size(vocabulary, device, dtype)) * vocabulary
        choice = DECODING_CHOICES[getattr(config, "decoding", "autoregressive")]
        if choice.upsamples or getattr(config, "output_distribution", "softmax") != "softmax":  # no loss in chunks
            frames = batch * (source_length or length) * getattr(config, "ctc_upsampling", 1)
            logits, copies = (frames if choice.upsamples else tokens) * vocabulary, 4
        # the states, and gradients by them and by the output layer
        activations += tokens * width * (dtype.itemsize + FLOAT32) + vocabulary * width * FLOAT32
    return TrainingMemory(
        weights=weights // devices + 2 * gathered,
        gradients=weights // devices,
        optimizer=optimizer_values * weights // devices,
        activations=activations,
        workspace=max(copies * logits * FLOAT32, 2 * saved.largest),
    )


@dataclass
class SavedBytes:
    """Bytes that a forward pass saves for the backward pass: by layers, outside of them, and what goes into layers."""

    layers: list[int]
    outside: int = 0
    inputs: int = 0
    largest: int = 0


def saved_bytes(model: Any, inputs: dict[str, torch.Tensor], device: str) -> SavedBytes:
    """Return what the model without its head saves; every tensor is counted once."""
    layers = layers_of(model)
    saved, inside = SavedBytes([0] * len(layers)), [-1]
    known = {id_of(tensor) for tensor in (*model.parameters(), *model.buffers(), *inputs.values())}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if id_of(tensor) not in known and id_of(tensor) not in kept:
            storage = kept[id_of(tensor)] = tensor.untyped_storage()  # keeps its address from being reused
            # Which numbers dropout keeps: factors on a CPU (parts/dropout.py), a byte each elsewhere
            size = storage.nbytes() * (model.dtype.itemsize if tensor.dtype == torch.bool and device == "cpu" else 1)
            saved.largest = max(saved.largest, size)
            if inside[-1] < 0:
                saved.outside += size
            else:
                saved.layers[inside[-1]] += size
        return tensor

    def enter(number: int, module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        inside.append(number)
        saved.inputs += args[0].nbytes

    def leave(*args: Any) -> None:
        inside.pop()

    for number, layer in enumerate(layers):
        layer.register_forward_pre_hook(partial(enter, number))
        layer.register_forward_hook(leave)
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        model.base_model(**inputs)
    return saved


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Return the modules that gradient checkpointing recomputes."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def size_of(module: nn.Module) -> int:
    """Return the bytes of a module's weights."""
    return sum(parameter.numel() for parameter in module.parameters()) * FLOAT32


def id_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
