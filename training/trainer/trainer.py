"""Trainers whose batches depend on the seed, the epoch and the data alone.

With transformers' own length grouping and token masking, what a run sees after an interruption, or on several
processes, is not what it would have seen: both draw from the global random state. Here an epoch's order and masks are
the same on any number of processes, and a resumed run ends at the same weights as one that was never interrupted.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from accelerate.data_loader import prepare_data_loader
from datasets import Dataset
from torch import nn
from torch.utils.data import DataLoader, Sampler
from transformers import PreTrainedModel, Seq2SeqTrainer, TrainerCallback

from vanillaformer.data.preprocessing.batching import (
    ProcessBatches,
    RandomEpochs,
    TokenBatches,
    evaluation_order,
    row_lengths,
    row_order,
    token_batches,
)
from vanillaformer.data.preprocessing.collators import EpochCollator
from vanillaformer.data.preprocessing.packing import PackedBatches
from vanillaformer.data.preprocessing.tokenizing import RAW_TEXTS
from vanillaformer.data.targets import PAIRS, PATCHES, targets_name
from vanillaformer.modeling.heads import IGNORE_INDEX

from .adaptation import AdaptingTrainer
from .averaging import AveragingTrainer
from .distillation import Teachers, distillation_loss
from .guards import GuardedTrainer
from .held_out_loss import HeldOutLossTrainer
from .losses import (
    count_second_targets,
    gold_probability,
    training_loss,
    with_hidden_tokens,
    with_mixed_images,
    with_own_predictions,
    without_labels,
)
from .optimizers import OPTIMIZERS, SchedulingTrainer, decaying_names
from .pushing import PushingTrainer
from .remembered import RememberingTrainer
from .sharding import ShardingTrainer
from .time_budget import BudgetTrainer


class RunTrainer(
    RememberingTrainer,
    PushingTrainer,
    GuardedTrainer,
    AdaptingTrainer,
    AveragingTrainer,
    ShardingTrainer,
    HeldOutLossTrainer,
    BudgetTrainer,
    SchedulingTrainer,
):
    """`Trainer` with reproducible batches and our losses and optimizers; the run writes the model card."""

    def __init__(self, *arguments: Any, **keywords: Any):
        self.sampler: RandomEpochs | TokenBatches | None = None
        self.idle_at_end = False  # whether this process has no row in the last batch of an epoch
        self.teachers: Teachers | None = None  # of a student
        self.new_model: Callable[[int], PreTrainedModel] | None = None  # makes a teacher from a seed
        super().__init__(*arguments, **keywords)
        self.label_smoother = None  # `compute_loss` smooths, and in training only
        self.model_accepts_loss_kwargs = True  # so that the targets of a step are counted, a classifier's too
        self.add_callback(_SetEpoch(self))

    # ------------------------------------------------------------------------------------------------------ batches
    def set_epoch(self, epoch: int) -> None:
        """Choose the order and the masks of an epoch."""
        if self.sampler is not None:
            self.sampler.set_epoch(epoch)
        if isinstance(self.data_collator, EpochCollator):
            self.data_collator.set_epoch(epoch)

    def get_train_dataloader(self) -> DataLoader:
        several = self.args.world_size > 1 and isinstance(self.train_dataset, Dataset)
        if self.args.tokens_per_batch is None and not several:
            return super().get_train_dataloader()
        rows: Any = self._remove_unused_columns(self.train_dataset, description="training")
        batches: TokenBatches | ProcessBatches
        if self.args.tokens_per_batch is None:
            order = self._get_train_sampler(rows)
            part = self.args.train_batch_size, self.args.world_size, self.args.process_index
            batches = ProcessBatches(order, *part, drop_last=self.args.dataloader_drop_last)
            self.idle_at_end = batches.idle
        else:
            packed = isinstance(self.data_collator, PackedBatches)
            batches = self.sampler = token_batches(row_lengths(rows), self.args, packed=packed)
        loader: DataLoader = DataLoader(
            rows,
            batch_sampler=batches,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=self.args.dataloader_persistent_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            multiprocessing_context=self.args.dataloader_multiprocessing_context,
        )
        # The batches are this process's already: with num_processes=1 accelerate does not divide them again.
        return prepare_data_loader(loader, self.args.device, num_processes=1, process_index=0, put_on_device=True)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Any:
        """Count the targets of a step, those of a second loss too; an idle process has none in its last batch."""
        self.idle = self.idle_at_end and self.accelerator.gradient_state.end_of_dataloader
        working = batch_samples[: len(batch_samples) - self.idle]
        first = batch_samples[0] if batch_samples else {}
        if targets_name(first) == PATCHES:
            return self._total([batch[PATCHES].sum() for batch in working], device)
        if PAIRS in first or (first and self.args.lm_loss_weight):
            self.second_items = self._total(list(map(count_second_targets, working)), device)
        if self.idle:
            batch_samples[-1] |= {"labels": torch.full_like(batch_samples[-1]["labels"], IGNORE_INDEX)}
        return super()._get_num_items_in_batch(batch_samples, device)

    def _total(self, counts: list[torch.Tensor], device: torch.device) -> torch.Tensor:
        """Return the sum of numbers of targets, of all processes unless each has the mean over its own."""
        count: Any = torch.as_tensor(sum(counts), device=device)
        if self.args.average_tokens_across_devices and self.args.world_size > 1:
            count = self.accelerator.gather(count)
        return count.sum().clamp(min=1)

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> Sampler[int] | None:
        rows: Any = self.train_dataset if train_dataset is None else train_dataset
        order = row_order(row_lengths(rows), self.args)
        if order is None:
            return super()._get_train_sampler(train_dataset)
        self.sampler = order
        return order

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        self.evaluated = self.eval_dataset if eval_dataset is None else eval_dataset
        with self._all_rows():
            return super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        self.evaluated = test_dataset
        with self._all_rows():
            return super().get_test_dataloader(test_dataset)

    @contextlib.contextmanager
    def _all_rows(self) -> Iterator[None]:
        """Keep options that are for training from leaving rows out of a score, or from scoring those scored before."""
        options = ("dataloader_drop_last", "dataloader_persistent_workers")
        given = {name: getattr(self.args, name) for name in options}
        vars(self.args).update(dict.fromkeys(options, False))
        try:
            yield
        finally:
            vars(self.args).update(given)

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        if isinstance(eval_dataset, Dataset):
            return evaluation_order(eval_dataset).tolist()
        return super()._get_eval_sampler(eval_dataset)

    def _remove_unused_columns(self, dataset: Any, description: str | None = None) -> Any:
        texts = [name for name in RAW_TEXTS if name in dataset.column_names]
        return super()._remove_unused_columns(dataset.remove_columns(texts), description)

    # --------------------------------------------------------------------------------------- optimizer and loss
    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        return decaying_names(model, super().get_decay_parameter_names(model))

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        build = OPTIMIZERS.get(self.args.optim)
        if self.optimizer is None and build is not None:
            trained: Any = self.model if model is None else model
            self.optimizer = build(trained, set(self.get_decay_parameter_names(trained)), self.args)
        return super().create_optimizer(model)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        if return_outputs or not model.training:
            return super().compute_loss(model, inputs, return_outputs)
        if self.has_copy:  # its parameters still get gradients, of 0
            return 0 * model(**without_labels(inputs))[0].float().sum()
        model = self.counted(model)
        if num_items_in_batch is None:
            return super().compute_loss(model, inputs, return_outputs)
        items = torch.as_tensor(num_items_in_batch).clamp(min=1)  # without any target the loss is 0
        if PATCHES in inputs:  # the loss is a mean over hidden patches
            return super().compute_loss(model, inputs) * (inputs[PATCHES].sum() / items) * self._scale()
        inputs = with_hidden_tokens(inputs, self._token_dropout(inputs))
        if self.args.mixup:
            inputs = with_mixed_images(inputs, self.args.mixup, self.model.config.num_labels)
        inputs = with_own_predictions(model, inputs, gold_probability(self.args, self.state.global_step))
        if self.teachers is not None:
            loss = distillation_loss(model, inputs, self.teachers, items)
        else:
            loss = training_loss(
                model,
                inputs,
                label_smoothing=self.args.label_smoothing_factor,
                r_drop=self.args.r_drop,
                guided_attention=self.args.guided_attention,
                guided_attention_sigma=self.args.guided_attention_sigma,
                lm_loss_weight=self.args.lm_loss_weight,
                items=items,
                second_items=self.second_items,
            )
        return loss * self._scale()

    def _token_dropout(self, inputs: dict[str, Any]) -> float | torch.Tensor:
        """Return the probability of hiding a token; a student's texts have different ones, with the same mean."""
        rate = self.args.token_dropout
        if self.teachers is None or not rate:
            return rate
        mask = inputs["attention_mask"]
        return 2 * rate * torch.rand(len(mask), 1, device=mask.device)

    def _scale(self) -> int:
        """Return what a loss is multiplied by: of how many parts of the sum torch takes the mean.

        That is the number of processes that have rows of their own, unless each divides by its own targets.
        """
        if not self.args.average_tokens_across_devices:
            return 1
        return self.accelerator.num_processes // self.get_tp_size() if self.args.n_gpu <= 1 else self.args.n_gpu

    def evaluation_loop(self, *arguments: Any, **keywords: Any) -> Any:
        collator = self.data_collator
        with collator.evaluation() if isinstance(collator, EpochCollator) else contextlib.nullcontext():
            return super().evaluation_loop(*arguments, **keywords)

    # -------------------------------------------------------------------------------------------------------- others
    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # A saved model has each shared tensor once, under one of its names: the others are not missing.
        model: Any = self.model
        tied = model.all_tied_weights_keys
        load_result.missing_keys[:] = [key for key in load_result.missing_keys if key not in tied]
        super()._issue_warnings_after_load(load_result)

    def create_model_card(self, *arguments: Any, **keywords: Any) -> None:
        """Leave the card alone: the run has written one that says more."""


