"""Where a config can be deployed: the native architectures that it fits and the engines that take it."""

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
