"""The choices for a Transformer block: the fields that the three model types share, and their derived values."""

from collections.abc import Callable
from typing import Any

from transformers import PreTrainedConfig

from .fields import Derived, above_zero, activation, non_negative, positive, probability, projections
from .names import LAYER_TYPES, ROPE_NAMES, ROPE_PARTS
from .options import (
    NORM_CHOICES,
    PLACEMENT_CHOICES,
    BlockLayout,
    FeedForward,
    Initialization,
    Norm,
    NormPlacement,
    Parametrization,
    PositionEmbedding,
    QueryKeyNorm,
    SinusoidalLayout,
)


class BlockFields(PreTrainedConfig):
    """The fields of `BlockConfig`, one per axis of the Transformer block.

    Sizes:
        hidden_size: Model width D.
        num_hidden_layers: Number of blocks (of the decoder, in an encoder-decoder).
        num_attention_heads: Number of query heads H.
        num_key_value_heads: Number of key and value heads; fewer than H shares them between queries
            (multi-query attention, Shazeer 2019; grouped-query attention, Ainslie et al. 2023). Default H.
        head_dim: Width of a head. Default D / H.
        intermediate_size: Inner width of the feed-forward layer. Default 4 D.

    Feedforward layer:
        feed_forward: `plain` or `gated`.
        hidden_act: Activation of the feed-forward layer, any name of transformers' `ACT2FN`. Gated with `silu` it is
            SwiGLU, with `gelu` GEGLU, with `relu` ReGLU, with `linear` the bilinear layer.
        mlp_bias: Whether the feed-forward projections have biases.

    Norms and residual connections:
        norm: `layer_norm` or `rms_norm`.
        norm_eps: Added to the variance inside the norm.
        norm_weight: Whether norms have a weight per dimension.
        norm_bias: Whether norms have a bias per dimension. Default: LayerNorm has one, RMSNorm does not.
        norm_unit_offset: Multiply by 1 + weight, the weight starting at 0 (Gemma).
        norm_placement: Position of the norm and the residual sum around a sublayer (`PLACEMENT_CHOICES` in
            `configuration/options.py` lists the formulas).
        embedding_norm: Normalize the sum of the embeddings (BERT, BLOOM).
        final_norm: Normalize the stack's output. Default: with placements that leave an unnormalized sum.
        skip_first_norm: Leave out the norm before the first attention (ModernBERT, whose embeddings are normalized);
            pre-LN only.
        block_layout: `sequential`, `parallel` or `parallel_shared_norm`.
        layer_scale_init_value: Initial value of trained factors λ per dimension on each sublayer's output (layer
            scale, Touvron et al. 2021; CaiT, BEiT, DINOv2). Default: no such factors.
        residual_scale: Fixed factor on each sublayer's output (Granite).

    Positions:
        position_embedding_type: `sinusoidal`, `learned`, `rotary`, `alibi`, `relative` or `none`.
        max_position_embeddings: Number of rows of a position table, the longest input in tokens; for schemes without a
            table, the length that the model is trained for.
        position_offset: Rows of a position table before the one of the first token (OPT and BART: 2).
        sinusoidal_layout: Order and wavelengths of the columns of a sinusoidal table.
        rope_parameters: Base frequency, scaling and `partial_rotary_factor` of rotary positions in transformers' form,
            or one such dictionary per layer type, `None` for layers without rotation. A config has this attribute only
            with `position_embedding_type="rotary"`.
        rope_interleaved: Rotate neighboring dimensions, as the paper and GPT-J do, instead of one half against the
            other.
        rotary_layers: Pattern of layers with rotated queries and keys, repeated or truncated to the number of layers
            (SmolLM 3: three with rotation, one without). Default: all layers.
        relative_attention_num_buckets: Number of buckets of distances in T5's relative bias.
        relative_attention_max_distance: Distance from which on all share one bucket.
        relative_attention_per_layer: One table of biases per layer instead of one for the stack.

    Attention:
        attention_bias: Whether projections have biases: all, none, or a list from `q_proj`, `k_proj`, `v_proj` and
            `o_proj`.
        qk_norm: Norm on queries and keys: `none`, per `head` with one weight for all heads, per head with a
            weight for `each_head` and no bias, or over the `full` width.
        attention_scale: Factor on the dot products. Default 1/√head_dim, with `parametrization="mup"` 8/head_dim,
            which is the same for heads of width 64.
        value_residual: Mix the values of each layer with those of the first, by a trained factor for each layer that
            starts at 1/2 (ResFormer, Zhou et al. 2024).
        attn_logit_softcapping: Bound c of the scores, `c tanh(score / c)` (Gemma 2).
        sliding_window: Window size in tokens of windowed layers: a token sees the last `sliding_window` tokens, itself
            included; in an encoder, the tokens up to that distance on either side. At least 2 in a model that
            generates.
        layer_types: `full_attention` or `sliding_attention` per layer, as a pattern, which is repeated or truncated.
            Default: all layers have the window. A config has this attribute only with a `sliding_window`.

    Embeddings and training:
        scale_embedding: Multiply token embeddings by √D (Vaswani et al. 2017, section 3.4).
        embedding_scale: Other factor on the token embeddings (Granite).
        dropout: Dropout on the embeddings and on each sublayer's output.
        attention_dropout: Dropout on the attention probabilities. On a CPU there is no fused kernel for it, and
            training is slower.
        activation_dropout: Dropout after the activation of the feed-forward layer.
        layer_drop: Probability of skipping a whole layer in training, for the whole batch (Fan et al. 2020).
        drop_path_rate: Probability of skipping a sublayer of the last layer in training, drawn for each row of the
            batch; it grows linearly with the layer, from 0 in the first (stochastic depth, Huang et al. 2016). The
            remaining outputs are divided by the probability of remaining.
        initialization: Scheme of fresh weights (table in `modeling/parts/initialization.py`). Default: the scheme
            that the placement was published with, or that of the model type.
        initializer_range: Standard deviation of the normal initializations.
        parametrization: `standard`, or `mup` for a model whose best learning rate transfers to other widths (muP,
            Yang et al. 2021): fresh weights, factors and the optimizer's rates follow the width.
        base_width: With `mup`, the `hidden_size` at which no learning rate is scaled.

    Output layer of the language models:
        lm_head_bias: Whether the output layer has a bias.
        logit_scale: Factor on the logits (Cohere, Granite). Default 1, with `parametrization="mup"` base_width / D.
        final_logit_softcapping: Bound c of the logits, `c tanh(logit / c)` (Gemma 2).
    """

    default_initialization = "normal"
    generates = False  # whether models of this type generate text
    max_ngram = 1
    type_vocab_size = 0
    window_size = None
    decoding = "autoregressive"
    scale_decoder_outputs = False

    hidden_size: int = positive(default=512)
    num_hidden_layers: int = positive(default=6)
    num_attention_heads: int = positive(default=8)
    num_key_value_heads: Derived[int] = positive(default=None)
    head_dim: Derived[int] = positive(default=None)
    intermediate_size: Derived[int] = positive(default=None)
    feed_forward: FeedForward = "plain"
    hidden_act: str = activation(default="relu")
    mlp_bias: bool = True
    norm: Norm = "layer_norm"
    norm_eps: float | int = non_negative(default=1e-5)
    norm_weight: bool = True
    norm_bias: Derived[bool] = None  # type: ignore[assignment]  # filled in
    norm_unit_offset: bool = False
    norm_placement: NormPlacement = "pre"
    embedding_norm: bool = False
    final_norm: bool | None = None
    skip_first_norm: bool = False
    block_layout: BlockLayout = "sequential"
    layer_scale_init_value: float | int | None = above_zero(default=None)
    residual_scale: float | int = above_zero(default=1.0)
    position_embedding_type: PositionEmbedding = "learned"
    max_position_embeddings: int = positive(default=1024)
    position_offset: int = non_negative(default=0)
    sinusoidal_layout: SinusoidalLayout = "interleaved"
    rope_interleaved: bool = False
    rotary_layers: list[bool] | None = None
    relative_attention_num_buckets: int = positive(default=32)
    relative_attention_max_distance: int = positive(default=128)
    relative_attention_per_layer: bool = False
    attention_bias: bool | list[str] = projections(default=True)
    qk_norm: QueryKeyNorm = "none"
    attention_scale: float | int | None = above_zero(default=None)
    value_residual: bool = False
    attn_logit_softcapping: float | int | None = above_zero(default=None)
    sliding_window: int | None = positive(default=None)
    scale_embedding: bool = False
    embedding_scale: float | int = above_zero(default=1.0)
    dropout: float | int = probability(default=0.0)
    attention_dropout: float | int = probability(default=0.0)
    activation_dropout: float | int = probability(default=0.0)
    layer_drop: float | int = probability(default=0.0)
    drop_path_rate: float | int = probability(default=0.0)
    initialization: Derived[Initialization] = None  # type: ignore[assignment]  # filled in
    initializer_range: float | int = non_negative(default=0.02)
    parametrization: Parametrization = "standard"
    base_width: int = positive(default=256)
    lm_head_bias: bool = False
    logit_scale: float | int | None = above_zero(default=None)
    final_logit_softcapping: float | int | None = above_zero(default=None)


