"""Texts in, results out: how `vanillaformer generate` runs a model, with `--engine auto` on the fastest engine.

That is CTranslate2 if its output is the same as torch's; a model is exported to it once. A file of lines may have any
size: memory is bounded, the order is kept, and a killed run is resumed.
"""

import copy
import hashlib
import json
import os
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from importlib.metadata import version
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.constants import HF_HOME
from transformers import PreTrainedModel

from vanillaformer.hub.atomic_files import locked
from vanillaformer.hub.engines import EXPORTED_FILES
from vanillaformer.hub.file_names import CONFIG, EXPORT, GENERATION, NEEDED
from vanillaformer.tokenization.passages import PAIR

from .arguments import GenerateArguments
from .tasks import AUTO, SORTED, Function, LoadedModel, load, results_of_part, run
from .text_files import hint, output_stream, progress, read_lines, read_texts

ENGINE = "ctranslate2"  # several times faster than torch; an export takes a second
CACHE = Path(HF_HOME) / "vanillaformer" / "exports"
COMPARED = 8  # texts whose results are compared with those of torch
PROBABILITY = re.compile(r"\t\d\.\d{4}")  # after a label
NO_INFLUENCE = {"output_file", "device"}  # options on which results do not depend
# Not the whole folder: that of a run also has the files of evaluations, and perhaps the output
MODEL_FILES = (*NEEDED, EXPORT, *EXPORTED_FILES)


def call_options(generate_args: GenerateArguments) -> dict[str, Any]:
    """Return the options with which the function of a model's task is called."""
    options = generate_args.options()
    if "max_new_tokens" in options:
        options["max_length"] = None  # unset the saved one: given both, transformers warns at every batch
    if generate_args.reject_below is not None:
        options["reject_below"] = generate_args.reject_below
    return options


def generate_texts(generate_args: GenerateArguments) -> None:
    r"""Write the result for each text, several texts one line each (a line break within one as `\n`)."""

    def open_model(texts: list[str]) -> tuple[LoadedModel, Function, dict[str, Any]]:
        loaded, function, _ = load(generate_args)
        options = call_options(generate_args)
        if generate_args.engine == AUTO:
            with torch.inference_mode():
                loaded = fastest(loaded, function, texts, **options)
        elif generate_args.quantization:
            report_rounding(loaded, function, texts, generate_args, **options)
        return loaded, function, options

    output = Path(generate_args.output_file or os.devnull)
    if generate_args.input_file and not generate_args.text and (output.is_file() or not output.exists()):
        generate_file(generate_args, open_model)
        return
    texts = read_texts(generate_args.text, generate_args.input_file)
    if generate_args.text_pair:
        texts = [PAIR.join(pair) for pair in zip(texts, generate_args.text_pair)]
    loaded, function, options = open_model(texts)
    torch.manual_seed(generate_args.seed)
    with output_stream(generate_args.output_file) as stream:
        for result in run(loaded, function, texts, generate_args.batch_size, **options):
            print(result if len(texts) == 1 else result.replace("\n", "\\n"), file=stream, flush=True)


def fastest(loaded: LoadedModel, function: Function, texts: Sequence[str], **options: Any) -> LoadedModel:
    """Return the model on the engine, or unchanged, with the reason on the standard error stream."""
    if not isinstance(loaded.model, PreTrainedModel):
        return loaded  # an export
    try:
        check_model(loaded.model, options)
        faster = copy.copy(loaded)
        faster.model = on_engine(loaded.model, Path(str(loaded.model.name_or_path)))
        sample = [text for text in texts if text.strip()][:COMPARED]
        if function(faster, sample, **options) != function(loaded, sample, **options):
            raise ValueError("its output differs from that of torch")
    except (ImportError, OSError, ValueError) as error:
        hint(f"--engine auto: torch, not {ENGINE}: {error}")
        return loaded
    hint(f"--engine auto: {ENGINE}; the first {len(sample)} outputs are the same as those of torch")
    return faster


def report_rounding(
    loaded: LoadedModel, function: Function, texts: Sequence[str], arguments: GenerateArguments, **options: Any
) -> None:
    """For many texts, report how many of the first results are the same with exact weights, probabilities aside."""
    sample = [text for text in texts if text.strip()][: COMPARED + 1]
    is_number = getattr(loaded.model.config, "problem_type", None) == "regression"
    if len(sample) <= COMPARED or is_number or generation_settings(loaded.model, options)["do_sample"]:
        return
    exact, *_ = load(replace(arguments, quantization=None))
    with torch.inference_mode(), suppress(ValueError):  # a text that fails is reported at its turn
        results = [function(each, sample[:COMPARED], **options) for each in (loaded, exact)]
        same = sum(PROBABILITY.sub("", one) == PROBABILITY.sub("", other) for one, other in zip(*results))
        hint(f"--quantization {arguments.quantization}: {same} of the first {COMPARED} results are as without it")


def generation_settings(model: PreTrainedModel, options: dict[str, Any]) -> dict[str, Any]:
    """Return the search settings of a model: the options given, and those saved with it."""
    saved = getattr(model, "generation_config", None)
    return {name: getattr(saved, name, None) for name in ("do_sample", "num_beams", "early_stopping")} | options


