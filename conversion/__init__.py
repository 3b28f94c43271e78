"""Lossless conversion to and from the architectures of transformers.

`architectures/` has a file for each of them: a table of fields and a table of tensors, read in both directions.
`tensors.py` and `fields.py` are what the tables are made of, `function.py` says when two configs mean the same,
`architecture.py` reads the table of fields and finds what stands in the way, `weights.py` the table of tensors,
`fitting.py` adds zeros where an architecture has more than ours, `convert.py` puts them to use. `imports.py` is the
way in from state dicts of models outside transformers, which `sources.py` and `source_x_transformers.py` read.
"""

from .architectures import ARCHITECTURES
from .convert import from_native, native_architectures, to_native
from .mapping.architecture import Architecture
from .state_dicts.loading import from_state_dict

__all__ = ["ARCHITECTURES", "Architecture", "from_native", "from_state_dict", "native_architectures", "to_native"]
