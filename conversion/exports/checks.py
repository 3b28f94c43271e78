"""Whether an engine gives our model's answers: compared on random input before an export is called done."""

import copy
import math
from typing import Any

import numpy as np
import torch

from .engine import Engine

LENGTHS = (11, 1, 5, 2)  # of the rows, which are one batch to the engine
NEW_TOKENS = 12
EXACT = 1e-4  # relative error of logits that is rounding
ROUGH = 0.5  # of rounded weights: more is no rounding
TIE = 1e-3  # two tokens whose log-probabilities are nearer than that may change places


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
    """Return rows of random tokens, none of them special, with room for `new_tokens` behind them."""
    names = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
    special = {token for name in names for token in np.atleast_1d(getattr(config, name, None))}
    words = [token for token in range(config.vocab_size) if token not in special] or list(range(config.vocab_size))
    generator = torch.Generator().manual_seed(0)
    longest = max(1, config.max_position_embeddings - new_tokens)
    lengths = [min(length, longest) for length in LENGTHS]
    return [[words[i] for i in torch.randint(len(words), (n,), generator=generator)] for n in lengths]


# ---------------------------------------------------------------------------------------------- generation
def check_generation(model: Any, engine: Engine, exact: bool) -> str:
    new_tokens = max(1, min(NEW_TOKENS, model.config.max_position_embeddings // 2))
    prompts = random_rows(model.config, new_tokens)
    ours = [greedy(model, prompt, new_tokens, engine) for prompt in prompts]
    theirs = engine.generate(prompts, max_new_tokens=new_tokens)
    equal = sum(map(shared, ours, theirs))
    total = sum(max(len(one), len(other)) for one, other in zip(ours, theirs))
    if exact:
        for prompt, one, other in zip(prompts, ours, theirs):
            if one != other and not is_tie(model, prompt, one, other, engine):
                raise ValueError(f"the engine continues {prompt} with {other}, our model with {one}")
    report = f"{equal} of {total} greedy tokens equal"
    try:
        scores = [engine.score(prompts, ours), [score(model, *pair) for pair in zip(prompts, ours)]]
    except NotImplementedError:
        return report
    (got, expected) = (np.array([value for row in rows for value in row], dtype=np.float64) for rows in scores)
    error = float(np.abs(got - expected).mean()) if len(expected) else 0.0
    if not error <= (TIE if exact else ROUGH):
        raise ValueError(f"the engine's log-probabilities are {error:.2g} from our model's, {report}")
    return f"{report}, log-probabilities {error:.1e} apart on average"


def shared(one: list[int], other: list[int]) -> int:
    """Return how many tokens two rows have in common at the same place, up to their first difference."""
    pairs = zip(one, other)
    return next((count for count, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


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
        start = [model.config.decoder_start_token_id, *made]
        return model(torch.tensor([prompt]), decoder_input_ids=torch.tensor([start])).logits[0]
    return model(torch.tensor([[*prompt, *made]])).logits[0, len(prompt) - 1 :]


def score(model: Any, prompt: list[int], made: list[int]) -> list[float]:
    """Return the log-probabilities of the tokens `made`."""
    logits = next_logits(model, prompt, made).float().log_softmax(-1)
    return [logits[place, token].item() for place, token in enumerate(made)]


def is_tie(model: Any, prompt: list[int], ours: list[int], theirs: list[int], engine: Engine) -> bool:
    """Whether two continuations part where our model finds both tokens equally good."""
    place = shared(ours, theirs)
    logits = next_logits(model, prompt, ours[:place])[-1].float().log_softmax(-1)

    def best(row: list[int]) -> float:
        tokens = [row[place]] if place < len(row) else engine.end_tokens()
        return max((logits[token].item() for token in tokens), default=-math.inf)

    return math.isclose(best(ours), best(theirs), abs_tol=TIE)


# ------------------------------------------------------------------------------------------------- logits
def check_logits(model: Any, engine: Engine, exact: bool) -> str:
    rows = random_rows(model.config)
    logits = torch.from_numpy(engine.classify(rows))
    error = 0.0
    for row, got in zip(rows, logits):
        expected = model(torch.tensor([row]), attention_mask=torch.ones(1, len(row), dtype=torch.long))
        found = expected.prediction_logits if "prediction_logits" in expected else expected.logits
        got = got[: len(row)] if got.ndim == 2 else got  # padding of a shorter row
        error = max(error, ((got - found[0]).norm() / found[0].norm().clamp(min=1e-12)).item())
    if not error <= (EXACT if exact else ROUGH):
        raise ValueError(f"the engine's logits have a relative error of {error:.2g}")
    return f"logits of {len(rows)} rows equal up to a relative error of {error:.1e}"
