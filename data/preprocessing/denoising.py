"""Denoising objectives, which pre-train an encoder-decoder: it restores texts that were corrupted.

A row is a text, or a block of the stream of all texts, that ends in </s>; packed rows have several texts, and each is
corrupted separately. The corruption is drawn by the seed, the epoch and the text, so that it does not depend on the
batch or the number of processes. It is the same in every evaluation.
"""

import math
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal
from zlib import crc32

import numpy as np
from transformers import DataCollatorForSeq2Seq, PreTrainedModel, PreTrainedTokenizerBase

from vanillaformer.console.limits import AT_LEAST_ONE, BETWEEN, option

from ..tasks import MASK_TOKEN, TaskName
from .batching import EVALUATION, EpochCollator, epoch_seed
from .packing import PackedPairs
from .tokenizing import text_frame

SENTINEL = "<extra_id_{}>"  # T5's names
DENOISING_TOKEN = re.compile(rf"<extra_id_\d+>|{MASK_TOKEN}|\[NLU\]|\[NLG\]|\[S2S\]")  # all tokens put into texts
SENTENCE_ENDS = ".!?。！？।؟"  # noqa: RUF001
Generator = np.random.Generator
Pair = tuple[list[int], list[int]]  # the token ids of a corrupted text and of its target


@dataclass
class DenoisingArguments:
    """Arguments of the corruption of texts."""

    HELP_GROUP = "Training"

    noise_density: float | None = option(None, "Fraction of corrupted tokens", limit=BETWEEN)
    mean_span_length: float | None = option(None, "Mean tokens of a corrupted span", limit=AT_LEAST_ONE)
    noise: Literal["mask", "delete", "rotate"] = option("mask", "Kind of noise (denoise)")

    def check_denoising(self, objective: TaskName) -> None:
        """Raise ValueError for options that the objective does not read."""
        read = DENOISING[objective].options if objective in DENOISING else ()
        for name, off in {"noise_density": None, "mean_span_length": None, "noise": "mask"}.items():
            if getattr(self, name) != off and name not in read:
                raise ValueError(f"--{name} {getattr(self, name)} does not go with --objective {objective}")
        if self.noise == "rotate" and self.noise_density is not None:
            raise ValueError(f"--noise_density {self.noise_density}: --noise rotate corrupts no single tokens")


class Denoising(EpochCollator):
    """Collator for an encoder-decoder: rows {input_ids} that end in </s>, or packed ones with positions."""

    options: ClassVar[tuple[str, ...]] = ()  # the `DenoisingArguments` that it reads
    density = 0.15
    span = 3.0
    predicted: ClassVar[float] = 1.0  # approximate length of the target as a share of the text's
    start: ClassVar[tuple[str, ...]] = ()  # tokens that keep a place before each row

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, arguments: Any, length: int):
        self.tokenizer, self.seed, self.noise = tokenizer, arguments.seed, arguments.noise
        self.density = arguments.noise_density or self.density
        self.span = arguments.mean_span_length or self.span
        names = self.tokens(arguments, length)
        if missing := [name for name in names if name not in tokenizer.get_vocab()]:
            raise ValueError(
                f"--objective {arguments.objective}: the tokenizer has no token {missing[0]}, and needs "
                f"{len(names)} such tokens for rows of {length} tokens"
            )
        self.ids: dict[str, int] = {name: tokenizer.get_vocab()[name] for name in names}
        self.sentinels = [number for name, number in self.ids.items() if name.startswith(SENTINEL[:-3])]
        self.before, self.after = text_frame(tokenizer)
        if not self.after:
            raise ValueError(
                f"--objective {arguments.objective}: the tokenizer puts no end token after a text, without which the "
                "model would not learn where to stop"
            )
        self.padded = DataCollatorForSeq2Seq(tokenizer, model=model)
        self.packed = PackedPairs(model, self.padded).packed
        self.set_epoch(0)

    @classmethod
    def tokens(cls, arguments: Any, length: int) -> list[str]:
        """Return the special tokens that rows of up to `length` tokens need."""
        return []

    @abstractmethod
    def corrupt(self, ids: np.ndarray, draw: Generator) -> Pair:
        """Return a corrupted text and its target, both without </s>."""

    def pair(self, ids: list[int]) -> dict[str, list[int]]:
        """Return the {input_ids, labels} of a text in its frame, which is </s> after it for our tokenizers."""
        first, last = len(self.before) + len(self.start), len(ids) - len(self.after)
        text = np.array(ids[first:last], np.int64)
        seed = 0 if self.epoch == EVALUATION else self.seed  # evaluations do not depend on it
        draw = np.random.default_rng(crc32(text.tobytes(), epoch_seed(seed, self.epoch)))
        corrupted, wanted = self.corrupt(text, draw)
        sides = {"input_ids": corrupted, "labels": wanted}
        return {name: [*self.before, *side, *self.after] for name, side in sides.items()}

    def __call__(self, rows: list[dict[str, Any]]) -> Any:
        if "position_ids" in rows[0]:
            return self.packed([[self.pair(text) for text in packed_texts(row)] for row in rows])
        pairs = [self.pair(row["input_ids"]) for row in rows]
        return self.padded([{**pair, "attention_mask": [1] * len(pair["input_ids"])} for pair in pairs])


