"""The name of the cache among the arguments and outputs of models, which transformers 5.24 changed."""

from transformers.modeling_outputs import BaseModelOutputWithPast

CACHE_NAME = "cache" if "cache" in BaseModelOutputWithPast.__dataclass_fields__ else "past_key_values"
"""In these models it is `past_key_values`: `VanillaPreTrainedModel.__call__` takes the other name too."""
