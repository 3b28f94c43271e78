"""Decodings: how a decoder's states become texts, in training and generation; `DECODINGS` is the list of choices."""

from typing import Any

from .base import Autoregressive, DecoderInputs
from .ctc import Ctc
from .mask_predict import MaskPredict

__all__ = ["DECODINGS", "Autoregressive", "Ctc", "DecoderInputs", "MaskPredict"]

DECODINGS: dict[str, type[Any]] = {
    "autoregressive": Autoregressive,
    "mask_predict": MaskPredict,
    "ctc": Ctc,
}
