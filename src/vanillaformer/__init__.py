"""One set of Transformer parts, composed by configuration, as first-class Hugging Face models.

Importing this package makes transformers' Auto classes know `vanilla_encoder_decoder`, `vanilla_decoder`,
`vanilla_encoder`, `vanilla_image_encoder` and `vanilla_recurrent_encoder_decoder`, and its `pipeline` know the tasks
"translation", "summarization" and "text2text-generation" again.
"""

import pathlib
from importlib import import_module
from importlib.metadata import version

from vanillaformer.hub.seq2seq_pipelines import register_pipelines

from .acceleration import plug_in, speed_up
from .configuration import (
    PRESETS,
    BlockConfig,
    VanillaConfig,
    VanillaDecoderConfig,
    VanillaEncoderConfig,
    VanillaEncoderDecoderConfig,
    VanillaImageEncoderConfig,
    VanillaRecurrentEncoderDecoderConfig,
    preset,
)
from .modeling import *  # noqa: F403 - all models
from .modeling import __all__ as _models
from .modeling import register

__version__ = version("vanillaformer")

__all__ = ["PRESETS", "BlockConfig", "SpeedUp", "__version__", "preset", "speed_up", "to_int8"]  # noqa: F405 - by `__getattr__`
__all__ += ["VanillaDecoderConfig", "VanillaEncoderConfig", "VanillaEncoderDecoderConfig", "VanillaImageEncoderConfig"]
__all__ += ["VanillaRecurrentEncoderDecoderConfig", *(name for name in _models if name.startswith("Vanilla"))]


def write_code(config: VanillaConfig, folder: pathlib.Path) -> dict[str, str] | None:
    """Write the code of a saved config's models; its module is imported when the first is saved."""
    from vanillaformer.hub import remote_code

    return remote_code.write_code(config, folder)


register()
register_pipelines()
plug_in()
VanillaConfig.code_version, VanillaConfig.write_remote_code = __version__, write_code


def __getattr__(name: str) -> object:
    """Return names that are imported on first use: `SpeedUp`, which needs transformers' trainer, and `to_int8`."""
    modules = {"SpeedUp": "callback", "to_int8": "int8"}
    if name not in modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.acceleration.{modules[name]}"), name)
