"""Trainers whose batches depend only on the seed, the epoch and the data.

Transformers' own length grouping and token masking draw from the global random state, so that a run sees other
batches after an interruption, or on several processes. Here an epoch's order and masks are the same on any number of
processes, and a resumed run ends at the same weights as one that was never interrupted.
"""

import math
from contextlib import nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate.data_loader import prepare_data_loader
from datasets import Dataset
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader, Sampler, SequentialSampler
from transformers import PreTrainedModel, Seq2SeqTrainer
from transformers import trainer as transformers_trainer

from vanillaformer.data.preprocessing import batching
from vanillaformer.data.preprocessing.packing import PackedBatches
from vanillaformer.data.preprocessing.tokenizing import RAW_TEXTS
from vanillaformer.data.rows import GROUP
from vanillaformer.data.streaming import PLACES, StreamedRows, with_places
from vanillaformer.data.targets import PAIRS, PATCHES, predicts_next, targets_name
from vanillaformer.modeling.heads import IGNORE_INDEX

from ..run_folder.files import resume_point
from . import losses
from .account import WITH_GRADIENT, Account, from_all
from .adaptation import merge_adapters, prepare_parameters
from .budget import SCHEDULE_STEPS, UNLIMITED, WARMUP_SHARE, Budget, CountedBudget, TimeBudget, budget_option, follow
from .callbacks import EarlyStopping
from .evaluation import EvaluatingTrainer
from .optimizers import OPTIMIZERS, build_optimizer, decaying_names, scale_rates, schedule_options
from .saving import temporarily

ENDLESS = ("constant", "constant_with_warmup", "inverse_sqrt")
"""Schedules that depend on the steps since the warm-up and not on the length of the run."""


