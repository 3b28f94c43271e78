"""The fields of random configs, all of them, drawn so that they fit together, and batches for any model."""

from random import Random
from typing import Any, get_args

import torch
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from vanillaformer.configuration import BlockConfig, options
from vanillaformer.configuration.fields import PROJECTIONS
from vanillaformer.configuration.options import FIELD_READERS, PLACEMENT_CHOICES

from .axes import is_allowed, names_of, own_fields
from .toys import pixels

LENGTH, NEW = 6, 3  # tokens that are read, and that are written
KEYWORDS = ("rope_parameters", "layer_types", "encoder_layer_types")  # and what else may be given, but is no field
PARALLEL = {"decoding": "autoregressive", "max_length_difference": 128, "ctc_upsampling": 3}  # test_decoding.py
RATES = (0, 0.0, 0.1, 0.5)


def maybe(draw: Random, value: Any) -> Any:
    """The value or, as often, none."""
    return draw.choice((None, value))


def some(draw: Random, names: tuple[str, ...], most: int) -> list[str]:
    """A list of names, some of them more than once."""
    return draw.choices(names, k=draw.randint(1, most))


def sizes(draw: Random, kind: str) -> dict[str, Any]:
    groups, repeats = draw.randint(1, 3), draw.randint(1, 3)
    heads, width = groups * repeats, draw.choice((2, 4, 6, 8, 3))
    hidden = draw.choice((heads * width, heads * width, 9, 12, 16))
    fields = {
        "hidden_size": hidden, "num_hidden_layers": draw.randint(1, 3), "num_attention_heads": heads,
        "num_key_value_heads": maybe(draw, groups),
        "head_dim": maybe(draw, width) if hidden % heads == 0 else width,
        "intermediate_size": draw.choice((None, 1, 17)),
        "max_position_embeddings": draw.choice((LENGTH + NEW, 16, 64)),
        "vocab_size": draw.choice((8, 13, 40)),
    }  # fmt: skip
    if kind == "encoder_decoder":
        fields |= {
            "encoder_layers": draw.choice((None, 1, 2, 3)),
            "encoder_hidden_size": draw.choice((None, None, 8, 14)),
            "encoder_intermediate_size": draw.choice((None, 1, 17)),
            "decoder_vocab_size": draw.choice((None, 8, 21)),
        }
    return fields


def norms(draw: Random) -> dict[str, Any]:
    placement = draw.choice(get_args(options.NormPlacement))
    layout, weight = draw.choice(PLACEMENT_CHOICES[placement].layouts), draw.choice((True, False))
    choices = options.INITIALIZATION_CHOICES.items()
    initializations = [name for name, choice in choices if placement in (choice.placements or [placement])]
    skippable = placement == "pre" and layout != "parallel_shared_norm"
    return {
        "norm": draw.choice(get_args(options.Norm)), "norm_eps": draw.choice((1e-12, 1e-5, 0.5, 1)),
        "norm_weight": weight, "norm_bias": draw.choice((None, True, False)),
        "norm_unit_offset": weight and draw.choice((True, False)),
        "norm_placement": placement, "embedding_norm": draw.choice((True, False)),
        "final_norm": draw.choice((None, True, False)),
        "skip_first_norm": skippable and draw.choice((True, False)),
        "block_layout": layout,
        "initialization": draw.choice([None, *initializations]),
    }  # fmt: skip


def windows(draw: Random, kind: str) -> dict[str, Any]:
    size = draw.choice((None, None, 1 if kind == "encoder" else 2, 2, 3, 50))
    types = get_args(options.LayerType) if size is not None else ("full_attention",)
    fields: dict[str, Any] = {"sliding_window": size}
    for name in ("layer_types", "encoder_layer_types") if kind == "encoder_decoder" else ("layer_types",):
        if draw.random() < 0.6:
            fields[name] = some(draw, types, 3)
    return fields


