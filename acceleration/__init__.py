"""Faster implementations of the same computations: what depends on hardware and batches, kept apart from the models.

`plug_in.py` lists what is switched on, when and why.
"""

from .autotune import chosen, keep
from .plug_in import plug_in, speed_up, switched_off

__all__ = ["chosen", "keep", "plug_in", "speed_up", "switched_off"]
