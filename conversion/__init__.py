"""Lossless conversion to and from the architectures of transformers.

`architectures/` has a file for each of them: a table of fields and a table of tensors, read in both directions.
`tensors.py` and `fields.py` are what the tables are made of, `function.py` says when two configs mean the same,
`architecture.py` reads the table of fields and finds what stands in the way, `weights.py` the table of tensors,
`convert.py` puts them to use.
"""

from .architecture import Architecture
from .architectures import ARCHITECTURES
from .convert import from_native, native_architectures, to_native

__all__ = ["ARCHITECTURES", "Architecture", "from_native", "native_architectures", "to_native"]
