"""Training arguments of the program that trains on images."""

from dataclasses import dataclass, field

from transformers import TrainingArguments

from vanillaformer.console.transformers_help import EVALUATION, OPTIMIZER, OUTPUT, TRAINING
from vanillaformer.data.preprocessing.augmentation import AugmentationArguments
from vanillaformer.data.targets import PATCHES
from vanillaformer.data.tasks import ImageObjective

from .trainer.losses import EnsembleArguments
from .training_arguments import RunDefaults, best_checkpoint_help


@dataclass
class ImageTrainingArguments(AugmentationArguments, EnsembleArguments, RunDefaults, TrainingArguments):  # type: ignore[misc]
    """Training arguments of `train-image-classifier`."""

    HELP_GROUP = TRAINING

    output_dir: str | None = field(
        default=None,
        metadata={
            "help": "Folder of the run, resumed if unfinished (default: runs/ and the objective)",
            "group": OUTPUT,
        },
    )
    objective: ImageObjective = field(
        default="image_classification", metadata={"help": "Prediction of classes, or of hidden patches (SimMIM)"}
    )
    mask_ratio: float = field(default=0.6, metadata={"help": "Fraction of hidden patches, for masked_image"})
    learning_rate: float = field(default=2e-3, metadata={"help": "Peak learning rate", "group": OPTIMIZER})
    lr_scheduler_type: str = field(
        default="cosine", metadata={"help": "Learning rate schedule: cosine, linear, ...", "group": OPTIMIZER}
    )
    weight_decay: float = field(
        default=0.05, metadata={"help": "Decoupled weight decay of the matrices", "group": OPTIMIZER}
    )
    metric_for_best_model: str | None = field(
        default=None,
        metadata={
            "help": f"{best_checkpoint_help('image_classification')} (default: accuracy, for masked_image loss)",
            "group": EVALUATION,
        },
    )
    baseline: bool = field(
        default=False, metadata={"help": "Score a linear classifier of pixels on the same rows", "group": EVALUATION}
    )
    calibrate: bool = field(
        default=True,
        metadata={"help": "Calibrate the probabilities on validation data (temperature)", "group": EVALUATION},
    )
    train_sampling_strategy: str = field(
        default="random", metadata={"help": "Order of the rows", "choices": ["random", "sequential"]}
    )

    def __post_init__(self) -> None:
        AugmentationArguments.check(self)
        if self.tokens_per_batch is not None:
            raise ValueError(f"--tokens_per_batch {self.tokens_per_batch}: images have no tokens")
        if not 0 < self.mask_ratio < 1:
            raise ValueError(f"--mask_ratio {self.mask_ratio}: it must lie between 0 and 1")
        if self.objective == "masked_image":
            for name in ("mixup", "random_erasing", "label_smoothing_factor", "r_drop", "ensemble", "baseline"):
                if value := getattr(self, name):
                    raise ValueError(f"--{name} {value} is for --objective image_classification, not {self.objective}")
            self.calibrate = False
        if self.output_dir is None:
            self.output_dir = f"runs/{self.objective}"
        if self.metric_for_best_model is None:
            self.metric_for_best_model = "loss" if self.objective == "masked_image" else "accuracy"
        self.choose_by(self.objective)
        super().__post_init__()
        if self.objective == "masked_image":
            self.label_names = [PATCHES]  # what the loss needs
