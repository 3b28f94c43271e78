"""Settings of the training programs: transformers' own, with defaults for models trained from scratch."""

import sys
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from transformers import Seq2SeqTrainingArguments, TrainingArguments

from .adaptation import AdaptationArguments
from .averaging import AveragingArguments
from .batching import BatchArguments
from .guards import GuardArguments
from .losses import LossArguments
from .machine import warn_of_emulation
from .optimizers import OPTIMIZERS, OptimizerArguments
from .scores import ranking_names, ranking_score
from .sharding import ShardingArguments

TOPICS = (
    *(ShardingArguments, AveragingArguments, BatchArguments, LossArguments, OptimizerArguments, GuardArguments),
    AdaptationArguments,
)

Objective = Literal["causal", "masked", "mlm+nsp"]
AS_EVALUATION = "as_evaluation"
FOLLOWING = ("reduce_lr_on_plateau", "greedy")
"""Schedules that follow the score of --metric_for_best_model."""


def best_of(job: str) -> str:
    """Return the help text of --metric_for_best_model."""
    return f"Score that chooses the best checkpoint, with equal scores the loss: {', '.join(ranking_names(job))}."


@dataclass
class RunDefaults(
    ShardingArguments,
    AveragingArguments,
    BatchArguments,
    LossArguments,
    OptimizerArguments,
    GuardArguments,
    AdaptationArguments,
):
    """What the training programs set differently from `TrainingArguments`, whose other fields keep their defaults.

    To be put before it among the bases. Evaluation, saving and logging are given as fractions of the run, so that
    they fit a run of any length; saving follows evaluation, because the best checkpoint is kept.
    """

    output_dir: str | None = field(
        default=None, metadata={"help": "Folder of the run. An unfinished run in it is continued."}
    )
    overwrite_output_dir: bool = field(
        default=False, metadata={"help": "Delete the run that the folder holds and start anew."}
    )
    license: str | None = field(
        default=None, metadata={"help": "Licence of the model, for its card: apache-2.0, mit, cc-by-4.0, ..."}
    )
    num_train_epochs: float = field(default=3.0, metadata={"help": "Passes over the training data."})
    per_device_train_batch_size: int = field(default=64, metadata={"help": "Rows per step and process."})
    per_device_eval_batch_size: int = field(default=128, metadata={"help": "Rows per evaluation step and process."})
    learning_rate: float = field(default=1e-3, metadata={"help": "Peak learning rate."})
    warmup_steps: float = field(
        default=0.05, metadata={"help": "Steps of linear warm-up; below 1 a fraction of all steps."}
    )
    weight_decay: float = field(default=0.01, metadata={"help": "Decoupled weight decay of the matrices."})
    adam_beta2: float = field(default=0.98, metadata={"help": "Decay of Adam's second moment (Vaswani et al. 2017)."})
    logging_steps: float = field(default=0.02, metadata={"help": "Log so often; below 1 a fraction of all steps."})
    eval_strategy: str = field(default="steps", metadata={"help": "When to evaluate: steps, epoch or no."})
    eval_steps: float | None = field(
        default=0.1, metadata={"help": "Evaluate so often; below 1 a fraction of all steps."}
    )
    save_strategy: str = field(
        default=AS_EVALUATION, metadata={"help": f"When to save: steps, epoch, no or {AS_EVALUATION}."}
    )
    save_steps: float = field(
        default=0, metadata={"help": "Save so often; below 1 a fraction of all steps, 0 for as --eval_steps."}
    )
    save_total_limit: int | None = field(
        default=2, metadata={"help": "Checkpoints kept: the best and the last at least."}
    )
    load_best_model_at_end: bool = field(default=True, metadata={"help": "Keep the best checkpoint, not the last."})
    use_cache: bool = field(
        default=True, metadata={"help": "Written to the saved configuration; training itself never fills a cache."}
    )
    disable_tqdm: bool | None = field(
        default=None, metadata={"help": "No progress bars (default: only on a terminal)."}
    )

    def __post_init__(self) -> None:
        if self.save_strategy == AS_EVALUATION:
            self.save_strategy = "steps" if self.eval_strategy == "no" else self.eval_strategy
        if self.save_steps == 0:
            self.save_steps = self.eval_steps or 0.1
        if self.eval_strategy == "no":
            self.load_best_model_at_end = False
        if self.disable_tqdm is None:
            self.disable_tqdm = not sys.stderr.isatty()
        for topic in TOPICS:
            topic.check(self)
        if self.bf16 and not torch.accelerator.is_available():  # type: ignore[attr-defined]
            self.use_cpu = True  # transformers wants to be told
        optimizer = self.optim
        if optimizer in OPTIMIZERS:
            self.optim = "adamw_torch"  # transformers accepts only its own
        super().__post_init__()  # type: ignore[misc]  # of TrainingArguments, the next base
        if self.greater_is_better and self.lr_scheduler_type in FOLLOWING:  # type: ignore[attr-defined]
            self.lr_scheduler_kwargs = {"mode": "max", **(self.lr_scheduler_kwargs or {})}
        if optimizer in OPTIMIZERS:
            self.optim = optimizer
        self.check_processes()
        if self.device.type == "cpu":  # type: ignore[attr-defined]
            self.dataloader_pin_memory = False
            if self.bf16:
                warn_of_emulation("--bf16", "cpu")
            if self.fp16:  # type: ignore[attr-defined]
                raise ValueError("--fp16 needs an accelerator: on the CPU it would change nothing; --bf16 works there")

    def choose_by(self, job: str) -> None:
        """Set the score that chooses the best checkpoint by its plain name, and its direction.

        Raises:
            ValueError: The job has no such score, or `greater_is_better` contradicts its direction.
        """
        if self.metric_for_best_model is None:
            return
        score = ranking_score(self.metric_for_best_model, job)
        if self.greater_is_better not in (None, score.greater_is_better):
            raise ValueError(
                f"--greater_is_better {self.greater_is_better}: a {'greater' if score.greater_is_better else 'lower'} "
                f"{score.name} is better; leave the option out"
            )
        self.metric_for_best_model, self.greater_is_better = score.name, score.greater_is_better


