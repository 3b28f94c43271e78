"""Ways from a decoder's states to texts, in training and in generation."""

from .base import Autoregressive, DecoderInputs
from .ctc import Ctc
from .decodings import DECODINGS
from .mask_predict import MaskPredict

__all__ = ["DECODINGS", "Autoregressive", "Ctc", "DecoderInputs", "MaskPredict"]
