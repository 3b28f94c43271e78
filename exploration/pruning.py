"""Pruning: a smaller model without some heads, which computes what the whole one does without them.

Where every layer keeps as many heads, the model is an ordinary one of fewer heads, which converts to the
architectures that have a head width of their own; otherwise its config names the pruned heads (`pruned_heads`), by
the numbers that they had.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from vanillaformer.configuration import BlockConfig
from vanillaformer.configuration.pruned_heads import Head, check_pruned, find_head
from vanillaformer.conversion.convert import copy_runtime_state
from vanillaformer.conversion.folders import add_to_card, carried_files, carry, load_ours
from vanillaformer.hub.file_names import CARD
from vanillaformer.hub.loading import saved_folder
from vanillaformer.hub.new_folder import new_folder
from vanillaformer.modeling.parts.attention import Attention
from vanillaformer.modeling.parts.norms import NormPerHead
from vanillaformer.modeling.stack import Stack

from .ablation import attention_layers
from .recording import stacks

Kept = dict[str, list[list[int]]]
"""The numbers of the heads that each layer keeps, by the kind of attention."""
Tables = dict[int, list[int]]
"""The numbers of the heads of each table of position biases."""
Tensors = dict[str, torch.Tensor]


class Pruning(NamedTuple):
    """The result of pruning a folder.

    Attributes:
        model_class: Name of the model's class.
        before: Number of parameters.
        after: Number of those left.
        fields: The fields of the config that say so.
    """

    model_class: str
    before: int
    after: int
    fields: str


def prune_folder(source: str, destination: str | Path, names: Sequence[str], revision: str | None = None) -> Pruning:
    """Save a model without some heads in a new folder, with its tokenizers, templates and card.

    Args:
        source: A folder or Hub id.
        destination: A new or empty folder.
        names: Names of the heads, such as "encoder.0.3".
        revision: Branch, tag or commit of a Hub id.

    Raises:
        ValueError: The source cannot be read, the destination is not empty, or heads cannot be pruned.
    """
    with new_folder(destination) as folder:
        origin = saved_folder(source, revision, "MODEL")
        carried = carried_files(origin)
        model = load_ours(origin)
        pruned = prune_heads(model, names)
        pruned.save_pretrained(folder)
        carry(carried, folder, pruned)
        note = f"Pruned by vanillaformer: `{Path(source).name}` without the heads {', '.join(names)}."
        add_to_card(carried.get(CARD), folder, "Pruned", note)
    config = pruned.config
    fields = f"num_attention_heads={config.num_attention_heads}, head_dim={config.head_dim}"
    if config.pruned_heads:
        fields += f", pruned_heads={config.pruned_heads}"
    return Pruning(type(model).__name__, model.num_parameters(), pruned.num_parameters(), fields)


def prune_heads(model: Any, names: Sequence[str]) -> Any:
    """Return a copy of a model without some heads.

    It computes what the model does when the outputs of these heads are 0. Biases of positions that layers with
    different heads share, and ALiBi's slopes, stay those of all heads.

    Args:
        model: A model of this package.
        names: Names of the heads, such as "encoder.0.3": kind of attention, layer and number, all from 0; of a pruned
            model with `pruned_heads` by the numbers before any was pruned.

    Raises:
        ValueError: The model has no such head, a layer would have none left, only some of the heads that share keys
            are named, or a norm spans all heads (`qk_norm="full"`).
    """
    attentions = attention_layers(model)
    config = without_heads(model.config, names)
    kept = kept_heads(config)
    state = model.state_dict()
    paths = {module: path for path, module in model.named_modules()}
    for kind, layers in attentions.items():
        for attention, heads in zip(layers, kept[kind]):
            rows = [attention.heads.index(number) for number in heads]
            state |= smaller_tensors(state, f"{paths[attention]}.", attention, rows)
    tables = {stack: table_heads(stack, kept[kind]) for kind, stack in stacks(model).items()}
    if (fewer := with_fewer_heads(config, kept, list(tables.values()))) is not None:
        config = fewer
        for stack, by_table in tables.items():
            for table, heads in (by_table or {}).items():
                name = f"{paths[stack]}.embeddings.positions.relative_attention_bias.{table}.weight".lstrip(".")
                state[name] = state[name][:, heads]
    pruned = type(model)._from_config(config, dtype=model.dtype)
    pruned.load_state_dict(state)
    copy_runtime_state(model, pruned)
    return pruned


def without_heads(config: BlockConfig, names: Sequence[str]) -> BlockConfig:
    """Return a copy of a config with `pruned_heads` as named, besides those pruned before."""
    counts, before = config.heads_by_layer(), config.pruned_heads or []
    heads = {find_head(name, counts) for name in [*before, *names]}
    if not names or len(heads) < len(before) + len(names):
        raise ValueError(f"give heads that the model has, each once, got {', '.join(names) or 'none'}")
    if config.qk_norm == "full":
        raise ValueError("a head cannot be pruned from a model with qk_norm='full': the norm of each spans them all")
    check_pruned(heads, counts, config.num_attention_heads // config.num_key_value_heads)
    pruned = copy.deepcopy(config)
    pruned.pruned_heads = [str(head) for head in sorted(heads)]
    return pruned


def kept_heads(config: BlockConfig) -> Kept:
    """Return the numbers of the heads that remain."""
    pruned = {find_head(name, config.heads_by_layer()) for name in config.pruned_heads or ()}
    return {
        kind: [
            [number for number in range(count) if Head(kind, layer, number) not in pruned]
            for layer, count in enumerate(counts)
        ]
        for kind, counts in config.heads_by_layer().items()
    }


def smaller_tensors(state: Tensors, prefix: str, attention: Attention, rows: list[int]) -> Tensors:
    """Return the tensors of one attention for some of its heads.

    Args:
        state: The tensors of the model.
        prefix: What their names begin with.
        attention: The attention.
        rows: Indices of these heads among those that it has.
    """
    width, sharing = attention.head_dim, attention.num_key_value_groups
    key_rows = sorted({row // sharing for row in rows})
    axes = {f"{name}.{part}": 0 for name in ("q_proj", "k_proj", "v_proj") for part in ("weight", "bias")}
    found = {}
    for name, axis in (axes | {"o_proj.weight": 1}).items():
        if f"{prefix}{name}" in state:
            by_head = state[f"{prefix}{name}"].unflatten(axis, (-1, width))
            chosen = torch.tensor(key_rows if name[0] in "kv" else rows, device=by_head.device)
            found[f"{prefix}{name}"] = by_head.index_select(axis, chosen).flatten(axis, axis + 1)
    for name, chosen_rows in (("q_norm", rows), ("k_norm", key_rows)):
        if isinstance(getattr(attention, name), NormPerHead):
            found[f"{prefix}{name}.weight"] = state[f"{prefix}{name}.weight"][chosen_rows]
    return found


def with_fewer_heads(config: BlockConfig, kept: Kept, tables: Sequence[Tables | None]) -> BlockConfig | None:
    """Return the config of a model with as many heads in every layer, `None` if these are not all of one number.

    Args:
        config: The config with `pruned_heads`.
        kept: The heads that remain.
        tables: For each stack, which heads its tables of position biases are for.
    """
    numbers = {len(heads) for layers in kept.values() for heads in layers}
    by_number = config.position_embedding_type == "alibi" or getattr(config, "num_stages", 1) > 1
    if len(numbers) > 1 or by_number or None in tables:
        return None
    (heads,) = numbers
    fewer = copy.deepcopy(config)
    fewer.num_key_value_heads = heads * config.num_key_value_heads // config.num_attention_heads
    fewer.num_attention_heads, fewer.pruned_heads = heads, None
    return fewer


def table_heads(stack: Stack, kept: Sequence[list[int]]) -> Tables | None:
    """Return which heads each table of position biases is for, `None` if layers with different heads share one.

    Args:
        stack: The stack.
        kept: The heads of its layers.
    """
    found: Tables = {}
    positions: Any = stack.embeddings.positions
    for layer, heads in enumerate(kept if hasattr(positions, "relative_attention_bias") else ()):
        if found.setdefault(positions.table_index(layer), heads) != heads:
            return None
    return found
