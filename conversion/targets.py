"""Where a config can be deployed: the native architectures it fits and the engines that take it, as a table."""

from collections.abc import Mapping
from typing import Any

from vanillaformer.configuration import (
    BlockConfig,
    VanillaDecoderConfig,
    VanillaEncoderConfig,
    VanillaEncoderDecoderConfig,
)
from vanillaformer.modeling import (
    VanillaDecoderForCausalLM,
    VanillaEncoderDecoderForConditionalGeneration,
    VanillaEncoderForMaskedLM,
)

from .convert import native_architectures
from .exports import EXPORTERS

LANGUAGE_MODELS: dict[type[BlockConfig], Any] = {
    VanillaDecoderConfig: VanillaDecoderForCausalLM,
    VanillaEncoderConfig: VanillaEncoderForMaskedLM,
    VanillaEncoderDecoderConfig: VanillaEncoderDecoderForConditionalGeneration,
}


def targets(config: BlockConfig) -> dict[str, list[str]]:
    """Return, for the language model of a config, the architectures and the obstacles of each engine.

    `native` holds names that `to_native` accepts; every other key is an engine with what stands in its way, nothing if
    it takes the model.
    """
    model_class = LANGUAGE_MODELS[type(config)]
    engines = {name: exporter.obstacles(model_class, config) for name, exporter in EXPORTERS.items()}
    return {"native": native_architectures(config)} | engines


def table(configs: Mapping[str, BlockConfig]) -> str:
    """Return a Markdown table of where each config can go; a cell without a yes has the first obstacle."""
    rows = [["config", "native architecture", *EXPORTERS], ["---"] * (2 + len(EXPORTERS))]
    for name, config in configs.items():
        found = targets(config)
        natives = ", ".join(f"`{native}`" for native in found.pop("native")) or "none"
        rows.append([f"`{name}`", natives, *(cell(obstacles) for obstacles in found.values())])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def cell(obstacles: list[str]) -> str:
    """Return what a table says of an engine."""
    return "yes" if not obstacles else obstacles[0].replace("|", "\\|")
