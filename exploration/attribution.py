"""Attribution: how much each input token contributes to what a model answers, by integrated gradients (captum).

Integrated gradients (Sundararajan et al. 2017, arXiv 1703.01365) follow the token vectors from those of a text that
says nothing (x') to those of the text (x): `(x - x') ⊙ ∫ ∂f(x' + α (x - x')) / ∂x dα`, summed over the dimensions of a
vector. They sum to `f(x) - f(x')`, up to the error of the integral. f is a logit; whatever else reads the ids of the
tokens (n-grams beside the stack, copying) has those of the text all the way.

Shape letters: N outputs, T tokens of the input, D model width.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from vanillaformer.modeling.parts.ngrams import NgramEmbeddings

STEPS = 50
ROWS = 64
"""Rows of a forward pass: some outputs at some points of the path."""


@dataclass
class Attributions:
    """Contributions of input tokens to some outputs.

    Attributes:
        values: Contribution of each token to each output, (N, T).
        deltas: By how much the sum over the tokens misses the difference to the baseline, (N), as captum computes it.
        positions: Position of each output among the logits; 0 for a class.
        tokens: Token, or class, of each output.
    """

    values: np.ndarray
    deltas: np.ndarray
    positions: list[int]
    tokens: list[int]


def class_attributions(
    model: Any, inputs: Mapping[str, torch.Tensor], baseline_ids: torch.Tensor, steps: int = STEPS
) -> Attributions:
    """Return what each token contributes to the logit of the class that a classifier chooses.

    Args:
        model: A classifier of texts, in evaluation mode.
        inputs: A text: `input_ids` (1, T), `attention_mask` ...
        baseline_ids: A text of as many tokens that says nothing (1, T), of `neutral_ids`.
        steps: Points of the path.

    Raises:
        ImportError: captum is not installed.
    """
    with torch.no_grad():
        label = int(model(**inputs).logits[0].argmax())
    return attributions(model, inputs, baseline_ids, [0], [label], steps)


def next_token_attributions(
    model: Any, inputs: Mapping[str, torch.Tensor], baseline_ids: torch.Tensor, first: int = -1, steps: int = STEPS
) -> Attributions:
    """Return what each token contributes to the logits of the tokens from position `first` on, by default the last.

    Args are those of `class_attributions`, for a causal language model; a token contributes to those after it only.

    Raises:
        ImportError: captum is not installed.
        ValueError: No token comes before the first one.
    """
    ids = inputs["input_ids"][0].tolist()
    if not 0 < first % len(ids) < len(ids):
        raise ValueError(f"first={first}: of {len(ids)} tokens those from 1 to {len(ids) - 1} have one before them")
    positions = range(first % len(ids) - 1, len(ids) - 1)
    return attributions(model, inputs, baseline_ids, positions, [ids[position + 1] for position in positions], steps)


def target_attributions(
    model: Any, inputs: Mapping[str, torch.Tensor], baseline_ids: torch.Tensor, steps: int = STEPS
) -> Attributions:
    """Return what each source token contributes to the logit of each target token, given those before it.

    Args are those of `class_attributions`, for an encoder-decoder: `inputs` has the target too, `decoder_input_ids`
    (1, N + 1), which begin with the start token.

    Raises:
        ImportError: captum is not installed.
        ValueError: The model predicts its tokens in parallel, not one after the other.
    """
    decoding = getattr(model.config, "decoding", "autoregressive")
    if decoding != "autoregressive":
        raise ValueError(f"decoding={decoding!r} has no token that follows from those before it")
    tokens = inputs["decoder_input_ids"][0, 1:].tolist()
    return attributions(model, inputs, baseline_ids, range(len(tokens)), tokens, steps)


def mask_attributions(
    model: Any, inputs: Mapping[str, torch.Tensor], baseline_ids: torch.Tensor, mask_id: int, steps: int = STEPS
) -> Attributions:
    """Return what each token contributes to the logit of the token that a model fills in for each mask token.

    Args are those of `class_attributions`, for a masked language model whose mask token is `mask_id`.

    Raises:
        ImportError: captum is not installed.
        ValueError: There is no mask token.
    """
    positions = (inputs["input_ids"][0] == mask_id).nonzero().flatten()
    if not len(positions):
        raise ValueError("the text has no mask token to fill in")
    with torch.no_grad():
        tokens = logits_of(model(**inputs))[0, positions].argmax(dim=-1)
    return attributions(model, inputs, baseline_ids, positions.tolist(), tokens.tolist(), steps)


def attributions(
    model: Any,
    inputs: Mapping[str, torch.Tensor],
    baseline_ids: torch.Tensor,
    positions: Sequence[int],
    tokens: Sequence[int],
    steps: int = STEPS,
) -> Attributions:
    """Return what each input token contributes to some logits.

    Args:
        model: A model of texts with a head, in evaluation mode.
        inputs: A text: `input_ids` (1, T) and whatever else the model takes, one row each.
        baseline_ids: A text of as many tokens that says nothing (1, T).
        positions: Position of each logit; of a classifier, which has none, 0.
        tokens: Its token or class.
        steps: Points of the path.

    Raises:
        ImportError: captum is not installed.
    """
    try:
        from captum.attr import IntegratedGradients
    except ImportError as error:
        raise ImportError("attributions need captum: pip install 'vanillaformer[explore]'") from error
    chosen = torch.tensor([list(positions), list(tokens)], device=model.device).T  # (N, 2)

    def logits(vectors: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        rows = {name: value.expand(len(vectors), *value.shape[1:]) for name, value in inputs.items()}
        with replaced_vectors(model, vectors):
            found = logits_of(model(**rows))
        found = found if found.ndim == 3 else found.unsqueeze(1)  # (rows, T or 1, V)
        return found[torch.arange(len(found), device=found.device), chosen[:, 0], chosen[:, 1]]

    ends = [token_vectors(model, {**inputs, "input_ids": ids}) for ids in (inputs["input_ids"], baseline_ids)]
    values: Any = []
    deltas: Any = []
    for part in chosen.split(max(1, ROWS // steps)):
        x, baseline = (end.expand(len(part), -1, -1) for end in ends)
        contributions, delta = IntegratedGradients(logits).attribute(
            x,
            baselines=baseline,
            additional_forward_args=part,
            n_steps=steps,
            internal_batch_size=max(ROWS, len(part)),
            return_convergence_delta=True,
        )
        values.append(contributions.sum(dim=-1))
        deltas.append(delta)
    values, deltas = (torch.cat(each).detach().cpu().numpy() for each in (values, deltas))
    return Attributions(values, deltas, list(positions), list(tokens))


def neutral_ids(input_ids: torch.Tensor, tokenizer: Any) -> torch.Tensor:
    """Return a text that says nothing: the same special tokens (1, T), and padding in place of all others."""
    ids = (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.eos_token_id, 0)
    padding = next(each for each in ids if each is not None)
    special = torch.tensor(sorted(tokenizer.all_special_ids), device=input_ids.device)
    return torch.where(torch.isin(input_ids, special), input_ids, padding)


def logits_of(outputs: Any) -> torch.Tensor:
    """Return the logits of a model's output, of BERT's two heads those of tokens."""
    return outputs["logits"] if "logits" in outputs else outputs["prediction_logits"]


def vector_layer(model: Any) -> nn.Module:
    """Return the module that gives the vectors of the input tokens (1, T, D), n-grams among them."""
    return next((part for part in model.modules() if isinstance(part, NgramEmbeddings)), model.get_input_embeddings())


@torch.no_grad()
def token_vectors(model: Any, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the vectors of the input tokens (1, T, D)."""
    found: list[torch.Tensor] = []
    handle = vector_layer(model).register_forward_hook(lambda module, args, output: found.append(output))
    try:
        model(**inputs)
    finally:
        handle.remove()
    return found[0]  # of a table that both sides share, the source's


@contextmanager
def replaced_vectors(model: Any, vectors: torch.Tensor) -> Iterator[None]:
    """Let a model read other vectors (B, T, D) than those of its input tokens."""
    left = [vectors]  # for the first call: a table that both sides share gives the target's vectors after that
    handle = vector_layer(model).register_forward_hook(lambda module, args, output: left.pop() if left else None)
    try:
        yield
    finally:
        handle.remove()
