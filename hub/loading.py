"""Opening saved models from untrusted sources: downloaded if they are on the Hub, and checked before they are built.

The programs load only safetensors and configs: no pickle is read, no code of a repository runs, and weights
that are not exactly those of the model in the config are refused before memory is taken for it. Tokenizers must not
expand texts too much, and are set to languages.
"""

import json
import math
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, snapshot_download
from transformers import AutoImageProcessor, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from vanillaformer.configuration.options import DECODING_CHOICES
from vanillaformer.tokenization.pairs import TARGET_SUBFOLDER, Pair, load_pair

from .checks import HubError, check_folder, damage, few, file_errors, hub_errors, no_weights, open_config
from .file_names import ADAPTER, CARRIED, CODE, EXPORT, INDEX, NEEDED, UNSAFE, WEIGHTS

__all__ = ["open_config", "open_image_processor", "open_model", "open_tokenizers", "saved_folder"]

LARGEST_SIDE = 4_096  # maximum side in pixels to which images may be scaled
OFFSET_POSITIONS = (
    "camembert", "data2vec-text", "ibert", "longformer", "luke", "mpnet", "roberta", "roberta-prelayernorm",
    "xlm-roberta", "xlm-roberta-xl", "xmod",
)  # fmt: skip
"""Types of native models whose first position is the one after the id of the padding token."""
LARGEST_GROWTH = 1000  # maximum number of characters by which replacements may replace one


def saved_folder(source: str, revision: str | None = None, option: str = "--model", *, exported: bool = False) -> Path:
    """Return the checked folder of a saved model, which is fetched if it is on the Hub.

    `option` named the source, for messages; `exported` tells whether it may be an exported model, which is left
    to its engine without checks.
    """
    folder = Path(source)
    if folder.exists() or source.startswith((".", "/", "~")) or source.count("/") > 1:
        if not folder.is_dir():
            raise ValueError(f"{option} {source} is not a directory")
        if revision is not None:
            raise ValueError(f"{option} {source} is a folder: it has no revision {revision!r}, which Hub ids have")
    else:
        folder = fetched(source, revision, option, exported)
    if exported and (folder / EXPORT).is_file():
        return folder
    try:
        check_folder(folder)
    except ValueError as error:
        where = f"{option} {source}{f' at {revision}' if revision else ''}"
        raise ValueError(f"{where} {error}{damage(folder)}") from error
    return folder


def fetched(repo: str, revision: str | None, option: str, exported: bool) -> Path:
    """Return a folder with the needed files of a repository: no pickles, no code, files of exports on request."""
    try:
        with hub_errors(repo, revision):
            wanted = [*NEEDED, *CARRIED, EXPORT, ADAPTER]
            folder = Path(snapshot_download(repo, revision=revision, allow_patterns=wanted, ignore_patterns=UNSAFE))
            if exported and (folder / EXPORT).is_file():
                from .engines import EXPORTED_FILES  # no other model has them

                wanted += EXPORTED_FILES
                folder = Path(snapshot_download(repo, revision=revision, allow_patterns=wanted, ignore_patterns=CODE))
            found = {WEIGHTS, INDEX, EXPORT} & {path.name for path in folder.iterdir()}
            names = [] if found else HfApi().list_repo_files(repo, revision=revision)
    except HubError as error:
        raise HubError(f"{option} {repo} is not a directory, nor can it be read from the Hub: {error}") from None
    if not found and (folder / "config.json").is_file():
        raise ValueError(f"{option} {repo} {no_weights(names)}")
    return folder


def open_model(model_class: Any, folder: Path, source_name: str, **options: Any) -> Any:
    """Return the model of a folder from `saved_folder`, from safetensors and without running its code."""
    with file_errors(f"{source_name}: the model cannot be loaded", Path(folder)):
        return model_class.from_pretrained(folder, trust_remote_code=False, use_safetensors=True, **options)


def open_image_processor(folder: Path, source_name: str = "the model") -> Any:
    """Return the image processor in the folder of a model; raise ValueError if it makes images too large."""
    with file_errors(f"{source_name}: the image processor cannot be loaded", folder):
        processor = AutoImageProcessor.from_pretrained(folder, trust_remote_code=False)
        sides = [side for side in dict(processor.size).values() if side is not None]
    if not all(isinstance(side, int) and 0 < side <= LARGEST_SIDE for side in sides):
        raise ValueError(f"{source_name}: its images would be scaled to {sides}, at most {LARGEST_SIDE} are allowed")
    return processor


