"""The base of all configs: derived fields, and the names of the classes beside a saved model."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from transformers import PreTrainedConfig


class SavedConfig(PreTrainedConfig):
    """Base of the configs in the package and of those in the code beside a saved model."""

    derived_fields: ClassVar[dict[str, Callable[[Any], Any]]] = {}  # what a field that is left at `None` is derived by
    # The classes of the model type by Auto class, as `auto_map` has them
    code_map: ClassVar[dict[str, str] | None] = None
    fixed: ClassVar[dict[str, Any]] = {}  # fields that the code beside a saved model is for one value of

    def __post_init__(self, **kwargs: Any) -> None:
        self.check_given(kwargs)
        self._fill_derived()
        self._take_keywords(kwargs)
        super().__post_init__(**kwargs)

    def validate_fixed(self) -> None:
        """Fields that the code beside a saved model leaves out have the value that it is for."""
        for name, value in self.fixed.items():
            if getattr(self, name, value) != value:
                raise ValueError(f"{name}={getattr(self, name)!r}: this code is for a model of {name}={value!r}")

    def check_given(self, given: dict[str, Any]) -> None:
        """Check the keywords that are not fields before anything is made of them and the fields."""

    def _fill_derived(self) -> None:
        for name, derive in self.derived_fields.items():
            if getattr(self, name) is None:
                setattr(self, name, derive(self))

    def _take_keywords(self, kwargs: dict[str, Any]) -> None:
        """Take the keywords out of `kwargs` that are no fields of the dataclass."""

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any) -> None:
        folder = Path(save_directory)
        if not folder.is_file() and (code := self.saved_code(folder)) is not None:  # transformers refuses a file
            before = {key: str(entry) for key, entry in (getattr(self, "auto_map", None) or {}).items()}
            package_classes = {entry.rpartition(".")[2] for entry in code.values()}
            parts = {key: entry.rpartition(".") for key, entry in before.items()}
            # Entries of a user's own subclass, whose file is in the folder, stay
            users = [key for key, (module, _, _) in parts.items() if module and (folder / f"{module}.py").is_file()]
            self.auto_map = code | {key: before[key] for key in users if parts[key][2] not in package_classes}
            if not self.auto_map:
                del self.auto_map
        super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)

    def saved_code(self, folder: Path) -> dict[str, str] | None:
        """Return the `auto_map` of the code that is saved in a folder, `None` for a config class of a user."""
        return self.code_map
