"""Values of options that read a field, by the entries of the options."""

from .options import OPTIONS


def readers(fields: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return, for each field that an attribute of the choices lists, the option and its values that read the field."""
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for option, choices in OPTIONS.items():
        for value, choice in choices.items():
            for field in getattr(choice, fields):
                found[field] = (option, (*found.get(field, (option, ()))[1], value))
    return found


FIELD_READERS = readers("fields")
"""Fields that must keep their default but with some values of an option: that option and those values."""
SIZE_READERS = readers("sizes")
"""Fields that have no effect but with some values of an option: that option and those values."""
