"""Whether an engine gives our model's answers: compared on random input before an export is called done."""

import copy
import math
from typing import Any

import numpy as np
import torch

from ..tokens import ordinary_tokens, start_token
from .engine import Engine

LENGTHS = (11, 1, 5, 2)  # of the rows, which are one batch to the engine
NEW_TOKENS = 12
EXACT = 1e-4  # relative error of logits in float32
TIE = 1e-3  # difference of log-probabilities in float32
# The bounds of rounded weights. Each matrix product errs by 1 to 2 % then, a logit by 0.05 or so after several layers:
# which of two tokens wins whose probabilities differ by less than a quarter depends on the rounding. Those do not
# count as different, and so a model whose tokens are nearly as likely as each other is not refused by chance. A wrong
# or lost weight changes tokens that the model is sure of.
NEAR = 0.25  # difference of log-probabilities of a token and the best one
SHARE = 0.9  # of the tokens or labels that must be as near as that
ROUGH = 0.25  # mean difference of log-probabilities, or relative error of logits


def check(model: Any, engine: Engine, exact: bool) -> str:
    """Compare an engine with the model it was made from, and return what was found.

    Args:
        model: The model; it is read in float32 on the CPU.
        engine: The engine.
        exact: Whether the weights were kept, so that the answers must be the same.

    Raises:
        ValueError: The answers differ.
    """
    reference = plain(model)
    with torch.no_grad():
        if hasattr(model, "generate") and model.can_generate():
            return check_generation(reference, engine, exact)
        return check_logits(reference, engine, exact)


def plain(model: Any) -> Any:
    """Return the model in float32 on the CPU, in eval mode: itself if it is so already."""
    if not model.training and model.device.type == "cpu" and model.dtype == torch.float32:
        return model
    return copy.deepcopy(model).to("cpu", torch.float32).eval()


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
    theirs = engine.generate(prompts, max_new_tokens=new_tokens)
    losses = [lost(model, prompt, made, new_tokens, engine) for prompt, made in zip(prompts, theirs)]
    if exact:
        for prompt, one, other, row in zip(prompts, ours, theirs, losses):
            if max(row) > TIE:
                raise ValueError(f"the engine continues {prompt} with {other}, our model with {one}")
    report = share([loss for row in losses for loss in row], "greedy tokens", exact)
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


def share(losses: list[float], what: str, exact: bool) -> str:
    """Say how many choices of an engine are our model's, given how much worse each is by our model.

    Raises:
        ValueError: They are too few.
    """
    equal, total = sum(loss <= (TIE if exact else NEAR) for loss in losses), len(losses)
    report = f"{equal} of {total} {what} equal" + (
        "" if exact else f" (or within {NEAR:g} of the best log-probability)"
    )
    if equal < (total if exact else SHARE * total):
        raise ValueError(f"the engine's answers are not our model's: {report}; at least {SHARE:.0%} must be")
    return report


def lost(model: Any, prompt: list[int], made: list[int], new_tokens: int, engine: Engine) -> list[float]:
    """Return how far the log-probability of each token that an engine has made is below that of the best one.

    Our model reads the engine's tokens: one that differs does not make all after it wrong. An engine that ended the
    text has chosen the best of the tokens that end one.
    """
    logits = next_logits(model, prompt, made[:new_tokens]).float().log_softmax(-1)
    chosen = [[token] for token in made[:new_tokens]]
    if len(made) < new_tokens:
        chosen.append(engine.end_tokens())
    return [
        row.max().item() - max((row[token].item() for token in tokens), default=-math.inf)
        for row, tokens in zip(logits, chosen)
    ]


def greedy(model: Any, prompt: list[int], new_tokens: int, engine: Engine) -> list[int]:
    """Return our model's greedy continuation, step by step, whatever the generation config asks for besides."""
    made: list[int] = []
    while len(made) < new_tokens:
        token = int(next_logits(model, prompt, made)[-1].argmax())
        if token in engine.end_tokens():
            break
        made.append(token)
    return made


def next_logits(model: Any, prompt: list[int], made: list[int]) -> torch.Tensor:
    """Return the logits of the tokens `made` and of the one behind them, (T + 1, V)."""
    if model.config.is_encoder_decoder:
        start = [start_token(model.config, model.generation_config), *made]
        return model(torch.tensor([prompt]), decoder_input_ids=torch.tensor([start])).logits[0]
    return model(torch.tensor([[*prompt, *made]])).logits[0, len(prompt) - 1 :]


def score(model: Any, prompt: list[int], made: list[int]) -> list[float]:
    """Return the log-probabilities of the tokens `made`."""
    logits = next_logits(model, prompt, made).float().log_softmax(-1)
    return [logits[place, token].item() for place, token in enumerate(made)]


def check_logits(model: Any, engine: Engine, exact: bool) -> str:
    rows = random_rows(model.config)
    logits = torch.from_numpy(engine.classify(rows))
    error, losses = 0.0, []
    for row, got in zip(rows, logits):
        expected = model(torch.tensor([row]), attention_mask=torch.ones(1, len(row), dtype=torch.long))
        found = (expected.prediction_logits if "prediction_logits" in expected else expected.logits)[0]
        got = got[: len(row)] if got.ndim == 2 else got  # padding of a shorter row
        error = max(error, ((got - found).norm() / found.norm().clamp(min=1e-12)).item())
        chosen = found.log_softmax(-1).gather(-1, got.argmax(-1, keepdim=True)).flatten()
        losses += (found.log_softmax(-1).amax(-1).flatten() - chosen).tolist()
    limit = EXACT if exact else ROUGH
    if not error <= limit:
        raise ValueError(f"the engine's logits have a relative error of {error:.2g}, more than {limit:g}")
    labels = "" if exact else f"{share(losses, 'labels', exact)}, "
    return f"{labels}logits of {len(rows)} rows equal up to a relative error of {error:.1e}"
