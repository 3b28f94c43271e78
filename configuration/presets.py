"""Published (and tiny) architectures by name: a config class, the fields that differ from its defaults, papers."""

from difflib import get_close_matches
from importlib.resources import files
from typing import Any, NamedTuple

import yaml

from .base import VanillaConfig
from .decoder import VanillaDecoderConfig
from .encoder import VanillaEncoderConfig
from .encoder_decoder import VanillaEncoderDecoderConfig, VanillaRecurrentEncoderDecoderConfig
from .image_encoder import VanillaImageEncoderConfig
from .names import TRANSFORMERS_NAMES


class Preset(NamedTuple):
    """A config class with field values, and the model's papers (keys of `training/report/card/references.bib`)."""

    config_class: type[VanillaConfig]
    fields: dict[str, Any]
    papers: tuple[str, ...]


CONFIGS: dict[str, type[VanillaConfig]] = {
    "encoder_decoder": VanillaEncoderDecoderConfig,
    "recurrent_encoder_decoder": VanillaRecurrentEncoderDecoderConfig,
    "decoder": VanillaDecoderConfig,
    "encoder": VanillaEncoderConfig,
    "image_encoder": VanillaImageEncoderConfig,
}


def read_presets() -> dict[str, Preset]:
    """Return the presets of `presets.yaml`."""
    text = (files(__package__) / "presets.yaml").read_text(encoding="utf-8")
    entries = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {
        name: Preset(CONFIGS[entry["kind"]], entry["fields"], tuple(entry["papers"]))
        for name, entry in entries.items()
        if not name.startswith(".")  # shared by several presets
    }


PRESETS = read_presets()


def preset(name: str, **overrides: Any) -> VanillaConfig:
    """Return the config called `name`, with `overrides` in place of its field values."""
    if name not in PRESETS:
        close = get_close_matches(name, PRESETS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}{hint}")
    config_class = PRESETS[name].config_class
    config_class.refuse_unknown(overrides)  # suggests the field that was meant
    for field in overrides.keys() - config_class.keywords() - {*TRANSFORMERS_NAMES}:
        raise ValueError(f"{config_class.__name__} has no field {field!r} (value {overrides[field]!r})")
    factors = dict.fromkeys(config_class.keywords() & {"scale_embedding", "scale_decoder_outputs"}, False)
    mup = {"initialization": None, "attention_scale": None, **factors}  # for which muP has its own values
    derived = mup if overrides.get("parametrization") == "mup" else {}
    return config_class(**(PRESETS[name].fields | derived | overrides))
