"""Contributions to a model's answer: of input tokens by integrated gradients (captum), of heads by patching.

Integrated gradients (Sundararajan et al. 2017, arXiv 1703.01365) follow the token vectors from those of a neutral text
(x') to those of the text (x): `(x - x') ⊙ ∫ ∂f(x' + α (x - x')) / ∂x dα`, summed over the dimensions of a vector. They
sum to `f(x) - f(x')`, up to the error of the integral. f is a logit; other parts that read token ids (n-grams beside
the stack, copying) always get those of the text.
Shape letters: N outputs, T tokens of the input, D model width, V vocabulary, H heads, L layers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from vanillaformer.modeling.parts.ngrams import NgramEmbeddings

from .examples import Example, encoded
from .losses import NAMES, attention_layers
from .pictures import LONGEST, Drawing, NotApplicable, counted, heat_map, large_map, needed
from .recording import Edit, eager, edited, logits_of, stacks, values

STEPS = 50
LEAST = 1e-6  # difference of two log probabilities below which shares of it mean nothing
ROWS = 64  # per forward pass: some outputs at some points of the path
Outputs = list[tuple[int, int]]  # logits, each by its position (0 for a class) and its token or class


@dataclass
class Attributions:
    """Contributions of input tokens to some outputs."""

    values: np.ndarray  # (N, T)
    deltas: np.ndarray  # (N): difference between the sum over the tokens and the difference of the logits
    outputs: Outputs


def chosen_class(model: Any, inputs: Mapping[str, torch.Tensor]) -> Outputs:
    """Return the class that a text classifier chooses for a text (1, T)."""
    with torch.no_grad():
        return [(0, int(model(**inputs).logits[0].argmax()))]


def next_tokens(inputs: Mapping[str, torch.Tensor], first: int = -1) -> Outputs:
    """Return the tokens of a text (1, T) from position `first` on, by default the last, of a causal language model."""
    ids = inputs["input_ids"][0].tolist()
    start = first % len(ids)
    if start == 0:
        raise ValueError(f"first={first}: of {len(ids)} tokens only those from 1 to {len(ids) - 1} follow another")
    return list(zip(range(start - 1, len(ids) - 1), ids[start:]))


def target_tokens(model: Any, inputs: Mapping[str, torch.Tensor]) -> Outputs:
    """Return the tokens of the target of an encoder-decoder, given as `decoder_input_ids` (1, N + 1).

    A model that predicts its tokens in parallel is a ValueError.
    """
    decoding = getattr(model.config, "decoding", "autoregressive")
    if decoding != "autoregressive":
        raise ValueError(f"decoding={decoding!r} does not predict each token from those before it")
    return list(enumerate(inputs["decoder_input_ids"][0, 1:].tolist()))


def filled_masks(model: Any, inputs: Mapping[str, torch.Tensor], mask_id: int | None) -> Outputs:
    """Return the tokens that a masked language model fills in for the mask tokens of a text (1, T)."""
    positions = (inputs["input_ids"][0] == (-1 if mask_id is None else mask_id)).nonzero().flatten()
    if not len(positions):
        raise ValueError("the text has no mask token to fill in")
    with torch.no_grad():
        tokens = logits_of(model(**inputs))[0, positions].argmax(dim=-1)
    return list(zip(positions.tolist(), tokens.tolist()))


def attributions(
    model: Any, inputs: Mapping[str, torch.Tensor], baseline_ids: torch.Tensor, outputs: Outputs, steps: int = STEPS
) -> Attributions:
    """Return the contribution of each input token (1, T) to some logits; needs captum.

    The path begins at a neutral text of as many tokens, and has `steps` points.
    """
    try:
        from captum.attr import IntegratedGradients
    except ImportError as error:
        raise ImportError("attributions need captum: pip install 'vanillaformer[explore]'") from error
    chosen, layer = torch.tensor(outputs, device=model.device), vector_layer(model)  # (N, 2)

    def logits(vectors: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        rows = {name: value.expand(len(vectors), *value.shape[1:]) for name, value in inputs.items()}
        left = [vectors]  # for the first call only: a table that both sides share is called for the target, too
        with layer.register_forward_hook(lambda module, args, output: left.pop() if left else None):
            found = logits_of(model(**rows))
        found = found if found.ndim == 3 else found.unsqueeze(1)  # (rows, T or 1, V)
        return found[torch.arange(len(found), device=found.device), chosen[:, 0], chosen[:, 1]]

    method, values, deltas = IntegratedGradients(logits), [], []
    with torch.inference_mode(False), torch.enable_grad():
        inputs = {name: value.clone() for name, value in inputs.items()}  # they may be inference tensors
        ends = [token_vectors(model, {**inputs, "input_ids": ids}) for ids in (inputs["input_ids"], baseline_ids)]
        for part in chosen.split(max(1, ROWS // steps)):
            x, baseline = (end.expand(len(part), -1, -1) for end in ends)
            how = {"n_steps": steps, "internal_batch_size": max(ROWS, len(part)), "return_convergence_delta": True}
            contributions, delta = method.attribute(x, baseline, additional_forward_args=part, **how)
            values.append(contributions.sum(dim=-1))
            deltas.append(delta)
    found, missed = (torch.cat(each).detach().cpu().numpy() for each in (values, deltas))
    return Attributions(found, missed, outputs)


def neutral_ids(input_ids: torch.Tensor, tokenizer: Any) -> torch.Tensor:
    """Return a neutral text: the same special tokens (1, T), and padding in place of all others."""
    ids = (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.eos_token_id, 0)
    padding = next(each for each in ids if each is not None)
    special = torch.tensor(sorted(tokenizer.all_special_ids), device=input_ids.device)
    return torch.where(torch.isin(input_ids, special), input_ids, padding)


def vector_layer(model: Any) -> nn.Module:
    """Return the module that computes the vectors of the input tokens (1, T, D), n-grams included."""
    return next((part for part in model.modules() if isinstance(part, NgramEmbeddings)), model.get_input_embeddings())


@torch.no_grad()
def token_vectors(model: Any, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the vectors of the input tokens (1, T, D)."""
    found: list[torch.Tensor] = []
    with vector_layer(model).register_forward_hook(lambda module, args, output: found.append(output)):
        model(**inputs)
    return found[0]  # the source's, if both sides share a table


