"""Every recipe is one that its program accepts, and its model can be built."""

import re
from pathlib import Path

import pytest

from vanillaformer.configuration import preset
from vanillaformer.training.models import check_preset
from vanillaformer.training.run import parse_arguments
from vanillaformer.training.tasks import task_of

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "scripts" / "recipes").glob("*.yaml"))
assert RECIPES


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = re.search(rf"^#\s+vanillaformer (train-\S+) scripts/recipes/{path.name} ", text, re.MULTILINE)
    assert named, "say in a comment which command runs it"
    args = parse_arguments(named[1], [str(path)])
    task = task_of(named[1])(args).name
    check_preset(task, args.model_args)
    if args.model_args.model_name_or_path is None:
        assert preset(args.model_args.preset, **args.model_args.config_overrides())
    assert path.name in (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
