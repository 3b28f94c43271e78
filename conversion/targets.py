"""Where a config can be deployed: the native architectures it fits and the engines that take it, as tables."""

from collections.abc import Mapping

from vanillaformer.configuration import VanillaConfig

from .convert import native_architectures
from .exports import EXPORTERS
from .mapping.architecture import OUR_CLASSES, main_head


def targets(config: VanillaConfig) -> dict[str, list[str]]:
    """Return, for a config's language model or image classifier, the architectures and each engine's obstacles.

    `native` holds names that `to_native` accepts; every other key is an engine with its obstacles, if any.
    """
    model_class = OUR_CLASSES[type(config)][main_head(type(config))]
    engines = {name: exporter.obstacles(model_class, config) for name, exporter in EXPORTERS.items()}
    return {"native": native_architectures(config)} | engines


def targets_table(configs: Mapping[str, VanillaConfig]) -> str:
    """Return a Markdown table of where each config can go; a cell without a yes has the first obstacle."""
    rows = [["config", "native architecture", *EXPORTERS]]
    for name, config in configs.items():
        found = targets(config)
        natives = ", ".join(f"`{native}`" for native in found.pop("native")) or "none"
        rows.append([f"`{name}`", natives, *("yes" if not reasons else reasons[0] for reasons in found.values())])
    return markdown_table(rows)


def engines_table() -> str:
    """Return a Markdown table of the engines."""
    rows = [["`--engine`", "runs on", "models", "`--quantization`", "to write", "to run"]]
    for name, exporter in EXPORTERS.items():
        info = exporter.info
        extras = [f"`pip install 'vanillaformer[{extra.name}]'`" for extra in (info.writer, info.runner)]
        quantizations = ", ".join(f"`{quantization}`" for quantization in exporter.quantizations)
        rows.append([f"`{name}`", info.runtime, info.models, quantizations, *extras])
    return markdown_table(rows)


def markdown_table(rows: list[list[str]]) -> str:
    """Return rows as a Markdown table, the first as its header."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (rows[0], ["---"] * len(rows[0]), *rows[1:])]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)
