"""transformers' `generate`, with faster products of few rows on a CPU."""

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
