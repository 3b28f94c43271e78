"""Memory of a training step, from a forward pass on torch's meta device: nothing is computed and nothing is taken."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from vanillaformer.configuration import VanillaConfig, VanillaImageEncoderConfig

from .counts import inputs_on_meta, on_meta
from .parts.attention import eager_attention
from .parts.chunked_loss import chunk_size

FLOAT32 = 4  # bytes
COUNTED = "vanillaformer_counted"
"""Name of the attention that saves for its backward pass what fused kernels do."""


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes of a training step on one device.

    Attributes:
        weights: The weights, with which the optimizer works.
        gradients: One value for each weight, from the backward pass to the optimizer's step.
        optimizer: What the optimizer keeps.
        activations: What the forward pass keeps for the backward pass; it holds no logits, but the gradient of the
            output layer that is computed with the loss.
        workspace: What exists for a moment: a chunk of logits, or gradients by the widest activations.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    workspace: int

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
    """Return the memory that a training step takes on each device.

    Weights, gradients and what the optimizer keeps are float32, as with automatic mixed precision.

    Args:
        config: The config; the model has its usual head.
        batch: Rows B on a device.
        length: Tokens T in a row (of the target, in an encoder-decoder); images have the size of the config.
        source_length: Tokens S of the source. Default T.
        optimizer_values: Values that the optimizer keeps for each weight: 2 for AdamW, 1 for Muon, 0 for SGD.
        dtype: Type of the activations.
        gradient_checkpointing: Keep only what goes into each layer, and compute it again in the backward pass.
        devices: Devices that weights, gradients and optimizer are divided among (FSDP).
        device: `cpu` or `cuda`: how large a chunk of logits is.
    """
    sizes = batch, length, source_length or length
    saved, largest, weights = saved_bytes(config, *sizes, dtype, device)
    gathered = 0
    if gradient_checkpointing or devices > 1:
        layers = depth(config)
        one, _, without = saved_bytes(with_depth(config, 1), *sizes, dtype, device)
        gathered = (weights - without) // max(1, layers - 1) if devices > 1 else 0
        if gradient_checkpointing:
            width = batch * max(sizes[1:]) * int(config.hidden_size) * dtype.itemsize
            saved = one + (layers - 1) * width
    logits = 0
    if not isinstance(config, VanillaImageEncoderConfig):
        vocabulary, tokens, width = output_size(config), batch * length, config.hidden_size
        logits = min(tokens, chunk_size(vocabulary, device)) * vocabulary
        # the states, and gradients by them and by the output layer
        saved += tokens * width * (dtype.itemsize + FLOAT32) + vocabulary * width * FLOAT32
    return TrainingMemory(
        weights=weights // devices + 2 * gathered,
        gradients=weights // devices,
        optimizer=optimizer_values * weights // devices,
        activations=saved,
        workspace=max(4 * logits * FLOAT32, 2 * largest),  # logits, log-probabilities and the gradients by both
    )


def saved_bytes(
    config: VanillaConfig, batch: int, length: int, source_length: int, dtype: torch.dtype, device: str
) -> tuple[int, int, int]:
    """Return the bytes that layers save for the backward pass, those of the largest tensor, and those of weights."""
    model = build(config, dtype)
    inputs = inputs_on_meta(config, batch, length, source_length)
    known = {id_of(tensor) for tensor in (*model.parameters(), *model.buffers(), *inputs.values())}
    saved: dict[int, tuple[torch.UntypedStorage, int]] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if id_of(tensor) not in known:
            storage = tensor.untyped_storage()
            # Which numbers dropout keeps: factors on a CPU (parts/dropout.py), a byte each elsewhere
            factor = dtype.itemsize if tensor.dtype == torch.bool and device == "cpu" else 1
            saved[id_of(tensor)] = storage, factor * storage.nbytes()  # kept: no other one gets its address
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        model.base_model(**inputs)
    sizes = [size for _, size in saved.values()]
    weights = sum(parameter.numel() for parameter in model.parameters()) * FLOAT32
    return sum(sizes), max(sizes), weights


def output_size(config: Any) -> int:
    """Return the size of the vocabulary that a model writes in."""
    return getattr(config, "decoder_vocab_size", None) or config.vocab_size


def build(config: VanillaConfig, dtype: torch.dtype) -> Any:
    """Return the model in training mode, with tensors that have a shape and no memory."""
    config = copy.deepcopy(config)
    config._attn_implementation = COUNTED
    model: Any = on_meta(config)
    return model.to(dtype).train()


def id_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def depth(config: VanillaConfig) -> int:
    """Return the number of layers of all stacks."""
    return sum(int(getattr(config, name, 0) or 0) for name in ("num_hidden_layers", "encoder_layers"))


def with_depth(config: VanillaConfig, layers: int) -> VanillaConfig:
    """Return the config with as many layers in each stack."""
    config = copy.deepcopy(config)
    for name in ("num_hidden_layers", "encoder_layers"):
        if getattr(config, name, 0):
            setattr(config, name, layers)
    return config
