"""Defaults of a new translator that follow its pairs and the time to train."""

from collections.abc import Sequence
from typing import NamedTuple

from vanillaformer.configuration.options import DECODING_CHOICES

from .choices import Default, Machine

# Hidden size, layers on each side: the core-seconds and pairs from which on it is the better one
MODELS = ((128, 4, 0, 0), (256, 4, 12_000, 100_000), (512, 6, 100_000, 1_000_000))
# Pairs up to which this dropout is the better one
DROPOUT = ((0.3, 60_000), (0.1, float("inf")))
HEAD = 32


class PairFacts(NamedTuple):
    """What is known of the pairs of a translator.

    Attributes:
        pairs: Number of training pairs.
        size: Bytes of source and target together.
    """

    pairs: int
    size: int


def pair_facts(source: Sequence[str], target: Sequence[str], *, pairs: int) -> PairFacts:
    """Return the facts on pairs, from a sample of them."""
    size = sum(len(text.encode()) for texts in (source, target) for text in texts)
    return PairFacts(pairs, size * pairs // len(source))


def translator_defaults(facts: PairFacts, machine: Machine, decoding: str = "autoregressive") -> list[Default]:
    """Return the defaults of a new translator; docs/training.md has them as a table.

    Args:
        facts: What is known of the pairs.
        machine: What there is to compute with.
        decoding: How the model writes; one that is unknown counts as the usual one.
    """
    way = DECODING_CHOICES.get(decoding, DECODING_CHOICES["autoregressive"])
    width, layers = [model[:2] for model in MODELS if machine.core_seconds >= model[2] and facts.pairs >= model[3]][-1]
    dropout = next(rate for rate, most in DROPOUT if facts.pairs <= most)
    pairs = f"{facts.pairs:,} pairs, {facts.size / 1e6:.1f} MB of text"
    fields = {
        "hidden_size": width,
        "encoder_layers": layers,
        "num_hidden_layers": layers,
        "num_attention_heads": width // HEAD,
        "intermediate_size": 4 * width,
        "norm_placement": "pre",
        "position_embedding_type": "sinusoidal" if way.needs_table else "rotary",
        "dropout": dropout,
    }
    found = [
        Default("tokenizer_algorithm", "bpe", "frequent pieces of both languages"),
        Default("tokenizer_vocab_size", vocabulary_size(facts.size), pairs),
        Default("overrides", [f"{name}={value}" for name, value in fields.items()], f"{pairs}; {machine.words}"),
        Default("tokens_per_batch", 4_096, "little padding, and many steps"),
        Default("optim", "muon", "fewer steps than AdamW to the same loss"),
        Default("learning_rate", 4e-3, "for Muon"),
        Default("weight_decay", 0.1, "for Muon"),
        Default("lr_scheduler_type", "cosine", "best at its end"),
        Default("label_smoothing_factor", 0.1, "Vaswani et al. 2017"),
        Default("max_epochs", 60, "more passes than small data needs"),
        Default("early_stopping_patience", 5, "more passes than small data needs"),
    ]
    if machine.bfloat16:
        found.append(Default("bf16", True, "the device multiplies bfloat16 faster than float32"))
    return [default for default in found if default.option not in way.excludes]


def vocabulary_size(size: int) -> int:
    """Return the size of the joint vocabulary for `size` bytes in both languages: 3,000 tokens for 1 MB."""
    return max(500, min(8_000, 100 * round(30 * (size / 1e6) ** 0.5)))
