"""Tasks of trained models on texts: translate, continue, classify, fill in masked tokens."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from vanillaformer.acceleration.int8 import to_int8
from vanillaformer.configuration import VanillaEncoderDecoderConfig
from vanillaformer.configuration.options import DECODING_CHOICES
from vanillaformer.console.program import hide_progress_bars
from vanillaformer.data.dialogue import end_ids
from vanillaformer.data.tasks import TASKS, TaskName, seqeval_tag
from vanillaformer.hub import loading
from vanillaformer.hub.checks import few, file_errors
from vanillaformer.hub.file_names import EXPORT
from vanillaformer.modeling.base import VanillaPreTrainedModel
from vanillaformer.tokenization.passages import as_pair, first_pieces, text_tokenizer
from vanillaformer.training.hardware import inference_dtype

from .arguments import GenerateArguments
from .text_files import hint, progress

TORCH, AUTO = "torch", "auto"

NEW_TOKENS = 256  # tokens to generate by default, as in transformers' pipelines
SORTED = 20  # batches whose texts are sorted by length together
UNREJECTED = ("regression", "multi_label_classification")  # problems without a likeliest label
UNCERTAIN = "(uncertain)"  # in place of a rejected label
Function = Callable[..., list[str]]
"""The function of a task, which takes a `LoadedModel` and texts."""


@dataclass
class LoadedModel:
    """A model with its tokenizers, ready to use."""

    model: Any
    tokenizer: PreTrainedTokenizerBase
    target_tokenizer: PreTrainedTokenizerBase
    architecture: str
    report: Callable[[str], None] = hint
    """Reports texts that were truncated."""

    def __post_init__(self) -> None:
        fills = task_of(self.architecture, "")[1] is fill_masks
        self.tokenizer = text_tokenizer(self.tokenizer, [str(self.tokenizer.mask_token)] if fills else [])

    @property
    def prefix(self) -> str:
        return getattr(self.model.config, "prefix", None) or ""

    def encode(self, texts: list[str], *, room: int = 0, side: str | None = None) -> Any:
        """Return a padded batch on the model's device, each text truncated to leave `room` for new tokens.

        Padding and truncation are on the given side; by default padding is on the right, and truncation where the
        tokenizer has it. Names of control tokens in the texts are text, except the mask token of a masked language
        model.
        """
        limit = loading.readable_length(self.model.config)
        length = None if limit is None else limit - room
        self.tokenizer.padding_side = side or "right"
        self.tokenizer.truncation_side = side or self.tokenizer.truncation_side
        truncation = {} if length is None else {"truncation": True, "max_length": length}
        with file_errors("the model's tokenizer cannot encode these texts"):
            pairs = [as_pair(text) for text in texts]
            batch = self.tokenizer(pairs, return_tensors="pt", padding=True, **truncation)
        if batch.encodings is not None:
            cut = [bool(encoding.overflowing) for encoding in batch.encodings]
        else:  # a slow tokenizer does not tell
            whole = self.tokenizer(pairs, verbose=False)["input_ids"]
            cut = [length is not None and len(ids) > length for ids in whole]
        for text, is_cut in zip(texts, cut):
            if is_cut:
                self.report(f"cut to {length} tokens: {as_pair(text[:60])!r} ...")
        return batch.to(self.model.device)

    def with_length(self, options: dict[str, Any], start: int) -> dict[str, Any]:
        """Return options of `generate` by which `NEW_TOKENS` follow the first `start`, unless a length is given."""
        saved = getattr(self.model, "engine", self.model).generation_config
        lengths = (saved.max_length, saved.max_new_tokens, options.get("max_new_tokens"))
        if any(length is not None for length in lengths):
            return options
        length = start + NEW_TOKENS
        return {"max_length": min(length, loading.readable_length(self.model.config) or length)} | options


def translate(loaded: LoadedModel, texts: list[str], **options: Any) -> list[str]:
    """Return the translations of texts, with the model's source prefix in front of each."""
    texts = [loaded.prefix + text for text in texts]
    output = loaded.model.generate(**loaded.encode(texts), **loaded.with_length(options, 1))
    return loaded.target_tokenizer.batch_decode(output, skip_special_tokens=True)


