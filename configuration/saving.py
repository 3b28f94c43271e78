"""What is saved with a config: the version it was saved by, and the code that its models can be loaded with."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from .derived import overridden
from .migration import VERSION_KEY, migrate
from .names import GENERATION_NAMES


class Saving:
    """Records version and code in `config.json`; the package says which, and a saved copy of the code for itself.

    Attributes:
        code_version: The version of vanillaformer that this class belongs to.
        code_map: In a saved copy of the code: the classes of its model type by Auto class, as `auto_map` has them.
        code_writer: In the package: writes the code of a config's model type into a folder and returns that map,
            `None` for a config that is not the package's own.
    """

    code_version: ClassVar[str | None] = None
    code_map: ClassVar[dict[str, str] | None] = None
    code_writer: ClassVar[Callable[[Any, Path], dict[str, str] | None] | None] = None

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Return the config that the fields make, with keywords in place of fields of the same name.

        Raises:
            ValueError: A keyword is a misspelled field, or another library's or another config's.
            StrictDataclassError: The fields do not fit together.
        """
        fields = migrate(config_dict, cls.code_version)
        names = cls.keywords() - {"dtype"}  # type: ignore[attr-defined]  # which may be "auto": transformers'
        overrides = {cls.attribute_map.get(key, key): kwargs.pop(key) for key in names & kwargs.keys()}  # type: ignore[attr-defined]
        # Loading a model or a tokenizer passes all its keywords on
        passed = {key: value for key, value in kwargs.items() if not key.endswith("_token")}
        cls.refuse_unknown({key: passed[key] for key in passed.keys() - GENERATION_NAMES})  # type: ignore[attr-defined]
        if overrides:
            fields = overridden(cls(**fields), fields, overrides)
        return super().from_dict(fields, **kwargs)  # type: ignore[misc]

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any) -> None:
        if not os.path.isfile(save_directory):  # for which transformers has an error
            self._write_code(Path(save_directory))
        if self.code_version is not None:
            setattr(self, VERSION_KEY, self.code_version)
        super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)  # type: ignore[misc]

    def _write_code(self, folder: Path) -> None:
        writer, code = type(self).code_writer, self.code_map
        if writer is not None:
            code = writer(self, folder)
        if code is None:
            return
        before = getattr(self, "auto_map", None) or {}
        self.auto_map = code | {key: entry for key, entry in before.items() if _is_anothers(entry, code, folder)}
        if not self.auto_map:
            del self.auto_map

    def _get_files_timestamps(self, working_dir: str | os.PathLike) -> dict[str, float]:
        # transformers pushes what is newer than this: the code, written before it looks, has to be
        times = super()._get_files_timestamps(working_dir)  # type: ignore[misc]
        return {name: time for name, time in times.items() if not name.endswith(".py")}


def _is_anothers(entry: Any, code: dict[str, str], folder: Path) -> bool:
    """Whether an entry of an `auto_map` is for a class that somebody made of ours, with the file that has it."""
    if not isinstance(entry, str) or "." not in entry:
        return False
    module, name = entry.rsplit(".", 1)
    ours = {value.rsplit(".", 1)[1] for value in code.values()}
    return name not in ours and (folder / f"{module}.py").is_file()
