"""transformers' `generate`, with products of few rows as fast as the weights can be read."""

from functools import wraps
from typing import Any, cast

from torch import nn
from transformers.generation import GenerationMixin

from .parts.few_rows import copies_by_inputs


class VanillaGenerationMixin(GenerationMixin):
    """Mixin of the models that generate."""

    @wraps(GenerationMixin.generate)
    def generate(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]  # the same arguments
        with copies_by_inputs(cast(nn.Module, self)):
            return super().generate(*args, **kwargs)
