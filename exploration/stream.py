"""The residual stream: the norms of its vectors, and the contributions of the sublayers.

Shape letters: B batch, T length, D model width, L layers, N sublayers.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure

from vanillaformer.modeling.parts.residual import AdminResidual, DeepNorm, LayerScale, ReZero

from .examples import Example
from .pictures import Drawing, bars, counted, curves, needed
from .recording import Recording, stacks

SUBLAYERS = {"self_attn": "self-attention", "cross_attn": "cross-attention", "mlp": "feed-forward"}
NO_STREAM = "a recurrent model has no residual stream"


class Contributions(NamedTuple):
    """Contributions of the sublayers of a stack to its stream; all arrays are means over the tokens, (N)."""

    sublayers: list[tuple[int, str]]  # layer and name of each, in the order in which they ran
    x: np.ndarray  # norm of the stream before it
    out: np.ndarray  # norm of the sublayer's output
    added: np.ndarray  # norm of what is added, after norms and factors of the placement
    share: np.ndarray  # `|added| / (|kept| + |added|)`: 0 where nothing is added, 1 where nothing is kept
    cosine: np.ndarray  # cosine of what is added and what is kept: below 0 where the sublayer erases


def stream_norms(recording: Recording) -> dict[str, list[np.ndarray]]:
    """Return the norm of each token's vector before the first and after every block by stack, L + 1 of (B, T)."""
    return {
        name: [state.float().norm(dim=-1).cpu().numpy() for state in states]
        for name, states in needed(recording.hidden_states, NO_STREAM).items()
    }


def contributions(recording: Recording) -> dict[str, Contributions]:
    """Return by stack what each sublayer adds to the stream."""
    found = {}
    for name, sublayers in needed(recording.sublayers, NO_STREAM).items():
        columns = []
        for each in sublayers:
            kept, added = each.kept.float(), each.added.float()
            sizes = kept.norm(dim=-1), added.norm(dim=-1)
            share = sizes[1] / (sizes[0] + sizes[1]).clamp(min=torch.finfo(torch.float32).tiny)
            cosine = torch.cosine_similarity(kept, added, dim=-1)
            columns.append((each.x.float().norm(dim=-1), each.out.float().norm(dim=-1), sizes[1], share, cosine))
        arrays = [np.array([float(value.mean()) for value in column]) for column in zip(*columns)]
        found[name] = Contributions([(each.layer, each.name) for each in sublayers], *arrays)
    return found


class Factors(NamedTuple):
    """Trained or fixed factors of the residual connections of a stack, over the dimensions; all arrays are (N)."""

    name: str
    sublayers: list[tuple[int, str]]
    mean: np.ndarray
    smallest: np.ndarray
    largest: np.ndarray


FACTORS: dict[type, tuple[str, Callable[[Any], torch.Tensor | float]]] = {
    ReZero: ("α on the sublayer (ReZero)", lambda residual: residual.alpha),
    DeepNorm: ("α on the stream (DeepNorm, fixed)", lambda residual: residual.alpha),
    AdminResidual: ("ω on the stream (Admin)", lambda residual: residual.omega),
}  # layer scale is a separate module


def residual_factors(model: Any) -> dict[str, list[Factors]]:
    """Return by stack the factors in residual connections: ReZero's and DeepNorm's α, Admin's ω, layer scale's λ."""
    found: dict[str, list[Factors]] = {}
    for stack_name, stack in stacks(model).items():
        by_name: dict[str, dict[tuple[int, str], torch.Tensor]] = {}
        for layer, block in enumerate(stack.layers):
            for part, residual in block.named_children():
                sublayer = layer, part.removesuffix("_residual")
                if type(residual) in FACTORS:
                    name, get = FACTORS[type(residual)]
                    by_name.setdefault(name, {})[sublayer] = torch.as_tensor(get(residual))
                if isinstance(scale := getattr(residual, "layer_scale", None), LayerScale):
                    by_name.setdefault("λ on the sublayer (layer scale)", {})[sublayer] = scale.weight
        for name, values in by_name.items():
            numbers = [value.detach().double().cpu() for value in values.values()]
            ends = (np.array([float(end(each)) for each in numbers]) for end in (torch.mean, torch.min, torch.max))
            found.setdefault(stack_name, []).append(Factors(name, list(values), *ends))
    return needed(found, "the residual connections have no factors (ReZero, DeepNorm, Admin, layer scale)")


