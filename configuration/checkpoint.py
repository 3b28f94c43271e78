"""Version and code that are saved with a config."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from packaging.version import InvalidVersion, Version
from transformers import PreTrainedConfig
from transformers.utils import logging

VERSION_KEY = "vanillaformer_version"

logger = logging.get_logger(__name__)


def check_version(fields: dict[str, Any], current: str | None) -> None:
    """Warn, once, if a newer version than this one saved a config.

    Args:
        fields: The content of `config.json`.
        current: This version, if it is known.

    Raises:
        ValueError: `config.json` names something that is not a version.
    """
    saved = fields.get(VERSION_KEY)
    if saved is None:  # the first configs did not record it
        return
    try:
        is_newer = current is not None and Version(saved) > Version(current)
    except (InvalidVersion, TypeError) as error:
        raise ValueError(f"{VERSION_KEY} must be a version such as '0.1.0', got {saved!r}") from error
    if is_newer:
        logger.warning_once(
            f"This checkpoint was saved by vanillaformer {saved}, which is newer than this one ({current}): fields "
            "that this version does not know are ignored, and the model may compute something else. Update "
            "vanillaformer."
        )


class RemoteCodeMixin(PreTrainedConfig):
    """Saves version and code with `config.json`.

    Attributes:
        code_version: The version of vanillaformer that this class belongs to.
        code_map: In a saved copy of the code: the classes of its model type by Auto class, as `auto_map` has them.
        write_remote_code: In the package: writes the code of a config's model type into a folder and returns that
            map, `None` for a config class of a user.
    """

    code_version: ClassVar[str | None] = None
    code_map: ClassVar[dict[str, str] | None] = None
    write_remote_code: ClassVar[Callable[[Any, Path], dict[str, str] | None] | None] = None

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any) -> None:
        if not os.path.isfile(save_directory):  # for which transformers has an error
            self._save_code(Path(save_directory))
        if self.code_version is not None:
            setattr(self, VERSION_KEY, self.code_version)
        super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)

    def _save_code(self, folder: Path) -> None:
        writer, code = type(self).write_remote_code, self.code_map
        if writer is not None:
            code = writer(self, folder)
        if code is None:
            return
        before = getattr(self, "auto_map", None) or {}
        self.auto_map = code | {key: entry for key, entry in before.items() if _is_user_class(entry, code, folder)}
        if not self.auto_map:
            del self.auto_map

    def _get_files_timestamps(self, working_dir: str | os.PathLike) -> dict[str, float]:
        # transformers pushes what is newer than this: the code, written before it looks, has to be
        times = super()._get_files_timestamps(working_dir)
        return {name: time for name, time in times.items() if not name.endswith(".py")}


def _is_user_class(entry: Any, code: dict[str, str], folder: Path) -> bool:
    """Return whether an entry of an `auto_map` names a user's own subclass, whose file is in the folder."""
    if not isinstance(entry, str) or "." not in entry:
        return False
    module, name = entry.rsplit(".", 1)
    package_classes = {value.rsplit(".", 1)[1] for value in code.values()}
    return name not in package_classes and (folder / f"{module}.py").is_file()
