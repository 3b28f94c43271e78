"""Images in rows: files in folders of classes, paths and bytes in columns; decoded once, into a file of pixels."""

import hashlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from datasets import Dataset, Features, Value
from datasets.fingerprint import generate_random_fingerprint

from vanillaformer.console.reporting import Advance, report, stage

from . import images
from .caching import arrow_file
from .formats import FILE, NAME, PROBLEM, ROW, ImageOptions, image_cell
from .images import CHANNELS, ENDINGS, image_files, pixels, read_image

DECODED = Features({"image": Value("large_binary"), NAME: Value("string"), PROBLEM: Value("string")})
AT_ONCE = 256  # images that are decoded together
MAX_FILE_BYTES = 2**35  # maximum bytes of the pixels of a split in a file
LOOKED_AT = 25  # images whose sizes determine the default
MAX_DEFAULT_SIDE = 64  # maximum default size in pixels: more does not help a small model

Cell = tuple[str, bytes | Path | None]
"""The name of an image's file, and its bytes or its path; None for a row without an image."""


def folder_rows(option: str, folder: Path, columns: Mapping[str, str], *, skip_bad: bool = False) -> Dataset:
    """Return the images in a folder as rows of paths, with the name of the subfolder of each as its class."""
    kinds = ", ".join(ENDINGS)
    paths = list(image_files(folder))
    if not paths:
        raise ValueError(f"--{option} {folder}: no images found (supported: {kinds})")
    rows: dict[str, list[Any]] = {columns["image_column"]: list(map(str, paths))}
    if "label_column" in columns:
        if stray := [path for path in paths if path.parent == folder]:
            raise ValueError(
                f"--{option} {folder}: {stray[0].name} is not in a class folder ({len(stray):,} such images): the "
                "images of each class must be in a folder with its name"
            )
        labels = [path.relative_to(folder).parts[0] for path in paths]
        inner = (path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
        for name in sorted({path.name for path in inner} - set(labels)):
            if not skip_bad:
                raise ValueError(
                    f"--{option} {folder}: the folder {name} has no images ({kinds}); remove it, or --bad_rows skip "
                    "leaves it out"
                )
            report(f"{folder}: the folder {name} has no images and is left out.")
        rows[columns["label_column"]] = labels
    features = Features(dict.fromkeys(rows, Value("string")) | {ROW: Value("int64")})
    return Dataset.from_dict({**rows, ROW: range(1, len(paths) + 1)}, features=features)


def usual_size(rows: Dataset, column: str, options: ImageOptions) -> int:
    """Return the default size of images: the median of their longer sides, in whole patches."""
    sides = []
    for _, source in islice(_cells(rows, column, options.folder), LOOKED_AT):
        try:
            sides.append(max(read_image(source).size) if source is not None else 0)
        except ValueError:  # reported when all are read
            continue
    side = min(MAX_DEFAULT_SIDE, int(median(sides or [MAX_DEFAULT_SIDE])))
    patch = usual_patch(side)
    return max(1, round(side / patch)) * patch


def usual_patch(side: int) -> int:
    """Return the default size of patches: a power of 2, so that there are at most 9 in a row."""
    patch = 2
    while side > 9 * patch:
        patch *= 2
    return patch


def decoded(rows: Dataset, column: str, options: ImageOptions) -> Dataset:
    """Return images as pixels: columns `image`, `NAME` and `PROBLEM`, which says why one cannot be read.

    The pixels are in a memory-mapped file, which is cached for the next run on the same images.
    """
    if not options.kept:
        table = pa.concat_tables([DECODED.arrow_schema.empty_table(), *_tables(rows, column, options)])
        return Dataset(table, fingerprint=generate_random_fingerprint())
    total = len(rows) * options.size**2 * CHANNELS
    if total > MAX_FILE_BYTES:
        raise ValueError(
            f"{len(rows):,} images of {options.size} by {options.size} pixels take {total / 2**30:,.0f} GiB: use "
            "--streaming, which decodes them while training, or a smaller --image_size"
        )
    digest = hashlib.blake2b(Path(images.__file__).read_bytes(), digest_size=16)
    digest.update(str(options.size).encode())
    for name, source in _cells(rows, column, options.folder):
        content: Any = source
        if isinstance(source, Path):
            found = source.stat() if source.is_file() else None  # archives set `st_mtime`, but not `st_ctime`
            content = repr(found and (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)).encode()
        digest.update(f"{name}:{len(content or b'')}:".encode() + (content or b""))
    with stage("Reading the images", len(rows), "images") as advance:
        tables = partial(_tables, rows, column, options, advance)
        return arrow_file(f"images-{digest.hexdigest()}", DECODED.arrow_schema, tables)


def _tables(
    rows: Dataset, column: str, options: ImageOptions, advance: Advance = lambda count: None
) -> Iterator[pa.Table]:
    cells = _cells(rows, column, options.folder)
    with ThreadPoolExecutor(options.workers) as pool:  # Pillow lets other threads work while it decodes
        while chunk := list(islice(cells, AT_ONCE)):
            columns = zip(*pool.map(partial(_decoded, size=options.size), chunk))
            arrays = [pa.array(values, field.type) for values, field in zip(columns, DECODED.arrow_schema)]
            yield pa.Table.from_arrays(arrays, schema=DECODED.arrow_schema)
            advance(len(chunk))


def _decoded(cell: Cell, size: int) -> tuple[bytes | None, str, str | None]:
    """Return the pixels of an image, its name, and the reason why it cannot be read."""
    name, source = cell
    if source is None:
        return None, name, "the image is missing"
    try:
        return pixels(source, size), name, None
    except ValueError as error:
        return None, name, f"{f'{name} cannot be read' if name else 'the image cannot be read'}: {error}"


def _cells(rows: Dataset, column: str, folder: Path) -> Iterator[Cell]:
    """Yield the images of a column: paths, or structs of bytes and path."""
    columns = [name for name in (column, FILE) if name in rows.column_names]
    for table in rows.select_columns(columns).with_format("arrow").iter(AT_ONCE):
        files = table[FILE].to_pylist() if FILE in columns else [None] * len(table)
        for cell, file in zip(table[column].to_pylist(), files):
            start = folder if file is None else Path(file).parent
            data, path = image_cell(cell).values()
            yield path or "", data if data is not None else start / path if path else None
