"""Finished texts leave the batch, so that nothing is computed after their end.

Shape letters: B rows of the batch, A rows that are left, V vocabulary.
"""

from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer
from transformers.generation import LogitsProcessor
from transformers.utils import ModelOutput

from vanillaformer.modeling.base import CACHE_NAME

from .plain import is_unchanged

WORTHWHILE = 0.75  # rows are dropped if at most this share remains: each time the cache is copied
LAYERS = (DynamicLayer, DynamicSlidingWindowLayer)  # cache layers that can drop rows


class UnfinishedRows:
    """Replaces a model in transformers' generation loop, and computes only the rows that have not ended.

    A row has ended once its last token is one of `ends`: its outputs are ignored. Other attributes are the model's.
    """

    def __init__(self, model: Any, ends: torch.Tensor):
        self.model, self.ends = model, ends
        self.rows: torch.Tensor | None = None  # (A), None while all remain
        self.ended: Any = False  # (B)
        self.source: dict[str, Any] = {}  # the encoder's output for these rows, read by all steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, **inputs: Any) -> Any:
        """Return the model's output for one more token of each row (B, 1): logits (B, 1, V), 0 for dropped rows."""
        cache_name = CACHE_NAME if CACHE_NAME in inputs else "past_key_values"  # the native models' name, or ours
        cache = inputs.pop(cache_name)
        tokens = inputs["decoder_input_ids" if self.model.config.is_encoder_decoder else "input_ids"]
        rows = torch.arange(len(tokens)) if self.rows is None else self.rows
        self.ended = self.ended | torch.isin(tokens[:, -1], self.ends)  # padding follows
        unfinished = ~self.ended[rows]
        tensors = [value for value in inputs.values() if isinstance(value, torch.Tensor)]
        by_rows = all(value.ndim == 2 and len(value) == len(tokens) for value in tensors)
        if by_rows and 0 < unfinished.sum() <= WORTHWHILE * len(rows):
            cache.batch_select_indices(unfinished.nonzero().flatten())
            self.rows = rows = rows[unfinished]
            if "encoder_outputs" in inputs:
                self.source = {"encoder_outputs": _rows_of(inputs["encoder_outputs"], rows, len(tokens))}
        if self.rows is None:
            return self.model(**inputs, **{cache_name: cache})
        left = {name: _rows_of(value, rows, len(tokens)) for name, value in (inputs | self.source).items()}
        output = self.model(**left, **{cache_name: cache})
        logits = output.logits
        output.logits = logits.new_zeros(len(tokens), *logits.shape[1:]).index_copy(0, rows, logits)
        return output


def _rows_of(value: Any, rows: torch.Tensor, count: int) -> Any:
    """Return these rows of a tensor that has `count` of them, or of an encoder's output; other values as they are."""
    if isinstance(value, ModelOutput) and len(value[0]) == count:
        return type(value)(**{name: _rows_of(part, rows, count) for name, part in value.items()})
    if isinstance(value, tuple):
        return tuple(_rows_of(part, rows, count) for part in value)
    return value[rows] if isinstance(value, torch.Tensor) and value.ndim and len(value) == count else value


def drop_finished(model: Any, input_ids: torch.Tensor, options: dict[str, Any]) -> Any:
    """Return a model, or `UnfinishedRows` in its place where rows can be dropped in `GenerationMixin._sample`.

    All rows stay if scores, states or caches are returned or the caller's hooks or processors see them, and on a GPU,
    which computes all at once. The prompts are (B, T), `options` the other arguments of `_sample`.
    """
    config, cache = options["generation_config"], options.get(CACHE_NAME)
    ends = config._eos_token_tensor
    returns_more = config.return_dict_in_generate or config.is_assistant or options.get("synced_gpus")
    if ends is None or returns_more or input_ids.device.type != "cpu" or len(input_ids) == 1:
        return model
    caches: Any = getattr(cache, "self_attention_cache", cache), getattr(cache, "cross_attention_cache", cache)
    plain = all(type(one) is DynamicCache and not one.offloading for one in caches)
    if not plain or any(type(layer) not in LAYERS for one in caches for layer in one.layers):
        return model
    if getattr(cache, "copies", 1) > 1 or getattr(cache, "_is_user_defined", False):
        return model
    library = LogitsProcessor.__module__
    if any(type(one).__module__ != library for one in options["logits_processor"]) or not is_unchanged(model):
        return model
    return UnfinishedRows(model, ends)
