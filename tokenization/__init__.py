"""Training, saving and loading of stock fast tokenizers."""

from typing import Any

from .options import SPECIAL_TOKENS, ModelKind, SpecialTokens, TokenizerAlgorithm
from .pairs import load_pair, save_pair

__all__ = ["SPECIAL_TOKENS", "ModelKind", "SpecialTokens", "TokenizerAlgorithm"]
__all__ += ["load_pair", "save_pair", "train", "train_pair"]


def __getattr__(name: str) -> Any:
    """Return `train` or `train_pair`, only needed for new tokenizers."""
    if name in ("train", "train_pair"):
        from . import training

        return getattr(training, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
