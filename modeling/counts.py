"""Parameters and FLOPs of a config's model with its usual head, counted on torch's meta device: nothing is computed.

The head is that of a language model, or of an image classifier.
"""

import copy
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from vanillaformer.configuration import VanillaConfig
from vanillaformer.configuration.image_encoder import image_sides

from .base import VanillaPreTrainedModel
from .decoder import VanillaDecoderForCausalLM
from .encoder import VanillaEncoderForMaskedLM
from .encoder_decoder import VanillaEncoderDecoderForConditionalGeneration
from .image_encoder import VanillaImageEncoderForImageClassification
from .parts.positions import RotaryEmbedding
from .recurrent_encoder_decoder import VanillaRecurrentEncoderDecoderForConditionalGeneration

USUAL: tuple[type[VanillaPreTrainedModel], ...] = (
    VanillaEncoderDecoderForConditionalGeneration,
    VanillaDecoderForCausalLM,
    VanillaEncoderForMaskedLM,
    VanillaImageEncoderForImageClassification,
    VanillaRecurrentEncoderDecoderForConditionalGeneration,
)
MODELS: dict[Any, Callable[[Any], VanillaPreTrainedModel]] = {model.config_class: model for model in USUAL}
# The part that a module's weights belong to, by a name on the path to it; all others are norms
PARTS = {
    **dict.fromkeys(("embed_tokens", "token_types", "ngrams", "upsample", "patch_embeddings", "merges"), "embeddings"),
    **dict.fromkeys(("cls_token", "distillation_token", "register_tokens", "mask_token"), "embeddings"),
    "positions": "positions",
    **dict.fromkeys(("self_attn", "cross_attn", "attention"), "attention"),
    **{"mlp": "feed-forward", "rnn": "recurrence", "bridge": "recurrence"},
    **dict.fromkeys(("transform", "lm_head", "pointer", "length_head", "pooler", "classifier", "qa_outputs"), "head"),
}

UNIT = 8
SAMPLED = ((1, 1), (2, 1), (1, 2), (3, 1), (2, 2), (1, 3))
"""Lengths of a target and its source, in units of up to `UNIT` tokens, from which the polynomial is found."""


def count_parameters(config: VanillaConfig) -> dict[str, int]:
    """Return the number of parameters by part, of the model with its head.

    The sum over the parts is the model's `num_parameters()`; tied tables are counted once, as embeddings.
    """
    counts = Counter(dict.fromkeys((*PARTS.values(), "norms"), 0))
    for name, parameter in build_on_meta(config).named_parameters():
        counts[part_of(name)] += parameter.numel()
    return dict(counts)


def count_flops(
    config: VanillaConfig, batch: int = 1, length: int = 1, source_length: int | None = None
) -> dict[str, int]:
    """Return the floating-point operations of one forward pass by part, of the model with its head.

    `torch.utils.flop_counter` counts them: a multiplication and an addition are two; only matrix products count, and
    all T · S attention scores, masked ones included. A training step costs three times as much.

    T is the `length` of a row (of the target, in an encoder-decoder, whose source has `source_length` tokens S, by
    default T); images have the size of the config.
    """
    return flops_of(build_on_meta(config), batch, length, source_length or length)


