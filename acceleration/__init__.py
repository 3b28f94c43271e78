"""Equal computations, faster: what is particular to hardware and batches, apart from the models.

`plug_in.py` says what is switched on, when and why.
"""

from .autotune import chosen, keep
from .plug_in import plug_in, speed_up, switched_off

__all__ = ["chosen", "keep", "plug_in", "speed_up", "switched_off"]
