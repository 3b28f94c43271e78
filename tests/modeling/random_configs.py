"""Random configs over all fields, each drawn in turn so that it fits those before, and batches for any model."""

from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any, get_args

import torch
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from vanillaformer.configuration import options

from .axes import OF_KIND, SMALL, Value, axes, is_allowed, mixture, own_fields
from .toys import pixels

LENGTH, NEW = 6, 3  # tokens that are read, and that are written
KEYWORDS = ("rope_parameters", "layer_types", "encoder_layer_types")  # and what else may be given, but is no field
RATES = (0, 0.0, 0.1, 0.5)

# Beside the values of the axes: other numbers, and the fields that are no axes, but for decoding (`test_decoding.py`)
MORE: dict[str, Sequence[Any]] = {
    "hidden_size": (9, 12, 16), "num_hidden_layers": (1, 3), "intermediate_size": (None, 1, 17),
    "num_attention_heads": (1, 2, 3, 9), "num_key_value_heads": (None, 3), "head_dim": (None, 2, 3, 6),
    "encoder_layers": (None,), "encoder_hidden_size": (None, 8, 14), "encoder_intermediate_size": (None, 1, 17),
    "vocab_size": (8, 13, 40), "decoder_vocab_size": (None, 8, 21), "type_vocab_size": (1,),
    "max_position_embeddings": (LENGTH + NEW, 16, 64), "sliding_window": (2, 50), "hidden_act": sorted(ACT2FN),
    "relative_attention_num_buckets": (4, 8), "relative_attention_max_distance": (100, 200),
    "initializer_range": (0.001, 0.05, 0.2),  # gated layers square what no norm keeps in range
    "layer_scale_init_value": (1e-3, 1), "residual_scale": (0.1, 2), "embedding_scale": (0.1, 2),
    "attention_scale": (0.01, 2, 1), "attn_logit_softcapping": (0.5, 30), "attention_bias": (["k_proj"], []),
    "logit_scale": (0.01, 4, 2), "final_logit_softcapping": (0.5, 30), "head_act": ("gelu",),
    "max_ngram": (4,), "ngram_buckets": (7, 1000), "wide_max_ngram": (3,), "wide_buckets": (7, 1000),
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout", "layer_drop", "drop_path_rate"), RATES),
    "pad_token_id": (0, 5), "bos_token_id": (None, 7), "eos_token_id": (None, 7, [3, 6]),
    "decoder_start_token_id": (2, 7), "use_cache": (True, False), "norm_eps": (1e-12, 0.5, 1),
    "classifier_pooling": get_args(options.Pooling), "classifier_act": (None, "tanh", "gelu"),
    "classifier_norm": (True, False), "classifier_dropout": (None, *RATES),
}  # fmt: skip


@cache
def drawn_values(kind: str) -> dict[str, list[Value]]:
    own = own_fields(kind)
    more = {name: [{name: value} for value in values] for name, values in MORE.items() if name in own}
    return axes(kind) | {name: axes(kind).get(name, []) + values for name, values in more.items()}


def is_computable(kind: str, fields: Value) -> bool:
    """Return whether a config takes fields and float32 has the numbers that its models compute.

    Gated layers square the stream: without a norm, one that starts √D times as long leaves them.
    """
    too_long = fields.get("scale_embedding") and fields.get("norm_placement") == "no_norm"
    return not too_long and is_allowed(kind, fields)


def valid_fields(draw: Random, kind: str) -> Value:
    return SMALL | OF_KIND[kind] | mixture(kind, draw.random(), is_computable, drawn_values(kind))


def batch_for(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    config, name = model.config, type(model).__name__
    torch.manual_seed(1)
    if "Image" in name:
        sides = config.image_size if isinstance(config.image_size, list) else [config.image_size] * 2
        inputs = {"pixel_values": pixels(2, *sides, config.num_channels)}
        return inputs | ({"labels": torch.tensor([0, 1])} if name.endswith("Classification") else {})
    inputs = {"input_ids": torch.randint(0, config.vocab_size, (2, LENGTH))}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if name.endswith("QuestionAnswering"):
        return inputs | {"start_positions": torch.tensor([0, 1]), "end_positions": torch.tensor([2, 3])}
    if name.endswith("MultipleChoice"):  # both texts are choices
        return {key: tensor[None] for key, tensor in inputs.items()} | {"labels": torch.tensor([1])}
    if name.endswith("Model"):
        return inputs | ({"decoder_input_ids": inputs["input_ids"] % 8} if config.is_encoder_decoder else {})
    most = getattr(config, "target_vocab_size", config.vocab_size)
    length = LENGTH - config.is_encoder_decoder
    labels = torch.randint(0, config.num_labels if "Classification" in name else most, (2, length))
    return inputs | {"labels": labels[:, 0] if "SequenceClassification" in name else labels}