def open_tokenizers(folder: Path, config: PreTrainedConfig | None = None, source_name: str = "the model") -> Pair:
    """Return the tokenizers of source and target in the folder of a model."""
    for path in (folder / "tokenizer.json", folder / TARGET_SUBFOLDER / "tokenizer.json"):
        if path.is_file() and (growth := largest_growth(path)) > LARGEST_GROWTH:
            raise ValueError(
                f"{source_name}: the replacements in {path.name} make up to {growth:,.0f} characters of one, at most "
                f"{LARGEST_GROWTH:,} are allowed"
            )
    with file_errors(f"{source_name}: the tokenizer cannot be loaded", folder):
        source, target = load_pair(folder, trust_remote_code=False)
    if config is not None:
        sizes = {"vocab_size": config.vocab_size}
        sizes["decoder_vocab_size"] = getattr(config, "decoder_vocab_size", None) or config.vocab_size
        for (name, size), tokenizer in zip(sizes.items(), (source, target)):
            largest = max(tokenizer.get_vocab().values(), default=-1) + 1
            if largest > size:
                raise ValueError(
                    f"{source_name}: the tokenizer makes {largest:,} tokens, but the model has {name}={size:,}"
                )
            tokenizer.model_max_length = min(tokenizer.model_max_length, readable_length(config) or math.inf)
            fit_token_types(tokenizer, config)
    return source, target


def fit_token_types(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
    """Let a tokenizer return no token types, also after it is saved and loaded, if the model takes none."""
    if "token_type_ids" in tokenizer.model_input_names and not getattr(config, "type_vocab_size", 0):
        kept = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
        tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = kept


def readable_length(config: PreTrainedConfig) -> int | None:
    """Return the maximum number of tokens that a model reads or is made for, or None if its config does not tell."""
    length = getattr(config, "max_position_embeddings", None)
    offset = config.pad_token_id + 1 if length and config.model_type in OFFSET_POSITIONS else 0
    return length and length - offset


def largest_growth(path: Path) -> float:
    """Return by how many characters the replacements of a tokenizer.json's normalizer can replace one."""
    try:
        waiting, growth = [json.loads(path.read_text(encoding="utf-8"))["normalizer"]], 1.0
        while waiting:
            step = waiting.pop() or {}
            waiting += step.get("normalizers", [])
            if step.get("type") == "Replace":
                shortest = max(1, len(step["pattern"].get("String", "")))  # a regular expression may match one
                growth *= max(1.0, len(step["content"]) / shortest)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return 0.0  # loading it reports the error
    return growth


def set_languages(tokenizer: Any, source: str | None, target: str | None) -> None:
    """Set the languages that a multilingual tokenizer (mBART, M2M-100, NLLB) marks in sources and targets, by codes.

    A tokenizer that was saved with both keeps them if none are given. Raises ValueError for unknown codes.
    """
    known = list(getattr(tokenizer, "lang_code_to_id", tokenizer.extra_special_tokens))
    if not known or not (hasattr(tokenizer, "src_lang") and hasattr(tokenizer, "tgt_lang")):
        if source or target:
            raise ValueError(f"--source_lang {source} --target_lang {target}: the tokenizer has no language codes")
        return
    saved = tokenizer.init_kwargs.get("src_lang"), tokenizer.init_kwargs.get("tgt_lang")
    chosen = saved if all(saved) and source is None and target is None else (source, target)
    if not set(chosen) <= set(known):
        raise ValueError(
            f"--source_lang {source} --target_lang {target}: the tokenizer is multilingual, and both must be one of "
            f"its codes: {few(known)}"
        )
    tokenizer.src_lang, tokenizer.tgt_lang = chosen


def set_language(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Make a model translate into the target language of a multilingual tokenizer, by its generation config.

    mBART has the language at the end of a target, and starts from it; others generate it first. For a model that
    predicts all tokens at once nothing is set.
    """
    parallel = DECODING_CHOICES[getattr(model.config, "decoding", "autoregressive")].is_parallel
    if getattr(tokenizer, "tgt_lang", None) is None or parallel:
        return
    ids = tokenizer(text_target="")["input_ids"]
    if len(ids) < 2:  # FSMT's, which has no language tokens
        return
    *_, first, last = ids
    if last == tokenizer.eos_token_id:
        model.generation_config.forced_bos_token_id = first
    if last != tokenizer.eos_token_id or model.config.decoder_start_token_id is None:
        model.config.decoder_start_token_id = model.generation_config.decoder_start_token_id = last
