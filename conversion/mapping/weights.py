"""Copying weights between models by an architecture's tables, with no tensor left over on either side."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

from vanillaformer.configuration import BlockConfig
from vanillaformer.modeling.base import VanillaPreTrainedModel

from .architecture import Architecture, Part
from .dimensions import reordered
from .fields import Values
from .tensors import BUFFER_ROW, SAME, Kind, Table, Tensors

TOKEN_TABLES = [
    f"{prefix}{name}.weight"
    for prefix in ("model.", "")
    for name in ("embed_tokens", "encoder.embed_tokens", "decoder.embed_tokens", "lm_head")
]


@dataclass(frozen=True)
class Link:
    """An entry of a table for one layer: our tensors, the native ones and how they correspond."""

    ours: tuple[str, ...]
    native: str
    kind: Kind = SAME
    heads: int = 1  # number of native tensors, if each head has one

    @property
    def natives(self) -> tuple[str, ...]:
        """The names of the native tensors; there are several if each head has one."""
        return tuple(self.native.replace("{head}", str(head)) for head in range(self.heads))

    def missing(self, ours: Collection[str], native: Collection[str]) -> list[str]:
        """Return its tensors that a model lacks; a native buffer of zeros needs no counterpart."""
        absent = [name for name in self.ours if name not in ours]
        if self.kind is BUFFER_ROW and absent:
            return []
        return absent + [name for name in self.natives if name not in native]


def expand_table(
    table: Table, layers: int = 1, ours: str = "", native: str = "", config: BlockConfig | None = None
) -> list[Link]:
    """Return the links of a table for a number of layers, with a prefix on either side's names."""
    links = []
    depths = [stage.depth for stage in getattr(config, "stages", [])] or [1]
    blocks = [(stage, block) for stage, depth in enumerate(depths) for block in range(depth)]
    for names, target in table.items():
        native_name, kind = target if isinstance(target, tuple) else (target, SAME)
        heads = getattr(config, kind.heads) if kind.heads and config else 1  # the first, without a config
        our_names = (names,) if isinstance(names, str) else names
        for layer in range(layers if "{layer}" in our_names[0] else 1):
            in_layer = native_name.replace("{layer}", str(layer))
            if "{stage}" in in_layer:
                in_layer = in_layer.format(**dict(zip(("stage", "block"), blocks[layer])))
            for suffix in [""] if our_names[0].endswith((".weight", ".bias")) else [".weight", ".bias"]:
                full = tuple(f"{ours}{name}{suffix}".replace("{layer}", str(layer)) for name in our_names)
                links.append(Link(full, f"{native}{in_layer}{suffix}", kind, heads))
    return links


def present_links(links: Iterable[Link], ours: Collection[str], native: Collection[str]) -> list[Link]:
    """Return the links between existing tensors, which both sides must have, without those that neither has."""
    existing = []
    for link in links:
        if any(name in native for name in link.natives) or any(name in ours for name in link.ours):
            if missing := link.missing(ours, native):
                both = f"{' + '.join(link.ours)} = {link.native}"
                raise ValueError(f"the models do not match: {both} lacks {', '.join(missing)}")
            existing.append(link)
    return existing


def to_our_values(links: Iterable[Link], values: Tensors, config: BlockConfig, names: Collection[str]) -> Tensors:
    """Return our values for native ones, weights or gradients, of the tensors in `names`."""
    found: Tensors = {}
    for link in links:
        found |= zip(link.ours, link.kind.to_ours(tuple(values[name] for name in link.natives), config))
    return {name: tensor for name, tensor in found.items() if name in names}


def tensors_of(model: nn.Module) -> Tensors:
    """Return a model's parameters and saved buffers by name, tied ones under each of their names."""
    buffers = dict(model.named_buffers(remove_duplicate=False))
    saved = set(model.state_dict())
    return dict(model.named_parameters(remove_duplicate=False)) | {n: b for n, b in buffers.items() if n in saved}


def uncovered(model: nn.Module, names: Iterable[str]) -> list[str]:
    """Return a model's tensors that are not among `names` and not tied to one of them."""
    tensors = tensors_of(model)
    covered = {id(tensors[name]) for name in names if name in tensors}
    return [name for name, tensor in tensors.items() if id(tensor) not in covered]


@torch.no_grad()
def write_tensors(model: nn.Module, values: Tensors) -> None:
    """Copy `values` into a model, in its own dtype; tied tensors stay tied, and their values must be equal."""
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


@torch.no_grad()
def move_weights(architecture: Architecture, native: PreTrainedModel, ours: VanillaPreTrainedModel, head: str) -> None:
    """Move the weights of a native model to our new one, tensor by tensor.

    There are never two copies of all weights in memory; tensors that are equal on both sides are not copied at all.
    """
    links, values, targets = checked_links(architecture, native, ours, head), tensors_of(native), tensors_of(ours)
    sources: dict[int, list[torch.Tensor]] = {}
    filled: dict[int, list[int]] = {}  # our tensors by the native one that they come from
    pairs = [(link, [values[name] for name in link.natives]) for link in links]
    for link, natives in pairs:
        names = [name for name in link.ours if name in targets]
        ids = [id(targets[name]) for name in names]
        if ids and any(filled.setdefault(id(each), ids) != ids for each in natives):
            raise ValueError(f"{link.native} is one tensor with another of the native model, and ours are two")
        for name in names:
            if not all(map(torch.equal, sources.setdefault(id(targets[name]), natives), natives)):
                raise ValueError(f"{name} is one tensor here with {link.native}, whose tied tensors differ")
    taken, written = set[int](), set[int]()
    for link, natives in pairs:
        if id(natives[0]) in taken:  # a tied one, under another name
            continue
        for name, value in zip(link.ours, link.kind.to_ours(tuple(each.data for each in natives), ours.config)):
            if name not in targets or id(target := targets[name]) in written:  # with an equal value
                continue
            written.add(id(target))
            value = value.to(target.dtype)  # native models have some in float32
            whole = value.is_contiguous() and value.untyped_storage().nbytes() == value.nbytes
            target.data = value if whole else value.clone(memory_format=torch.contiguous_format)
        for each in natives:
            taken.add(id(each))
            each.data = each.data.new_empty(0)