def token_attributions(example: Example) -> list[Drawing]:
    """Draw the contribution of each token of the text to each answer, as a map."""
    model, inputs = example.model, example.recording.inputs
    if example.tokenizer is None:
        raise NotApplicable("attributions need a text")
    neutral = neutral_ids(inputs["input_ids"], example.tokenizer)
    try:
        if not (outputs := outputs_of(example)):
            raise NotApplicable("the answer has no tokens")
        found = attributions(model, inputs, neutral, outputs[:LONGEST])
    except (ImportError, ValueError) as error:
        raise NotApplicable(str(error)) from error
    columns = example.tokens["encoder" if "encoder" in example.tokens else "decoder"]
    rows = [example.answers(token) for _, token in found.outputs]
    cut = f" (the first {LONGEST})" if max(len(columns), len(outputs)) > LONGEST else ""
    caption = (
        f"Contribution of each token of the text to the logit of each answer{cut}, compared with padding; "
        f"a row's sum misses the difference of the logits by at most {np.abs(found.deltas).max():.2g}."
    )
    shown, axes = found.values[:, :LONGEST], ("answer", "token")
    picture = large_map(shown, rows, columns[:LONGEST], "Attributions", signed="contribution", axes=axes)
    table = [(row, *values) for row, values in zip(rows, found.values)]
    return [Drawing("attributions", caption, picture, ("answer", *columns), table)]


def outputs_of(example: Example) -> Outputs:
    """Return the answers of a model on an example; raises ValueError if none follow from the text."""
    model, inputs = example.model, example.recording.inputs
    if model.config.is_encoder_decoder:
        return target_tokens(model, inputs)
    if example.targets is None:
        return chosen_class(model, inputs)
    if getattr(model, "predicts_next_token", False):
        return next_tokens(inputs, first=1)
    return filled_masks(model, inputs, example.tokenizer.mask_token_id)


# ------------------------------------------------------------------------------------------------------- patching
def head_effects(
    model: Any, clean: Mapping[str, Any], corrupted: Mapping[str, Any], outputs: Outputs
) -> dict[str, np.ndarray]:
    """Return the indirect effect of each head on an answer, by kind of attention (L, H), nan where a layer lacks one.

    The model reads the corrupted input, with the output of one head as on the clean input: the effect is the share of
    the difference in the answer's log probability that is restored, 0 for none and 1 for all of it (Vig et al. 2020,
    arXiv 2004.12265; Meng et al. 2022). The inputs have the same shapes; `outputs` are the answer's tokens or class.
    """
    kinds, chosen = attention_layers(model), torch.tensor(outputs)
    several = (problem := getattr(model.config, "problem_type", None)) == "multi_label_classification"
    if problem == "regression":
        raise ValueError("the model answers with a number, which has no probability")

    def score(inputs: Mapping[str, Any], edits: Mapping[str, Edit]) -> float:
        with torch.no_grad(), eager(model), edited(model, edits):
            logits = logits_of(model(**inputs))
        logits = (logits if logits.ndim == 3 else logits.unsqueeze(1))[0].double()  # (T or 1, V)
        log_p = nn.functional.logsigmoid(logits) if several else logits.log_softmax(dim=-1)
        return float(log_p[chosen[:, 0], chosen[:, 1]].sum())

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
    """Return the inputs of a text to compare an example with, which has as many tokens, with the same target."""
    prefix = loaded.prefix if loaded.model.config.is_encoder_decoder and text.strip() else ""  # as in the example
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
    is_language_model = getattr(model, "predicts_next_token", False)  # its answer is the next token
    try:
        answer = [(-1, int(example.recording.logits[0, -1].argmax()))] if is_language_model else outputs_of(example)
        effects = head_effects(model, clean, corrupted, answer)
    except ValueError as error:
        raise NotApplicable(str(error)) from error
    drawings = []
    for kind, found in effects.items():
        caption = f"Share of the answer that one head of {NAMES[kind]} restores when the model reads the second text."
        rows, title = [f"{kind}.{layer}" for layer in range(len(found))], f"Heads of {NAMES[kind]}"
        picture = heat_map(found, rows, counted(found.shape[1]), title, what="effect", signed=True, axes=("", ""))
        table = [(f"{rows[row]}.{head}", value) for (row, head), value in np.ndenumerate(found)]
        drawings.append(Drawing(f"patching_{kind}", caption, picture, ("head", "effect"), table))
    return drawings