def flops_of(model: Any, batch: int, length: int, source_length: int) -> dict[str, int]:
    """Return the same as `count_flops`, for a model that `build_on_meta` made."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(**inputs_on_meta(model.config, batch, length, source_length))
    by_module, counts = counter.get_flop_counts(), Counter[str]()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d | nn.RNNBase):
            counts[part_of(name)] += sum(by_module.get(f"{type(model).__name__}.{name}", {}).values())
    projections = counts.pop("attention", 0)  # native models name it differently
    scores = counter.get_total_flops() - projections - counts.total()
    return {"attention projections": projections, "attention scores": scores, **counts}


class TextFlops:
    """Floating-point operations of a forward pass over texts, as `count_flops` counts them for each.

    They are a polynomial of second degree in the lengths of a text: layers cost as much for each token, and attention
    for each pair of tokens. It is found from six pairs of lengths.
    """

    def __init__(self, model: PreTrainedModel):
        on_meta = build_on_meta(model.config, type(model))
        two_sided = model.config.is_encoder_decoder
        unit = max(1, min(UNIT, (getattr(model.config, "max_position_embeddings", None) or 3 * UNIT) // 3))
        forward = cache(lambda length, source: flops_of(on_meta, 1, unit * length, unit * source))
        found = [forward(length, source if two_sided else length) for length, source in SAMPLED]
        head = [parts.get("head", 0) for parts in found]
        rest = [sum(parts.values()) - of_head for parts, of_head in zip(found, head)]
        powers = polynomial_terms(unit * np.array(SAMPLED, dtype=np.float64).T)
        self.head, self.rest = np.linalg.solve(powers.T, np.array([head, rest], dtype=np.float64).T).T

    def of(self, sums: np.ndarray, labeled: np.ndarray) -> int:
        """Return the operations of a batch, given the sums over its texts of `polynomial_terms` of their lengths.

        For the output layer, the lengths are numbers of positions for which it is computed (`labeled`).
        """
        return round(float(self.rest @ sums + self.head @ labeled))


def text_flops(model: PreTrainedModel) -> TextFlops:
    """Return the operations of a model; an estimate for a native one that cannot run on the meta device."""
    try:
        return TextFlops(model)
    except (RuntimeError, TypeError, ValueError):
        if isinstance(model, VanillaPreTrainedModel):
            raise
    found = TextFlops.__new__(TextFlops)
    weights = sum(weight.numel() for weight in model.parameters() if weight.ndim > 1)
    tables = sum(table.weight.numel() for table in model.modules() if isinstance(table, nn.Embedding))
    width = getattr(model.config, "hidden_size", 0) * getattr(model.config, "num_hidden_layers", 0)
    # for each token and weight, and for each pair of tokens
    found.head, found.rest = np.zeros(6), 2.0 * (weights - tables) * np.eye(6)[1] + 4.0 * width * np.eye(6)[3]
    return found


def polynomial_terms(lengths: Any) -> Any:
    """Return 1, T, S, T², T S and S² (6, N) of the lengths T and S (2, N) of texts and their sources."""
    target, source = lengths
    stack = torch.stack if torch.is_tensor(lengths) else np.stack
    return stack([target**0, target, source, target**2, target * source, source**2])


def inputs_on_meta(config: VanillaConfig, batch: int, length: int, source_length: int) -> dict[str, torch.Tensor]:
    """Return inputs of a config's model on the meta device."""
    if hasattr(config, "patch_size"):
        size = [side * config.patch_size for side in patch_grid(config)]
        return {"pixel_values": torch.zeros(batch, config.num_channels, *size, device="meta")}
    ids = torch.zeros(batch, length, dtype=torch.long, device="meta")
    if not config.is_encoder_decoder:
        return {"input_ids": ids}
    source = torch.zeros(batch, source_length, dtype=torch.long, device="meta")
    return {"input_ids": source, "decoder_input_ids": ids}


def patch_grid(config: Any) -> tuple[int, ...]:
    """Return the rows and columns of patches of an image of the config's size, also for native models."""
    return tuple(side // config.patch_size for side in image_sides(config.image_size))


def build_on_meta(config: Any, model_class: Any = None) -> Any:
    """Return the model of a config in evaluation mode, on the meta device; by default the one of `MODELS`."""
    config = copy.deepcopy(config)
    config._attn_implementation = "eager"  # so that all matrix products are counted
    return on_meta(config, model_class).eval()


def on_meta(config: Any, model_class: Any = None) -> Any:
    """Return the model of a config, with tensors that have a shape and no memory."""
    with torch.device("meta"):
        model = (model_class or MODELS[type(config)])(config)
    for module in model.modules():
        if isinstance(module, RotaryEmbedding):
            module.rope_type = "default"  # others read the largest position, which has no value here
    return model


def part_of(name: str) -> str:
    """Return the part that a module or parameter of this name belongs to."""
    return next((PARTS[step] for step in name.split(".") if step in PARTS), "norms")
