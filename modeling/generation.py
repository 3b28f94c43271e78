"""transformers' `generate`, limited by the length of a position table.

The limit of a generation config, such as a pipeline's 256 new tokens, is lowered to the end of the table; one given by
keyword that is too large is refused.
"""

from functools import wraps
from typing import Any, cast

from transformers.generation import GenerationMixin

from .base import CACHE_NAME


class VanillaGenerationMixin(GenerationMixin):
    """Mixin of the models that generate."""

    def _prepare_generation_config(self, generation_config: Any, **kwargs: Any) -> Any:
        prepared, rest = super()._prepare_generation_config(generation_config, **kwargs)
        given = [name for name in ("max_new_tokens", "max_length") if kwargs.get(name) is not None]
        cast(Any, prepared).limit_by_keyword = bool(given)
        return prepared, rest

    @wraps(GenerationMixin.prepare_inputs_for_generation)  # `generate` inspects its parameters
    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]  # by `wraps`
        inputs = super().prepare_inputs_for_generation(*args, **kwargs)
        if CACHE_NAME in inputs:  # PEFT looks for it by the name of our models, and puts its prefix there
            inputs["past_key_values"] = inputs.pop(CACHE_NAME)
        return inputs

    def _prepare_generated_length(self, *args: Any, **kwargs: Any) -> Any:
        generation_config, config = super()._prepare_generated_length(*args, **kwargs), cast(Any, self).config
        if config.has_position_table:  # pipelines ask for 256 new tokens
            longest = config.max_position_embeddings + 1  # the last token is not read
            if kwargs["model_input_name"] == "inputs_embeds" and not config.is_encoder_decoder:
                longest -= kwargs["inputs_tensor"].shape[1] - kwargs["input_ids_length"]  # vectors have no ids
            if generation_config.limit_by_keyword and generation_config.max_length > longest:
                raise ValueError(
                    f"max_new_tokens={generation_config.max_new_tokens}, max_length={generation_config.max_length}: "
                    f"max_position_embeddings={config.max_position_embeddings} allows a max_length of {longest}"
                )
            generation_config.max_length = min(generation_config.max_length, longest)
        return generation_config
