"""Evaluation on held-out data: every row once, and a loss that is the mean over all targets, however batched."""

import contextlib
from typing import Any
from zlib import crc32

import torch
from datasets import Dataset
from torch import nn
from torch.utils.data import DataLoader
from transformers.loss.loss_utils import ForSequenceClassificationLoss
from transformers.trainer_utils import PredictionOutput

from vanillaformer.data.preprocessing.batching import EpochCollator, evaluation_order
from vanillaformer.data.preprocessing.tokenizing import RAW_TEXTS
from vanillaformer.data.targets import PAIRS, count_targets, targets_name
from vanillaformer.modeling.heads import IGNORE_INDEX

from ..metrics.compute import first_output
from .saving import SavingTrainer, temporarily

OF_NUMBERS = ("regression", "multi_label_classification")
"""Problems whose held-out loss by Trainer, a mean of the means of batches, depends on the number of processes."""


class EvaluatingTrainer(SavingTrainer):
    """A `Trainer` whose held-out loss is `Σ CE / N` over all N targets, and which scores the same weights once.

    With two losses, of tokens and of pairs of segments, it is the sum of their means. Trainer's own loss gives each
    row the mean of its batch, so that a token in a batch of short rows counts more than one among long rows, and the
    loss depends on the order of the rows, the batch size and the number of processes. Without any target there is no
    loss among the metrics.
    """

    evaluated: Any = None  # the rows being scored, or scored last

    def __init__(self, *arguments: Any, **keywords: Any):
        self.scores: dict[int, tuple[int | None, Any]] = {}  # by step: the weights' checksum, and their scores
        super().__init__(*arguments, **keywords)

    # ------------------------------------------------------------------------------------------------------- the rows
    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        self.evaluated = self.eval_dataset if eval_dataset is None else eval_dataset
        rows = self.evaluated
        if isinstance(rows, Dataset):
            texts = [name for name in RAW_TEXTS if name in rows.column_names]
            rows = rows.remove_columns(texts).select(evaluation_order(rows), keep_in_memory=True)
        # These options of the training would leave rows out, or score the rows of an earlier call
        off = {"dataloader_drop_last": False, "dataloader_persistent_workers": False}
        with temporarily(self.args, train_sampling_strategy="sequential", **off):
            return super().get_eval_dataloader(rows)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        return self.get_eval_dataloader(test_dataset)

    # ------------------------------------------------------------------------------------------------------- the loss
    def evaluation_loop(self, *arguments: Any, **keywords: Any) -> Any:
        self._sums: list[torch.Tensor] = []  # losses and numbers of targets, a row for each part of the loss
        collator = self.data_collator
        fixed = collator.evaluation() if isinstance(collator, EpochCollator) else contextlib.nullcontext()
        self.gather_function = self.gather_rows  # Seq2SeqTrainer's keeps the rows that accelerate repeats
        with fixed, self.average.exchanged():
            output: Any = super().evaluation_loop(*arguments, **keywords)
            weights = checksum(self.model) if self.is_in_train and self.evaluated is self.eval_dataset else None
        name = f"{keywords.get('metric_key_prefix', 'eval')}_loss"
        if self._sums:
            totals, targets = torch.stack(self._sums).sum(dim=0).unbind(dim=1)
            output.metrics[name] = (totals[targets > 0] / targets[targets > 0]).sum().item()
            if not targets.any():  # the mean over no target is not a number
                del output.metrics[name]
        elif output.predictions is not None and getattr(self.model.config, "problem_type", None) in OF_NUMBERS:
            pair = (output.label_ids, first_output(output.predictions))
            labels, logits = (torch.as_tensor(values).double() for values in pair)
            output.metrics[name] = ForSequenceClassificationLoss(labels, logits, self.model.config).item()
        if weights is not None:
            best = self.state.best_global_step
            self.scores = {step: found for step, found in self.scores.items() if step == best}
            self.scores[self.state.global_step] = weights, output
        return output

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, *arguments: Any, **keywords: Any
    ) -> Any:
        name = targets_name(inputs)
        if name is None or inputs[name].is_floating_point():
            return super().prediction_step(model, inputs, prediction_loss_only, *arguments, **keywords)
        names = [each for each in (name, PAIRS) if each in inputs]
        scored = {**inputs, **{each: self._without_repeated(inputs[each]) for each in names}}
        loss_only = prediction_loss_only and PAIRS not in inputs
        result: Any = super().prediction_step(model, scored, loss_only, *arguments, **keywords)
        if result[0] is None:
            return result
        loss, parts = result[0].float(), []
        if PAIRS in inputs:  # the loss is the sum of two means
            pairs = scored[PAIRS].view(-1)
            mean = nn.functional.cross_entropy(result[1][1].float(), pairs)
            loss, parts = loss - mean, [(mean, (pairs != IGNORE_INDEX).sum())]
        self._add((loss, count_targets(self.model, scored[name]).to(loss.device)), *parts)
        return (result[0], None, None) if prediction_loss_only else result

    def _without_repeated(self, labels: torch.Tensor) -> torch.Tensor:
        """Ignore the labels (B, ...) of rows that accelerate repeats so that all processes have equally many."""
        real = self.accelerator.gradient_state.remainder  # rows in the last batch of all processes
        if not self.accelerator.gradient_state.end_of_dataloader or real <= 0:
            return labels
        rows = torch.arange(len(labels), device=labels.device) + self.args.data_process * len(labels)
        repeated = (rows >= real).view(-1, *[1] * (labels.ndim - 1))
        return labels.masked_fill(repeated, False if labels.dtype == torch.bool else IGNORE_INDEX)

    def _add(self, *parts: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Add the sums of a batch over all processes; `parts` are mean and targets of each part of its loss."""
        means, counts = (
            torch.stack([each.detach().to(parts[0][0].device) for each in column]) for column in zip(*parts)
        )
        totals = torch.where(counts > 0, means * counts, 0.0)  # the mean of none is nan
        sums: Any = self.accelerator.gather(torch.stack([totals, counts.float()], dim=1)[None])
        self._sums.append(sums.sum(dim=0).double().cpu())

    # ------------------------------------------------------------------------------------------- scores that are known
    def predict(self, test_dataset: Any, *arguments: Any, **keywords: Any) -> PredictionOutput:
        """Return predictions and scores as `Trainer` does; for validation data those from training, if known."""
        prefix = keywords.get("metric_key_prefix", "test")
        known = self.scored(test_dataset) if prefix == "eval" and not self.args.prediction_loss_only else None
        return super().predict(test_dataset, *arguments, **keywords) if known is None else known

    def scored(self, rows: Any) -> PredictionOutput | None:
        """Return the scores of the present weights on these rows, if training has found them."""
        weights = checksum(self.model) if rows is self.eval_dataset else None
        output = next((found for known, found in self.scores.values() if known == weights is not None), None)
        metrics = output and {**output.metrics, "epoch": self.state.epoch}
        return output and PredictionOutput(output.predictions, output.label_ids, metrics)


def checksum(model: torch.nn.Module) -> int | None:
    """Return a checksum of a model's weights; None if they are distributed over processes."""
    found = 0
    for value in model.state_dict().values():
        if hasattr(value, "full_tensor"):  # of which a process has a part
            return None
        found = crc32(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy(), found)
    return found
