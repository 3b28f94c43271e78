"""The loss on held-out data: the mean over all targets, however they are batched."""

from typing import Any

import torch
from torch import nn
from transformers import Trainer

from vanillaformer.data.targets import PAIRS, count_targets, targets_name
from vanillaformer.modeling.heads import IGNORE_INDEX


class HeldOutLossTrainer(Trainer):
    """`Trainer` whose held-out loss is `Σ CE / N` over all N targets.

    A model with two losses, of tokens and of pairs of segments, has the sum of their means.

    Trainer's own gives each row the mean loss of its batch, so that a token of a batch of short rows counts more than
    one among long rows, and the loss changes with the order of the rows, the size of a batch and the processes.
    Without any target there is no loss among the metrics.
    """

    def evaluation_loop(self, *arguments: Any, **keywords: Any) -> Any:
        self._sums: list[torch.Tensor] = []  # of the losses and of the targets, a row for each part of the loss
        output: Any = super().evaluation_loop(*arguments, **keywords)
        name = f"{keywords.get('metric_key_prefix', 'eval')}_loss"
        if self._sums:
            totals, targets = torch.stack(self._sums).sum(dim=0).unbind(dim=1)
            output.metrics[name] = (totals[targets > 0] / targets[targets > 0]).sum().item()
            if not targets.any():  # the mean over no target is not a number
                del output.metrics[name]
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
        """Return labels (B, ...) without those of rows that accelerate repeats, so that all processes have as many."""
        real = self.accelerator.gradient_state.remainder  # rows in the last batch of all processes
        if not self.accelerator.gradient_state.end_of_dataloader or real <= 0:
            return labels
        rows = torch.arange(len(labels), device=labels.device) + self.accelerator.process_index * len(labels)
        repeated = (rows >= real).view(-1, *[1] * (labels.ndim - 1))
        return labels.masked_fill(repeated, False if labels.dtype == torch.bool else IGNORE_INDEX)

    def _add(self, *parts: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Add the sums of a batch, all processes' together: for each part of its loss the mean and the targets."""
        means, counts = (
            torch.stack([each.detach().to(parts[0][0].device) for each in column]) for column in zip(*parts)
        )
        totals = torch.where(counts > 0, means * counts, 0.0)  # the mean of none is nan
        sums: Any = self.accelerator.gather(torch.stack([totals, counts.float()], dim=1)[None])
        self._sums.append(sums.sum(dim=0).double().cpu())