def continue_prompts(loaded: LoadedModel, texts: list[str], **options: Any) -> list[str]:
    """Return prompts with their continuations, `NEW_TOKENS` by default, within the model's maximum length."""
    inputs = loaded.encode(texts, room=options.get("max_new_tokens", 1), side="left")
    start = inputs["input_ids"].shape[1]
    output = loaded.model.generate(**inputs, **loaded.with_length(options, start)).tolist()
    ends = end_ids(getattr(loaded.model, "engine", loaded.model))  # which may be printed, as the end of a turn
    read = [[*ids[:start], *takewhile(lambda token: token not in ends, ids[start:])] for ids in output]
    return loaded.tokenizer.batch_decode(read, skip_special_tokens=True)


def class_probabilities(loaded: LoadedModel, texts: list[str]) -> torch.Tensor:
    """Return the probability of each class for each text (texts, classes); of a single output its sigmoid."""
    logits = loaded.model(**loaded.encode(texts)).logits.float()
    return logits.sigmoid() if logits.shape[-1] == 1 else logits.softmax(dim=-1)


def classify(loaded: LoadedModel, texts: list[str], *, reject_below: float = 0.0) -> list[str]:
    """Return the likeliest label of each text and its probability, separated by a tab.

    Of a multi-label problem these are all labels above 0.5, of a regression the number. Below a probability of
    `reject_below`, `UNCERTAIN` replaces the label.
    """
    names, problem = loaded.model.config.id2label, getattr(loaded.model.config, "problem_type", None)
    if problem == "regression":
        return [f"{value:.4f}" for value in loaded.model(**loaded.encode(texts)).logits.flatten().tolist()]
    if problem == "multi_label_classification":
        rows = loaded.model(**loaded.encode(texts)).logits.sigmoid().tolist()
        chosen = [[f"{names[number]}\t{value:.4f}" for number, value in enumerate(row) if value > 0.5] for row in rows]
        return ["\t".join(labels) for labels in chosen]
    best = class_probabilities(loaded, texts).max(dim=-1)
    return [
        f"{names[label] if value >= reject_below else UNCERTAIN}\t{value:.4f}"
        for label, value in zip(best.indices.tolist(), best.values.tolist())
    ]


def fill_masks(loaded: LoadedModel, texts: list[str]) -> list[str]:
    """Return texts with the likeliest token in place of each mask token."""
    mask = loaded.tokenizer.mask_token
    if missing := [text for text in texts if mask not in text]:
        raise ValueError(f"a masked language model fills in {mask}, which is not in {as_pair(missing[0])!r:.80}")
    inputs = loaded.encode(texts)
    likeliest = loaded.model(**inputs).logits.argmax(dim=-1)
    filled = torch.where(inputs["input_ids"] == loaded.tokenizer.mask_token_id, likeliest, inputs["input_ids"])
    return loaded.tokenizer.batch_decode(filled, skip_special_tokens=True)


def find_entities(loaded: LoadedModel, texts: list[str]) -> list[str]:
    """Return each text's entities, `kind: words`, separated by tabs; if tags have no B- or I-, every word's tag."""
    from seqeval.metrics.sequence_labeling import get_entities  # not needed by other tasks

    texts = [" ".join(text.split()) for text in texts]
    inputs = loaded.encode(texts)
    if not inputs.encodings:
        raise ValueError("the tokenizer must be a fast one, which knows the position of each token in a text")
    names, results = {number: seqeval_tag(tag) for number, tag in loaded.model.config.id2label.items()}, []
    spans = any(name.startswith(("B-", "I-", "E-", "S-")) for name in names.values())
    for text, encoding, ids in zip(texts, inputs.encodings, loaded.model(**inputs).logits.argmax(dim=-1).tolist()):
        words, tags = text.split(" "), dict[int, str]()
        for word, number in zip(first_pieces(text, encoding.offsets), ids):
            tags |= {} if word is None else {word: names[number]}
        found = [tags.get(word, "O") for word in range(len(words))]
        results.append(
            "\t".join(f"{kind}: {' '.join(words[first : last + 1])}" for kind, first, last in get_entities(found))
            if spans
            else " ".join(f"{word}/{tag}" for word, tag in zip(words, found))
        )
    return results


