"""Saved folders of tiny models, written once for all tests of a worker."""

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from .tiny import save, tiny


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory):
    """Return a function (model class, fields) -> folder of a tiny model and its tokenizer: to read, not to change."""
    folders: dict[str, Path] = {}

    def folder(model_class: type[PreTrainedModel], **fields: Any) -> Path:
        name = "-".join([model_class.__name__, *(f"{key}_{value}" for key, value in fields.items())])
        if name not in folders:
            folders[name] = save(tiny(model_class, **fields), tmp_path_factory.mktemp(name))
        return folders[name]

    return folder
