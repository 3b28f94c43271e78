"""Diagnosis of a run in plain sentences: from its log, its scores on training and held-out rows, and the baselines."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from vanillaformer.data.tasks import TASKS, TaskName

from ..metrics.scores import PREFIXES, SCORES, Evaluation, Score, best_of, evaluations, gain

Scores = Mapping[str, float]
Settings = Mapping[str, Any]

END = 0.8  # the last fifth of a run shows whether the model still improved
MIN_EVALUATIONS = 3  # with fewer evaluations nothing is said about a trend
STEADY = 0.05
"""Share of its earlier fall by which a loss has to fall in the last fifth, if each evaluation there is lower."""
LOSS_NOISE = 0.005
"""Relative changes of a loss up to this, or up to a quarter of `1/√N` over N targets, are noise."""
OVERFITTED = {"classes": 0.5, "tokens": 0.85}
"""Training losses below this share of the validation loss are far below it."""
LIKE_VALIDATION = 0.95  # training losses above this share of the validation loss are about the same
UNFITTED = 0.9  # share of a trivial baseline's loss above which a training loss shows next to no learning


def _unused(name: str) -> Callable[[Settings], bool]:
    return lambda settings: name in settings and not settings[name]


ADVICE: dict[str, Callable[[Settings], bool]] = {
    "more training data": lambda settings: True,
    "`--set dropout=0.1`": lambda settings: settings.get("dropout", 1) < 0.1,
    "`--set dropout=0.3`": lambda settings: 0.1 <= settings.get("dropout", 1) < 0.3,
    "`--label_smoothing_factor 0.1`": _unused("label_smoothing_factor"),
    "`--token_dropout 0.1`": _unused("token_dropout"),
    "`--shift 2` (pixels), and `--flip horizontal` where a mirrored image has the same class": _unused("shift"),
    "`--r_drop 1`": lambda settings: settings.get("dropout", 1) > 0 and settings.get("r_drop", 1) == 0,
    "pre-training on the same or more texts (`vanillaformer train-language-model --objective masked`, then "
    "`--model_name_or_path`)": _unused("pretrained"),
}
"""Advice for a model that fits only its training data; each applies if it is an option of the task and not in use."""
FAR_OFF = "is --learning_rate or the number of steps far off"
LOOK_AT: dict[str, str] = {
    "classes": f"do the labels belong to the rows (the columns and their order), and {FAR_OFF}?",
    "labels": f"do the labels belong to the rows, and {FAR_OFF}?",
    "values": f"do the numbers belong to the rows, and {FAR_OFF}?",
    "tags": f"do the tags belong to the tokens, and {FAR_OFF}?",
    "pixels": f"{FAR_OFF}?",
    "texts": f"are sources and targets aligned, and {FAR_OFF}?",
    "tokens": f"{FAR_OFF}, and are the validation texts of the same kind as the training texts?",
}
"""Usual causes of a trivial baseline being better, by what the task predicts."""


@dataclass(frozen=True)
class RunSummary:
    """The facts about a finished training that the diagnosis reads."""

    task: TaskName
    score: Score  # which chose the checkpoint
    log_history: Sequence[Evaluation]
    steps: int  # those trained
    planned: int
    length: str  # the planned steps in words
    metrics: Scores  # of the model on held-out rows (`eval_loss`, `test_accuracy`)
    training: Scores = field(default_factory=dict)  # on training rows, computed as on held-out ones; empty if unknown
    trivial: Mapping[str, Scores] = field(default_factory=dict)  # of trivial baselines, by name
    trained: Mapping[str, Scores] = field(default_factory=dict)  # of trained baselines, by name
    rows: Mapping[str, int] = field(default_factory=dict)  # held-out rows by the prefix of their scores
    targets: int = 1  # predictions that the validation loss is a mean of
    more: tuple[str, str] = ("num_train_epochs", "2")  # the option that ends the run, and twice its value
    settings: Settings = field(default_factory=dict)  # options and config fields by which `ADVICE` is chosen

    @property
    def kind(self) -> str:
        """The unit that the loss is a mean over: classes (or other answers for whole texts) or tokens."""
        return "classes" if {"classes", "labels", "values"} & set(TASKS[self.task].predicts) else "tokens"

    @property
    def loss_noise(self) -> float:
        """The relative change of the validation loss that is noise."""
        return max(LOSS_NOISE, 0.25 / math.sqrt(max(1, self.targets)))

    def noise(self, score: Score, value: float, split: str = "eval") -> float:
        """Return the change of a score that is noise: its resolution, its standard error or that of a loss."""
        if score.resolution:
            return score.resolution
        if not score.greater_is_better:
            return abs(value) * self.loss_noise
        count = max(1, self.targets if self.kind == "tokens" and score.inputs == "ids" else self.rows.get(split, 1))
        share = (max(0.0, value) / score.unit * count + 1) / (count + 2)  # Laplace: all right here is not certain
        return score.unit * math.sqrt(share * (1 - share) / count)


@dataclass(frozen=True)
class Trend:
    """The validation scores of a run, from its beginning to its last fifth."""

    best: Evaluation
    before: Evaluation  # the best one before the last fifth
    after: Evaluation  # the best one in it
    improving: bool  # whether the score, or else the loss, still improved
    by_loss: bool  # whether only the loss did
    rising: bool  # whether the loss in the last fifth lies above its minimum
    ended: bool  # whether the training ended before its last step because nothing was gained


def diagnose(summary: RunSummary) -> list[str]:
    trend = find_trend(summary)
    fit = list(fit_sentences(summary, trend))  # more specific than the usual causes
    return [*trend_sentences(summary, trend), *fit, *baseline_sentences(summary, advise=not fit)]


def find_trend(summary: RunSummary) -> Trend | None:
    """Return the trend of the validation scores; None if there are too few of them.

    One evaluation can be lucky. The score has to gain more than its noise, on average over the last fifth while the
    loss does not contradict, or in each of several evaluations; or else the loss has to fall, and the score must not.
    """
    by_step = {entry["step"]: entry for entry in reversed(evaluations(summary.log_history)) if "eval_loss" in entry}
    entries = [by_step[step] for step in sorted(by_step)]
    early = [entry for entry in entries if entry["step"] <= END * summary.steps]
    late = [entry for entry in entries if entry["step"] > END * summary.steps]
    if len(entries) < MIN_EVALUATIONS or not early or not late:
        return None
    score, loss = summary.score, SCORES["loss"]
    best, before, after = (best_of(part, score) for part in (entries, early, late))
    noise = summary.noise(score, _value(before, score))
    gains = [gain(entry, before, score) for entry in late]
    losses = [entry["eval_loss"] for entry in late]
    highest, lowest = max(entry["eval_loss"] for entry in early), min(entry["eval_loss"] for entry in early)
    fall, small = lowest - fmean(losses), summary.loss_noise * lowest
    falls = fall > small or (len(late) > 1 and max(losses) < lowest and fall > STEADY * (highest - lowest))
    gained = (fmean(gains) > noise and fall > -small) or (len(late) > 1 and min(gains) > noise)
    by_loss = not gained and falls and max(gains) > -2 * noise
    ended = summary.steps < summary.planned and best is not entries[-1]
    return Trend(
        best=best,
        before=best_of(early, loss) if by_loss else before,
        after=best_of(late, loss) if by_loss else after,
        improving=(gained or by_loss) and not ended,
        by_loss=by_loss,
        rising=losses[-1] > min(lowest, *losses) * (1 + max(0.02, summary.loss_noise)),
        ended=ended,
    )


def trend_sentences(summary: RunSummary, trend: Trend | None) -> Iterator[str]:
    """Say whether the model was still improving at the end."""
    if trend is None:
        yield "Too few evaluations (--eval_steps) to tell whether the model was still improving at the end."
        return
    score = SCORES["loss"] if trend.by_loss else summary.score
    before, after = (score.format(_value(entry, score)) for entry in (trend.before, trend.after))
    name = f"validation {score.short_label}"
    best = summary.score.format(_value(trend.best, summary.score))
    if summary.score.greater_is_better and best == summary.score.format(summary.score.unit):
        yield f"Nothing is left to gain on the validation data ({summary.score.short_label} {best})."
    elif trend.improving:
        yield (
            f"Still improving at the end ({name} {before} → {after} in the last fifth): more time helps, by the same "
            f"command with `--{' '.join(summary.more)}`."
        )
    elif trend.best["step"] <= END * summary.steps or trend.ended:
        yield (
            f"Stopped improving at step {trend.best['step']:,} of {summary.length} (validation "
            f"{summary.score.short_label} {best}): nothing was gained after it"
            f"{f', and training ended at step {summary.steps:,}' if trend.ended else ''}."
        )
    else:
        noise = score.format(summary.noise(score, _value(trend.before, score)))
        yield f"Leveled off: {name} {before} → {after} at best in the last fifth (noise: ± {noise})."


def fit_sentences(summary: RunSummary, trend: Trend | None) -> Iterator[str]:
    """Say how the training data is fitted, compared with the validation data and with a trivial baseline."""
    training, held_out = summary.training, {name: summary.metrics.get(f"eval_{name}") for name in ("loss", "accuracy")}
    loss, held_out_loss, accuracy = training.get("loss"), held_out["loss"], held_out["accuracy"]
    if loss is None or held_out_loss is None:
        return
    for name, scores in summary.trivial.items():
        if loss > UNFITTED * scores.get("eval_loss", math.inf):
            yield (
                f"It does not fit the training data either (loss {loss:.3f} on training rows, "
                f"{scores['eval_loss']:.3f} with the {name}): try a higher or lower --learning_rate, a larger model, "
                "or longer training."
            )
            return
    best = summary.metrics.get(f"eval_{summary.score.name}", -math.inf)
    if summary.score.greater_is_better and summary.score.unit - best <= summary.noise(summary.score, best):
        return  # all is right but for the noise, however the losses compare
    shared = {
        name: (training[name], value) for name, value in held_out.items() if value is not None and name in training
    }
    texts = {name: tuple(map(SCORES[name].format, values)) for name, values in shared.items()}
    shown = "; ".join(
        f"{name} {ours} on training rows, {theirs} on validation rows" for name, (ours, theirs) in texts.items()
    )
    overfitted = loss < OVERFITTED[summary.kind] * held_out_loss
    if summary.kind == "classes" and accuracy is not None and "accuracy" in training:
        overfitted &= training["accuracy"] - accuracy > 2 * summary.noise(SCORES["accuracy"], accuracy)
    improving, rising = trend is not None and trend.improving, trend is not None and trend.rising
    if overfitted and (rising or not improving):
        advice = "; ".join(text for text, applies in ADVICE.items() if applies(summary.settings))
        yield f"It fits the training data but not the validation data ({shown}). What can help: {advice}."
    elif trend is not None and not improving and loss > LIKE_VALIDATION * held_out_loss:
        yield (
            f"It does no better on training rows than on validation rows ({shown}): not regularization, but a larger "
            "model or longer training can help."
        )


def baseline_sentences(summary: RunSummary, *, advise: bool = True) -> Iterator[str]:
    """Name the baselines that the model does not beat, and with `advise` what to look at."""
    look_at = next(text for kind, text in LOOK_AT.items() if kind in TASKS[summary.task].predicts)
    for name, scores in {**summary.trivial, **summary.trained}.items():
        trivial = name in summary.trivial
        for split, prefix in reversed(PREFIXES.items()):
            shared = [
                each for each in SCORES if f"{prefix}_{each}" in scores and f"{prefix}_{each}" in summary.metrics
            ]
            if not shared:
                continue
            score = summary.score if summary.score.name in shared else SCORES[shared[0]]
            ours, theirs = (values[f"{prefix}_{score.name}"] for values in (summary.metrics, scores))
            behind = (theirs - ours) if score.greater_is_better else (ours - theirs)
            if behind >= 0 if trivial else behind > summary.noise(score, theirs, prefix):
                compared = f"{score.format(ours)}, {name} {score.format(theirs)}"
                improbable = trivial and advise and not (score.greater_is_better and ours == score.unit)
                yield (
                    f"{'Not above a trivial baseline' if trivial else f'Below the {name}'} "
                    f"({split} {score.short_label} {compared}){f': {look_at}' if improbable else '.'}"
                )
                break


def _value(entry: Evaluation, score: Score) -> float:
    return float(entry.get(f"eval_{score.name}", math.nan))
