"""Lossless conversion to and from the architectures of transformers.

`architectures/` has a file for each family: tables of fields and tables of tensors, read in both directions. In
`mapping/`, `fields.py` and `tensors.py` have the kinds of entries, and `architecture.py` the tables; `canonical.py`
defines when two configs compute the same, `fitting.py` finds the config that an architecture can hold, and
`weights.py` moves the weights. `convert.py` puts them together, `folders.py` converts saved models, `exports/` writes
models for other engines, and `state_dicts.py` reads state dicts of models outside transformers.
"""

from .architectures import ARCHITECTURES
from .convert import from_native, native_architectures, to_native
from .mapping.architecture import Architecture
from .state_dicts import from_state_dict

__all__ = ["ARCHITECTURES", "Architecture", "from_native", "from_state_dict", "native_architectures", "to_native"]