class TranslationTrainer(RunTrainer, Seq2SeqTrainer):
    """`Seq2SeqTrainer` with the same, which scores translations against the targets as they stand in the data."""

    def evaluation_loop(self, *arguments: Any, **keywords: Any) -> Any:
        # Seq2SeqTrainer's own choice keeps the rows that accelerate repeats to give each process as many
        self.gather_function = self.accelerator.gather_for_metrics
        compute: Any = self.compute_metrics
        rows = self.evaluated
        if compute is not None and isinstance(rows, Dataset) and "target" in rows.column_names:
            targets = rows.select(evaluation_order(rows))["target"]
            self.compute_metrics = partial(compute, references=list(targets))
        try:
            output = super().evaluation_loop(*arguments, **keywords)
        finally:
            self.compute_metrics = compute
        if self.budget is not None and output.predictions is not None:
            self.budget.growth = self._growth(output.predictions, output.label_ids)
        return output

    def _growth(self, predictions: np.ndarray, labels: np.ndarray) -> float:
        """Return how many times as long translating takes once outputs are as long as the references."""
        padding, size = self.model.config.pad_token_id, self.args.eval_batch_size
        written, wanted = (((ids != padding) & (ids != IGNORE_INDEX)).sum(axis=1) for ids in (predictions, labels))
        batches = range(0, len(written), size)  # a batch takes as long as its longest row
        steps = [sum(lengths[start : start + size].max() for start in batches) for lengths in (written, wanted)]
        return float(max(1.0, wanted.sum() / max(1, written.sum()), steps[1] / max(1, steps[0])))


class _SetEpoch(TrainerCallback):
    """Tells a trainer which epoch begins."""

    def __init__(self, trainer: RunTrainer):
        self.trainer = trainer

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.set_epoch(int(state.epoch or 0))
