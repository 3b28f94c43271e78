"""Texts in, results out: what `vanillaformer generate` does with a model, by `--engine auto` on the fastest engine.

That is the engine that gives the same output as torch, exported to once for each model.
"""

import copy
import hashlib
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.constants import HF_HOME
from transformers import PreTrainedModel

from vanillaformer.hub.file_names import CONFIG, GENERATION
from vanillaformer.tokenization.passages import PAIR

from .arguments import GenerateArguments
from .tasks import AUTO, Function, LoadedModel, load, run
from .text_files import hint, output_stream, read_texts
from .whole_files import generate_file

ENGINE = "ctranslate2"  # several times faster than torch, and exported to in a second
CACHE = Path(HF_HOME) / "vanillaformer" / "exports"
COMPARED = 8  # texts whose results are compared with those of torch
PROBABILITY = re.compile(r"\t\d\.\d{4}")  # after a label


def call_options(generate_args: GenerateArguments) -> dict[str, Any]:
    """Return the options that the function of a model's task is called with."""
    options = generate_args.options()
    if "max_new_tokens" in options:
        options["max_length"] = None  # saved with the model; of both, transformers warns at every batch
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
    """Return a model on the engine, or as it is with the reason on the standard error stream."""
    if not isinstance(loaded.model, PreTrainedModel):
        return loaded  # an export
    try:
        check_model(loaded.model, options)
        faster = copy.copy(loaded)
        faster.model = on_engine(loaded.model, Path(str(loaded.model.name_or_path)))
        sample = [text for text in texts if text.strip()][:COMPARED]
        if function(faster, sample, **options) != function(loaded, sample, **options):
            raise ValueError("its output is not that of torch")
    except (ImportError, OSError, ValueError) as error:
        hint(f"--engine auto: torch, not {ENGINE}: {error}")
        return loaded
    hint(f"--engine auto: {ENGINE}; the first {len(sample)} outputs are those of torch")
    return faster


def report_rounding(
    loaded: LoadedModel, function: Function, texts: Sequence[str], arguments: GenerateArguments, **options: Any
) -> None:
    """Say how many results of the first of many texts are those of the exact weights, but for numbers."""
    sample = [text for text in texts if text.strip()][: COMPARED + 1]
    is_number = getattr(loaded.model.config, "problem_type", None) == "regression"
    if len(sample) <= COMPARED or is_number or generation_settings(loaded.model, options)["do_sample"]:
        return
    exact, *_ = load(replace(arguments, quantization=None))
    with torch.inference_mode(), suppress(ValueError):  # of a text that cannot be worked on: said at its turn
        results = [function(each, sample[:COMPARED], **options) for each in (loaded, exact)]
        same = sum(PROBABILITY.sub("", one) == PROBABILITY.sub("", other) for one, other in zip(*results))
        hint(f"--quantization {arguments.quantization}: {same} of the first {COMPARED} results are as without it")


def generation_settings(model: PreTrainedModel, options: dict[str, Any]) -> dict[str, Any]:
    """Return how a model searches: by the options given, and by those saved with it."""
    saved = getattr(model, "generation_config", None)
    return {name: getattr(saved, name, None) for name in ("do_sample", "num_beams", "early_stopping")} | options


def check_model(model: PreTrainedModel, options: dict[str, Any]) -> None:
    """Raise ValueError where torch is faster, or where the outputs of the two cannot be the same."""
    settings = generation_settings(model, options)
    if model.device.type != "cpu" or model.dtype.itemsize < 4:
        raise ValueError(f"the model is on {model.device.type} in {str(model.dtype).removeprefix('torch.')}")
    if settings["do_sample"]:
        raise ValueError("sampling draws different tokens there")
    if (settings["num_beams"] or 1) > 1 and settings["early_stopping"] is not True:
        raise ValueError("its beam search stops early; equal are --early_stopping true and --num_beams 1")


def on_engine(model: PreTrainedModel, folder: Path) -> Any:
    """Return a model on the engine, exported if the cache does not hold it."""
    from vanillaformer.conversion.exports import EngineModel, export, load_engine  # which takes a moment

    digest = hashlib.blake2b(digest_size=16)  # of all that an export depends on
    for path in sorted([*folder.glob("*.safetensors"), folder / CONFIG, folder / GENERATION]):
        if path.is_file():
            digest.update(path.name.encode())
            with path.open("rb") as stream:
                hashlib.file_digest(stream, lambda: digest)  # which adds to it
    cached = CACHE / f"{ENGINE}-{digest.hexdigest()}"
    if not cached.is_dir():
        cached.parent.mkdir(parents=True, exist_ok=True)
        export(model, cached, ENGINE)
    engine = load_engine(cached)
    if model.can_generate():  # into a language that may have been set for this call
        engine.generation_config = model.generation_config  # type: ignore[assignment]  # `None` of others only
    return EngineModel(engine)
