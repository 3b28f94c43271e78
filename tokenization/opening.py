"""Opening the tokenizers of a model from somewhere else: no code of its own runs, and its tokens fit the model."""

from pathlib import Path

from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from .pairs import load_pair

Pair = tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]


def open_tokenizers(folder: Path, config: PreTrainedConfig | None = None, where: str = "the model") -> Pair:
    """Return the tokenizers of source and target in the folder of a model.

    Args:
        folder: The folder.
        config: The model's config; `None` where the model checks its tokens itself.
        where: What the user named the model by.

    Raises:
        ValueError: They cannot be read, or make tokens that the model has no row for.
    """
    try:
        source, target = load_pair(folder, trust_remote_code=False)
    except Exception as error:  # the library behind it raises plain ones for what is no tokenizer
        said = " ".join(str(error).split())[:600]
        raise ValueError(f"{where}: the tokenizer cannot be loaded: {said}") from error
    if config is not None:
        check_tokenizers(config, source, target, where)
    return source, target


def check_tokenizers(
    config: PreTrainedConfig, source: PreTrainedTokenizerBase, target: PreTrainedTokenizerBase, where: str
) -> None:
    """Raise ValueError when a tokenizer makes tokens that the model has no row for."""
    sizes = {"vocab_size": config.vocab_size}
    sizes["decoder_vocab_size"] = getattr(config, "decoder_vocab_size", None) or config.vocab_size
    for (name, size), tokenizer in zip(sizes.items(), (source, target)):
        largest = max(tokenizer.get_vocab().values(), default=-1) + 1
        if largest > size:
            raise ValueError(f"{where}: the tokenizer makes {largest:,} tokens, but the model has {name}={size:,}")
