"""Our tensors in the form that the files of engines hold."""

from typing import Any

import numpy as np
import torch

INFINITE_WAVELENGTH = 1e30  # as a factor on a wavelength: the dimension is not rotated


def array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a copy of a tensor, in float32."""
    return tensor.detach().to("cpu", torch.float32, copy=True).contiguous().numpy()


def wavelength_factors(frequencies: torch.Tensor, base: float) -> np.ndarray[Any, Any]:
    """Return base^(-2i/K) / frequency of each pair of dimensions (K/2): how much longer its wavelength is."""
    pairs = len(frequencies)
    unscaled = base ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    return array((unscaled / frequencies.detach().cpu().double()).nan_to_num(posinf=INFINITE_WAVELENGTH))
