"""The correspondence of native tensors to ours, as tables that are read in both directions.

A table's key is one of our names, or a tuple of those that the native model has in one tensor; its value is the native
name, with the kind of correspondence unless the two are equal. Names of modules stand for their weight and
bias, `{layer}` for the number of a layer (`{stage}` and `{block}` for its stage and its number there), `{head}` for
that of a head (`HeadRow`). All kinds are linear, so a table converts gradients too.
"""

from dataclasses import dataclass

import torch

from vanillaformer.configuration import BlockConfig

Tensors = dict[str, torch.Tensor]


class Same:
    """One of our tensors equals a native one; the base of the kinds."""

    def to_ours(self, tensor: torch.Tensor, config: BlockConfig) -> tuple[torch.Tensor, ...]:
        """Return our tensors, given the native one and our config."""
        return (tensor,)

    def to_native(self, tensors: tuple[torch.Tensor, ...], config: BlockConfig) -> torch.Tensor:
        """Return the native tensor, given ours and our config."""
        return tensors[0]


class Transposed(Same):
    """A linear layer with a transposed weight (GPT-2's `Conv1D`)."""

    def to_ours(self, tensor: torch.Tensor, config: BlockConfig) -> tuple[torch.Tensor, ...]:
        return (tensor.T if tensor.ndim == 2 else tensor,)

    def to_native(self, tensors: tuple[torch.Tensor, ...], config: BlockConfig) -> torch.Tensor:
        return self.to_ours(tensors[0], config)[0]


@dataclass(frozen=True)
class Rows(Same):
    """Layers of equal width in one, their rows concatenated: `[q; k; v]`, `[gate; up]`."""

    parts: int

    def to_ours(self, tensor: torch.Tensor, config: BlockConfig) -> tuple[torch.Tensor, ...]:
        return tensor.chunk(self.parts)

    def to_native(self, tensors: tuple[torch.Tensor, ...], config: BlockConfig) -> torch.Tensor:
        return torch.cat(tensors)


@dataclass(frozen=True)
class TransposedRows(Rows):
    """The same with a transposed weight (GPT-2's `c_attn`)."""

    def to_ours(self, tensor: torch.Tensor, config: BlockConfig) -> tuple[torch.Tensor, ...]:
        return super().to_ours(tensor.T if tensor.ndim == 2 else tensor, config)

    def to_native(self, tensors: tuple[torch.Tensor, ...], config: BlockConfig) -> torch.Tensor:
        fused = super().to_native(tensors, config)
        return fused.T if fused.ndim == 2 else fused


class QueryKeyValueRows(Same):
    """Queries, keys and values in one layer, one after the other; keys and values may have fewer heads (Phi 3)."""

    def to_ours(self, tensor: torch.Tensor, config: BlockConfig) -> tuple[torch.Tensor, ...]:
        heads = (config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads)
        return tensor.split([count * config.head_dim for count in heads])

    def to_native(self, tensors: tuple[torch.Tensor, ...], config: BlockConfig) -> torch.Tensor:
        return torch.cat(tensors)


class HeadRows(Same):
    """Queries, keys and values in one layer, head by head: rows (H, 3, K) (BLOOM, GPT-NeoX)."""

    def to_ours(self, tensor: torch.Tensor, config: BlockConfig) -> tuple[torch.Tensor, ...]:
        heads = tensor.unflatten(0, (config.num_attention_heads, 3, -1))  # (H, 3, K) or (H, 3, K, D)
        return tuple(heads[:, part].flatten(0, 1) for part in range(3))

    def to_native(self, tensors: tuple[torch.Tensor, ...], config: BlockConfig) -> torch.Tensor:
        heads = [tensor.unflatten(0, (config.num_attention_heads, -1)) for tensor in tensors]
        return torch.stack(heads, dim=1).flatten(0, 2)


class Batched(Same):
    """A tensor with a batch axis of length 1 in front in the native model (tokens and position tables of images)."""

    def to_ours(self, tensor: torch.Tensor, config: BlockConfig) -> tuple[torch.Tensor, ...]:
        return (tensor[0],)

    def to_native(self, tensors: tuple[torch.Tensor, ...], config: BlockConfig) -> torch.Tensor:
        return tensors[0].unsqueeze(0)


class BufferRow(Batched):
    """A bias (V) that is a buffer (1, V) of the native model and not trained: zeros where ours has none."""


class PatchConvolution(Same):
    """A convolution whose kernel is a patch, weight (D, C, P, P): ours may be linear on flattened patches."""

    def to_ours(self, tensor: torch.Tensor, config: BlockConfig) -> tuple[torch.Tensor, ...]:
        is_linear = config.patch_embedding == "linear"
        return (tensor.flatten(1) if is_linear and tensor.ndim == 4 else tensor,)

    def to_native(self, tensors: tuple[torch.Tensor, ...], config: BlockConfig) -> torch.Tensor:
        side = config.patch_size
        return tensors[0].unflatten(1, (-1, side, side)) if tensors[0].ndim == 2 else tensors[0]


class PointConvolution(Same):
    """A linear layer that is a convolution with a kernel of one point, weight (D, D, 1, 1), in the native model."""

    def to_ours(self, tensor: torch.Tensor, config: BlockConfig) -> tuple[torch.Tensor, ...]:
        return (tensor.flatten(1) if tensor.ndim == 4 else tensor,)

    def to_native(self, tensors: tuple[torch.Tensor, ...], config: BlockConfig) -> torch.Tensor:
        return tensors[0][:, :, None, None] if tensors[0].ndim == 2 else tensors[0]


@dataclass(frozen=True)
class HeadRow(Same):
    """The weight (K) of one head's norm, a row of our tensor for all (H, K); its links are added up (StableLM)."""

    count: str  # our field with the number of heads
    head: int = 0  # the number of the head

    def to_ours(self, tensor: torch.Tensor, config: BlockConfig) -> tuple[torch.Tensor, ...]:
        rows = tensor.new_zeros(getattr(config, self.count), *tensor.shape)
        rows[self.head] = tensor
        return (rows,)

    def to_native(self, tensors: tuple[torch.Tensor, ...], config: BlockConfig) -> torch.Tensor:
        return tensors[0][self.head]


SAME = Same()
Names = str | tuple[str, ...]
Table = dict[Names, str | tuple[str, Same]]
