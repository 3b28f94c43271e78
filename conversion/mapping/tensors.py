"""Which tensors of a native model are which of ours, as tables that are read in both directions.

A table's key is a name of ours, or a tuple of names where the native model keeps several in one tensor; its value is
the native name, with the kind of correspondence if it is another than equality. Names of modules stand for their
weight and bias, `{layer}` for the number of a layer, `{head}` for that of a head (`HeadRow`). All kinds are linear, so
a table carries gradients as well.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

import torch
from torch import nn

from vanillaformer.configuration import BlockConfig

Tensors = dict[str, torch.Tensor]


class Same:
    """One tensor of ours is one of theirs; the base of the kinds."""

    def to_ours(self, tensor: torch.Tensor, config: BlockConfig) -> tuple[torch.Tensor, ...]:
        """Return our tensors, given the native one and our config."""
        return (tensor,)

    def to_native(self, tensors: tuple[torch.Tensor, ...], config: BlockConfig) -> torch.Tensor:
        """Return the native tensor, given ours and our config."""
        return tensors[0]


class Transposed(Same):
    """A linear layer whose weight stands the other way round (GPT-2's `Conv1D`)."""

    def to_ours(self, tensor: torch.Tensor, config: BlockConfig) -> tuple[torch.Tensor, ...]:
        return (tensor.T if tensor.ndim == 2 else tensor,)

    def to_native(self, tensors: tuple[torch.Tensor, ...], config: BlockConfig) -> torch.Tensor:
        return self.to_ours(tensors[0], config)[0]


@dataclass(frozen=True)
class Rows(Same):
    """Layers of equal width in one, their rows below each other: `[q; k; v]`, `[gate; up]`."""

    parts: int

    def to_ours(self, tensor: torch.Tensor, config: BlockConfig) -> tuple[torch.Tensor, ...]:
        return tensor.chunk(self.parts)

    def to_native(self, tensors: tuple[torch.Tensor, ...], config: BlockConfig) -> torch.Tensor:
        return torch.cat(tensors)


@dataclass(frozen=True)
class TransposedRows(Rows):
    """The same with a weight that stands the other way round (GPT-2's `c_attn`)."""

    def to_ours(self, tensor: torch.Tensor, config: BlockConfig) -> tuple[torch.Tensor, ...]:
        return super().to_ours(tensor.T if tensor.ndim == 2 else tensor, config)

    def to_native(self, tensors: tuple[torch.Tensor, ...], config: BlockConfig) -> torch.Tensor:
        fused = super().to_native(tensors, config)
        return fused.T if fused.ndim == 2 else fused


class HeadRows(Same):
    """Queries, keys and values in one layer, head by head: rows (H, 3, K) (BLOOM, GPT-NeoX)."""

    def to_ours(self, tensor: torch.Tensor, config: BlockConfig) -> tuple[torch.Tensor, ...]:
        heads = tensor.unflatten(0, (config.num_attention_heads, 3, -1))  # (H, 3, K) or (H, 3, K, D)
        return tuple(heads[:, part].flatten(0, 1) for part in range(3))

    def to_native(self, tensors: tuple[torch.Tensor, ...], config: BlockConfig) -> torch.Tensor:
        heads = [tensor.unflatten(0, (config.num_attention_heads, -1)) for tensor in tensors]
        return torch.stack(heads, dim=1).flatten(0, 2)


class BufferRow(Same):
    """A bias (V) that the native model keeps as a buffer (1, V) and does not train: without it, it is zero."""

    def to_ours(self, tensor: torch.Tensor, config: BlockConfig) -> tuple[torch.Tensor, ...]:
        return (tensor[0],)

    def to_native(self, tensors: tuple[torch.Tensor, ...], config: BlockConfig) -> torch.Tensor:
        return tensors[0].unsqueeze(0)


@dataclass(frozen=True)
class HeadRow(Same):
    """The weight (K) of one head's norm, which ours has among all heads' (H, K); its links are added up (StableLM).

    Args:
        count: Our field with the number of heads.
        head: Which of them.
    """

    count: str
    head: int = 0

    def to_ours(self, tensor: torch.Tensor, config: BlockConfig) -> tuple[torch.Tensor, ...]:
        rows = tensor.new_zeros(getattr(config, self.count), *tensor.shape)
        rows[self.head] = tensor
        return (rows,)

    def to_native(self, tensors: tuple[torch.Tensor, ...], config: BlockConfig) -> torch.Tensor:
        return tensors[0][self.head]


SAME = Same()
Names = str | tuple[str, ...]
Table = dict[Names, str | tuple[str, Same]]


@dataclass(frozen=True)
class Link:
    """One line of a table, written out: our tensors, the native tensor and how they correspond."""

    ours: tuple[str, ...]
    native: str
    kind: Same = SAME

    def missing(self, ours: Collection[str], native: Collection[str]) -> list[str]:
        """Return which of its tensors are not there, given the names that are; a zero buffer may be alone."""
        absent = [name for name in self.ours if name not in ours]
        if isinstance(self.kind, BufferRow) and absent:
            return []
        return absent + ([self.native] if self.native not in native else [])

    def by_head(self, config: BlockConfig | None) -> list["Link"]:
        """Return a link for each head (the first, without a config) of a norm that the native model has by head."""
        if not isinstance(self.kind, HeadRow):
            return [self]
        heads = range(1 if config is None else getattr(config, self.kind.count))
        names = [self.native.replace("{head}", str(head)) for head in heads]
        return [Link(self.ours, name, replace(self.kind, head=head)) for head, name in zip(heads, names)]


def written_out(
    table: Table, layers: int = 1, ours: str = "", native: str = "", config: BlockConfig | None = None
) -> list[Link]:
    """Return the links of a table for so many layers, with a prefix on either side's names."""
    links = []
    for names, target in table.items():
        native_name, kind = target if isinstance(target, tuple) else (target, SAME)
        our_names = (names,) if isinstance(names, str) else names
        for layer in range(layers if "{layer}" in native_name else 1):
            for suffix in [""] if our_names[0].endswith((".weight", ".bias")) else [".weight", ".bias"]:
                full = tuple(f"{ours}{name}{suffix}".replace("{layer}", str(layer)) for name in our_names)
                full_native = f"{native}{native_name}{suffix}".replace("{layer}", str(layer))
                links += Link(full, full_native, kind).by_head(config)
    return links


def present(links: Iterable[Link], ours: Collection[str], native: Collection[str]) -> list[Link]:
    """Return the links between tensors that are there: a module that neither side has, or without bias, is left out.

    Raises:
        ValueError: One side has a tensor and the other has not.
    """
    found = []
    for link in links:
        if link.native in native or any(name in ours for name in link.ours):
            if missing := link.missing(ours, native):
                both = f"{' + '.join(link.ours)} = {link.native}"
                raise ValueError(f"the models do not fit together: of {both} there is no {', '.join(missing)}")
            found.append(link)
    return found


def to_our_values(links: Iterable[Link], values: Tensors, config: BlockConfig, names: Collection[str]) -> Tensors:
    """Return what is ours, by name, of native values: weights or gradients of the tensors in `names`."""
    found: Tensors = {}
    for link in links:
        for name, tensor in zip(link.ours, link.kind.to_ours(values[link.native], config)):
            if name in names:
                found[name] = found[name] + tensor if isinstance(link.kind, HeadRow) and name in found else tensor
    return found


def to_native_values(links: Iterable[Link], values: Tensors, config: BlockConfig) -> Tensors:
    """Return the native tensors, by name, of our values: weights or gradients."""
    return {
        link.native: link.kind.to_native(tuple(values[name] for name in link.ours), config)
        for link in links
        if all(name in values for name in link.ours)
    }


def tensors_of(model: nn.Module) -> Tensors:
    """Return a model's parameters and saved buffers; tied ones stand under each of their names."""
    buffers = dict(model.named_buffers(remove_duplicate=False))
    saved = set(model.state_dict())
    return dict(model.named_parameters(remove_duplicate=False)) | {n: b for n, b in buffers.items() if n in saved}


def uncovered(model: nn.Module, names: Iterable[str]) -> list[str]:
    """Return a model's tensors that are not among `names` and not tied to one of them."""
    tensors = tensors_of(model)
    covered = {id(tensors[name]) for name in names if name in tensors}
    return [name for name, tensor in tensors.items() if id(tensor) not in covered]


@torch.no_grad()
def write(model: nn.Module, values: Tensors) -> None:
    """Give a model copies of `values`, in its own dtype; what is tied stays tied.

    Raises:
        ValueError: A tensor has another shape than the model's, or two that are tied in it are not equal.
    """
    tensors = tensors_of(model)
    written: dict[int, tuple[str, torch.Tensor]] = {}
    for name, value in values.items():
        if tensors[name].shape != value.shape:
            raise ValueError(f"{name} has shape {tuple(tensors[name].shape)}, but its value has {tuple(value.shape)}")
        other, first = written.setdefault(id(tensors[name]), (name, value))
        if first is not value and not torch.equal(first, value):
            raise ValueError(f"{name} and {other} are one tensor here, but their values differ")
        copied = value.detach().clone(memory_format=torch.contiguous_format)
        tensors[name].data = copied.to(tensors[name].dtype)
