"""Every recipe is one that its program accepts, and its model can be built."""

import re
from pathlib import Path

import pytest

from vanillaformer.configuration import preset
from vanillaformer.scripts import train_classifier, train_language_model, train_translation
from vanillaformer.training.models import check_preset
from vanillaformer.training.parsing import parse

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "scripts" / "recipes").glob("*.yaml"))
PROGRAMS = {
    "train-translation": (train_translation, "translation"),
    "train-language-model": (train_language_model, None),
    "train-classifier": (train_classifier, "classification"),
}


def test_there_are_recipes() -> None:
    assert RECIPES


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = re.search(rf"^#\s+vanillaformer (train-\S+) scripts/recipes/{path.name} ", text, re.MULTILINE)
    assert named, "say in a comment which command runs it"
    program, job = PROGRAMS[named[1]]
    model, _, _, settings = parse(program.ARGUMENTS, [str(path)])
    check_preset(job or settings.objective, model)
    if model.model_name_or_path is None:
        assert preset(model.preset, **model.config_overrides())
    assert path.name in (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
