"""Comparison of an export with its model: scores on the same held-out rows, and rows per second."""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import torch

from vanillaformer.data.arguments import COLUMNS, DATA_ARGUMENTS
from vanillaformer.data.loading import load_held_out
from vanillaformer.data.tasks import TaskName
from vanillaformer.training.metrics.scores import SCORES, compute_scores, corpus_perplexity

from .arguments import GenerateArguments
from .tasks import UNREJECTED, LoadedModel, class_probabilities, classify, continue_prompts, load, run, translate

BATCH = 32
BLOCK = 1024  # tokens of a text at once, for a model without a limit
SPEED = "rows/s"
Rows = dict[str, list[Any]]
Scores = dict[str, float]


class HeldOutRows:
    """Held-out rows of the task of a model, and the model to score on them.

    Translations are scored by BLEU and similar scores, classes by accuracy and F1, and language models by the
    perplexity of the tokens of each text after the first. `columns` are options of the training programs, such as
    `source_column`.
    """

    def __init__(
        self,
        source: str,
        revision: str | None,
        files: list[str],
        *,
        validation_target_file: list[str] | None = None,
        max_validation_samples: int | None = None,
        **columns: str,
    ):
        self.source, self.files = source, files
        try:
            self.loaded, self.function, _ = load(GenerateArguments(source, revision=revision))
        except ValueError as error:
            raise ValueError(f"--validation_file {files[0]}: {error}") from error
        architecture = self.loaded.architecture
        if self.function not in SCORERS or getattr(self.loaded.model.config, "problem_type", None) in UNREJECTED:
            raise ValueError(f"--validation_file {files[0]}: {architecture} has no scores to compare")
        if max_validation_samples is not None and max_validation_samples < 1:
            raise ValueError(f"--max_validation_samples {max_validation_samples}: it must be at least 1")
        task, self.scores = SCORERS[self.function]
        arguments = DATA_ARGUMENTS[task]
        data: dict[str, Any] = {"train_file": files, **columns}
        data |= {} if validation_target_file is None else {"train_target_file": validation_target_file}
        data |= {"sample_by": "passage"} if task == "causal" else {}
        allowed = {field.name for field in dataclasses.fields(arguments)}
        if unknown := sorted(data.keys() - allowed):
            named = unknown[0].replace("train", "validation")
            raise ValueError(f"--{named} {data[unknown[0]]}: {architecture} reads {', '.join(COLUMNS[task])}")
        names = list(self.loaded.model.config.id2label.values()) if task == "classification" else []
        rows = load_held_out(arguments(**data), task, names)
        rows = rows.select(range(min(max_validation_samples or len(rows), len(rows))))
        self.rows: Rows = {name: rows[name][:] for name in COLUMNS[task]}
        self.count = len(rows)

    def compare(self, export: str) -> str:
        """Return a table of scores and rows per second, for the model and its export in a folder."""
        exported, *_ = load(GenerateArguments(export))
        results = {self.source: self.score(self.loaded), export: self.score(exported)}
        names = [name for name in results[export] if name != SPEED]
        lines = [["", *(SCORES[name].label for name in names), SPEED]]
        for where, found in results.items():
            lines.append([where, *(SCORES[name].format(found[name]) for name in names), f"{found[SPEED]:.1f}"])
        widths = [max(map(len, column)) for column in zip(*lines)]
        table = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in lines]
        return "\n".join([f"{self.count:,} rows of {', '.join(self.files)}:", *table])

    def score(self, loaded: LoadedModel) -> Scores:
        """Return the scores of a model, and its rows per second."""
        start = time.perf_counter()
        with torch.inference_mode():
            scores = self.scores(loaded, self.rows)
        return scores | {SPEED: self.count / (time.perf_counter() - start)}


def translation_scores(loaded: LoadedModel, rows: Rows) -> Scores:
    return compute_scores("texts", "texts", list(run(loaded, translate, rows["source"], BATCH)), rows["target"])


def class_scores(loaded: LoadedModel, rows: Rows) -> Scores:
    def classes(loaded: LoadedModel, texts: list[str]) -> list[Any]:
        return class_probabilities(loaded, texts).argmax(dim=-1).tolist()

    chosen = list(run(loaded, classes, rows["text"], BATCH))
    return compute_scores("classes", "ids", chosen, rows["label"])


def token_scores(loaded: LoadedModel, rows: Rows) -> Scores:
    longest = getattr(loaded.model.config, "max_position_embeddings", None) or BLOCK
    losses, counts = [], []
    for text in rows["text"]:
        ids = loaded.tokenizer(text, return_tensors="pt", verbose=False)["input_ids"]
        for block in ids.split(longest, dim=1):
            if block.shape[1] > 1:
                losses.append(-math.fsum(token_log_probabilities(loaded.model, block.to(loaded.model.device))))
                counts.append(block.shape[1] - 1)
    if not losses:
        raise ValueError("--validation_file: no text has two tokens; the first one is not predicted")
    return {"perplexity": corpus_perplexity(losses, counts)}


def token_log_probabilities(model: Any, ids: torch.Tensor) -> list[float]:
    """Return the log-probability of each token of a text (1, T) after the first."""
    if not isinstance(model, torch.nn.Module):
        first, *others = ids[0].tolist()
        return list(model.engine.score([[first]], [others])[0])
    log_probabilities = model(ids).logits[0, :-1].float().log_softmax(dim=-1)
    return log_probabilities.gather(1, ids[0, 1:, None]).flatten().tolist()


SCORERS: dict[Callable[..., Any], tuple[TaskName, Callable[[LoadedModel, Rows], Scores]]] = {
    translate: ("translation", translation_scores),
    classify: ("classification", class_scores),
    continue_prompts: ("causal", token_scores),
}
"""By function: the task, and how its rows are scored."""
