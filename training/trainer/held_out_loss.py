"""The loss on held-out data: the mean over all targets, however they are batched."""

from typing import Any

import torch
from torch import nn
from transformers import Trainer

from vanillaformer.modeling.heads import IGNORE_INDEX

from ..targets import count_targets, targets_name


class HeldOutLossTrainer(Trainer):
    """`Trainer` whose held-out loss is `Σ CE / N` over all N targets.

    Trainer's own gives each row the mean loss of its batch, so that a token of a batch of short rows counts more than
    one among long rows, and the loss changes with the order of the rows, the size of a batch and the processes.
    Without any target there is no loss among the metrics.
    """

    def evaluation_loop(self, *arguments: Any, **keywords: Any) -> Any:
        self._sums = torch.zeros(3, dtype=torch.float64)  # of the losses, of the targets, and of the batches
        output: Any = super().evaluation_loop(*arguments, **keywords)
        total, targets, batches = self._sums.tolist()
        name = f"{keywords.get('metric_key_prefix', 'eval')}_loss"
        if targets:
            output.metrics[name] = total / targets
        elif batches:  # the mean over no target is not a number
            output.metrics.pop(name, None)
        return output

    def prediction_step(self, model: nn.Module, inputs: dict[str, Any], *arguments: Any, **keywords: Any) -> Any:
        name = targets_name(inputs)
        if name is None or inputs[name].is_floating_point() or "next_sentence_label" in inputs:
            # With pairs of segments the loss is the sum of two means
            return super().prediction_step(model, inputs, *arguments, **keywords)
        scored = {**inputs, name: self._without_repeated(inputs[name])}
        result = super().prediction_step(model, scored, *arguments, **keywords)
        if result[0] is not None:
            self._add(result[0], scored[name])
        return result

    def _without_repeated(self, labels: torch.Tensor) -> torch.Tensor:
        """Return labels (B, ...) without those of rows that accelerate repeats, so that all processes have as many."""
        real = self.accelerator.gradient_state.remainder  # rows in the last batch of all processes
        if not self.accelerator.gradient_state.end_of_dataloader or real <= 0:
            return labels
        rows = torch.arange(len(labels), device=labels.device) + self.accelerator.process_index * len(labels)
        repeated = (rows >= real).view(-1, *[1] * (labels.ndim - 1))
        return labels.masked_fill(repeated, False if labels.dtype == torch.bool else IGNORE_INDEX)

    def _add(self, loss: torch.Tensor, labels: torch.Tensor) -> None:
        """Add the sums of a batch, all processes' together."""
        count = count_targets(self.model, labels).to(loss.device)
        total = torch.where(count > 0, loss.detach().float() * count, 0.0)  # the mean of none is nan
        sums: Any = self.accelerator.gather(torch.stack([total, count.float(), torch.ones_like(total)])[None])
        self._sums += sums.sum(dim=0).cpu()