class SpanCorruption(Denoising):
    """Replaces spans by sentinels; the target is each sentinel with its span (Raffel et al. 2020, 3.1.4)."""

    options: ClassVar[tuple[str, ...]] = ("noise_density", "mean_span_length")
    predicted = 0.2

    @classmethod
    def tokens(cls, arguments: Any, length: int) -> list[str]:
        density, span = arguments.noise_density or cls.density, arguments.mean_span_length or cls.span
        return sentinels(length, (density, span))

    def corrupt(self, ids: np.ndarray, draw: Generator) -> Pair:
        return self.without_spans(ids, random_spans(len(ids), self.density, self.span, draw))

    def without_spans(self, ids: np.ndarray, spans: Iterable["Span"]) -> Pair:
        """Return a text with a sentinel in place of each span, and the spans after their sentinels."""
        marked = list(zip(self.sentinels, spans))
        wanted = [token for sentinel, span in marked for token in (sentinel, *ids[slice(*span)].tolist())]
        return replaced(ids, marked).tolist(), wanted


class MixtureOfDenoisers(SpanCorruption):
    """Draws a denoiser for each text and puts its mode before the text (Tay et al. 2023).

    The seven of table 1, equally often: R ([NLU]) has short spans, X ([NLG]) long or many, S ([S2S]) the end.
    """

    options = ()
    predicted = 0.4
    denoisers = (  # the mode, the density, the length of spans; None for one span, the end of the text
        *(("[NLU]", 0.15, span) for span in (3.0, 8.0)),
        *(("[NLG]", density, span) for density, span in ((0.5, 3.0), (0.5, 8.0), (0.15, 64.0), (0.5, 64.0))),
        ("[S2S]", 0.25, None),
    )
    start = ("[NLU]",)

    @classmethod
    def tokens(cls, arguments: Any, length: int) -> list[str]:
        modes = dict.fromkeys(mode for mode, _, _ in cls.denoisers)
        return [*modes, *sentinels(length, *((density, span or length) for _, density, span in cls.denoisers))]

    def corrupt(self, ids: np.ndarray, draw: Generator) -> Pair:
        mode, density, span = self.denoisers[draw.integers(len(self.denoisers))]
        if span is not None:
            spans = random_spans(len(ids), density, span, draw)
        else:
            noise, count = noise_counts(len(ids), density, len(ids))
            spans = [(len(ids) - noise, len(ids))] * count
        corrupted, wanted = self.without_spans(ids, spans)
        return [self.ids[mode], *corrupted], wanted


class MaskedDenoising(Denoising):
    """An objective whose target is the whole text."""

    @classmethod
    def tokens(cls, arguments: Any, length: int) -> list[str]:
        return [MASK_TOKEN]

    def corrupt(self, ids: np.ndarray, draw: Generator) -> Pair:
        return self.noisy(ids, draw).tolist(), ids.tolist()

    @abstractmethod
    def noisy(self, ids: np.ndarray, draw: Generator) -> np.ndarray:
        """Return the corrupted text."""


class TextInfilling(MaskedDenoising):
    """Permutes sentences and replaces spans of Poisson lengths by one <mask> each (Lewis et al. 2020).

    A span of length 0 inserts a <mask>, but only as many as keep the text no longer than it was.
    """

    options = ("noise_density", "mean_span_length")
    density = 0.3

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        pieces: list[Any] = self.tokenizer.batch_decode([[number] for number in range(len(self.tokenizer))])
        ends = [piece.rstrip()[-1:] for piece in pieces]
        self.sentence_ends = np.array([bool(end) and end in SENTENCE_ENDS for end in ends])

    def noisy(self, ids: np.ndarray, draw: Generator) -> np.ndarray:
        ends = np.flatnonzero(self.sentence_ends[ids]) + 1
        sentences = [part for part in np.split(ids, ends) if len(part)]
        ids = np.concatenate([sentences[number] for number in draw.permutation(len(sentences))] or [ids])
        lengths = poisson_spans(math.ceil(len(ids) * self.density), self.span, draw)
        inserted = min(int((lengths == 0).sum()), int((lengths[lengths > 0] - 1).sum()))
        spans = placed_spans(len(ids), lengths[lengths > 0], draw)
        kept = replaced(ids, [(self.ids[MASK_TOKEN], span) for span in spans])
        return np.insert(kept, draw.integers(len(kept) + 1, size=inserted), self.ids[MASK_TOKEN])