@dataclass
class TranslationTrainingArguments(RunDefaults, Seq2SeqTrainingArguments):
    """Settings of `train_translation`."""

    output_dir: str | None = field(default="runs/translation", metadata={"help": "Folder of the run."})
    metric_for_best_model: str | None = field(default="bleu", metadata={"help": best_of("translation")})
    predict_with_generate: bool = field(default=True, metadata={"help": "Translate the validation data to score it."})
    generation_num_beams: int | None = field(
        default=1, metadata={"help": "Beams while training (the saved model and the test use --num_beams)."}
    )
    num_beams: int = field(default=4, metadata={"help": "Beams of the saved model."})
    length_penalty: float = field(
        default=1.0,
        metadata={
            "help": "Beams, saved with the model: scores are divided by length to this power; more for longer output."
        },
    )
    early_stopping: bool = field(
        default=False,
        metadata={"help": "Beams, saved with the model: stop as soon as as many outputs are complete as there are."},
    )
    train_sampling_strategy: str = field(
        default="group_by_length",
        metadata={"help": "How rows are put into batches.", "choices": ["random", "sequential", "group_by_length"]},
    )

    def __post_init__(self) -> None:
        _check_no_classifier(self)
        if self.num_beams < 1:
            raise ValueError(f"--num_beams {self.num_beams}: it must be at least 1")
        if not self.predict_with_generate:
            if self.metric_for_best_model not in ("bleu", "loss", "eval_loss"):
                raise ValueError(
                    f"--metric_for_best_model {self.metric_for_best_model} needs translations: not "
                    "--predict_with_generate False, with which loss is the only score"
                )
            self.metric_for_best_model = "loss"
        self.choose_by("translation")
        super().__post_init__()

    def search(self) -> dict[str, Any]:
        """Return how the saved model searches, as its generation config has it."""
        return {name: getattr(self, name) for name in ("num_beams", "length_penalty", "early_stopping")}


@dataclass
class LanguageModelTrainingArguments(RunDefaults, TrainingArguments):
    """Settings of `train_language_model`."""

    objective: Objective = field(
        default="causal",
        metadata={
            "help": "causal: predict the next token; masked: predict hidden tokens; mlm+nsp: predict hidden tokens "
            "and whether the second segment of a pair follows the first (BERT)."
        },
    )
    mlm_probability: float = field(
        default=0.15, metadata={"help": "masked and mlm+nsp: part of the tokens to predict."}
    )
    num_train_epochs: float = field(default=1.0, metadata={"help": "Passes over the training data."})
    per_device_train_batch_size: int = field(default=16, metadata={"help": "Blocks per step and process."})
    metric_for_best_model: str | None = field(
        default="loss",
        metadata={
            "help": f"{best_of('masked')} causal also: perplexity_per_character, perplexity_per_byte, bits_per_byte; "
            "mlm+nsp also: next_sentence_accuracy."
        },
    )

    def __post_init__(self) -> None:
        _check_no_classifier(self)
        if not 0 < self.mlm_probability < 1:
            raise ValueError(f"--mlm_probability {self.mlm_probability}: it must lie between 0 and 1")
        if self.scheduled_sampling != "none" and self.objective != "causal":
            raise ValueError(
                f"--scheduled_sampling {self.scheduled_sampling}: --objective {self.objective} feeds itself no tokens"
            )
        if self.token_dropout:
            raise ValueError(f"--token_dropout {self.token_dropout}: a language model predicts every token it reads")
        if self.output_dir is None:
            self.output_dir = f"runs/{self.objective.replace('+', '_')}_language_model"
        self.choose_by(self.objective)
        super().__post_init__()


@dataclass
class ClassifierTrainingArguments(RunDefaults, TrainingArguments):
    """Settings of `train_classifier`."""

    output_dir: str | None = field(default="runs/classifier", metadata={"help": "Folder of the run."})
    metric_for_best_model: str | None = field(default="accuracy", metadata={"help": best_of("classification")})
    train_sampling_strategy: str = field(
        default="group_by_length",
        metadata={"help": "How rows are put into batches.", "choices": ["random", "sequential", "group_by_length"]},
    )

    def __post_init__(self) -> None:
        if self.scheduled_sampling != "none":
            raise ValueError(f"--scheduled_sampling {self.scheduled_sampling}: a classifier feeds itself no tokens")
        self.choose_by("classification")
        super().__post_init__()


def _check_no_classifier(arguments: LossArguments) -> None:
    """Raise ValueError for what only a classifier's training has."""
    if arguments.lm_loss_weight:
        raise ValueError(f"--lm_loss_weight {arguments.lm_loss_weight}: only train_classifier has a second loss")