FUNCTIONS: dict[TaskName, Function] = {
    "translation": translate,
    "causal": continue_prompts,
    "masked": fill_masks,
    "classification": classify,
    "token_classification": find_entities,
}


def load(arguments: GenerateArguments) -> tuple[LoadedModel, Function, bool]:
    """Return the model with its tokenizers, the function of its task, and whether that takes generation options."""
    source_name = f"--model {arguments.model_name_or_path}"
    folder, exported, config, architecture = open_folder(arguments)
    auto_class, function, generates = task_of(architecture, arguments.model_name_or_path)
    if exported and not (folder / "tokenizer_config.json").is_file():
        raise ValueError(f"{source_name} was exported without a tokenizer")
    check_options(arguments, config, architecture, function, generates)
    model = exported or model_on_device(auto_class, folder, arguments)
    tokenizers = loading.open_tokenizers(folder, None if exported else config, source_name)
    if arguments.source_lang:
        loading.set_languages(tokenizers[0], arguments.source_lang, arguments.target_lang)
        loading.set_language(getattr(model, "engine", model), tokenizers[1])
    return LoadedModel(model, *tokenizers, architecture), function, generates


def open_folder(arguments: GenerateArguments) -> tuple[Path, Any, Any, str]:
    """Return the folder of `--model`, the exported model on its engine or `None`, config and architecture."""
    hide_progress_bars()
    folder = loading.saved_folder(arguments.model_name_or_path, arguments.revision, exported=True)
    asked = f"--engine {arguments.engine}: --model {arguments.model_name_or_path}"
    if not (folder / EXPORT).is_file():
        if arguments.engine not in (None, TORCH, AUTO):
            raise ValueError(f"{asked} is not a folder made by vanillaformer export")
        if arguments.engine == AUTO and (arguments.chat or arguments.image):
            hint(f"--engine auto: torch, which runs {'chats' if arguments.chat else 'images'}")
        config = loading.open_config(folder)
        return folder, None, config, next(iter(config.architectures or []), "none")
    from vanillaformer.conversion.exports import EngineModel, exporter_of, load_engine, read_record  # not for torch

    name = read_record(folder)["engine"]
    runtime = exporter_of(name).info.runtime
    if arguments.engine not in (None, AUTO, name, runtime):
        raise ValueError(f"{asked} was exported for {runtime}")
    if arguments.bf16 or arguments.quantization:
        option = "--bf16" if arguments.bf16 else f"--quantization {arguments.quantization}"
        raise ValueError(f"{option}: an exported model has the precision that it was exported with")
    engine = load_engine(folder, arguments.device or "cpu")
    return folder, EngineModel(engine, seed=arguments.seed), engine.config, engine.architecture


def model_on_device(model_class: Any, folder: Path, arguments: GenerateArguments) -> Any:
    """Return the model of a folder, as one of ours if possible, on `--device` (default: a GPU if there is one)."""
    device = arguments.device or ("cuda" if torch.cuda.is_available() and not arguments.quantization else "cpu")
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ValueError(f"--device {device} cannot be used here: {reason}") from error
    dtype = torch.float32 if arguments.quantization else inference_dtype(torch.device(device).type, arguments.bf16)
    source = f"--model {arguments.model_name_or_path}"
    model, found = loading.open_model(model_class, folder, source, dtype=dtype, output_loading_info=True)
    if missing := found["missing_keys"]:  # saved for another task
        raise ValueError(f"{source} has weights without {few(missing)}, which a {type(model).__name__} has")
    if not isinstance(model, VanillaPreTrainedModel):
        from vanillaformer.conversion.convert import take_over  # loads the tables of all architectures

        with suppress(ValueError):  # no model of ours computes the same
            model = take_over(model)
    return to_int8(model) if arguments.quantization else model.to(device).eval()