class RunTrainer(EvaluatingTrainer):
    """`Trainer` with reproducible batches, a budget and our losses and optimizers; the run writes the model card."""

    def __init__(self, model: PreTrainedModel, args: Any, *arguments: Any, **keywords: Any):
        self.idle_at_end = False  # whether this process has no row in the last batch of an epoch
        self.idle = False  # whether this process has no row in the last batch of the current step
        self.second_items: torch.Tensor | None = None  # number of targets of a second loss in the step
        self.ahead: tuple[Any, Any] = None, None  # the iterator of an epoch, and the step read ahead from it
        option = budget_option(args)
        if option is not None:
            args.max_steps = UNLIMITED  # the budget ends it; Trainer refuses a stream without it
        super().__init__(prepare_parameters(model, args), args, *arguments, **keywords)
        self.label_smoother = None  # `compute_loss` smooths, only in training
        self.model_accepts_loss_kwargs = True  # so that the targets of a step are counted, a classifier's too
        self._loss_shifts_labels = predicts_next(self.model)  # Trainer does not know it of GPT2LMHeadModel
        self.account = Account(self)
        self.non_finite = False  # whether this process has such a loss or gradient in the current step
        self.budget: Budget | None = None
        if option == "max_time":
            self.budget = TimeBudget(args.max_time, args.started)
        elif option is not None:
            self.budget = CountedBudget(option, getattr(args, option), self.account)
        patience = args.early_stopping_patience
        callbacks: list[Any] = [self.account, self.budget, self.average]
        callbacks += [EarlyStopping(patience)] if patience else []
        for callback in filter(None, callbacks):
            self.add_callback(callback)

    def train(self, resume_from_checkpoint: Any = None, *arguments: Any, **keywords: Any) -> Any:
        """Train; raise ValueError if no step was made."""
        self.resumed_from = resume_from_checkpoint
        begins = self.args.eval_on_start and resume_from_checkpoint is None  # evaluated once, not at every resumption
        try:
            with temporarily(self.args, eval_on_start=begins):
                result = super().train(resume_from_checkpoint, *arguments, **keywords)
        finally:
            self.background.wait()
        if not self.state.global_step:
            rows = self.args.train_batch_size * self.args.data_processes
            raise ValueError(
                f"no step was made: the training data does not fill a batch of {rows:,} rows"
                if self.args.dataloader_drop_last
                else "no step was made: there are no training rows"
            )
        if self.args.lora_rank:
            merge_adapters(self)
        return result

    def _run_epoch(self, *arguments: Any, **keywords: Any) -> None:
        if self.state.global_step >= self.state.max_steps:  # killed after the last step: there would be one more
            self.control.should_training_stop = True
        if isinstance(self.data_collator, batching.EpochCollator):  # Trainer sets it only for the order of rows
            self.data_collator.set_epoch(keywords["epoch"])
        batches = keywords["steps_trained_in_current_epoch"]
        skipping: Any = nullcontext()
        if batches and isinstance(self.train_dataset, StreamedRows):
            rows = batches * self._train_batch_size * self.args.data_processes
            self.train_dataset.resume(Path(str(self.resumed_from)), rows)
            # It would read the skipped batches, and Trainer has no hook for it
            skipping = temporarily(transformers_trainer, skip_first_batches=lambda loader, _: loader)
        if not self.control.should_training_stop:  # the run may have stopped before it was killed
            with skipping:
                super()._run_epoch(*arguments, **keywords)

    # ------------------------------------------------------------------------------------------------------ batches
    def training_order(self, rows: Any) -> Sampler[int]:
        order = batching.row_order(batching.row_lengths(rows), self.args)
        return SequentialSampler(rows) if order is None else order

    def get_train_dataloader(self) -> DataLoader:
        data: Any = self.train_dataset
        if isinstance(data, StreamedRows):
            data.processes, data.process = self.args.data_processes, self.args.data_process
            collate = self._get_collator_with_removed_columns(self.data_collator, description="training")
            return self._loader(data, partial(with_places, collate=collate), batch_size=self._train_batch_size)
        rows = data.remove_columns([name for name in RAW_TEXTS if name in data.column_names])
        batches: batching.TokenBatches | batching.ProcessBatches
        if self.args.tokens_per_batch is not None:
            packed = isinstance(self.data_collator, PackedBatches)
            batches = batching.TokenBatches.of(batching.row_lengths(rows), self.args, packed=packed)
        else:
            part = self.args.train_batch_size, self.args.data_processes, self.args.data_process
            order, drop_last = self.training_order(rows), self.args.dataloader_drop_last
            batches = batching.ProcessBatches(order, *part, drop_last=drop_last)
            self.idle_at_end = batches.idle
        rows = self._remove_unused_columns(rows, description="training")
        return self._loader(rows, self.data_collator, batch_sampler=batches)

    def _loader(self, rows: Any, collate: Any, **options: Any) -> DataLoader:
        names = "num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "multiprocessing_context"
        workers = {name: getattr(self.args, f"dataloader_{name}") for name in names}
        loader: DataLoader = DataLoader(rows, collate_fn=collate, **options, **workers)
        # The batches are this process's already: with num_processes=1 accelerate does not divide them again.
        whole = {"num_processes": 1, "process_index": 0, "dispatch_batches": False}
        return prepare_data_loader(loader, self.args.device, put_on_device=True, **whole)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        """Read the batches of a step, and those of the next for a counted budget, which ends at the nearest step."""
        iterator, step = self.ahead
        if iterator is not epoch_iterator:  # of a new epoch, or nothing is read ahead
            step = self._read_step(epoch_iterator, num_batches, device)
        if isinstance(self.budget, CountedBudget):
            following = self._read_step(epoch_iterator, self.args.gradient_accumulation_steps, device)
            self.ahead = epoch_iterator, following
            size = partial(self.account.size_of, flops=self.budget.option == "max_flops")
            sizes = [sum(from_all(sum(map(size, samples)), device)) for samples, *_ in (step, following)]
            self.budget.sizes = sizes[0], sizes[1]
        samples, items, self.idle, self.second_items = step
        return samples, items

    def _read_step(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[Any, Any, bool, Any]:
        """Return a step's batches, number of targets, whether its last batch is idle, and number of second targets."""
        samples = list(islice(epoch_iterator, num_batches))
        idle = self.idle_at_end and self.accelerator.gradient_state.end_of_dataloader
        working, second = samples[: len(samples) - idle], None
        first = samples[0] if samples else {}
        if targets_name(first) == PATCHES:
            return samples, self._total([batch[PATCHES].sum() for batch in working], device), idle, None
        if PAIRS in first:
            second = self._total([(batch[PAIRS] != IGNORE_INDEX).sum() for batch in working], device)
        if idle:
            samples[-1] |= {"labels": torch.full_like(samples[-1]["labels"], IGNORE_INDEX, dtype=torch.long)}
        # A number can be -100 and counts nevertheless
        counted = [
            batch | {"labels": torch.zeros_like(batch["labels"])} if batch["labels"].is_floating_point() else batch
            for batch in samples
        ]
        return samples, self._get_num_items_in_batch(counted, device), idle, second

    def _total(self, counts: list[torch.Tensor], device: torch.device) -> torch.Tensor:
        """Return the sum of numbers of targets, over all processes unless each averages over its own targets."""
        count: Any = torch.as_tensor(sum(counts), device=device)
        if self.args.average_tokens_across_devices and self.args.world_size > 1:
            count = self.accelerator.gather(count)[:: self.get_tp_size()]
        return count.sum().clamp(min=1)

    # ------------------------------------------------------------------------------------------------ optimizer
    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        return decaying_names(model, super().get_decay_parameter_names(model))

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        given = self.optimizer is not None
        if not given and self.args.optim in OPTIMIZERS:
            trained: Any = self.model if model is None else model
            decaying = set(self.get_decay_parameter_names(trained))
            self.optimizer = build_optimizer(self.args.optim, trained, decaying, self.args)
        built = super().create_optimizer(model)
        if not given:
            scale_rates(built, self.model)
        return built

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Resume with the options of this run; the learning rate of a schedule that follows a score stays."""
        given = [{**group, "params": None} for group in self.optimizer.param_groups]
        super()._load_optimizer_and_scheduler(checkpoint)
        for number, (group, options) in enumerate(zip(self.optimizer.param_groups, given)):
            old, new = (each.get("initial_lr") for each in (group, options))
            group |= {name: value for name, value in options.items() if name not in ("params", "lr", "initial_lr")}
            if old and new and old != new:
                self.lr_scheduler.base_lrs[number] = group["initial_lr"] = new
                self.lr_scheduler._last_lr[number] = group["lr"] = group["lr"] * new / old

    def log(self, logs: dict[str, float], *arguments: Any) -> None:
        if "train_loss" in logs:  # of all steps, not of those since the run was resumed
            logs["train_loss"] = self._total_loss_scalar / max(1, self.state.global_step - self.account.losses_since)
        super().log(logs, *arguments)

    def _init_training_state(self, max_steps: int, *arguments: Any, **keywords: Any) -> tuple[int, int]:
        found = super()._init_training_state(max_steps, *arguments, **keywords)
        self.state.compute_steps(self.args, max_steps)  # the intervals of the checkpoint may be of a shorter run
        return found

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LRScheduler:
        budget, warmup = self.budget, self.args.warmup_steps
        follows = budget is not None and self.lr_scheduler is None
        follows = follows and (warmup < 1 or self.args.lr_scheduler_type not in ENDLESS)
        steps = SCHEDULE_STEPS if follows else num_training_steps
        warmup = WARMUP_SHARE if follows and warmup >= 1 else warmup
        with temporarily(self.args, lr_scheduler_kwargs=schedule_options(self.args, steps), warmup_steps=warmup):
            scheduler = super().create_scheduler(steps, optimizer)
        if budget is not None and follows and isinstance(scheduler, LambdaLR):  # others follow a score
            scheduler.lr_lambdas = [follow(budget, schedule) for schedule in scheduler.lr_lambdas]
        return scheduler

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        values = super().set_initial_training_values(args, dataloader)
        steps_in_epoch = values[1]
        if self.budget is not None and args.max_epochs is not None and steps_in_epoch < UNLIMITED:  # not a stream
            self.budget.largest = math.ceil(args.max_epochs * steps_in_epoch)
        return values

    # ------------------------------------------------------------------------------------------------ steps and loss
    @property
    def has_copy(self) -> bool:
        """Return whether the batch is a copy of another process's, whose loss does not count."""
        return self.idle and self.accelerator.sync_gradients

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *arguments: Any, **keywords: Any) -> Any:
        if isinstance(self.train_dataset, StreamedRows):
            self.train_dataset.train_on(inputs.pop(PLACES), self._train_batch_size * self.args.data_processes)
        reading = self.account.reading = self.account.read(inputs)
        if not self.has_copy:
            self.account.step[0] += reading.rows
            self.account.step[1] += reading.tokens
        loss = super().training_step(model, inputs, *arguments, **keywords)
        self.non_finite |= not bool(loss.isfinite().all())
        if self.budget is not None:
            images = "pixel_values" in inputs
            self.budget.unit = "images" if images else "tokens"
            self.budget.tokens += (reading.rows if images else reading.tokens) / self.get_tp_size()  # shared rows
        return loss

    def _get_grad_norm(self, *arguments: Any, **keywords: Any) -> Any:
        """Return the norm of a step's gradient; where loss or gradient are not finite, stop all processes alike."""
        norm = super()._get_grad_norm(*arguments, **keywords)
        # In half precision, overflowing gradients are normal: the loss scale adapts, and such steps are skipped
        self.non_finite |= not (self.args.fp16 or bool(torch.as_tensor(norm).isfinite()))
        if any(from_all(int(self.non_finite), self.args.device)):
            rate = self.optimizer.param_groups[0]["lr"]
            raise ValueError(
                f"the loss or its gradient is NaN or infinite at step {self.state.global_step + 1:,} (learning rate "
                f"{rate:.3g}); the weights are those before it, {resume_point(Path(self.args.output_dir))}. Try a "
                "lower --learning_rate or a longer --warmup_steps"
            )
        return norm

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
            return 0 * model(**losses.without_labels(inputs))[0].float().sum()
        self.account.count(WITH_GRADIENT)
        items = torch.as_tensor(num_items_in_batch).clamp(min=1)  # without any target the loss is 0
        if PATCHES in inputs:  # the loss is a mean over hidden patches
            return super().compute_loss(model, inputs) * (inputs[PATCHES].sum() / items) * self._scale()
        inputs = losses.with_hidden_tokens(inputs, self.args.token_dropout)
        if (gold := losses.gold_probability(self.args, self.state.global_step)) < 1:
            self.account.count(1, labeled=False)
            inputs = losses.scheduled_sampling_inputs(model, inputs, gold)
        if self.args.r_drop:  # each row twice
            self.account.count(WITH_GRADIENT)
        loss = losses.training_loss(model, inputs, self.args, items=items, second_items=self.second_items)
        return loss * self._scale()

    def _scale(self) -> int:
        """Return the factor of a loss: the number of parts of the sum that torch averages.

        That is the number of processes with different rows, unless each divides by its own number of targets.
        """
        if not self.args.average_tokens_across_devices:
            return 1
        return self.accelerator.num_processes // self.get_tp_size() if self.args.n_gpu <= 1 else self.args.n_gpu


