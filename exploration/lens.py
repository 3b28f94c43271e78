"""Logit lens: the answer of a model after each of its layers.

Shape letters: B batch, T length, D model width, V vocabulary, C classes, L layers.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.colors import LogNorm, Normalize

from vanillaformer.console.drawing import COLORS
from vanillaformer.modeling.heads import IGNORE_INDEX

from .examples import Example
from .pictures import LONGEST, Drawing, NotApplicable, counted, curves, heat_map, label, shortened
from .recording import Recording, eager, logits_of, stacks

CLASSES = len(COLORS)


class Lens(NamedTuple):
    """Token predictions after each layer; all arrays are (L + 1, T), the last row that of the model itself."""

    token: np.ndarray  # the likeliest token
    probability: np.ndarray  # its probability
    right_rank: np.ndarray  # rank of the right token, 1 if it is the likeliest; 0 where no token is right
    right_probability: np.ndarray  # probability of the right token; NaN where there is none


@torch.no_grad()
def lens_logits(recording: Recording) -> Iterator[torch.Tensor]:
    """Yield the logits that a model's head gives for the stream after each layer, L + 1 of (B, T, V) or (B, C).

    The state before the first and after each layer of the last stack goes through the stack's final norm and all that
    follows (nostalgebraist 2020). The last logits are those of the model. In an image model with stages, only the
    layers of the last stage fit the head. `NotApplicable` if the model is recurrent or has no head.
    """
    sides = stacks(recording.model)
    if not sides or recording.logits is None:
        raise NotApplicable("the model has no layers with a stream, or no head")
    name, stack = list(sides.items())[-1]
    states = recording.hidden_states[name]
    with eager(recording.model):
        for state in states:
            if state.shape == states[-1].shape:
                with stack.norm.register_forward_pre_hook(lambda module, args, state=state: (state,)):
                    yield logits_of(recording.model(**recording.inputs))


def token_lens(recording: Recording, targets: torch.Tensor) -> Lens:
    """Return the tokens that a model would predict after each layer in the first row of the batch.

    Targets are the right token at each position (T), -100 where there is none; raises as `lens_logits`.
    """
    known = targets != IGNORE_INDEX
    wanted = targets.where(known, 0).unsqueeze(-1)
    rows = []
    for logits in lens_logits(recording):
        log_p = logits[0].float().log_softmax(dim=-1)
        best, right = log_p.max(dim=-1), log_p.gather(-1, wanted)
        rank = (log_p > right).sum(dim=-1) + 1
        rows.append((best.indices, best.values.exp(), rank * known, right[:, 0].exp().where(known, torch.nan)))
    return Lens(*(torch.stack(column).cpu().numpy() for column in zip(*rows)))


def class_lens(recording: Recording) -> np.ndarray:
    """Return the probability of each class after each layer in the first row of the batch, (L + 1, C).

    Raises as `lens_logits`, and for a model that does not answer with classes.
    """
    config = recording.model.config
    if config.problem_type == "regression" or (recording.logits is not None and recording.logits.shape[-1] == 1):
        raise NotApplicable("the model answers with a number, which has no probability")
    several = config.problem_type == "multi_label_classification"
    rows = [logits[0].float() for logits in lens_logits(recording)]
    return torch.stack([row.sigmoid() if several else row.softmax(dim=-1) for row in rows]).cpu().numpy()


def lens(example: Example) -> list[Drawing]:
    """Draw the logit lens of a model that predicts tokens or classes."""
    if example.targets is None:
        return [classes_over_layers(example)]
    found, right = token_lens(example.recording, example.targets), example.predicted
    read = example.tokens[list(stacks(example.model))[-1]]
    depth, length = found.token.shape
    layers, cut, shown = counted(depth), shortened(length), slice(LONGEST)
    known, shifted = found.right_rank[-1] > 0, right[:-1] == read[1:]  # otherwise each position predicts its own token
    names = [
        f"{label(old)} → {label(new)}" if wanted and (shifted or new != old) else label(old)
        for old, new, wanted in zip(read, right, known)
    ]
    words = np.array([[example.answers(int(token)) for token in tokens] for tokens in found.token.T])  # (T, L + 1)
    ranks = np.where(found.right_rank > 0, found.right_rank, np.nan).T
    axes: dict[str, Any] = {"rows": names[shown], "columns": layers, "axes": ("", "layers passed")}
    title, tokens = f"Likeliest token after each layer{cut}", np.vectorize(label)(words[shown])
    probabilities = found.probability.T[shown]
    picture = heat_map(probabilities, title=title, what="probability", norm=Normalize(0, 1), words=tokens, **axes)
    header = ["layers passed", "position", "token", "likeliest", "probability"]
    header += ["right", "rank", "probability of right"]
    rows = [
        (
            *(layer, index + 1, read[index], words[index, layer], found.probability[layer, index]),
            *(right[index], found.right_rank[layer, index], found.right_probability[layer, index]),
        )
        for layer, index in np.ndindex(depth, length)
    ]
    drawings = [Drawing("lens", title, picture, header, rows)]
    if known.any():
        title, scale = f"Rank of the right token after each layer{cut}", LogNorm(1, max(10, np.nanmax(ranks)))
        numbers = np.vectorize("{:,.0f}".format)(ranks[shown])
        picture = heat_map(ranks[shown], title=title, what="rank", norm=scale, words=numbers, **axes)
        first = [f"{share:.0%} after {layer}" for layer, share in enumerate((ranks[known] == 1).mean(axis=0))]
        caption = f"{title}. It is the likeliest at {', '.join(first)} layers"
        drawings.append(Drawing("lens_rank", caption, picture, header, rows))
    return drawings


def classes_over_layers(example: Example) -> Drawing:
    """Draw the probability of each class after each layer; of many classes, those that are likeliest at the end."""
    found = class_lens(example.recording)
    total = example.recording.hidden_states[list(stacks(example.model))[-1]]
    likeliest = np.argsort(-found[-1], kind="stable")[:CLASSES]
    layers = range(len(total) - len(found), len(total))
    names = [example.answers(int(index)) for index in range(found.shape[1])]
    rows = [(layer, *values) for layer, values in zip(layers, found)]
    title = "Probability of the classes after each layer"
    lines = {names[index]: found[:, index] for index in likeliest}
    picture = curves(lines, layers, title, axes=("probability", "layers passed"), limits=(0, 1.02))
    first, last = found[[0, -1], likeliest[0]]
    caption = f"{title}: that of {names[likeliest[0]]} is {first:.2f} at first, {last:.2f} at last"
    return Drawing("lens", caption, picture, ("layers passed", *names), rows)