class TokenNoise(MaskedDenoising):
    """Masks or deletes single tokens, or rotates the text to begin with any of its tokens (Lewis et al. 2020)."""

    options = ("noise_density", "noise")

    @classmethod
    def tokens(cls, arguments: Any, length: int) -> list[str]:
        return [MASK_TOKEN] if arguments.noise == "mask" else []

    def noisy(self, ids: np.ndarray, draw: Generator) -> np.ndarray:
        if self.noise == "rotate":
            return np.roll(ids, -draw.integers(max(1, len(ids))))
        count, _ = noise_counts(len(ids), self.density, 1)
        chosen = np.zeros(len(ids), bool)
        chosen[draw.choice(len(ids), count, replace=False)] = True
        return ids[~chosen] if self.noise == "delete" else np.where(chosen, self.ids[MASK_TOKEN], ids)


class PrefixSplit(Denoising):
    """Cuts the text at a random place: the beginning is the input, the end the target (Raffel et al. 2020, 3.2.1)."""

    predicted = 0.5

    def corrupt(self, ids: np.ndarray, draw: Generator) -> Pair:
        cut = int(draw.integers(1, len(ids))) if len(ids) > 1 else len(ids)
        return ids[:cut].tolist(), ids[cut:].tolist()


DENOISING: dict[TaskName, type[Denoising]] = {
    "span": SpanCorruption,
    "infill": TextInfilling,
    "denoise": TokenNoise,
    "prefix": PrefixSplit,
    "ul2": MixtureOfDenoisers,
}
"""By objective."""


Span = tuple[int, int]  # the first token, and the one after the last


def noise_counts(length: int, density: float, span: float) -> tuple[int, int]:
    """Return the number of noise tokens of a text, and of their spans; a text of one token has none."""
    if length < 2:
        return 0, 0
    noise = min(max(round(length * density), 1), length - 1)
    return noise, min(max(round(noise / span), 1), noise, length - noise)


def random_spans(length: int, density: float, span: float, draw: Generator) -> list[Span]:
    """Return separate spans of noise, of random lengths; the text begins with a kept token and ends in noise.

    As in T5's published code, noise and kept tokens are divided into equally many parts, all divisions equally likely.
    """
    noise, count = noise_counts(length, density, span)
    if not count:
        return []
    lengths, gaps = segmentation(noise, count, draw), segmentation(length - noise, count, draw)
    ends = np.cumsum(lengths + gaps)
    return list(zip((ends - lengths).tolist(), ends.tolist()))


def segmentation(total: int, parts: int, draw: Generator) -> np.ndarray:
    """Return the lengths of `parts` parts of at least 1 that add up to `total`, all ways equally likely."""
    cuts = np.sort(draw.choice(total - 1, parts - 1, replace=False)) + 1
    return np.diff([0, *cuts, total])


def poisson_spans(budget: int, mean: float, draw: Generator) -> np.ndarray:
    """Return lengths drawn from a Poisson distribution until they add up to the budget; the last is cut to fit."""
    lengths: list[int] = []
    while budget > sum(lengths):
        lengths.append(min(int(draw.poisson(mean)), budget - sum(lengths)))
    return np.array(lengths, int)


def placed_spans(length: int, lengths: np.ndarray, draw: Generator) -> list[Span]:
    """Return spans of the given lengths, in random order and at random places, which may touch but not overlap."""
    lengths = draw.permutation(lengths)
    starts = np.sort(draw.integers(length - lengths.sum() + 1, size=len(lengths))) + np.cumsum(lengths) - lengths
    return list(zip(starts.tolist(), (starts + lengths).tolist()))


def replaced(ids: np.ndarray, spans: Iterable[tuple[int, Span]]) -> np.ndarray:
    """Return a text with a token in place of each span, in order."""
    parts, at = [], 0
    for token, (first, last) in spans:
        parts += [ids[at:first], [token]]
        at = last
    return np.concatenate([*parts, ids[at:]]).astype(ids.dtype)


def sentinels(length: int, *noises: tuple[float, float]) -> list[str]:
    """Return the sentinels for texts of up to `length` tokens with noise of (density, span length)."""
    counts = (noise_counts(size, *noise)[1] for noise in noises for size in range(length + 1))
    return [SENTINEL.format(number) for number in range(max(counts))]


def packed_texts(row: dict[str, Any]) -> Iterator[list[int]]:
    starts = np.flatnonzero(np.array(row["position_ids"]) == 0).tolist()
    return (row["input_ids"][first:last] for first, last in pairwise([*starts, None]))
