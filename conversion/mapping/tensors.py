"""The correspondence of native tensors to ours, as tables that are read in both directions.

A table's key is one of our names, or a tuple of names that are one tensor in the native model; its value is the native
name, with the kind of correspondence unless the tensors are equal. Names of modules stand for their weight and
bias, `{layer}` for the number of a layer (`{stage}` and `{block}` for its stage and its number there), `{head}` for
that of a head (`stacked_heads`). All kinds are linear, so a table converts gradients too.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from vanillaformer.configuration import BlockConfig

Tensors = dict[str, torch.Tensor]
Several = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Kind:
    """Correspondence of our tensors with the native ones: each side from the other, given our config."""

    to_ours: Callable[[Several, BlockConfig], Several]
    to_native: Callable[[Several, BlockConfig], Several]
    heads: str = ""  # our field with the number of native tensors, if there is one for each head


Change = Callable[[torch.Tensor, BlockConfig], torch.Tensor]


def single(to_ours: Change, to_native: Change) -> Kind:
    """Return the kind of one of our tensors for a native one."""
    return Kind(
        lambda native, config: (to_ours(native[0], config),), lambda ours, config: (to_native(ours[0], config),)
    )


def transposed(tensor: torch.Tensor, config: BlockConfig | None = None) -> torch.Tensor:
    """Return a transposed weight, or a bias unchanged."""
    return tensor.T if tensor.ndim == 2 else tensor


def rows(parts: int) -> Kind:
    """Layers of equal width in one, their rows concatenated: `[q; k; v]`, `[gate; up]`."""
    return Kind(lambda native, config: native[0].chunk(parts), lambda ours, config: (torch.cat(ours),))


def stacked_heads(count: str) -> Kind:
    """The weight (H, K) of a norm that is one (K) for each head in the native model; our field `count` is H."""
    return Kind(lambda native, config: (torch.stack(native),), lambda ours, config: ours[0].unbind(), heads=count)


def query_key_value_rows(native: Several, config: BlockConfig) -> Several:
    heads = (config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads)
    return native[0].split([count * config.head_dim for count in heads])


def rows_of_heads(native: Several, config: BlockConfig) -> Several:
    heads = native[0].unflatten(0, (config.num_attention_heads, 3, -1))  # (H, 3, K) or (H, 3, K, D)
    return tuple(heads[:, part].flatten(0, 1) for part in range(3))


def fused_heads(ours: Several, config: BlockConfig) -> Several:
    heads = [tensor.unflatten(0, (config.num_attention_heads, -1)) for tensor in ours]
    return (torch.stack(heads, dim=1).flatten(0, 2),)


SAME = single(lambda tensor, config: tensor, lambda tensor, config: tensor)
# A linear layer with a transposed weight (GPT-2's `Conv1D`)
TRANSPOSED = single(transposed, transposed)
# Queries, keys and values in one layer with a transposed weight (GPT-2's `c_attn`)
TRANSPOSED_ROWS = Kind(
    lambda native, config: transposed(native[0]).chunk(3), lambda ours, config: (transposed(torch.cat(ours)),)
)
# Queries, keys and values in one layer, one after the other; keys and values may have fewer heads (Phi 3)
QUERY_KEY_VALUE_ROWS = Kind(query_key_value_rows, lambda ours, config: (torch.cat(ours),))
# Queries, keys and values in one layer, head by head: rows (H, 3, K) (BLOOM, GPT-NeoX)
HEAD_ROWS = Kind(rows_of_heads, fused_heads)
# A tensor with a leading batch axis of length 1 in the native model (tokens and position tables of images)
BATCHED = single(lambda tensor, config: tensor[0], lambda tensor, config: tensor.unsqueeze(0))
# A bias (V) that is a buffer (1, V) of the native model and not trained: zeros where ours has none
BUFFER_ROW = Kind(BATCHED.to_ours, BATCHED.to_native)
# A convolution whose kernel is a patch, weight (D, C, P, P): ours may be linear on flattened patches
PATCH_CONVOLUTION = single(
    lambda tensor, config: tensor.flatten(1) if config.patch_embedding == "linear" and tensor.ndim == 4 else tensor,
    lambda tensor, config: tensor.unflatten(1, (-1, *[config.patch_size] * 2)) if tensor.ndim == 2 else tensor,
)
# A linear layer that is a convolution with a kernel of one point, weight (D, D, 1, 1), in the native model
POINT_CONVOLUTION = single(
    lambda tensor, config: tensor.flatten(1) if tensor.ndim == 4 else tensor,
    lambda tensor, config: tensor[:, :, None, None] if tensor.ndim == 2 else tensor,
)

Native = str | tuple[str, Kind]
Table = dict[str | tuple[str, ...], Native]

# Our names in a block, by the words that `block` takes; those of cross-attention begin with `cross_`
HEADS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
BLOCK_NAMES: dict[str, str | tuple[str, ...]] = {
    **dict(zip("qkv", HEADS)), "qkv": HEADS, "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm",
    **{f"cross_{name}": f"cross_attn.{name}_proj" for name in "qkvo"}, "cross_norm": "cross_attn_residual.norm",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "gate_up": ("mlp.gate_proj", "mlp.up_proj"), "down": "mlp.down_proj",
    "attention_norm": "self_attn_residual.norm", "attention_out_norm": "self_attn_residual.out_norm",
    "mlp_norm": "mlp_residual.norm", "mlp_out_norm": "mlp_residual.out_norm", "shared_norm": "norm",
    "attention_scale": "self_attn_residual.layer_scale.weight", "mlp_scale": "mlp_residual.layer_scale.weight",
}  # fmt: skip


def block(layer: str, **native: Native) -> Table:
    """Return the table of a block, given the native names of its parts after that of a layer, such as `h.{layer}.`."""
    table: Table = {}
    for word, name in native.items():
        ours = BLOCK_NAMES[word]
        names = tuple(f"layers.{{layer}}.{each}" for each in ([ours] if isinstance(ours, str) else ours))
        target = layer + name if isinstance(name, str) else (layer + name[0], name[1])
        table[names if isinstance(ours, tuple) else names[0]] = target
    return table
