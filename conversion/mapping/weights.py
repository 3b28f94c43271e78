"""Which tensors of two models are which, by an architecture's tables, and that none is left over on either side."""

import torch
from transformers import PreTrainedModel

from vanillaformer.configuration import BlockConfig

from .architecture import Architecture, Part
from .fields import Values
from .tensors import Link, Tensors, present, tensors_of, uncovered, written_out

TOKEN_TABLES = [
    f"{prefix}{name}.weight"
    for prefix in ("model.", "")
    for name in ("embed_tokens", "encoder.embed_tokens", "decoder.embed_tokens", "lm_head")
]


def links(architecture: Architecture, ours: PreTrainedModel, native: PreTrainedModel, head: str) -> list[Link]:
    """Return which tensors of two models with a head are which.

    Raises:
        ValueError: A tensor of either model is left over.
    """
    found = written_out(architecture.heads[head].tensors)
    for part in architecture.parts:
        if part.when(ours.config):
            found += part_links(architecture, part, head, getattr(ours.config, part.depth), ours.config)
    found = present(found, tensors_of(ours), tensors_of(native))
    if left := uncovered(ours, [name for link in found for name in link.ours]):
        raise ValueError(f"{type(native).__name__} has no counterpart of our {', '.join(left)}")
    beside = [*names(architecture.unused, architecture, head), *names(architecture.computed, architecture, head)]
    if left := uncovered(native, [*(link.native for link in found), *beside]):
        raise ValueError(f"{type(ours).__name__} has no counterpart of the native {', '.join(left)}")
    return found


def part_links(
    architecture: Architecture, part: Part, head: str, layers: int, config: BlockConfig | None = None
) -> list[Link]:
    """Return which tensors of a part of so many layers are which."""
    our_prefix, prefix = ("", "") if head == "base" else ("model.", architecture.prefix)
    return written_out(part.table, layers, our_prefix + part.ours, prefix + part.native, config)


def names(native_to_ours: dict[str, str], architecture: Architecture, head: str) -> dict[str, str]:
    """Return names of theirs and ours, which an architecture has as below a head, as they are with this head."""
    if head != "base":
        return native_to_ours
    prefix = architecture.prefix
    return {name.removeprefix(prefix): ours.removeprefix("model.") for name, ours in native_to_ours.items()}


def known(architecture: Architecture, model: PreTrainedModel, head: str) -> Values:
    """Return our fields that the weights of a native model tell, whatever its config says: what is tied, above all."""
    native = {link.ours[0]: link.native for link in written_out(architecture.heads[head].tensors)}
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


def copies(architecture: Architecture, ours: PreTrainedModel, native: PreTrainedModel, head: str) -> Tensors:
    """Return what native tensors that nothing reads are filled with."""
    values, there = tensors_of(ours), tensors_of(native)
    unused = names(architecture.unused, architecture, head)
    return {name: values[source] for name, source in unused.items() if name in there and source in values}


def check_computed(architecture: Architecture, ours: PreTrainedModel, native: PreTrainedModel, head: str) -> None:
    """Raise when a native table that is not trained is another than the one that ours computes."""
    for name, our_name in names(architecture.computed, architecture, head).items():
        expected, actual = ours.get_buffer(our_name), native.get_parameter(name)
        tolerance = 1e-2 if actual.element_size() < 4 else 1e-5
        if not torch.allclose(actual.float(), expected.float().to(actual.device), atol=tolerance):
            raise ValueError(f"{name} is not the table of {architecture.name} that {type(ours).__name__} computes")
