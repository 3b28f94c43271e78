"""What each head does for an answer: its indirect effect, by activation patching.

Shape letters: V vocabulary, T length, H heads, L layers.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from .attribution import Outputs, outputs_of
from .examples import Example, encoded
from .losses import NAMES, attention_layers
from .pictures import Drawing, NotApplicable, counted, heat_map, needed
from .recording import Edit, eager, edited, logits_of, stacks

LEAST = 1e-6  # difference of two log probabilities from which on shares of it mean something


def values(model: Any, inputs: Mapping[str, Any], names: Iterable[str]) -> dict[str, torch.Tensor]:
    """Return what is in places of a model when it reads inputs."""
    found: dict[str, torch.Tensor] = {}

    def keep(place: str, value: torch.Tensor) -> torch.Tensor:
        return found.setdefault(place, value)

    with torch.no_grad(), eager(model), edited(model, {place: partial(keep, place) for place in names}):
        model(**inputs)
    return found


def head_effects(
    model: Any, clean: Mapping[str, Any], corrupted: Mapping[str, Any], outputs: Outputs
) -> dict[str, np.ndarray]:
    """Return the indirect effect of each head on an answer, by kind of attention (L, H), nan where a layer lacks one.

    The model reads the corrupted input, with the output of one head as on the clean input: the effect is the share of
    the difference in the answer's log probability that comes back, 0 for none and 1 for all of it (Vig et al. 2020,
    arXiv 2004.12265; Meng et al. 2022). The inputs have the same shapes; `outputs` are the answer's tokens or class.
    """
    kinds = attention_layers(model)
    chosen = torch.tensor(outputs)

    def score(inputs: Mapping[str, Any], edits: Mapping[str, Edit]) -> float:
        with torch.no_grad(), eager(model), edited(model, edits):
            logits = logits_of(model(**inputs))
        logits = (logits if logits.ndim == 3 else logits.unsqueeze(1))[0].double().log_softmax(dim=-1)  # (T or 1, V)
        return float(logits[chosen[:, 0], chosen[:, 1]].sum())

    low, high = score(corrupted, {}), score(clean, {})
    if abs(high - low) < LEAST:
        raise ValueError("both inputs make the answer equally likely: there is no difference to explain")
    effects = {}
    for kind, layers in kinds.items():
        stack, part = ("decoder", "cross_attn") if kind == "cross" else (kind, "self_attn")
        counts = [attention.config.num_attention_heads for attention in layers]
        names = {(n, head): f"{stack}.{n}.{part}.{head}" for n, count in enumerate(counts) for head in range(count)}
        kept = values(model, clean, names.values())
        effects[kind] = np.full((len(layers), max(counts)), np.nan)
        for index, name in names.items():
            effects[kind][index] = (score(corrupted, {name: kept[name]}) - low) / (high - low)
    return effects


def against(loaded: Any, example: Example, text: str) -> dict[str, torch.Tensor]:
    """Return the inputs of a text to compare an example's with, which has as many tokens; its target is the same."""
    prefix = loaded.prefix if loaded.model.config.is_encoder_decoder and text.strip() else ""  # as of the example
    inputs = encoded(loaded.model, loaded.tokenizer, prefix + text, "--against")
    clean = example.recording.inputs
    counts = [each["input_ids"].shape[1] for each in (clean, inputs)]
    if counts[0] != counts[1]:
        raise ValueError(f"--against has {counts[1]} tokens, --text {counts[0]}: heads compare token by token")
    return {**clean, **inputs}


def patching(example: Example) -> list[Drawing]:
    """Draw the indirect effect of each head."""
    model, clean = example.model, example.recording.inputs
    corrupted: Any = needed(example.against, "it needs a second text (--against)")
    needed(stacks(model), "a recurrent model has no heads")
    is_language_model = getattr(model, "predicts_next_token", False)  # whose answer is the token after the text
    try:
        answer = [(-1, int(example.recording.logits[0, -1].argmax()))] if is_language_model else outputs_of(example)
        effects = head_effects(model, clean, corrupted, answer)
    except ValueError as error:
        raise NotApplicable(str(error)) from error
    drawings = []
    for kind, found in effects.items():
        caption = f"The share of the answer that one head of {NAMES[kind]} brings back, after the second text."
        rows, title = [f"{kind}.{layer}" for layer in range(len(found))], f"Heads of {NAMES[kind]}"
        picture = heat_map(found, rows, counted(found.shape[1]), title, what="effect", signed=True, axes=("", ""))
        table = [(f"{rows[row]}.{head}", value) for (row, head), value in np.ndenumerate(found)]
        drawings.append(Drawing(f"patching_{kind}", caption, picture, ("head", "effect"), table))
    return drawings
