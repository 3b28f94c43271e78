"""Imports go one way, from scripts to inference, training, data, hub, modeling and configuration, and never back."""

import ast

import pytest
from layout import imports, sources, tree

BELOW_HUB = {"console", "configuration", "modeling", "tokenization"}
BELOW_TRAINING = {*BELOW_HUB, "acceleration", "hub", "conversion", "data"}
ALMOST_ALL = {*BELOW_TRAINING, "training", "inference"} - {"acceleration"}
# What a folder may import besides itself.
FOLDERS_BELOW = {
    **{name: set() for name in ("console", "configuration", "tokenization", "__main__")},
    "modeling": {"configuration"},
    "acceleration": {"modeling"},
    "hub": BELOW_HUB,
    "data": {*BELOW_HUB, "acceleration", "hub"},
    "conversion": {*BELOW_HUB, "hub"},
    "training": BELOW_TRAINING,
    "inference": {*BELOW_TRAINING, "training"},
    "comparison": {"", "configuration", "console", "modeling", "hub", "data", "training"},
    "forecasting": {"comparison", "configuration", "console", "data", "hub", "training"},
    "exploration": {"", *ALMOST_ALL},
    "scripts": {"", "comparison", "exploration", "forecasting", *ALMOST_ALL},
}  # "" is the package root

# The modules of `modeling`, lowest first; one imports from lower rows only, and parts from none of their own row.
LAYERS = [
    {*("parts", "parts.norms", "parts.dropout", "parts.feed_forward", "parts.positions", "parts.attention"),
     *("parts.initialization", "parts.ngrams", "parts.pointers", "parts.packed_texts"),
     *("parts.pooling", "parts.initialization", "parts.position_schemes", "parts.windows"),
     *("acceleration", "parts.recurrence", "parts.recurrent_attention"),
     "heads"},
    {"parts.residual", "parts.embeddings", "base", "generation"},
    {"parts.patches", "block", "seq2seq"}, {"stack"}, {"decoding.base"},
    {"decoding.mask_predict", "decoding.ctc"}, {"decoding"},
    {"encoder_decoder", "decoder", "encoder", "image_encoder", "recurrent_encoder_decoder", "measured"},
    {"counts"},
]  # fmt: skip
# The parts that are made of other parts, and of which.
COMPOSED = {
    "parts.attention": {"acceleration", "parts.norms", "parts.positions"},
    "parts.feed_forward": {"parts.dropout"},
    "parts.pointers": {"parts.dropout"},
    "heads": {"acceleration", "parts.dropout", "parts.feed_forward", "parts.norms"},
    "parts.residual": {"parts.dropout", "parts.norms"},
    "parts.position_schemes": {"parts.positions"},
    "parts.windows": {"parts.norms"},
    "parts.embeddings": {"parts.dropout", "parts.ngrams", "parts.norms", "parts.position_schemes", "parts.positions"},
    "base": {"acceleration", "parts.initialization"},
    "generation": {"base"},
}
# The folders and files of `training`, lowest first; one imports from lower rows only, and none from its own row.
TRAINING = [
    {"hardware"}, {"arguments", "run_folder"}, {"models", "metrics", "native", "memory"}, {"trainer"},
    {"training_arguments", "report"}, {"tasks"}, {"auto_defaults", "finishing", "plan"}, {"tokenizers"}, {"run"},
]  # fmt: skip


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


def test_every_module_of_modeling_has_its_layer_and_none_imports_itself_by_way_of_others():
    assert {inner(module) for module in MODELING} == set().union(*LAYERS)
    # Imports for type checkers and those inside functions count too
    graph = {name: {target for target in imports(name) if target in sources()} - {name} for name in sources()}
    while leaves := {name for name, targets in graph.items() if not targets}:
        graph = {name: targets - leaves for name, targets in graph.items() if name not in leaves}
    assert not graph, "imports in a circle, and what imports from it"


@pytest.mark.parametrize("module", MODELING)
def test_models_are_made_of_blocks_and_blocks_of_parts(module):
    level = next(number for number, names in enumerate(LAYERS) if inner(module) in names)
    below = set().union(*LAYERS[:level])
    if level <= 1:
        below = COMPOSED.get(inner(module), set())
    used = {inner(target) for target in imports(module) if folder_of(target) == "modeling"}
    assert used <= below, f"{module} imports {sorted(used - below)}"


@pytest.mark.parametrize("module", [name for name in sources() if name.startswith("vanillaformer.training.")])
def test_the_folders_and_files_of_training_are_in_order(module):
    own = module.split(".")[2]
    level = next(number for number, names in enumerate(TRAINING) if own in names)
    below = set().union(*TRAINING[:level], {own})
    used = {target.split(".")[2] for target in imports(module) if target.startswith("vanillaformer.training.")}
    assert used <= below, f"{module} imports {sorted(used - below)}"


@pytest.mark.parametrize("module", MODELING)
def test_only_registration_reads_the_name_of_a_model_type(module):
    """Behavior is decided by fields, never by a model's name."""
    attributes = [node for node in ast.walk(tree(module)) if isinstance(node, ast.Attribute)]
    readers = [node for node in attributes if node.attr == "model_type"]
    assert not readers or inner(module) == "base"
