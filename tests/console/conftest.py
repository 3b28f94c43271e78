"""Progress is shown while rows are cached."""

from data.conftest import _own_cache  # noqa: F401
