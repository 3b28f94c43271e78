"""What a checkpoint calls otherwise than this version does: the one place where renames are listed."""

from typing import Any, NamedTuple

from packaging.version import InvalidVersion, Version
from transformers.utils import logging

VERSION_KEY = "vanillaformer_version"
BEFORE_RECORDING = Version("0")  # of configs saved before versions were recorded

logger = logging.get_logger(__name__)


class Renamed(NamedTuple):
    """The fields that a version gave other names.

    Attributes:
        since: The first version that has the new names.
        fields: The old names and the new ones.
    """

    since: str
    fields: dict[str, str]


# Fields of configs, oldest rename first
RENAMED: list[Renamed] = []
# Weights: regular expressions of old names and what replaces them. No name of today may match one.
RENAMED_WEIGHTS: dict[str, str] = {}


def migrate(fields: dict[str, Any], current: str | None) -> dict[str, Any]:
    """Return the fields of a saved config by the names they have now; warn once if a newer version saved it.

    Args:
        fields: What `config.json` holds.
        current: This version, if it is known.

    Raises:
        ValueError: The version that the config was saved by is none.
    """
    saved = version_of(fields)
    if current is not None and saved > Version(current):
        logger.warning_once(
            f"This checkpoint was saved by vanillaformer {saved}, which is newer than this one ({current}): what it "
            "has besides is ignored, and the model may compute something else. Update vanillaformer."
        )
    for entry in RENAMED:
        if saved < Version(entry.since):
            fields = {entry.fields.get(name, name): value for name, value in fields.items()}
    return fields


def version_of(fields: dict[str, Any]) -> Version:
    """Return the version of vanillaformer that a config was saved by."""
    saved = fields.get(VERSION_KEY)
    if saved is None:
        return BEFORE_RECORDING
    try:
        return Version(saved)
    except (InvalidVersion, TypeError) as error:
        raise ValueError(f"{VERSION_KEY} must be a version such as '0.1.0', got {saved!r}") from error
