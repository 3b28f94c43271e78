"""What a model of images takes from its data, and the data from the model: sizes, and the image processor."""

from typing import Any

from datasets import Dataset
from transformers import PreTrainedConfig

from vanillaformer.configuration import preset
from vanillaformer.data.image_rows import usual_patch
from vanillaformer.data.images import CHANNELS
from vanillaformer.data.preprocessing.images import image_processor, new_processor
from vanillaformer.hub.file_names import IMAGE_PROCESSOR
from vanillaformer.hub.image_processors import open_image_processor
from vanillaformer.hub.loading import open_config

from .arguments import ModelArguments
from .models import Fields


def set_image_size(model_args: ModelArguments, data_args: Any) -> None:
    """Set the size of the images to that of the model where it has one; otherwise it follows the data.

    Raises:
        ValueError: The images of the model are not square, or of another size than is asked for.
    """
    changes, saved = model_args.config_overrides(), model_args.saved
    config: PreTrainedConfig | None = None
    if saved is not None or model_args.preset is not None:
        config = open_config(saved) if saved is not None else preset(str(model_args.preset))
    size = changes.get("image_size", getattr(config, "image_size", None))
    if isinstance(size, list | tuple) and len(set(size)) == 1:
        size = size[0]
    if size is not None and not isinstance(size, int):
        raise ValueError(f"image_size={size} of the model: the program reads square images")
    fixed = "image_size" in changes or saved is not None
    if fixed and data_args.image_size not in (None, size):
        raise ValueError(f"--image_size {data_args.image_size}: the model has image_size={size}")
    channels = changes.get("num_channels", getattr(config, "num_channels", CHANNELS))
    if channels != CHANNELS:
        raise ValueError(f"num_channels={channels} of the model: images are read in color, of {CHANNELS} channels")
    data_args.image_size = data_args.image_size or size


def image_fields(model_args: ModelArguments, size: int) -> Fields:
    """Return the fields of a new model that follow the size of its images."""
    return {"image_size": size} | ({"patch_size": usual_patch(size)} if model_args.preset is None else {})


def prepare_processor(model_args: ModelArguments, rows: Dataset, size: int) -> Any:
    """Return the image processor of a saved model, or a new one that normalizes by the images.

    Args:
        model_args: Which model training begins with.
        rows: The training images.
        size: Height and width in pixels.

    Raises:
        ValueError: The processor of the saved model cannot be read.
    """
    saved = model_args.saved
    if saved is None or not (saved / IMAGE_PROCESSOR).is_file():
        return new_processor(rows, size)
    found = open_image_processor(saved, f"--model_name_or_path {model_args.model_name_or_path}")
    return image_processor(size, list(found.image_mean), list(found.image_std))
