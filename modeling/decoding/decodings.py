"""`DECODINGS` is the list of choices."""

from .base import Autoregressive
from .ctc import Ctc
from .mask_predict import MaskPredict

DECODINGS: dict[str, type[Autoregressive]] = {
    "autoregressive": Autoregressive,
    "mask_predict": MaskPredict,
    "ctc": Ctc,
}
