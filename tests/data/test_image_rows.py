"""Images from folders, files and columns: the same pixels and classes, and what cannot be used is named."""

import os

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Image, Value
from PIL import Image as Pillow
from refusals import refused

from vanillaformer.data.arguments import ImageDataArguments
from vanillaformer.data.image_rows import usual_patch
from vanillaformer.data.loading import load_data
from vanillaformer.data.rows import label_names

from .test_images import png as saved

SIZE = 8


def picture(number: int, size: int = SIZE) -> Pillow.Image:
    return Pillow.fromarray(np.random.default_rng(number).integers(0, 256, (size, size, 3), dtype=np.uint8))


def png(number: int, size: int = SIZE) -> bytes:
    return saved(picture(number, size))


@pytest.fixture
def folder(tmp_path):
    for number in range(12):
        path = tmp_path / "photos" / ["cat", "dog"][number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(number))
    return tmp_path / "photos"


def load(path, task="image_classification", **options):
    arguments = ImageDataArguments(train_file=[str(path)], validation_fraction=0.2, **options)
    return load_data(arguments, task), arguments


def contents(splits) -> set:
    rows = [row for part in splits.values() for row in part]
    return {(row["image"], row.get("label")) for row in rows}


def expected() -> set:
    return {(picture(number).tobytes(), number % 2) for number in range(12)}


def test_a_folder_of_classes(folder):
    data, arguments = load(folder)
    assert arguments.image_size == SIZE, "that of the images"
    assert (label_names(data.splits), contents(data.splits)) == (["cat", "dog"], expected())
    assert {len(part) for part in data.splits.values()} == {10, 2}
    assert set(data.splits["validation"]["label"]) == {0, 1}
    for row in data.splits["train"]:
        assert row["name"].startswith(str(folder))
    again, _ = load(folder, image_size=4)
    assert {len(row["image"]) for row in again.splits["train"]} == {4 * 4 * 3}
    unlabelled, _ = load(folder, "masked_image")
    assert unlabelled.splits["train"].column_names == ["image", "name"]
    assert {image for image, _ in contents(unlabelled.splits)} == {image for image, _ in expected()}


def test_images_are_read_again_once_others_took_their_names_sizes_and_times(tmp_path):
    for first in (0, 2):
        for number in range(2):
            path = tmp_path / f"{number}.bmp"
            picture(first + number).save(path)
            os.utime(path, ns=(0, 0))  # as archives that can be reproduced set it
        data, _ = load(tmp_path, "masked_image")
        found = {row["image"] for part in data.splits.values() for row in part}
        assert found == {picture(first + number).tobytes() for number in range(2)}


@pytest.mark.parametrize("kind", ["csv", "parquet", "bytes"])
def test_files_with_a_column_of_images(folder, kind):
    labels = [number % 2 for number in range(12)]
    paths = [f"photos/{['cat', 'dog'][number % 2]}/{number}.png" for number in range(12)]
    path = folder.parent / f"data.{'csv' if kind == 'csv' else 'parquet'}"
    if kind == "csv":
        Dataset.from_dict({"file": paths, "kind": labels}).to_csv(path)
    else:
        features = Features({"file": Image(), "kind": ClassLabel(names=["0", "1"])})
        cells = [{"bytes": png(number), "path": None} for number in range(12)]
        if kind == "bytes":
            features["file"], cells = Value("binary"), [cell["bytes"] for cell in cells]
        Dataset.from_dict({"file": cells, "kind": labels}, features=features).to_parquet(path)
    data, _ = load(path, image_column="file", label_column="kind")
    assert (contents(data.splits), label_names(data.splits)) == (expected(), ["0", "1"])
    streamed, _ = load(path, image_column="file", label_column="kind", streaming=True, max_validation_samples=2)
    rows = [row for _, batch in streamed.stream.batches() for row in batch.rows]
    rows += list(streamed.splits["validation"])
    assert {(row["image"], row["label"]) for row in rows} == expected()


def test_a_bad_or_missing_image_is_named_or_left_out(folder, capsys):
    whole = png(0, 64)
    (folder / "cat" / "x.png").write_bytes(whole[: len(whole) // 2])
    (folder / "dog" / "y.jpg").write_text("no image")
    (folder / "dog" / "z.png").symlink_to(folder / "nothing")
    refused(r"photos, row 7: .*cat/x.png cannot be read: .*truncated.* \(3 such rows\)", load, folder)
    data, _ = load(folder, bad_rows="skip")
    assert (contents(data.splits), data.stats["train"]["bad rows left out"]) == (expected(), 3)
    assert "3 of 15 rows are bad and left out" in capsys.readouterr().out
    features, path = Features({"image": Image(), "label": Value("int64")}), folder.parent / "a.parquet"
    cells = [{"bytes": png(number), "path": None} for number in range(5)] + [None]
    Dataset.from_dict({"image": cells, "label": [0, 1] * 3}, features=features).to_parquet(path)
    refused("a.parquet, row 6: the image is missing", load, path)


def test_folders_that_cannot_be_used(folder, tmp_path):
    refused(r"12 images of 40000 by 40000 pixels take \d+ GiB: use --streaming", load, folder, image_size=40_000)
    (folder / "empty").mkdir()
    refused("--train_file .*photos: the folder empty has no images .*--bad_rows skip", load, folder)
    data, _ = load(folder, bad_rows="skip")
    assert label_names(data.splits) == ["cat", "dog"]
    (folder / "stray.png").write_bytes(png(3))
    refused(r"stray.png is not in a class folder \(1 such images\)", load, folder, bad_rows="skip")
    (tmp_path / "nothing").mkdir()
    refused("nothing: no images found", load, tmp_path / "nothing")
    refused("--streaming needs files, not the folder", load, folder, streaming=True)


@pytest.mark.parametrize(("side", "patch"), [(8, 2), (16, 2), (28, 4), (32, 4), (64, 8), (224, 32)])
def test_usual_patches(side, patch):
    assert usual_patch(side) == patch


def test_the_digits():
    data = load_data(ImageDataArguments(), "image_classification")
    assert {split: len(part) for split, part in data.splits.items()} == {"train": 1439, "validation": 179, "test": 179}
    assert label_names(data.splits) == [str(number) for number in range(10)]
    assert {len(image) for image in data.splits["train"]["image"]} == {8 * 8 * 3}