def checked_links(
    architecture: Architecture, native: PreTrainedModel, ours: VanillaPreTrainedModel, head: str
) -> list[Link]:
    """Return the links between two models, after checking that their fixed tables are equal."""
    links = model_links(architecture, ours, native, head)
    for name, our_name in head_names(architecture.fixed_tables, architecture, head).items():
        expected, actual = ours.get_buffer(our_name), native.get_parameter(name)
        tolerance = 1e-2 if actual.element_size() < 4 else 1e-5
        if not torch.allclose(actual.float(), expected.float().to(actual.device), atol=tolerance):
            raise ValueError(
                f"{name} is not the table of {architecture.name} that {type(ours).__name__} computes; a table saved "
                "in bfloat16 or float16 is rounded, and equal only in that dtype"
            )
    return links


def native_weights(
    architecture: Architecture, ours: VanillaPreTrainedModel, native: PreTrainedModel, head: str
) -> Tensors:
    """Return the weights of our model for a new native one, with copies for tensors that nothing reads."""
    values, natives = tensors_of(ours), tensors_of(native)
    weights: Tensors = {}
    for link in model_links(architecture, ours, native, head):
        if all(name in values for name in link.ours):
            weights |= zip(link.natives, link.kind.to_native(tuple(values[name] for name in link.ours), ours.config))
    unused = head_names(architecture.unused, architecture, head)
    return weights | {name: values[source] for name, source in unused.items() if name in natives and source in values}


def model_links(
    architecture: Architecture, ours: VanillaPreTrainedModel, native: PreTrainedModel, head: str
) -> list[Link]:
    """Return the links between the tensors of two models with a head; raise ValueError if a tensor is left over."""
    links = expand_table(architecture.heads[head].tensors)
    for part in architecture.parts:
        if part.when(ours.config):
            links += part_links(architecture, part, head, getattr(ours.config, part.depth), ours.config)
    links = present_links(links, tensors_of(ours), tensors_of(native))
    if left := uncovered(ours, [name for link in links for name in link.ours]):
        raise ValueError(f"{type(native).__name__} has no counterpart of our {', '.join(left)}")
    unlinked = head_names(architecture.unused | architecture.fixed_tables, architecture, head)
    if left := uncovered(native, [*(name for link in links for name in link.natives), *unlinked]):
        raise ValueError(f"{type(ours).__name__} has no counterpart of the native {', '.join(left)}")
    return links


def part_links(
    architecture: Architecture, part: Part, head: str, layers: int, config: BlockConfig | None = None
) -> list[Link]:
    our_prefix, prefix = ("", "") if head == "base" else ("model.", architecture.prefix)
    return expand_table(part.table, layers, our_prefix + part.ours, prefix + part.native, config)


def head_names(native_to_ours: dict[str, str], architecture: Architecture, head: str) -> dict[str, str]:
    """Return names of native tensors and ours, which are those of models with a head, adjusted to this head."""
    if head != "base":
        return native_to_ours
    prefix = architecture.prefix
    return {name.removeprefix(prefix): ours.removeprefix("model.") for name, ours in native_to_ours.items()}


def fields_from_weights(architecture: Architecture, model: PreTrainedModel, head: str) -> Values:
    """Return our fields that the weights of a native model determine, such as ties, regardless of its config."""
    native = {link.ours[0]: link.native for link in expand_table(architecture.heads[head].tensors)}
    for part in architecture.parts:
        native |= {link.ours[0]: link.native for link in part_links(architecture, part, head, 1)}
    tensors = {name: model.get_parameter(native[name]) for name in TOKEN_TABLES if name in native}
    tables = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    source = tables.get("encoder.embed_tokens.weight")
    target = tables.get("decoder.embed_tokens.weight", tables.get("embed_tokens.weight"))
    fields: Values = {} if source is None else {"share_encoder_decoder_embeddings": source is target}
    if "lm_head.weight" in tables:
        fields["tie_word_embeddings"] = tables["lm_head.weight"] is target
    return fields | architecture.read(model)


def convert_weights(model: VanillaPreTrainedModel, config: BlockConfig) -> VanillaPreTrainedModel:
    """Return our model with a config of `fitting.fit`: the same function, with more tensors or reordered ones."""
    old = model.config
    values = tensors_of(model)
    layouts = old.sinusoidal_layout, config.sinusoidal_layout
    if layouts[0] != layouts[1]:
        values = {name: reordered(name, tensor, *layouts) for name, tensor in values.items()}
    fitted = type(model)._from_config(config, dtype=model.dtype)
    weights = {}
    for name, tensor in tensors_of(fitted).items():
        if name.endswith("embed_positions.weight"):  # (offset + N, D), the first `offset` unused
            unused = values[name].new_zeros(config.position_offset, tensor.shape[1])
            weights[name] = torch.cat((unused, values[name][old.position_offset :]))
        else:
            neutral = torch.ones_like if name.endswith("weight") else torch.zeros_like
            weights[name] = values[name] if name in values else neutral(tensor, device=model.device)
    write_tensors(fitted, weights)
    return fitted
