"""The comparison of an engine with our model on random input, before an export counts as done."""

import copy
import math
from typing import Any

import numpy as np
import torch

from ..folders import random_images
from ..tokens import ordinary_tokens, start_token
from .engine import Engine

LENGTHS = (11, 1, 5, 2)  # of the rows, a single batch for the engine
NEW_TOKENS = 12
IMAGES = 8  # not the number in the trace
EXACT = 1e-4  # relative error of logits in float32
TIE = 1e-3  # difference of log-probabilities in float32
# The bounds for rounded weights. Each matrix product then has an error of 1 to 2 %, a logit of about 0.05 after
# several layers: if the probabilities of two tokens differ by less than a quarter, the rounding decides which one
# wins. Such tokens do not count as different, so that a model with nearly equal probabilities is not refused by
# chance. A wrong or lost weight changes tokens of which the model is sure.
NEAR = 0.25  # difference of log-probabilities of a token and the best one
SHARE = 0.9  # share of the tokens or labels that must be as near as that
ROUGH = 0.25  # mean difference of log-probabilities, or relative error of logits


def check(model: Any, engine: Engine, exact: bool) -> str:
    """Compare an engine with the exported model, in float32 on the CPU, and return the result in words.

    With `exact` weights, which were not rounded, the answers must be the same; else ValueError.
    """
    reference = model
    if model.training or model.device.type != "cpu" or model.dtype != torch.float32:
        reference = copy.deepcopy(model).to("cpu", torch.float32).eval()
    with torch.no_grad():
        if hasattr(model, "generate") and model.can_generate():
            return check_generation(reference, engine, exact)
        if model.main_input_name == "pixel_values":
            images = random_images(model.config, IMAGES)
            pairs = zip(reference(images).logits, torch.from_numpy(engine.classify_images(images)))
            return compare_logits(list(pairs), "images", exact)
        rows, compared = random_rows(model.config), []
        for row, got in zip(rows, torch.from_numpy(engine.classify(rows))):
            expected = reference(torch.tensor([row]), attention_mask=torch.ones(1, len(row), dtype=torch.long))
            logits = (expected.prediction_logits if "prediction_logits" in expected else expected.logits)[0]
            found = got[: len(row)] if got.ndim == 2 else got  # without the padding of a shorter row
            compared.append((logits, found))
        return compare_logits(compared, "rows", exact)


def random_rows(config: Any, new_tokens: int = 0) -> list[list[int]]:
    """Return rows of random tokens, none of them special, with room for `new_tokens` after them."""
    words = ordinary_tokens(config, config.vocab_size)
    generator = torch.Generator().manual_seed(0)
    longest = max(1, config.max_position_embeddings - new_tokens)
    lengths = [min(length, longest) for length in LENGTHS]
    return [[words[i] for i in torch.randint(len(words), (n,), generator=generator)] for n in lengths]


def check_generation(model: Any, engine: Engine, exact: bool) -> str:
    new_tokens = max(1, min(NEW_TOKENS, model.config.max_position_embeddings // 2))
    prompts = random_rows(model.config, new_tokens)
    ours = [greedy(model, prompt, new_tokens, engine) for prompt in prompts]
    answers = engine.generate(prompts, max_new_tokens=new_tokens)
    losses = [
        gaps_to_best(model, prompt, generated, new_tokens, engine) for prompt, generated in zip(prompts, answers)
    ]
    if exact:
        for prompt, one, other, row in zip(prompts, ours, answers, losses):
            if max(row) > TIE:
                raise ValueError(f"the engine continues {prompt} with {other}, our model with {one}")
    report = agreement([loss for row in losses for loss in row], "greedy tokens", exact)
    try:
        scores = [engine.score(prompts, ours), [score(model, *pair) for pair in zip(prompts, ours)]]
    except NotImplementedError:
        return report
    (got, expected) = (np.array([value for row in rows for value in row], dtype=np.float64) for rows in scores)
    error = float(np.abs(got - expected).mean()) if len(expected) else 0.0
    limit = TIE if exact else ROUGH
    if not error <= limit:
        raise ValueError(
            f"the engine's log-probabilities are {error:.2g} from our model's on average (at most {limit:g}), {report}"
        )
    return f"{report}, log-probabilities {error:.1e} apart on average"


def agreement(losses: list[float], what: str, exact: bool) -> str:
    """Report how many choices of an engine are our model's, given how much less likely each is than the best one."""
    near, share = (TIE, 1.0) if exact else (NEAR, SHARE)
    equal, total = sum(loss <= near for loss in losses), len(losses)
    report = f"{equal} of {total} {what} equal" + (
        "" if exact else f" (or within {NEAR:g} of the best log-probability)"
    )
    if equal < share * total:
        raise ValueError(f"the engine's answers are not our model's: {report}; at least {share:.0%} must be")
    return report


def gaps_to_best(model: Any, prompt: list[int], generated: list[int], new_tokens: int, engine: Engine) -> list[float]:
    """Return how far the log-probability of each token from an engine is below that of the best one.

    Our model reads the engine's tokens, so that a different token does not make all later ones wrong. An engine that
    ended the text has chosen the most likely of the end tokens.
    """
    logits = next_logits(model, prompt, generated[:new_tokens]).float().log_softmax(-1)
    chosen = [[token] for token in generated[:new_tokens]]
    if len(generated) < new_tokens:
        chosen.append(engine.end_tokens())
    return [
        row.max().item() - max((row[token].item() for token in tokens), default=-math.inf)
        for row, tokens in zip(logits, chosen)
    ]


def greedy(model: Any, prompt: list[int], new_tokens: int, engine: Engine) -> list[int]:
    """Return our model's greedy continuation, step by step; other generation settings are ignored."""
    generated: list[int] = []
    while len(generated) < new_tokens:
        token = int(next_logits(model, prompt, generated)[-1].argmax())
        if token in engine.end_tokens():
            break
        generated.append(token)
    return generated


def next_logits(model: Any, prompt: list[int], generated: list[int]) -> torch.Tensor:
    """Return the logits of the tokens `generated` and of the next one, (T + 1, V)."""
    if model.config.is_encoder_decoder:
        start = [start_token(model.config, model.generation_config), *generated]
        return model(torch.tensor([prompt]), decoder_input_ids=torch.tensor([start])).logits[0]
    return model(torch.tensor([[*prompt, *generated]])).logits[0, len(prompt) - 1 :]


def score(model: Any, prompt: list[int], generated: list[int]) -> list[float]:
    logits = next_logits(model, prompt, generated).float().log_softmax(-1)
    return logits[range(len(generated)), generated].tolist()


def compare_logits(pairs: list[tuple[torch.Tensor, torch.Tensor]], what: str, exact: bool) -> str:
    """Report how much logits differ, given pairs of our model's and the engine's, (labels) or (T, labels)."""
    errors = [(got - expected).norm() / expected.norm().clamp(min=1e-12) for expected, got in pairs]
    error, losses = torch.stack(errors).max().item(), []  # NaN if any is
    for expected, got in pairs:
        scores = expected.log_softmax(-1)
        chosen = scores.gather(-1, got.argmax(-1, keepdim=True)).flatten()
        losses += (scores.amax(-1).flatten() - chosen).tolist()
    limit = EXACT if exact else ROUGH
    if not error <= limit:
        raise ValueError(f"the engine's logits have a relative error of {error:.2g}, more than {limit:g}")
    labels = "" if exact else f"{agreement(losses, 'labels', exact)}, "
    return f"{labels}logits of {len(pairs)} {what} equal up to a relative error of {error:.1e}"
