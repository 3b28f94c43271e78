"""Train a classifier of images, from scratch or from a masked image model, or train that model.

Without arguments: a small Vision Transformer that reads the handwritten digits of scikit-learn.

Examples:
  vanillaformer train-image-classifier --train_file photos --preset vit-mini --image_size 64
  vanillaformer train-image-classifier --train_file photos --objective masked_image
  vanillaformer train-image-classifier --train_file photos --model_name_or_path runs/masked_image
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from warnings import catch_warnings, filterwarnings

import numpy as np
from datasets import Dataset, DatasetDict
from sklearn.linear_model import RidgeClassifier
from sklearn.neighbors import NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from transformers import PreTrainedConfig, PreTrainedModel, TrainingArguments

from vanillaformer.configuration import preset
from vanillaformer.console.limits import BETWEEN, option
from vanillaformer.console.reporting import warn
from vanillaformer.data.arguments import ImageDataArguments
from vanillaformer.data.caching import batch_size
from vanillaformer.data.image_rows import usual_patch
from vanillaformer.data.images import CHANNELS, pillow
from vanillaformer.data.loading import TaskData
from vanillaformer.data.preprocessing import images
from vanillaformer.data.streaming import StreamedRows, TextStream
from vanillaformer.data.targets import PATCHES
from vanillaformer.data.tasks import ImageObjective
from vanillaformer.hub.file_names import IMAGE_PROCESSOR
from vanillaformer.hub.loading import open_config, open_image_processor

from ..arguments import ModelArguments
from ..metrics.compute import classification_metrics
from ..metrics.scores import compute_scores
from ..report.baselines import MAJORITY, Baseline, BaselineData, Scorer, Scores, batches_of
from ..report.calibration import fit_outputs
from ..report.classes import class_records
from ..run_folder.files import EXAMPLE
from ..run_folder.run import Run
from ..training_arguments import EVALUATION, OPTIMIZER, OUTPUT, TRAINING, RunDefaults, best_checkpoint_help
from .base import Default, HardwareFacts, TrainingTask

MOST_EPOCHS, FEWEST_EPOCHS = 60, 10  # passes over few and over many images
SMALL = 20  # pixels of a side below which a shift by one changes too much
IMAGES_SEEN = 30_000  # over all passes, after which a small model of few images is as good as it gets
MAX_VALUES = 2**27
"""Maximum number of pixel values to fit a classifier on, 512 MiB; of more training images, an even selection."""
AT_ONCE = 100  # images whose hidden patches are compared together
FEATURES = 3_072  # maximum values that the linear classifier reads; of larger images every second, third ... pixel
STEPS = ("do_center_crop", "do_flip_channel_order", "do_pad", "resample")  # of other image processors
RIDGE = 0.01  # weight of the squared coefficients of the linear classifier, by training image


@dataclass
class ImageTrainingArguments(images.AugmentationArguments, RunDefaults, TrainingArguments):  # type: ignore[misc]
    """Training arguments of `train-image-classifier`."""

    HELP_GROUP = TRAINING

    output_dir: str | None = option(None, "Folder of the run, resumed if unfinished (default: runs/OBJECTIVE)", OUTPUT)
    objective: ImageObjective = option("image_classification", "Training objective; masked_image as SimMIM")
    mask_ratio: float = option(0.6, "Fraction of hidden patches, for masked_image", limit=BETWEEN)
    learning_rate: float = option(2e-3, "Peak learning rate", OPTIMIZER)
    lr_scheduler_type: str = option("cosine", "Learning rate schedule: cosine, linear, ...", OPTIMIZER)
    weight_decay: float = option(0.05, "Decoupled weight decay of the matrices", OPTIMIZER)
    metric_for_best_model: str | None = option(
        None, f"{best_checkpoint_help('image_classification')} (default: accuracy, for masked_image loss)", EVALUATION
    )
    baseline: bool = option(False, "Score a linear classifier on the same rows", EVALUATION)
    calibrate: bool = option(True, "Calibrate probabilities on validation data", EVALUATION)
    train_sampling_strategy: str = option("random", "Order of the rows", choices=["random", "sequential"])

    def __post_init__(self) -> None:
        if self.tokens_per_batch is not None:
            raise ValueError(f"--tokens_per_batch {self.tokens_per_batch}: images have no tokens")
        if self.objective == "masked_image":
            for name in ("random_erasing", "label_smoothing_factor", "r_drop", "baseline"):
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


class Images(TrainingTask):
    """Images for an encoder: with labels, or with hidden patches to fill in."""

    program = "train-image-classifier"
    arguments = (ModelArguments, ImageDataArguments, ImageTrainingArguments)
    auto_defaults = ("image_classification",)
    follow = "shift, smoothing, batch and epochs"

    def check(self) -> None:
        pillow()
        classifies = self.name == "image_classification"
        self.baselines = (MAJORITY, NEAREST_MEAN) if classifies else (MEAN_IMAGE,)
        self.trained_baselines = (PIXELS,) if classifies else ()

    def fit_to_model(self) -> None:
        """Set the size of the images to that of the model where it has one; otherwise it follows the data."""
        model_args = self.model_args
        changes, saved = model_args.config_overrides(), model_args.saved
        config: PreTrainedConfig | None = None
        if saved is not None or model_args.preset is not None:
            config = open_config(saved) if saved is not None else preset(str(model_args.preset))
        size = changes.get("image_size", getattr(config, "image_size", None))
        if isinstance(size, list | tuple) and len(set(size)) == 1:
            size = size[0]
        if size is not None and not isinstance(size, int):
            raise ValueError(f"image_size={size} of the model: the program reads square images")
        if ("image_size" in changes or saved is not None) and self.data_args.image_size not in (None, size):
            raise ValueError(f"--image_size {self.data_args.image_size}: the model has image_size={size}")
        channels = changes.get("num_channels", getattr(config, "num_channels", CHANNELS))
        if channels != CHANNELS:
            raise ValueError(f"num_channels={channels} of the model: images are read in color, of {CHANNELS} channels")
        self.data_args.image_size = self.data_args.image_size or size

    def defaults(self, data: TaskData, hardware: HardwareFacts) -> list[Default]:
        found = image_defaults(len(data.splits["train"]), self.data_args.image_size or 0)
        return [entry for entry in found if data.stream is None or entry.option != "max_epochs"]

    def example(self, run: Run, data: TaskData) -> str:
        return str(run.folder / EXAMPLE)

    def rows(self, data: TaskData) -> DatasetDict:
        saved, size = self.model_args.saved, self.data_args.image_size
        if saved is None or not (saved / IMAGE_PROCESSOR).is_file():
            self.processor = images.new_processor(data.splits["train"], size)
        else:
            found = open_image_processor(saved, f"--model_name_or_path {self.model_args.model_name_or_path}")
            self.processor = images.image_processor(size, *images.normalization(found))
            old, new = ({name: getattr(each, name, 0) or 0 for name in STEPS} for each in (found, self.processor))
            if left_out := [f"{name}={value}" for name, value in old.items() if value != new[name]]:
                warn(f"--model_name_or_path: images are resized to {size}, bilinear, without {', '.join(left_out)}.")
        names = {"image": "pixel_values", "label": "labels"}
        columns = data.splits["train"].column_names
        return data.splits.rename_columns({name: names[name] for name in names if name in columns})

    def stream(self, texts: TextStream) -> StreamedRows:
        return StreamedRows(texts, images.encode_images)

    def fields(self) -> dict[str, Any]:
        size = self.data_args.image_size
        patch = {"patch_size": usual_patch(size)} if self.model_args.preset is None else {}
        return {"image_size": size, **patch}

    def collator(self, model: PreTrainedModel, rows: DatasetDict) -> Any:
        options = self.training_args
        if self.name == "image_classification":
            return images.ImageCollator(self.processor, options, options.seed)
        return images.PatchMasking(self.processor, model.config.patch_size, options.mask_ratio, options, options.seed)

    def scoring(self, run: Run) -> dict[str, Any]:
        scored = {"compute_metrics": classification_metrics} if self.name == "image_classification" else {}
        return {"processing_class": self.processor, **scored}

    def after_training(self, run: Run, trainer: Any, rows: Any) -> None:
        fit_outputs(run, trainer, rows)

    def records(self, run: Run, trainer: Any, rows: Dataset, output: Any, split: str) -> Any:
        return class_records(run, trainer.model.config.id2label, ("image", rows["name"]), output, split)

    def finish(self, run: Run, data: TaskData) -> None:
        if self.training_args.should_save:  # an image as the model sees it
            size = self.data_args.image_size
            pillow().frombytes("RGB", (size, size), data.splits["validation"][0]["image"]).save(run.folder / EXAMPLE)


def image_defaults(rows: int, size: int) -> list[Default]:
    """Return the defaults of a classifier for a number of training images, with sides of `size` pixels."""
    epochs = max(FEWEST_EPOCHS, min(MOST_EPOCHS, round(IMAGES_SEEN / rows)))
    return [
        *([Default("shift", round(size / 14), "a shifted image has the same class")] if size >= SMALL else []),
        Default("label_smoothing_factor", 0.1, "fewer overconfident predictions"),
        Default("per_device_train_batch_size", 32 if rows < 5_000 else 64, f"{rows:,} images"),
        Default("max_epochs", epochs, f"{rows:,} images"),
    ]


def fit_on_pixels(data: Dataset, build: Callable[[int], Any]) -> Scorer:
    """Fit a classifier, built for a number of images, and return a function that scores it on held-out images."""
    count = min(len(data), max(1, MAX_VALUES // len(data[0]["image"])))
    data = data.select(np.linspace(0, len(data) - 1, count).round().astype(int))
    pixels, classes = (np.concatenate(side) for side in zip(*_batches(data)))
    with catch_warnings():
        filterwarnings("ignore", ".*zero standard deviation")  # pixels that are equal in all images, as at a border
        classifier = build(count).fit(pixels, classes)

    def score(rows: Dataset) -> Scores:
        pairs = [(classifier.predict(pixels), labels) for pixels, labels in _batches(rows)]
        chosen, labels = (np.concatenate(side) for side in zip(*pairs))
        return compute_scores("classes", "ids", chosen, labels)

    return score


def mean_image(data: BaselineData) -> Scorer:
    """Predict every hidden pixel by its mean in the training images; the score is the loss."""
    mean = sum(pixels.sum(axis=0, dtype=np.float64) for pixels, _ in _batches(data.texts)) / len(data.texts)
    collator = data.collator
    normalized = collator.normalized((mean * 255).round().astype(np.uint8).tobytes())

    def score(rows: Dataset) -> Scores:
        total, hidden = 0.0, 0
        with collator.evaluation():
            for batch in batches_of(rows, collator, AT_ONCE):
                mask = collator.pixel_mask(batch["bool_masked_pos"])  # (B, H, W)
                differences = (batch["pixel_values"] - normalized).abs().mean(dim=1)
                total, hidden = total + differences[mask].sum().item(), hidden + int(mask.sum())
        return {"loss": total / hidden}

    return score


def _batches(rows: Dataset) -> Iterator[tuple[np.ndarray, Any]]:
    """Yield pixels from 0 to 1 (B, H · W · C) and labels (B), None without any, from raw or prepared rows."""
    names = rows.column_names
    image = "image" if "image" in names else "pixel_values"
    label = next((name for name in ("label", "labels") if name in names), None)
    for table in rows.with_format("arrow").iter(batch_size(rows)):
        cells = table[image].to_pylist()
        pixels = np.frombuffer(b"".join(cells), np.uint8).reshape(len(cells), -1).astype(np.float32) / 255
        yield pixels, None if label is None else np.asarray(table[label])


def smaller(pixels: np.ndarray) -> np.ndarray:
    """Return square images (B, F) with at most `FEATURES` values."""
    side = round((pixels.shape[1] / CHANNELS) ** 0.5)
    step = max(1, -(-side // int((FEATURES / CHANNELS) ** 0.5)))
    return pixels.reshape(len(pixels), side, side, CHANNELS)[:, ::step, ::step].reshape(len(pixels), -1)


NEAREST_MEAN = Baseline(
    "nearest mean image",  # Rocchio
    lambda data: fit_on_pixels(data.texts, lambda count: NearestCentroid()),
)
MEAN_IMAGE = Baseline("mean image", mean_image)
PIXELS = Baseline(
    "linear classifier of pixels",
    lambda data: fit_on_pixels(
        data.texts, lambda count: make_pipeline(FunctionTransformer(smaller), RidgeClassifier(alpha=RIDGE * count))
    ),
)