def stream(example: Example) -> list[Drawing]:
    """Draw the norm of the stream over the layers."""
    drawings = []
    for name, layers in stream_norms(example.recording).items():
        title = f"Norm of the residual stream, {name}"
        ends: dict[str, Any] = {"largest": np.max, "mean": np.mean, "smallest": np.min}
        lines = {end: np.array([function(values) for values in layers]) for end, function in ends.items()}
        caption = f"{title}: {lines['mean'][0]:.3g} before the first layer, {lines['mean'][-1]:.3g} after the last"
        axes = "norm of a token's vector", "layers passed"
        picture = curves(lines, range(len(layers)), title, axes=axes, log=True)
        tokens = dict(enumerate(example.tokens.get(name, [])))  # merged patches are numbered
        rows = [
            (layer, tokens.get(position, position + 1), value)
            for layer, values in enumerate(layers)
            for position, value in enumerate(values[0])
        ]
        drawings.append(Drawing(f"stream_{name}", caption, picture, ("layers passed", "token", "norm"), rows))
    return drawings


def sublayers(example: Example) -> list[Drawing]:
    """Draw share and direction of what each sublayer adds to the stream."""
    drawings = []
    for name, found in contributions(example.recording).items():
        header = ("layer", "sublayer", *found._fields[1:])
        rows = [(layer, part, *values) for (layer, part), *values in zip(*found)]
        for what, title, unit in (
            ("share", "Share of what each sublayer adds", "|added| / (|kept| + |added|)"),
            ("cosine", "Cosine of what each sublayer adds and the stream", "cosine"),
        ):
            values = getattr(found, what)
            (most, most_name), (least, least_name) = (found.sublayers[end(values)] for end in (np.argmax, np.argmin))
            caption = (
                f"{title}, {name}: the most {values.max():.2f} ({SUBLAYERS[most_name]} of layer {most}), "
                f"the least {values.min():.2f} ({SUBLAYERS[least_name]} of layer {least})"
            )
            picture = sublayer_bars(found.sublayers, values, f"{title}, {name}", unit)
            drawings.append(Drawing(f"sublayers_{what}_{name}", caption, picture, header, rows))
    return drawings


def factors(example: Example) -> list[Drawing]:
    """Draw the factors in the residual connections, with a line from the smallest dimension to the largest."""
    drawings = []
    for name, each in residual_factors(example.model).items():
        for index, found in enumerate(each):
            title = f"{found.name}, {name}"
            rows = [(layer, part, *values) for (layer, part), *values in zip(*found[1:])]
            picture = sublayer_bars(found.sublayers, found.mean, title, "factor", (found.smallest, found.largest))
            caption = f"{title}: means from {found.mean.min():.3g} to {found.mean.max():.3g}"
            header = ("layer", "sublayer", *found._fields[2:])
            drawings.append(Drawing(f"factors_{name}_{index + 1}", caption, picture, header, rows))
    return drawings


def sublayer_bars(
    sublayers: list[tuple[int, str]],
    values: np.ndarray,
    title: str,
    unit: str,
    limits: tuple[np.ndarray, np.ndarray] | None = None,
) -> Figure:
    """Draw a number per sublayer (N) as a bar, one color for each kind of sublayer."""
    depth = 1 + max(layer for layer, _ in sublayers)
    kinds = [name for name in SUBLAYERS if name in {part for _, part in sublayers}]

    def spread(numbers: np.ndarray) -> dict[str, np.ndarray]:
        found = {SUBLAYERS[kind]: np.full(depth, np.nan) for kind in kinds}
        for (layer, part), value in zip(sublayers, numbers):
            found[SUBLAYERS[part]][layer] = value
        return found

    ends = None if limits is None else (spread(limits[0]), spread(limits[1]))
    looks = [list(SUBLAYERS).index(kind) for kind in kinds]  # one color for a kind in all stacks
    return bars(spread(values), counted(depth), title, axes=(unit, "layer"), looks=looks, limits=ends)
