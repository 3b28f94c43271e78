"""Which layers get adapters when peft is not told: it asks a table by the type of the model."""

import sys

from vanillaformer.configuration import BlockConfig

LORA_TARGETS = ["q_proj", "v_proj"]  # queries and values, as in LoRA's paper (Hu et al. 2021, section 7.1)


def register_targets(config: BlockConfig) -> None:
    """Enter the model's type in peft's table, where a program has loaded peft: we load it for none."""
    constants = sys.modules.get("peft.utils.constants")
    if constants is not None:
        table = constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
        table.setdefault(config.model_type, LORA_TARGETS)
