"""Imports go one way: scripts → training → (models → block → parts) → configuration, and never back."""

import ast

import pytest
from layout import imports, sources, tree

# What a folder may import besides itself.
FOLDERS_BELOW = {
    "configuration": set(),
    "tokenization": set(),
    "modeling": {"configuration"},
    "training": {"configuration", "modeling", "tokenization"},
    "conversion": {"configuration", "modeling", "tokenization"},
    "scripts": {"", "configuration", "modeling", "tokenization", "training", "conversion"},  # "" is the package root
}

# The modules of `modeling`, lowest first; one imports from lower rows only, and parts from none of their own row.
LAYERS = [
    {"norms", "dropout", "feed_forward", "positions", "attention", "pooling", "initialization", "heads", "adapters"},
    {"residual", "embeddings", "base"},
    {"block"},
    {"layer_drop"},
    {"stack"},
    {"encoder_decoder", "decoder", "encoder", "admin", "counts"},
    {"auto"},
    {"remote_code", "hub", "file_names", "generation_settings"},
    {"weights"},
    {"loading"},
]
# The parts that are made of other parts, and of which.
COMPOSED = {
    "attention": {"norms"},
    "feed_forward": {"dropout"},
    "heads": {"dropout"},
    "residual": {"dropout", "norms"},
    "embeddings": {"dropout", "norms", "positions"},
    "base": {"adapters", "initialization"},
}


def folder_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def inner(module: str) -> str:
    return module.removeprefix("vanillaformer.modeling").lstrip(".")


MODELING = [name for name in sources() if folder_of(name) == "modeling" and inner(name)]


@pytest.mark.parametrize("module", [name for name in sources() if folder_of(name)])
def test_a_module_imports_only_from_folders_below_its_own(module):
    own = folder_of(module)
    assert own in FOLDERS_BELOW, f"say in this test what {own} may import"
    for target in imports(module):
        assert folder_of(target) in FOLDERS_BELOW[own] | {own}, f"{module} imports {target}"


def test_every_module_of_modeling_has_its_layer():
    assert {inner(module) for module in MODELING} == set().union(*LAYERS)


@pytest.mark.parametrize("module", MODELING)
def test_models_are_made_of_blocks_and_blocks_of_parts(module):
    level = next(number for number, names in enumerate(LAYERS) if inner(module) in names)
    below = set().union(*LAYERS[:level])
    if level <= 1:
        below = COMPOSED.get(inner(module), set())
    used = {inner(target) for target in imports(module) if folder_of(target) == "modeling"}
    assert used <= below, f"{module} imports {sorted(used - below)}"


@pytest.mark.parametrize("module", MODELING)
def test_only_registration_reads_the_name_of_a_model_type(module):
    """Behaviour is decided by fields, never by a model's name."""
    readers = [
        node for node in ast.walk(tree(module)) if isinstance(node, ast.Attribute) and node.attr == "model_type"
    ]
    assert not readers or inner(module) in ("auto", "adapters")
