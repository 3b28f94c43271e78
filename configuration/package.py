"""The base of all configs, and what only the package's have, not those beside a saved model: checks, versions."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from packaging.version import InvalidVersion, Version
from transformers import PreTrainedConfig
from transformers.utils import logging

from .names import GENERATION_NAMES
from .rules import check_limits


class SavedConfig(PreTrainedConfig):
    """Base of the configs in the package and of those in the code beside a saved model."""

    derived_fields: ClassVar[dict[str, Callable[[Any], Any]]] = {}  # how each field left at `None` is derived
    # The classes of the model type by Auto class, as in `auto_map`
    code_map: ClassVar[dict[str, str] | None] = None
    fixed: ClassVar[dict[str, Any]] = {}  # fields of which the code beside a saved model has only one value

    def __post_init__(self, **kwargs: Any) -> None:
        self.check_given(kwargs)
        self._fill_derived()
        self._take_keywords(kwargs)
        super().__post_init__(**kwargs)

    def validate_fixed(self) -> None:
        """Fields that the code beside a saved model omits have the value that it is for."""
        for name, value in self.fixed.items():
            if getattr(self, name, value) != value:
                raise ValueError(f"{name}={getattr(self, name)!r}: this code is for models with {name}={value!r}")

    def check_given(self, given: dict[str, Any]) -> None:
        """Check keywords that are not fields, before fields are derived and keywords are used."""

    def _fill_derived(self) -> None:
        for name, derive in self.derived_fields.items():
            if getattr(self, name) is None:
                setattr(self, name, derive(self))

    def _take_keywords(self, kwargs: dict[str, Any]) -> None:
        """Take the keywords that are not fields of the dataclass out of `kwargs`."""

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
        """Return the `auto_map` of the code that is saved in a folder, `None` for a user's config class."""
        return self.code_map


VERSION_KEY = "vanillaformer_version"

logger = logging.get_logger(__name__)


def check_version(fields: dict[str, Any], current: str | None) -> None:
    """Warn, once, if a newer version than this one saved a config."""
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
            "that this version does not know are ignored, and the model may compute different outputs. Update "
            "vanillaformer."
        )


class PackageConfig(SavedConfig):
    """Base of the package's configs: saves the code of models, checks names and versions, derives fields again."""

    own_keywords: ClassVar[tuple[str, ...]] = ()
    code_version: ClassVar[str | None] = None  # the version of vanillaformer that this class belongs to
    # Writes the code of a config's models into a folder and returns its `auto_map`, `None` for a user's config class
    write_remote_code: ClassVar[Callable[[Any, Path], dict[str, str] | None] | None] = None

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Return the config that the fields make, with keywords in place of fields of the same name."""
        check_version(config_dict, cls.code_version)
        # a pushed model's, for users without the package, which registers these pipelines itself
        config_dict = {key: value for key, value in config_dict.items() if key != "custom_pipelines"}
        names = cls.keywords() - {"dtype"}  # may be "auto", which transformers handles
        overrides = {cls.attribute_map.get(key, key): kwargs.pop(key) for key in names & kwargs.keys()}
        # Loading a model or a tokenizer passes all its keywords on
        passed = {key: value for key, value in kwargs.items() if not key.endswith("_token")}
        cls.refuse_unknown({key: passed[key] for key in passed.keys() - GENERATION_NAMES})
        if overrides:
            config_dict = cls(**config_dict).overridden(config_dict, overrides)
        return super().from_dict(config_dict, **kwargs)

    @classmethod
    def keywords(cls) -> set[str]:
        """Return the names of all fields and other keywords that a config of this class takes."""
        fields = {field.name for field in dataclasses.fields(cls)}
        return fields | {*cls.attribute_map, *cls.own_keywords}

    @classmethod
    def refuse_unknown(cls, given: dict[str, Any]) -> None:
        """Raise ValueError for a keyword that is not a field of this config class."""
        raise NotImplementedError

    def check_given(self, given: dict[str, Any]) -> None:
        self.refuse_unknown(given)
        given.pop("pruned_heads", None)  # written by earlier versions
        check_limits(vars(self) | given)  # before lists with an entry per layer or label are made

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any) -> None:
        if self.code_version is not None:
            setattr(self, VERSION_KEY, self.code_version)
        super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)

    def saved_code(self, folder: Path) -> dict[str, str] | None:
        writer = type(self).write_remote_code
        return None if writer is None else writer(self, folder)

    def _get_files_timestamps(self, working_dir: str | os.PathLike) -> dict[str, float]:
        # transformers pushes files newer than these times: the code, though written before, has to be among them
        times = super()._get_files_timestamps(working_dir)
        return {name: time for name, time in times.items() if not name.endswith(".py")}

    def overridden(self, fields: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
        """Return the saved fields with overrides, without the values that are to be derived again.

        These are the derived fields that have the derived value; any other value was given explicitly and stays.
        """
        stale = self._still_derived()
        return {name: value for name, value in fields.items() if name not in stale} | overrides

    def _still_derived(self) -> set[str]:
        """Return the derived fields that have the derived value."""
        return {name for name, derive in self.derived_fields.items() if getattr(self, name) == derive(self)}

    def update(self, config_dict: dict[str, Any]) -> None:
        """Set fields and derive others again, as with keywords of `from_pretrained`."""
        derived = self._still_derived() - config_dict.keys()
        super().update(config_dict)
        self._derive_again(derived)

    def update_from_string(self, update_str: str) -> None:
        """Set fields from `name=value,name=value`, as `update` does."""
        derived = self._still_derived() - {part.partition("=")[0] for part in update_str.split(",")}
        super().update_from_string(update_str)
        self._derive_again(derived)

    def _derive_again(self, names: set[str]) -> None:
        for name in names:
            setattr(self, name, None)
        self._fill_derived()
