"""Default lengths of rows, by the tokens that the tokenizer of the run makes of the training texts."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from vanillaformer.data.tasks import TaskName

from .choices import Default

PERCENT = 99
"""Texts in a hundred that a length is chosen for, with half as much room again."""


class LengthRule(NamedTuple):
    """The lengths of a task's rows.

    Attributes:
        texts: What the texts are called, by the option with their length.
        longest: Largest length that is chosen.
        readable: Tokens that a model can read at least: more than it is trained on cost nothing.
    """

    texts: Mapping[str, str]
    longest: int
    readable: int


SHORTEST = 64
LENGTHS: dict[TaskName, LengthRule] = {
    "classification": LengthRule({"max_length": "texts"}, 1024, 512),
    "translation": LengthRule({"max_source_length": "sources", "max_target_length": "targets"}, 256, SHORTEST),
}


def length_defaults(
    rule: LengthRule, counts: Mapping[str, np.ndarray], given: Mapping[str, int], limit: int | None = None
) -> list[Default]:
    """Return the lengths that were not given, and the positions of a model that reads such rows.

    Args:
        rule: The lengths of the task.
        counts: Tokens of a sample of the training texts, by the option with their length.
        given: The lengths that were given.
        limit: Positions of the model, if they were given.
    """
    lengths, found = dict(given), []
    for option, texts in rule.texts.items():
        if option not in given:
            most = int(np.percentile(counts[option], PERCENT, method="inverted_cdf"))
            lengths[option] = min(max(SHORTEST, most * 3 // 2), rule.longest, limit or rule.longest)
            found.append(Default(option, lengths[option], f"{PERCENT} % of the {texts} have at most {most} tokens"))
    positions = max(*lengths.values(), 0 if given else rule.readable)
    return [
        *found,
        Default("overrides", [f"max_position_embeddings={positions}"], "the longest text that the model reads"),
    ]