class TranslationTrainer(RunTrainer, Seq2SeqTrainer):
    """`RunTrainer` that generates as `Seq2SeqTrainer` does, and scores translations against the data's targets."""

    def evaluation_loop(self, *arguments: Any, **keywords: Any) -> Any:
        compute: Any = self.compute_metrics
        rows = self.evaluated
        if compute is not None and isinstance(rows, Dataset) and "target" in rows.column_names:
            ordered = rows.select(batching.evaluation_order(rows))
            groups = {"groups": list(ordered[GROUP])} if GROUP in rows.column_names else {}
            self.compute_metrics = partial(compute, references=list(ordered["target"]), **groups)
        try:
            output = super().evaluation_loop(*arguments, **keywords)
        finally:
            self.compute_metrics = compute
        if self.budget is not None and output.predictions is not None:
            # By which factor translating takes longer once outputs are as long as the references
            padding, size, sides = self.model.config.pad_token_id, self.args.eval_batch_size, output[:2]
            written, wanted = (((ids != padding) & (ids != IGNORE_INDEX)).sum(axis=1) for ids in sides)
            batches = range(0, len(written), size)  # a batch takes as long as its longest row
            steps = [sum(lengths[start : start + size].max() for start in batches) for lengths in (written, wanted)]
            growth = max(1.0, wanted.sum() / max(1, written.sum()), steps[1] / max(1, steps[0]))
            self.budget.growth = float(growth)
        return output
