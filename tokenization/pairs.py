"""Saving and loading of the two tokenizers of a translation model next to its weights."""

import copy
import shutil
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

Pair = tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]  # of source and target
TARGET_SUBFOLDER = "target_tokenizer"
# Stored in the source's tokenizer_config.json, so that loading never mistakes a missing target for a joint vocabulary.
MARKER = "target_tokenizer"
# Files that only the package sentencepiece reads, if there is no tokenizer.json
PIECES = ("*.spm", "spiece.model", "sentencepiece.bpe.model")
# A folder with a tokenizer has one of these; without any, transformers would make an empty tokenizer of some classes
FILES = ("*tokenizer*.json", "vocab*", "*.model", "*.spm", "*.tiktoken")


def save_pair(source: PreTrainedTokenizerBase, target: PreTrainedTokenizerBase, folder: str | PathLike[str]) -> None:
    """Save the source tokenizer in the folder, and the target tokenizer, if it differs, in `target_tokenizer/`.

    `AutoTokenizer.from_pretrained(folder)` then loads the source and, with `subfolder="target_tokenizer"`, the target.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if _same(source, target):
        source.init_kwargs.pop(MARKER, None)
        source.save_pretrained(folder)
        if (folder / TARGET_SUBFOLDER / "tokenizer_config.json").is_file():  # left by an earlier, separate pair
            shutil.rmtree(folder / TARGET_SUBFOLDER)
        return
    source.init_kwargs[MARKER] = TARGET_SUBFOLDER
    source.save_pretrained(folder)
    target.save_pretrained(folder / TARGET_SUBFOLDER)


def load_pair(path_or_hub_id: str | PathLike[str], **kwargs: Any) -> Pair:
    """Load what `save_pair` saved, from a folder or the Hub; for a joint vocabulary the same tokenizer twice.

    A tokenizer without a pad token pads with the token that ends a text, as is usual for GPT-2's. Keywords are passed
    on to `AutoTokenizer.from_pretrained`; a missing source, or the target that belongs to it, is an OSError.
    """
    folder = Path(path_or_hub_id, kwargs.get("subfolder") or "")
    if folder.is_dir() and not any(path for pattern in FILES for path in folder.glob(pattern)):
        raise OSError(f"{folder} has no tokenizer: neither tokenizer.json nor a vocabulary")
    pieces = [path.name for pattern in PIECES for path in folder.glob(pattern)]
    if pieces and not (folder / "tokenizer.json").is_file() and find_spec("sentencepiece") is None:
        raise OSError(
            f"{folder} has a tokenizer ({pieces[0]}) that needs sentencepiece, which is not installed: "
            "pip install 'vanillaformer[sentencepiece]'"
        )
    loaded = _padding(AutoTokenizer.from_pretrained(path_or_hub_id, **kwargs))
    has_two = getattr(loaded, "separate_vocabs", False)  # as Marian's can have
    source = _side(loaded, 0) if has_two else loaded
    subfolder = Path(kwargs.pop("subfolder", None) or "", TARGET_SUBFOLDER)
    saved_by_hand = (Path(path_or_hub_id) / subfolder / "tokenizer_config.json").is_file()
    if MARKER not in source.init_kwargs and not saved_by_hand:
        return source, _side(loaded, 1) if has_two else source
    kwargs["config"] = PreTrainedConfig()  # the sub-folder has none, and offline the search for it would fail
    try:
        target = _padding(AutoTokenizer.from_pretrained(path_or_hub_id, subfolder=subfolder.as_posix(), **kwargs))
    except (OSError, ValueError) as error:
        raise OSError(
            f"{path_or_hub_id} has a source tokenizer that belongs to a separate target tokenizer, but none could be "
            f"loaded from its sub-folder {subfolder.as_posix()}"
        ) from error
    return source, target


def _side(tokenizer: Any, number: int) -> PreTrainedTokenizerBase:
    """Return the tokenizer for sources (0) or targets (1) from a Marian tokenizer with two vocabularies.

    Marian's encodes sources and decodes targets; each of these does both for its side.
    """
    side = copy.copy(tokenizer)
    if number:
        side.encoder = side.current_encoder = tokenizer.target_encoder
        side.spm_files = tokenizer.spm_files[1:] * 2
        side.init_kwargs = dict(tokenizer.init_kwargs)
        side._update_total_vocab_size()
    side.decoder = {token_id: token for token, token_id in side.encoder.items()}
    return copy.copy(side)  # copying loads the `spm_files`


def _padding(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Return a tokenizer with a pad token, if it has any special token that can be one."""
    names = ("pad_token", "eos_token", "sep_token", "bos_token", "unk_token")
    special = tokenizer.special_tokens_map
    if "pad_token" not in special and (token := next(filter(None, map(special.get, names)), None)):
        tokenizer.pad_token = token
    return tokenizer


def _same(source: PreTrainedTokenizerBase, target: PreTrainedTokenizerBase) -> bool:
    if not (isinstance(source, PreTrainedTokenizerFast) and isinstance(target, PreTrainedTokenizerFast)):
        return source is target
    same_backend = source.backend_tokenizer.to_str() == target.backend_tokenizer.to_str()
    return same_backend and source.special_tokens_map == target.special_tokens_map