Fields = dict[str, Any]


# Values of the fields that are left at `None`
DERIVED: dict[str, Callable[[Any], Any]] = {
    "num_key_value_heads": lambda config: config.num_attention_heads,
    # left at `None` if the heads do not divide the model's width
    "head_dim": lambda config: (
        None if config.hidden_size % config.num_attention_heads else config.hidden_size // config.num_attention_heads
    ),
    "intermediate_size": lambda config: 4 * config.hidden_size,
    "norm_bias": lambda config: NORM_CHOICES[config.norm].has_bias,
    # the parametrization's, the one that the placement was published with, or the model type's
    "initialization": lambda config: (
        "mup"
        if config.parametrization == "mup"
        else PLACEMENT_CHOICES[config.norm_placement].initialization or config.default_initialization
    ),
    "attention_scale": lambda config: (
        8 / config.head_dim if config.parametrization == "mup" and config.head_dim else None
    ),
    "logit_scale": lambda config: config.base_width / config.hidden_size if config.parametrization == "mup" else None,
}


def without_stale_parts(saved: BlockFields, fields: Fields, overrides: Fields) -> Fields:
    """Return the saved fields that remain valid with the overrides.

    Rotary parameters and layer types are dropped together with the position scheme and the window they belong to.
    """
    stale = set()
    patterns = {name: shortest_pattern(getattr(saved, name)) for name in LAYER_TYPES if hasattr(saved, name)}
    values = fields | patterns
    if overrides.get("sliding_window", saved.sliding_window) is None:
        stale |= {*LAYER_TYPES}
    if "layer_types" in overrides and patterns.get("layer_types") == patterns.get("encoder_layer_types"):
        stale.add("encoder_layer_types")
    parts = {name: overrides[name] for name in ROPE_PARTS if name in overrides}
    if overrides.get("position_embedding_type", saved.position_embedding_type) != "rotary":
        stale |= {*ROPE_NAMES}
    elif parts and (rotary := getattr(saved, "rope_parameters", None)):
        if any(isinstance(value, dict) for value in rotary.values()):
            raise ValueError(f"{parts} cannot override rope_parameters={rotary}: each layer type has its own")
        stale |= {"rope_scaling", *ROPE_PARTS}
        values["rope_parameters"] = {name: value for name, value in rotary.items() if name not in parts}
    return {name: value for name, value in values.items() if name not in stale}


def shortest_pattern(layers: list[str]) -> list[str]:
    """Return the shortest list that gives a list of layers when repeated and truncated.

    >>> shortest_pattern(["full", "sliding", "full"])
    ['full', 'sliding']
    """
    lengths = range(1, len(layers) + 1)
    return layers[: next((size for size in lengths if layers[size:] == layers[:-size]), 0)]
