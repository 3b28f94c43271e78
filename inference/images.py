"""Images in, labels out: how `vanillaformer generate --image` runs an image classifier."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from vanillaformer.data.images import ENDINGS, image_files, pillow, read_image
from vanillaformer.data.tasks import TASKS
from vanillaformer.hub.file_names import IMAGE_PROCESSOR
from vanillaformer.hub.loading import open_image_processor

from .arguments import GenerateArguments
from .tasks import UNCERTAIN, model_on_device, open_folder
from .text_files import hint, output_stream, progress

TASK = TASKS["image_classification"]


def find_images(names: list[str]) -> list[Path]:
    """Return the images in a list of files and folders; raise ValueError for a missing path or an empty folder."""
    paths: list[Path] = []
    for name in names:
        path = Path(name)
        if not path.exists():
            raise ValueError(f"--image {name} does not exist: it must be a file or a folder")
        if not (files := list(image_files(path)) if path.is_dir() else [path]):
            raise ValueError(f"--image {name}: no images found (supported: {', '.join(ENDINGS)})")
        paths += files
    return paths


def load_classifier(arguments: GenerateArguments) -> tuple[Any, Any]:
    """Return an image classifier and its image processor; ValueError if the model does not classify images."""
    path = arguments.model_name_or_path
    folder, exported, _, architecture = open_folder(arguments)
    if not architecture.endswith(TASK.architectures):
        raise ValueError(f"--image: --model {path} does not classify images, its architecture is {architecture}")
    if not (folder / IMAGE_PROCESSOR).is_file():
        raise ValueError(f"--model {path} has no {IMAGE_PROCESSOR}, which defines how images are preprocessed")
    processor = open_image_processor(folder, f"--model {path}")
    return exported or model_on_device(TASK.auto_class, folder, arguments), processor


def image_probabilities(model: Any, processor: Any, images: list[Any]) -> torch.Tensor:
    """Return the probability of each class for each image, a `PIL.Image.Image` in RGB (images, classes)."""
    pixels = processor(images, return_tensors="pt")["pixel_values"].to(model.device, model.dtype)
    return model(pixel_values=pixels).logits.float().softmax(dim=-1)


def classified(
    model: Any, processor: Any, paths: list[Path], batch_size: int, reject_below: float
) -> Iterator[dict[str, Any]]:
    """Yield for each image its name with `label` and `probability`, or with `error` if it cannot be read."""
    for start in range(0, len(paths), batch_size):
        part, images = [], []
        for path in paths[start : start + batch_size]:
            part.append({"image": str(path)})
            try:
                images.append(read_image(path))
            except ValueError as error:
                part[-1]["error"] = str(error)
        if images:
            best = image_probabilities(model, processor, images).max(dim=-1)
            answers = zip(best.indices.tolist(), best.values.tolist())
            for record, (label, value) in zip((each for each in part if "error" not in each), answers):
                name = model.config.id2label[label] if value >= reject_below else UNCERTAIN
                record.update(label=name, probability=round(value, 6))
        yield from part


def classify_images(arguments: GenerateArguments) -> None:
    """Write label and probability of each image, of several with names; ValueError at the end if one is unreadable."""
    pillow()
    paths = find_images(arguments.image)
    model, processor = load_classifier(arguments)
    bad: list[str] = []
    with (
        torch.inference_mode(),
        output_stream(arguments.output_file) as stream,
        progress(len(paths), "images", shown=len(paths) > arguments.batch_size) as advance,
    ):
        for record in classified(model, processor, paths, arguments.batch_size, arguments.reject_below or 0.0):
            advance(1)
            if "error" in record:
                bad.append(f"{record['image']} cannot be read: {record['error']}")
                if len(paths) > 1:
                    hint(bad[-1])
            if arguments.output_format == "jsonl":
                print(json.dumps(record, ensure_ascii=False), file=stream, flush=True)
            elif "error" not in record:
                name = f"{record['image']}\t" if len(paths) > 1 else ""
                print(f"{name}{record['label']}\t{record['probability']:.4f}", file=stream, flush=True)
    if bad:
        raise ValueError(bad[0] if len(paths) == 1 else f"{len(bad):,} of {len(paths):,} images cannot be read")
