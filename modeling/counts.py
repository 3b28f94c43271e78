"""Parameters and FLOPs of a config's model with its usual head, counted on torch's meta device: nothing is computed.

The head is that of a language model, or of an image classifier.
"""

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vanillaformer.configuration import (
    VanillaConfig,
    VanillaDecoderConfig,
    VanillaEncoderConfig,
    VanillaEncoderDecoderConfig,
    VanillaImageEncoderConfig,
    VanillaRecurrentEncoderDecoderConfig,
)

from .base import VanillaPreTrainedModel
from .decoder import VanillaDecoderForCausalLM
from .encoder import VanillaEncoderForMaskedLM
from .encoder_decoder import VanillaEncoderDecoderForConditionalGeneration
from .image_encoder import VanillaImageEncoderForImageClassification
from .parts.positions import RotaryEmbedding
from .recurrent_encoder_decoder import VanillaRecurrentEncoderDecoderForConditionalGeneration

MODELS: dict[Any, Callable[[Any], VanillaPreTrainedModel]] = {
    VanillaEncoderDecoderConfig: VanillaEncoderDecoderForConditionalGeneration,
    VanillaDecoderConfig: VanillaDecoderForCausalLM,
    VanillaEncoderConfig: VanillaEncoderForMaskedLM,
    VanillaImageEncoderConfig: VanillaImageEncoderForImageClassification,
    VanillaRecurrentEncoderDecoderConfig: VanillaRecurrentEncoderDecoderForConditionalGeneration,
}
# The part that a module's weights belong to, by a name on the path to it; all others are norms
PARTS = {
    **{"embed_tokens": "embeddings", "token_types": "embeddings", "ngrams": "embeddings", "positions": "positions"},
    **dict.fromkeys(
        ("patch_embeddings", "cls_token", "distillation_token", "register_tokens", "mask_token", "merges"),
        "embeddings",
    ),
    "upsample": "embeddings",
    **{"self_attn": "attention", "cross_attn": "attention", "mlp": "feed-forward"},
    **{"rnn": "recurrence", "bridge": "recurrence", "attention": "attention"},
    **dict.fromkeys(("transform", "lm_head", "pointer", "length_head", "pooler", "classifier"), "head"),
}


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

    Args:
        config: The model's config.
        batch: Rows B.
        length: Tokens T in a row (of the target, in an encoder-decoder); images have the size of the config.
        source_length: Tokens S of the source. Default T.
    """
    model = build_on_meta(config)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(**inputs_on_meta(config, batch, length, source_length or length))
    by_module, counts = counter.get_flop_counts(), Counter[str]()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d | nn.RNNBase):
            counts[part_of(name)] += sum(by_module.get(f"{type(model).__name__}.{name}", {}).values())
    projections = counts.pop("attention")
    scores = counter.get_total_flops() - projections - counts.total()
    return {"attention projections": projections, "attention scores": scores, **counts}


def inputs_on_meta(config: VanillaConfig, batch: int, length: int, source_length: int) -> dict[str, torch.Tensor]:
    """Return inputs of a config's model on the meta device."""
    if isinstance(config, VanillaImageEncoderConfig):
        size = [side * config.patch_size for side in config.grid]
        return {"pixel_values": torch.zeros(batch, config.num_channels, *size, device="meta")}
    ids = torch.zeros(batch, length, dtype=torch.long, device="meta")
    if not config.is_encoder_decoder:
        return {"input_ids": ids}
    source = torch.zeros(batch, source_length, dtype=torch.long, device="meta")
    return {"input_ids": source, "decoder_input_ids": ids}


def build_on_meta(config: VanillaConfig) -> VanillaPreTrainedModel:
    """Return the model of a config in evaluation mode, without memory."""
    config = copy.deepcopy(config)
    config._attn_implementation = "eager"  # the one whose matrix products are all seen
    return on_meta(config).eval()


def on_meta(config: VanillaConfig) -> VanillaPreTrainedModel:
    """Return the model of a config, with tensors that have a shape and no memory."""
    with torch.device("meta"):
        model = MODELS[type(config)](config)
    for module in model.modules():
        if isinstance(module, RotaryEmbedding):
            module.rope_type = "default"  # other scalings read the largest position, which has no value here
    return model


def part_of(name: str) -> str:
    """Return the part that a module or parameter of this name belongs to."""
    return next((PARTS[step] for step in name.split(".") if step in PARTS), "norms")