def check_model(model: PreTrainedModel, options: dict[str, Any]) -> None:
    """Raise ValueError if torch is faster, or if the outputs of the two cannot be the same."""
    settings = generation_settings(model, options)
    if model.device.type != "cpu" or model.dtype.itemsize < 4:
        raise ValueError(f"the model is on {model.device.type} in {str(model.dtype).removeprefix('torch.')}")
    if settings["do_sample"]:
        raise ValueError("sampling draws different tokens there")
    if (settings["num_beams"] or 1) > 1 and settings["early_stopping"] is not True:
        raise ValueError("its beam search stops early; --early_stopping true or --num_beams 1 makes them equal")


def on_engine(model: PreTrainedModel, folder: Path) -> Any:
    """Return the model on the engine, exported unless the cache has it."""
    from vanillaformer.conversion.exports import EngineModel, export, load_engine  # slow to import

    digest = hashlib.blake2b(version("vanillaformer").encode(), digest_size=16)  # and of all that exports depend on
    for path in sorted([*folder.glob("*.safetensors"), folder / CONFIG, folder / GENERATION]):
        if path.is_file():
            digest.update(path.name.encode())
            with path.open("rb") as stream:
                hashlib.file_digest(stream, lambda: digest)  # updates the digest
    cached = CACHE / f"{ENGINE}-{digest.hexdigest()}"
    if not cached.is_dir():
        cached.parent.mkdir(parents=True, exist_ok=True)
        export(model, cached, ENGINE)
    engine = load_engine(cached)
    if model.can_generate():  # its language may have been set for this call
        engine.generation_config = model.generation_config  # type: ignore[assignment]  # `None` only for others
    return EngineModel(engine)


# --------------------------------------------------------------------------------------------------------- whole files
def lines_of(path: str, report: Callable[[str], None]) -> Iterator[str]:
    """Yield the lines of a file; one that is not UTF-8 is reported and yielded as empty."""
    with open(path, "rb") as stream:
        yield from read_lines(stream, f"--input_file {path}", report)


def summary(path: str) -> tuple[int, int, str]:
    """Return how many lines a file has, how many of them are not blank, and a hash of it."""
    lines = filled = 0
    digest = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as stream:
        for line in stream:
            if not lines and line.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):  # other lines could pass for UTF-8
                raise ValueError(f"--input_file {path} is UTF-16: it must be UTF-8")
            digest.update(line)
            lines, filled = lines + 1, filled + bool(line.strip())
    return lines, filled, digest.hexdigest()


def generate_file(
    arguments: GenerateArguments, open_model: Callable[[list[str]], tuple[LoadedModel, Function, dict[str, Any]]]
) -> None:
    """Write a line of output for each line of `--input_file`, in the same order, to `--output_file`.

    The output is written as `NAME.part`, and renamed when it is complete. If it was interrupted, the same command
    continues after the last complete part, with the results of an uninterrupted run. A line that fails has an empty
    result, and is reported on the standard error stream; if all lines of the first part fail, the first error is
    raised. `open_model` gets the first texts.
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
        raise ValueError(f"--output_file {target} is first written as {part}, which is another file: rename that")
    with part.open("ab") as stream, ExitStack() as exit_stack, torch.inference_mode():
        try:
            lock = locked(part)
        except BlockingIOError as error:
            raise ValueError(f"--output_file {target}: {error}") from error
        if lock is not None:
            exit_stack.callback(os.close, lock)
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
                if hasattr(loaded.model, "engine"):  # it samples with its own seed
                    loaded.model.seed = arguments.seed + number
                batch_size, errors = arguments.batch_size, list[ValueError]()
                found = results_of_part(loaded, function, texts, batch_size, advance, errors=errors, **options)
                if errors and number == 0 and len(errors) == sum(bool(text.strip()) for text in texts):
                    record.unlink()
                    raise errors[0]  # an option rather than a line is wrong
                written = found if total == 1 else [result.replace("\n", "\\n") for result in found]
                stream.write("".join(f"{result}\n" for result in written).encode())
                stream.flush()
                os.fsync(stream.fileno())
        stream.close()  # Windows cannot rename an open file
        os.replace(part, target)
        record.unlink()


def job(arguments: GenerateArguments, loaded: LoadedModel) -> dict[str, Any]:
    """Return what the results depend on besides the input: the options, and the files of the model."""
    folder = Path(loaded.tokenizer.name_or_path)  # also for a model from the Hub
    files = sorted(path for pattern in MODEL_FILES for path in folder.glob(pattern))
    stamps = [[str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    given = {name: value for name, value in asdict(arguments).items() if name not in NO_INFLUENCE}
    return {"options": given, "engine": type(loaded.model).__name__, "model": stamps}


def resumed(part: Path, record: Path, wanted: dict[str, Any], size: int) -> int:
    """Return how many lines a stopped run of the same job left in `part`, in complete parts; truncate the rest."""
    try:
        same = json.loads(record.read_text(encoding="utf-8")) == wanted
    except (OSError, ValueError):
        same = False
    if not same:  # first of all: lines of another job must never be next to this one's record
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