def rope(draw: Random, width: int) -> dict[str, Any]:
    """Rotary parameters for heads of an even width."""
    scaling = draw.choice(("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional"))
    turned = draw.randrange(4 if scaling == "dynamic" and width > 2 else 2, width + 1, 2)
    stretched = {"original_max_position_embeddings": draw.choice((LENGTH + NEW, 12)), "factor": draw.uniform(1, 9)}
    scalings = {
        "linear": {"factor": draw.uniform(1, 9)}, "dynamic": {"factor": draw.uniform(1, 9)}, "yarn": stretched,
        "longrope": stretched | {name: [draw.uniform(1, 8) for _ in range(turned // 2)]
                                 for name in ("short_factor", "long_factor")},
        "llama3": stretched | {"low_freq_factor": draw.uniform(0.5, 1), "high_freq_factor": draw.uniform(2, 8)},
    }  # fmt: skip
    shared = {"rope_theta": draw.uniform(1.5, 1e6), "partial_rotary_factor": turned / width}
    return {"rope_type": scaling, **shared, **scalings.get(scaling, {})}


def positions(draw: Random, fields: dict[str, Any]) -> dict[str, Any]:
    width = fields["head_dim"] or fields["hidden_size"] // fields["num_attention_heads"]
    scheme = draw.choice([name for name in get_args(options.PositionEmbedding) if name != "rotary" or width % 2 == 0])
    buckets = draw.choice((4, 8, 32))
    found = {
        "position_embedding_type": scheme,
        "relative_attention_num_buckets": buckets,
        "relative_attention_max_distance": buckets // 2 + draw.choice((1, 5, 100)),
    }
    own = {
        "position_offset": draw.choice((0, 2)),
        "sinusoidal_layout": draw.choice(get_args(options.SinusoidalLayout)),
        "rope_interleaved": draw.choice((True, False)),
        "rotary_layers": maybe(draw, [draw.choice((True, False)) for _ in range(fields["num_hidden_layers"])]),
        "relative_attention_per_layer": draw.choice((True, False)),
    }
    found |= {name: own[name] if scheme in FIELD_READERS[name][1] else getattr(BlockConfig, name) for name in own}
    if scheme == "rotary" and draw.random() < 0.7:
        found["rope_parameters"] = rope(draw, width)
        if fields["sliding_window"] and draw.random() < 0.5:
            types = get_args(options.LayerType)
            found["rope_parameters"] = {name: maybe(draw, rope(draw, width)) for name in types}
    return found


def attention(draw: Random) -> dict[str, Any]:
    listed = draw.sample(PROJECTIONS, draw.randint(0, 4))
    return {
        "attention_bias": draw.choice((True, False, listed)),
        "qk_norm": draw.choice(get_args(options.QueryKeyNorm)),
        "attention_scale": draw.choice((None, draw.uniform(0.01, 2), 1)),
        "attn_logit_softcapping": draw.choice((None, None, draw.uniform(0.5, 50), 30)),
    }


def others(draw: Random, source: int, target: int) -> dict[str, Any]:
    """The fields that go with all others, those of every kind of model."""
    layer = draw.choice((None, "tanh", "gelu"))
    return {
        "feed_forward": draw.choice(get_args(options.FeedForward)),
        "hidden_act": draw.choice(sorted(ACT2FN)), "dropout": draw.choice(RATES),
        "attention_dropout": draw.choice(RATES), "activation_dropout": draw.choice(RATES),
        "layer_drop": draw.choice(RATES), "drop_path_rate": draw.choice(RATES), **PARALLEL,
        "layer_scale_init_value": (layer_scale := draw.choice((None, None, 1, draw.uniform(1e-3, 1)))),
        "embedding_scale": draw.choice((1.0, draw.uniform(0.1, 2))), "base_width": draw.choice((256, 8, 100)),
        "residual_scale": draw.choice((1.0, draw.uniform(0.1, 2))) if layer_scale is None else 1.0,
        "initializer_range": draw.uniform(0.001, 0.2),  # gated layers square what no norm keeps in range
        "logit_scale": draw.choice((None, draw.uniform(0.01, 4), 2)),
        "final_logit_softcapping": draw.choice((None, draw.uniform(0.5, 50), 30)),
        "pad_token_id": draw.randrange(min(source, target)), "bos_token_id": maybe(draw, draw.randrange(target)),
        "eos_token_id": draw.choice((None, draw.randrange(target), [draw.randrange(target), draw.randrange(target)])),
        "decoder_start_token_id": draw.randrange(target), "type_vocab_size": draw.choice((0, 1, 3)),
        "max_ngram": draw.choice((1, 1, 2, 4)), "ngram_buckets": draw.choice((1, 7, 1000)),
        "wide_max_ngram": draw.choice((0, 0, 1, 3)), "wide_buckets": draw.choice((1, 7, 1000)),
        "classifier_pooling": draw.choice(get_args(options.Pooling)),
        "classifier_act": layer, "head_act": draw.choice((None, "gelu", "silu")),
        "classifier_norm": layer is not None and draw.choice((True, False)),
        "classifier_dropout": maybe(draw, draw.choice(RATES)),
    }  # fmt: skip


def random_fields(draw: Random, kind: str) -> dict[str, Any]:
    """A config's fields, all of them drawn; few of them do not fit together, which the config says."""
    fields = sizes(draw, kind) | norms(draw) | windows(draw, kind)
    fields |= positions(draw, fields) | attention(draw)
    fields |= others(draw, fields["vocab_size"], fields.get("decoder_vocab_size") or fields["vocab_size"])
    own = own_fields(kind)
    for name, field_type in own.items():
        if name not in fields:
            fields[name] = draw.choice(names_of(field_type))  # what is left: switches
    # gated layers square the stream: without a norm, one that starts √D times as long leaves float32
    fields["scale_embedding"] &= fields["norm_placement"] != "no_norm"
    fields["scale_embedding"] &= fields["embedding_scale"] == 1.0
    for name in {"scale_embedding", "scale_decoder_outputs"} & fields.keys():
        fields[name] &= fields["parametrization"] == "standard"
    fields["base_width"] = fields["base_width"] if fields["parametrization"] == "mup" else BlockConfig.base_width
    if kind == "encoder_decoder":
        one_vocabulary = fields["decoder_vocab_size"] in (None, fields["vocab_size"])
        one_width = fields["encoder_hidden_size"] in (None, fields["hidden_size"])
        fields["share_encoder_decoder_embeddings"] &= one_vocabulary and one_width
        fields["output_distribution"] = draw.choice(
            get_args(options.OutputDistribution) if fields["share_encoder_decoder_embeddings"] else ("softmax",)
        )
    return {name: value for name, value in fields.items() if name in own or name in KEYWORDS}


def valid_fields(draw: Random, kind: str) -> dict[str, Any]:
    """The fields of a config that accepts them."""
    while not is_allowed(kind, fields := random_fields(draw, kind)):
        pass
    return fields


def batch_for(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return inputs and labels of a model."""
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
