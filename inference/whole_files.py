"""From one file of lines to another, of any size: bounded memory, order kept, resumed after a kill."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch

from vanillaformer.hub.atomic_files import locked

from .arguments import GenerateArguments
from .tasks import SORTED, LoadedModel, results_of_part
from .text_files import hint, progress, read_line

NO_INFLUENCE = {"output_file", "device"}
MODEL_FILES = ("*.safetensors", "*.bin", "*.onnx", "*.json", "*.model", "*.spm")


def lines_of(path: str, report: Callable[[str], None]) -> Iterator[str]:
    """Yield the lines of a file; one that is not UTF-8 is empty, and reported."""
    with open(path, "rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                yield read_line(line, number, f"--input_file {path}")
            except ValueError as error:
                report(f"{error}: no result")
                yield ""


def summary(path: str) -> tuple[int, int, str]:
    """Return how many lines a file has, how many of them are not blank, and a hash of it."""
    lines = filled = 0
    digest = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as stream:
        for line in stream:
            digest.update(line)
            lines, filled = lines + 1, filled + bool(line.strip())
    return lines, filled, digest.hexdigest()


def generate_file(
    arguments: GenerateArguments,
    open_model: Callable[[list[str]], tuple[LoadedModel, Callable[..., list[str]], dict[str, Any]]],
) -> None:
    """Write a line of output for each line of `--input_file`, in the same order, to `--output_file`.

    The output grows beside its name, as `NAME.part`, and gets the name when it is whole. Stopped at any moment, the
    same command goes on after the last part that was written, with the results of a run that was never stopped. A line
    that cannot be worked on has an empty result, and is named on the standard error stream.

    Args:
        arguments: The arguments of `generate`.
        open_model: Returns model, function and options, given the first texts.
    """
    source, target = str(arguments.input_file), Path(str(arguments.output_file)).resolve()
    if not Path(source).is_file():
        raise ValueError(f"--input_file {source} does not exist or is not a file")
    total, filled, content = summary(source)
    if not filled:
        raise ValueError(f"--input_file {source} has no text in it")
    loaded, function, options = open_model(
        list(islice((line for line in lines_of(source, lambda _: None) if line.strip()), SORTED))
    )
    part, size = target.with_name(f"{target.name}.part"), SORTED * arguments.batch_size
    with part.open("ab") as stream, ExitStack() as until_the_end, torch.inference_mode():
        try:
            lock = locked(part)
        except BlockingIOError as error:
            raise ValueError(f"--output_file {target}: {error}") from error
        if lock is not None:
            until_the_end.callback(os.close, lock)
        record = part.with_suffix(".part.json")
        done = resumed(part, record, {"input": content, **job(arguments, loaded)}, size)
        lines = lines_of(source, hint)
        left = filled - sum(bool(line.strip()) for line in islice(lines, done))
        if done:
            hint(f"--output_file {target}: {done:,} of {total:,} lines are there already.")
        with progress(left, "lines", shown=total > arguments.batch_size) as advance:
            for number in count(done // size):
                if not (texts := list(islice(lines, size))):
                    break
                torch.manual_seed(arguments.seed + number)
                batch_size = arguments.batch_size
                found = results_of_part(loaded, function, texts, batch_size, advance, harmless=True, **options)
                written = found if total == 1 else [result.replace("\n", "\\n") for result in found]
                stream.write("".join(f"{result}\n" for result in written).encode())
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(part, target)
        record.unlink()


def job(arguments: GenerateArguments, loaded: LoadedModel) -> dict[str, Any]:
    """Return what the results follow from beside the input: the options, and the files of the model."""
    folder = Path(str(getattr(loaded.model, "name_or_path", None) or arguments.model_name_or_path))
    files = sorted(path for pattern in MODEL_FILES for path in (*folder.glob(pattern), *folder.glob(f"*/{pattern}")))
    stamps = [[str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    given = {name: value for name, value in asdict(arguments).items() if name not in NO_INFLUENCE}
    return {"options": given, "engine": type(loaded.model).__name__, "model": stamps}


def resumed(part: Path, record: Path, wanted: dict[str, Any], size: int) -> int:
    """Return how many lines a stopped run of the same job has left in `part`, in whole parts; cut off the rest."""
    try:
        same = json.loads(record.read_text(encoding="utf-8")) == wanted
    except (OSError, ValueError):
        same = False
    record.write_text(json.dumps(wanted), encoding="utf-8")
    kept = done = end = 0
    with part.open("rb") as stream:
        for number, line in enumerate(stream if same else (), start=1):
            end += len(line)
            if number % size == 0 and line.endswith(b"\n"):
                kept, done = end, number
    os.truncate(part, kept)
    return done
