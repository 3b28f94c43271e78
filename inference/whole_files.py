"""From one file of lines to another, of any size: bounded memory, order kept, resumed after a kill."""

import hashlib
import json
import os
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch

from vanillaformer.hub.atomic_files import locked
from vanillaformer.hub.engines import EXPORTED_FILES
from vanillaformer.hub.file_names import EXPORT, NEEDED

from .arguments import GenerateArguments
from .tasks import SORTED, Function, LoadedModel, results_of_part
from .text_files import hint, progress, read_lines

NO_INFLUENCE = {"output_file", "device"}
# Not all of a folder: that of a run also has what evaluation writes, and perhaps the output
MODEL_FILES = (*NEEDED, EXPORT, *EXPORTED_FILES)


def lines_of(path: str, report: Callable[[str], None]) -> Iterator[str]:
    """Yield the lines of a file; one that is not UTF-8 is empty, and reported."""
    with open(path, "rb") as stream:
        yield from read_lines(stream, f"--input_file {path}", report)


def summary(path: str) -> tuple[int, int, str]:
    """Return how many lines a file has, how many of them are not blank, and a hash of it."""
    lines = filled = 0
    digest = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as stream:
        for line in stream:
            if not lines and line.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):  # whose other lines could pass for UTF-8
                raise ValueError(f"--input_file {path} is UTF-16: it must be UTF-8")
            digest.update(line)
            lines, filled = lines + 1, filled + bool(line.strip())
    return lines, filled, digest.hexdigest()


def generate_file(
    arguments: GenerateArguments, open_model: Callable[[list[str]], tuple[LoadedModel, Function, dict[str, Any]]]
) -> None:
    """Write a line of output for each line of `--input_file`, in the same order, to `--output_file`.

    The output grows beside its name, as `NAME.part`, and gets the name when it is whole. Stopped at any moment, the
    same command continues after the last part that was written, with the results of an uninterrupted run. A line
    that cannot be worked on has an empty result, and is named on the standard error stream; where that is so of all
    lines of the first part, its error is raised. `open_model` gets the first texts.
    """
    source, target = str(arguments.input_file), Path(str(arguments.output_file)).resolve()
    if not Path(source).is_file():
        raise ValueError(f"--input_file {source} does not exist or is not a file")
    total, filled, content = summary(source)
    first = list(islice((line for line in lines_of(source, lambda _: None) if line.strip()), SORTED))
    if not first:
        raise ValueError(f"--input_file {source} has no text in it, in UTF-8")
    loaded, function, options = open_model(first)
    part, size = target.with_name(f"{target.name}.part"), SORTED * arguments.batch_size
    record = part.with_suffix(".part.json")
    is_foreign = part.exists() and part.stat().st_size > 0 and not record.exists()
    if is_foreign or Path(source).resolve() in (part, record):
        raise ValueError(f"--output_file {target} grows as {part}, which is another file: rename that")
    with part.open("ab") as stream, ExitStack() as until_the_end, torch.inference_mode():
        try:
            lock = locked(part)
        except BlockingIOError as error:
            raise ValueError(f"--output_file {target}: {error}") from error
        if lock is not None:
            until_the_end.callback(os.close, lock)
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
                if hasattr(loaded.model, "engine"):  # which draws by a seed of its own
                    loaded.model.seed = arguments.seed + number
                batch_size, errors = arguments.batch_size, list[ValueError]()
                found = results_of_part(loaded, function, texts, batch_size, advance, errors=errors, **options)
                if errors and number == 0 and len(errors) == sum(bool(text.strip()) for text in texts):
                    record.unlink()
                    raise errors[0]  # of an option rather than of a line
                written = found if total == 1 else [result.replace("\n", "\\n") for result in found]
                stream.write("".join(f"{result}\n" for result in written).encode())
                stream.flush()
                os.fsync(stream.fileno())
        stream.close()  # Windows renames no open file
        os.replace(part, target)
        record.unlink()


def job(arguments: GenerateArguments, loaded: LoadedModel) -> dict[str, Any]:
    """Return what the results follow from beside the input: the options, and the files of the model."""
    folder = Path(loaded.tokenizer.name_or_path)  # also where the model is one of the Hub
    files = sorted(path for pattern in MODEL_FILES for path in folder.glob(pattern))
    stamps = [[str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    given = {name: value for name, value in asdict(arguments).items() if name not in NO_INFLUENCE}
    return {"options": given, "engine": type(loaded.model).__name__, "model": stamps}


def resumed(part: Path, record: Path, wanted: dict[str, Any], size: int) -> int:
    """Return how many lines a stopped run of the same job has left in `part`, in whole parts; cut off the rest."""
    try:
        same = json.loads(record.read_text(encoding="utf-8")) == wanted
    except (OSError, ValueError):
        same = False
    if not same:  # first of all: lines of another job must never lie beside the record of this one
        os.truncate(part, 0)
    record.write_text(json.dumps(wanted), encoding="utf-8")
    kept = done = end = 0
    with part.open("rb") as stream:
        for number, line in enumerate(stream if same else (), start=1):
            end += len(line)
            if number % size == 0 and line.endswith(b"\n"):
                kept, done = end, number
    os.truncate(part, kept)
    return done
