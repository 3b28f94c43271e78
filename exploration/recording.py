"""One forward pass of a model with all intermediate values, or with other values in some places.

A place is named by its stack (`encoder` or `decoder`): `decoder.input` is the first block's input and `decoder.0` the
output of block 0, both (B, T, D); `decoder.0.mlp`, `decoder.0.self_attn` and `decoder.0.cross_attn` are the outputs of
its sublayers before the sum with the stream, (B, T, D); `decoder.0.self_attn.3` is the output of head 3 before the
output projection, (B, T, K). Inside windows of patches, B are the windows and T their patches.

Shape letters: B batch, T query length, S key length, D model width, H heads, K head width, L layers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from vanillaformer.modeling.base import VanillaPreTrainedModel
from vanillaformer.modeling.parts.attention import Attention, CrossAttention
from vanillaformer.modeling.parts.pointers import PointerGenerator
from vanillaformer.modeling.parts.residual import AdminResidual, DeepNorm, NoResidual, Residual, ReZero
from vanillaformer.modeling.stack import Stack

SUBLAYERS = ("self_attn", "cross_attn", "mlp")
Edit = torch.Tensor | Callable[[torch.Tensor], torch.Tensor]  # a value for a place, or a function of the one there
# The two terms of a placement's sum, from the stream and from the sublayer, if they are not x and the branch
TERMS: dict[type[Residual], Callable[[Any, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    DeepNorm: lambda residual, x, branch: (residual.alpha * x, branch),
    AdminResidual: lambda residual, x, branch: (residual.omega * x, branch),
    NoResidual: lambda residual, x, branch: (torch.zeros_like(x), branch),
    ReZero: lambda residual, x, branch: (x, residual.alpha * branch),
}


@dataclass
class Sublayer:
    """One sublayer's input, output and terms of the sum with the stream, all (B, T, D).

    The stream after it is `kept + added`, normalized in placements that end with a norm.
    """

    layer: int  # index of the layer in its stack
    name: str  # self_attn, cross_attn or mlp
    x: torch.Tensor  # the stream before it
    out: torch.Tensor  # the output of attention or the feed-forward layer
    kept: torch.Tensor  # the part of x that remains: x itself, in DeepNorm `α x`, in Admin `ω ⊙ x`
    added: torch.Tensor  # the contribution of out after norms and factors of the placement


@dataclass
class Recording:
    """One forward pass of a model with its intermediate values."""

    model: Any
    inputs: dict[str, Any]  # the model's arguments
    # Probabilities (B, H, T, S) of each layer, by kind: "encoder", "decoder", "cross", and "copy" (B, 1, T, S) of a
    # pointer-generator, where the first of equal source tokens gets the sum; of windows (B · windows, H, S, S)
    attentions: dict[str, tuple[torch.Tensor, ...]] = field(default_factory=dict)
    # The first block's input and each block's output (B, T, D), L + 1 of them, by stack: "encoder", "decoder". All are
    # before the stack's final norm.
    hidden_states: dict[str, tuple[torch.Tensor, ...]] = field(default_factory=dict)
    sublayers: dict[str, list[Sublayer]] = field(default_factory=dict)  # by stack, in the order in which they ran
    logits: Any = None  # a tensor, or None for a model without a head


def stacks(model: Any) -> dict[str, Stack]:
    """Return the stacks of a model of this package, "encoder" before "decoder"; a recurrent model has none."""
    base = model.base_model
    if isinstance(base, Stack):
        return {"decoder" if base.is_causal else "encoder": base}
    if not isinstance(model, VanillaPreTrainedModel):
        from vanillaformer.conversion.convert import from_native

        reason = "convert it first (vanillaformer convert --from)"
        try:
            from_native(model)
        except ValueError as error:
            reason = str(error)
        raise ValueError(f"{type(model).__name__} is not a model of this package: {reason}")
    sides = {name: getattr(base, name) for name in ("encoder", "decoder")}
    return {name: side for name, side in sides.items() if isinstance(side, Stack)}


@contextmanager
def eager(model: Any) -> Iterator[None]:
    """Use eager attention, which returns probabilities, and no dropout inside the `with` block."""
    with ExitStack() as exit_stack:
        exit_stack.callback(model.train, model.training)
        if (implementation := model.config._attn_implementation) is not None:
            exit_stack.callback(model.set_attn_implementation, implementation)
            model.set_attn_implementation("eager")
        model.eval()
        yield


def places(model: Any) -> list[str]:
    """Return the names of all places."""
    found = []
    for name, stack in stacks(model).items():
        found.append(f"{name}.input")
        layers: Any = stack.layers
        for number, layer in enumerate(layers):
            parts = [part for part in SUBLAYERS if hasattr(layer, part)]
            heads = [(part, range(layer.self_attn.config.num_attention_heads)) for part in parts if part != "mlp"]
            found += [f"{name}.{number}", *(f"{name}.{number}.{part}" for part in parts)]
            found += [f"{name}.{number}.{part}.{head}" for part, numbers in heads for head in numbers]
    return found


@contextmanager
def edited(model: Any, edits: Mapping[str, Edit]) -> Iterator[None]:
    """Replace values in places of a model inside the `with` block; ValueError for an unknown place."""
    known = places(model)
    with ExitStack() as hooks:
        for place, edit in edits.items():
            if place not in known:
                raise ValueError(f"{place!r} is not a place of this model, such as {', '.join(known[:6])}")
            hooks.enter_context(_hook(model, place, edit))
        yield


def _hook(model: Any, place: str, edit: Edit) -> Any:
    name, *rest = place.split(".")
    layers: Any = stacks(model)[name].layers

    def changed(value: torch.Tensor) -> torch.Tensor:
        found = edit(value) if callable(edit) else edit
        if found.shape != value.shape:
            raise ValueError(f"{place} has the shape {tuple(value.shape)}, its new value {tuple(found.shape)}")
        return found.to(value)

    def after(module: torch.nn.Module, args: Any, out: Any) -> Any:
        return (changed(out[0]), *out[1:]) if isinstance(out, tuple) else changed(out)

    if rest == ["input"]:
        return layers[0].register_forward_pre_hook(lambda module, args: (changed(args[0]), *args[1:]))
    module = layers.get_submodule(".".join(rest[:2]))
    return head_hook(module, int(rest[2]), changed) if len(rest) > 2 else module.register_forward_hook(after)


def head_hook(attention: Attention, head: int, edit: Edit | float) -> Any:
    """Replace the output (B, T, K) of an attention's head by another value, or by a function of it."""

    def before(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        by_head = args[0].unflatten(-1, (-1, attention.head_dim)).clone()  # (B, T, H, K)
        by_head[..., head, :] = edit(by_head[..., head, :]) if callable(edit) else edit
        return (by_head.flatten(-2),)

    return attention.o_proj.register_forward_pre_hook(before)


@torch.no_grad()
def record(model: Any, inputs: dict[str, Any], edits: Mapping[str, Edit] | None = None) -> Recording:
    """Run a model once, in evaluation mode and with eager attention, and return what happens inside it.

    Edits replace values in places of the model, by name (`places`).

    The model is one of this package, with or without a head. Inputs are the arguments of its `forward`; an
    encoder-decoder needs the target too, as `decoder_input_ids`.
    """
    found, sides = Recording(model, inputs), stacks(model)
    with eager(model), edited(model, edits or {}), ExitStack() as hooks:
        for name, stack in sides.items():
            hooks.enter_context(listening(stack, name, found))
        if isinstance(pointer := getattr(model, "pointer", None), PointerGenerator):
            hook = pointer.register_forward_hook(lambda _, args, out: found.attentions.update(copy=(out[1][:, None],)))
            hooks.enter_context(hook)
        options = {} if sides else {"output_attentions": True}  # recurrent models have no hooks
        outputs = model(**inputs, **options)
    if not sides and outputs.cross_attentions is not None:
        found.attentions["cross"] = outputs.cross_attentions
    found.logits = logits_of(outputs)
    return found


def values(model: Any, inputs: Mapping[str, Any], names: Iterable[str]) -> dict[str, torch.Tensor]:
    """Return the values in places of a model when it reads inputs."""
    found: dict[str, torch.Tensor] = {}

    def keep(place: str, value: torch.Tensor) -> torch.Tensor:
        return found.setdefault(place, value)

    with torch.no_grad(), eager(model), edited(model, {place: partial(keep, place) for place in names}):
        model(**inputs)
    return found


def logits_of(outputs: Any) -> Any:
    """Return the logits in a model's output (with BERT's two heads, those of tokens), `None` if it has none."""
    return outputs.get("logits", outputs.get("prediction_logits"))


@contextmanager
def listening(stack: Stack, name: str, found: Recording) -> Iterator[None]:
    """Record the values of one stack inside the `with` block."""
    probabilities: dict[str, list[torch.Tensor]] = {name: []}
    states: list[torch.Tensor] = []
    sublayers = found.sublayers[name] = []
    found.attentions[name] = found.hidden_states[name] = ()  # in the order of the stacks, though they end in reverse
    with ExitStack() as hooks:
        hooks.enter_context(stack.layers[0].register_forward_pre_hook(lambda module, args: states.append(args[0])))
        for index, layer in enumerate(stack.layers):
            hooks.enter_context(layer.register_forward_hook(lambda module, args, out: states.append(out)))
            for part, module in layer.named_children():
                if isinstance(module, Attention):
                    kept = probabilities.setdefault("cross" if isinstance(module, CrossAttention) else name, [])
                    hook = module.register_forward_hook(lambda _, args, out, kept=kept: kept.append(out[1]))
                    hooks.enter_context(hook)
                elif isinstance(module, Residual):
                    replace_after(module, index, part.removesuffix("_residual"), sublayers)
                    for method in ("after", "branch"):
                        hooks.callback(delattr, module, method)
        yield
    found.attentions |= {kind: tuple(each) for kind, each in probabilities.items()}
    found.hidden_states[name] = tuple(states)


def replace_after(residual: Residual, layer: int, name: str, sublayers: list[Sublayer]) -> None:
    """Make a residual connection add a `Sublayer` to the list whenever it runs, until both methods are deleted."""
    after, branch, branches = residual.after, residual.branch, []
    terms = TERMS.get(type(residual), lambda residual, x, branch: (x, branch))

    def branch_kept(out: torch.Tensor) -> torch.Tensor:
        branches.append(branch(out))
        return branches[-1]

    def after_kept(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        result = after(x, out)
        sublayers.append(Sublayer(layer, name, x, out, *terms(residual, x, branches.pop())))
        return result

    residual.after, residual.branch = after_kept, branch_kept  # type: ignore[method-assign]