def task_of(architecture: str, path: str) -> tuple[Any, Function, bool]:
    """Return an architecture's Auto class, the function of its task, and whether its models generate."""
    for name, function in FUNCTIONS.items():
        task = TASKS[name]
        if architecture.endswith(task.architectures):
            return task.auto_class, function, task.generates
    if architecture.endswith(TASKS["image_classification"].architectures):
        raise ValueError(f"--model {path} classifies images: give --image with files or folders")
    endings = (ending for task in TASKS.values() if task.input_option == "text" for ending in task.architectures)
    raise ValueError(f"--model {path}: architecture {architecture} is not supported: use {', '.join(endings)}")


def check_options(
    arguments: GenerateArguments, config: Any, architecture: str, function: Any, generates: bool
) -> None:
    """Raise ValueError for generation options that the model does not use or has no room for."""
    options = arguments.options()
    if options and not generates and not arguments.chat:
        names = ", ".join(f"--{name}" for name in options if getattr(arguments, name) is not None)
        raise ValueError(f"{names}: {architecture} does not generate text")
    if arguments.text_pair and function not in (classify, fill_masks):
        raise ValueError(f"--text_pair: {architecture} reads one text at a time")
    decodings = {config.decoding} if isinstance(config, VanillaEncoderDecoderConfig) else set()
    for decoding, choice in DECODING_CHOICES.items():
        for name in choice.options if decoding not in decodings else ():
            if (value := getattr(arguments, name)) is not None:
                raise ValueError(f"--{name} {value}: only models with decoding={decoding} have it")
    unrejected = function is not classify or getattr(config, "problem_type", None) in UNREJECTED
    if arguments.reject_below is not None and unrejected:
        raise ValueError(f"--reject_below {arguments.reject_below}: {architecture} is not a classifier")
    new, limit = arguments.max_new_tokens, loading.readable_length(config)
    if new is not None and limit is not None and new > limit - (function is continue_prompts):  # a token of the prompt
        raise ValueError(f"--max_new_tokens {new}: the model handles no more than {limit} tokens")


def run(loaded: LoadedModel, function: Function, texts: list[str], batch_size: int, **options: Any) -> Iterator[str]:
    """Yield the result for each text, an empty one for an empty text.

    Texts are batched by similar length, among those of `SORTED` batches. With more than one batch, progress is shown
    on the standard error stream.
    """
    total = sum(bool(text.strip()) for text in texts)
    with torch.inference_mode(), progress(total, "lines", shown=len(texts) > batch_size) as advance:
        for start in range(0, len(texts), SORTED * batch_size):
            part = texts[start : start + SORTED * batch_size]
            yield from results_of_part(loaded, function, part, batch_size, advance, **options)


def results_of_part(
    loaded: LoadedModel,
    function: Function,
    texts: list[str],
    batch_size: int,
    advance: Callable[[int], object] = int,
    *,
    errors: list[ValueError] | None = None,
    **options: Any,
) -> list[str]:
    """Return the results for texts, batched by their lengths.

    With `errors`, a text that fails has an empty result, and its error is appended to them.
    """
    order = sorted((row for row, text in enumerate(texts) if text.strip()), key=lambda row: len(texts[row]))
    results = [""] * len(texts)
    for first in range(0, len(order), batch_size):
        rows = order[first : first + batch_size]
        try:
            found = function(loaded, [texts[row] for row in rows], **options)
        except ValueError as error:
            if errors is None:
                raise
            if len(rows) > 1:  # to find out which one
                found = results_of_part(loaded, function, [texts[r] for r in rows], 1, errors=errors, **options)
            else:
                loaded.report(f"no result for {as_pair(texts[rows[0]][:60])!r}: {error}")
                errors.append(error)
                found = [""]
        for row, result in zip(rows, found):
            results[row] = result
        advance(len(rows))
    return results
