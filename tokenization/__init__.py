"""Training, saving and loading of stock fast tokenizers."""

from .options import SPECIAL_TOKENS, ModelKind, SpecialTokens, TokenizerAlgorithm
from .pairs import load_pair, save_pair
from .training import train, train_pair

__all__ = ["SPECIAL_TOKENS", "ModelKind", "SpecialTokens", "TokenizerAlgorithm"]
__all__ += ["load_pair", "save_pair", "train", "train_pair"]
