"""What every Transformer block is made of: the fields that the three model types share."""

import copy
import dataclasses
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from .derived import DERIVED
from .fields import above_zero, activation, non_negative, positive, probability, projections
from .names import CONDITIONAL_NAMES, ROPE_NAMES, TRANSFORMERS_NAMES, refusal
from .options import (
    FIELD_READERS,
    SIZE_READERS,
    BlockLayout,
    FeedForward,
    Initialization,
    Norm,
    NormPlacement,
    PositionEmbedding,
    QueryKeyNorm,
    SinusoidalLayout,
)
from .plans import TENSOR_PARALLEL_PLAN
from .rules import BlockRules, check_limits, check_rope_form, check_rope_parts
from .saving import Saving


@strict
class BlockConfig(BlockRules, Saving, PreTrainedConfig):
    """The Transformer block, one field per axis; the base of the three model configs.

    Sizes:
        hidden_size: Model width D.
        num_hidden_layers: Number of blocks (of the decoder, in an encoder-decoder).
        num_attention_heads: Number of query heads H.
        num_key_value_heads: Number of key and value heads; fewer than H shares them between queries
            (multi-query attention, Shazeer 2019; grouped-query attention, Ainslie et al. 2023). Default H.
        head_dim: Width of a head. Default D / H.
        intermediate_size: Inner width of the feed-forward layer. Default 4 D.

    Feed-forward:
        feed_forward: `plain` or `gated`.
        hidden_act: Activation of the feed-forward layer, any name of transformers' `ACT2FN`. Gated with `silu` it is
            SwiGLU, with `gelu` GEGLU, with `relu` ReGLU, with `linear` the bilinear layer.
        mlp_bias: Biases in the feed-forward projections.

    Norms and residual connections:
        norm: `layer_norm` or `rms_norm`.
        norm_eps: Added to the variance inside the norm.
        norm_weight: Whether norms have a weight per dimension.
        norm_bias: Whether norms have a bias per dimension. Default: LayerNorm has, RMSNorm has not.
        norm_unit_offset: Multiply by 1 + weight, the weight starting at 0 (Gemma).
        norm_placement: Where norm and residual sum stand around a sublayer (`options.NormPlacement`).
        embedding_norm: Normalise the sum of the embeddings (BERT, BLOOM).
        final_norm: Normalise the stack's output. Default: where the placement leaves an un-normalised sum.
        skip_first_norm: The first layer's attention reads the embeddings as they are (ModernBERT, which has
            normalised them); pre-LN only.
        block_layout: `sequential`, `parallel` or `parallel_shared_norm`.

    Positions:
        position_embedding_type: `sinusoidal`, `learned`, `rotary`, `alibi`, `relative` or `none`.
        max_position_embeddings: Longest input in tokens that a position table has rows for; for the other schemes the
            length that the model is trained for.
        position_offset: Rows of a position table before the one of the first token (OPT and BART: 2).
        sinusoidal_layout: Order and wavelengths of the columns of a sinusoidal table.
        rope_parameters: Base frequency, scaling and `partial_rotary_factor` of rotary positions in transformers' form,
            or one such dictionary per layer type, `None` for layers without rotation. A config has this attribute only
            with `position_embedding_type="rotary"`.
        rope_interleaved: Turn neighbouring dimensions, as the paper and GPT-J do, and not one half against the other.
        rotary_layers: Whether each layer turns queries and keys, as a pattern, which is repeated or cut off (SmolLM 3:
            three layers that do, one that does not). Default: all do.
        relative_attention_num_buckets: Distances that T5's relative bias tells apart.
        relative_attention_max_distance: Distance from which all are one bucket.
        relative_attention_per_layer: A table of biases per layer, and not one for the stack.

    Attention:
        attention_bias: Biases in all projections, in none, or in those listed out of `q_proj`, `k_proj`, `v_proj` and
            `o_proj`.
        qk_norm: Norm on queries and keys: `none`, per `head` with one weight for all, per head with a weight for
            `each_head` and no bias, or over the `full` width.
        attention_scale: Factor on the dot products. Default 1/√head_dim.
        attn_logit_softcapping: Bound c of the scores, `c tanh(score / c)` (Gemma 2).
        sliding_window: A token of a windowed layer sees the last so many tokens, itself included; in an encoder those
            at most so far away on either side. At least 2 in a model that generates.
        layer_types: `full_attention` or `sliding_attention` per layer, as a pattern, which is repeated or cut off.
            Default, and attribute only of a config with a `sliding_window`: all layers have it.

    Embeddings and training:
        scale_embedding: Multiply token embeddings by √D (Vaswani et al. 2017, section 3.4).
        dropout: Dropout on the embeddings and on each sublayer's output.
        attention_dropout: Dropout on the attention probabilities. On a CPU it switches off the fused attention
            kernel, which makes training two to three times slower.
        activation_dropout: Dropout after the activation of the feed-forward layer.
        layer_drop: Probability with which training leaves out a whole layer (Fan et al. 2020).
        initialization: How fresh weights are drawn (`modeling/parts/initialization.py` has the table). Default: what
            the placement was published with, or the model type's.
        initializer_range: Standard deviation of the normal initialisations.

    Output layer of the language models:
        lm_head_bias: Whether it has a bias.
        logit_scale: Factor on the logits (Cohere).
        final_logit_softcapping: Bound c of the logits, `c tanh(logit / c)` (Gemma 2).

    Raises:
        StrictDataclassFieldValidationError: A field has the wrong type or a value that is not allowed.
        StrictDataclassClassValidationError: Fields that do not fit together.
        ValueError: An unknown keyword that looks like a misspelled or another library's field name, or a field that
            only another of the model types has.
    """

    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 - the form transformers reads
    attribute_map = {  # noqa: RUF012 - names of one epsilon in other configs
        "layer_norm_eps": "norm_eps",
        "layer_norm_epsilon": "norm_eps",
        "norm_epsilon": "norm_eps",
        "rms_norm_eps": "norm_eps",
    }
    base_model_tp_plan = TENSOR_PARALLEL_PLAN
    ignore_keys_at_rope_validation = {"partial_rotary_factor"}  # noqa: RUF012
    default_initialization = "normal"
    derived_fields = DERIVED
    own_keywords: ClassVar[tuple[str, ...]] = ()

    hidden_size: int = positive(default=512)
    num_hidden_layers: int = positive(default=6)
    num_attention_heads: int = positive(default=8)
    num_key_value_heads: int | None = positive(default=None)
    head_dim: int | None = positive(default=None)
    intermediate_size: int | None = positive(default=None)
    feed_forward: FeedForward = "plain"
    hidden_act: str = activation(default="relu")
    mlp_bias: bool = True
    norm: Norm = "layer_norm"
    norm_eps: float | int = non_negative(default=1e-5)
    norm_weight: bool = True
    norm_bias: bool | None = None
    norm_unit_offset: bool = False
    norm_placement: NormPlacement = "pre"
    embedding_norm: bool = False
    final_norm: bool | None = None
    skip_first_norm: bool = False
    block_layout: BlockLayout = "sequential"
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
    attn_logit_softcapping: float | int | None = above_zero(default=None)
    sliding_window: int | None = positive(default=None)
    scale_embedding: bool = False
    dropout: float | int = probability(default=0.0)
    attention_dropout: float | int = probability(default=0.0)
    activation_dropout: float | int = probability(default=0.0)
    layer_drop: float | int = probability(default=0.0)
    initialization: Initialization | None = None
    initializer_range: float | int = non_negative(default=0.02)
    lm_head_bias: bool = False
    logit_scale: float | int | None = above_zero(default=None)
    final_logit_softcapping: float | int | None = above_zero(default=None)

    def __post_init__(self, **kwargs: Any) -> None:
        self.refuse_unknown(kwargs)
        check_limits(vars(self) | kwargs)  # before a list as long as the layers is made, or a name for each label
        self._fill_derived()
        self._take_layer_types(kwargs)
        self._take_rope_parameters(kwargs)
        super().__post_init__(**kwargs)

    @classmethod
    def keywords(cls) -> set[str]:
        """Return the names of all fields and other keywords that a config of this class takes."""
        fields = {field.name for field in dataclasses.fields(cls)}
        return fields | set(cls.attribute_map) | {*CONDITIONAL_NAMES, *cls.own_keywords}

    @classmethod
    def refuse_unknown(cls, given: dict[str, Any]) -> None:
        """Raise ValueError for a keyword that is misspelled, or another library's or another config's."""
        known = cls.keywords() | set(TRANSFORMERS_NAMES)
        for key in given.keys() - known:
            if (reason := refusal(key, sorted(known))) is not None:
                raise ValueError(f"{cls.__name__} has no field {key!r} (value {given[key]!r}): {reason}")

    def _fill_derived(self) -> None:
        for name, derive in self.derived_fields.items():
            if getattr(self, name) is None:
                setattr(self, name, derive(self))
        if self.head_dim is None:
            raise ValueError(
                f"hidden_size={self.hidden_size} must be a multiple of num_attention_heads="
                f"{self.num_attention_heads}, or head_dim must be given"
            )

    def _take_layer_types(self, kwargs: dict[str, Any]) -> None:
        # Not a dataclass field: transformers takes its presence to mean that layers differ
        self._take_pattern(kwargs, "layer_types", self.num_hidden_layers)

    def _take_pattern(self, kwargs: dict[str, Any], name: str, layers: int) -> None:
        """Set attribute `name` to the pattern given in `kwargs`, repeated or cut off for `layers`."""
        pattern = kwargs.pop(name, None)
        is_list = isinstance(pattern, list | tuple) and len(pattern) > 0
        if pattern is not None and not (is_list and all(isinstance(entry, str) for entry in pattern)):
            raise ValueError(f"{name} must be a list with at least one type of layer, got {pattern!r}")
        if self.sliding_window is None:
            if pattern is not None and any(entry != "full_attention" for entry in pattern):
                raise ValueError(f"{name}={pattern!r} needs a sliding_window")
            return
        pattern = ["sliding_attention"] if pattern is None else list(pattern)
        setattr(self, name, [pattern[layer % len(pattern)] for layer in range(layers)])

    def _take_rope_parameters(self, kwargs: dict[str, Any]) -> None:
        if self.position_embedding_type == "rotary":
            for name in ("rope_parameters", "rope_scaling"):  # before transformers fills them in
                check_rope_form(name, kwargs.get(name))
            # Not a dataclass field: transformers takes its presence to mean that positions are rotary
            self.rope_parameters = copy.deepcopy(kwargs.pop("rope_parameters", None)) or {}
            check_rope_parts(self.rope_parameters, kwargs)
            return
        for name in ROPE_NAMES:
            if value := kwargs.pop(name, None):
                raise ValueError(
                    f"{name}={value!r} only applies to position_embedding_type='rotary', "
                    f"got position_embedding_type={self.position_embedding_type!r}"
                )

    def reads(self, field: str) -> bool:
        """Whether a field has an effect, given the values of the options that some fields belong to."""
        option, values = FIELD_READERS.get(field) or SIZE_READERS.get(field) or (None, ())
        return option is None or getattr(self, option) in values

    def has_attention_bias(self, projection: str) -> bool:
        """Whether one of `q_proj`, `k_proj`, `v_proj` and `o_proj` has a bias."""
        return projection in self.attention_bias if isinstance(self.attention_bias, list) else self.attention_bias

    def rope_of(self, layer_type: str) -> dict[str, Any] | None:
        """Return the rotary parameters of a type of layer, `None` if its queries and keys are not turned."""
        parameters = getattr(self, "rope_parameters", None)
        return parameters[layer_type] if parameters and layer_type in parameters else parameters

    def is_rotary_layer(self, layer_idx: int) -> bool:
        """Whether the pattern of `rotary_layers` lets a layer turn its queries and keys."""
        return self.rotary_layers is None or self.rotary_layers[layer_idx % len(self.rotary_layers)]

    def deepnorm_scales(self, cross_attention: bool) -> tuple[float, float]:
        """Return DeepNorm's factor α on the residual stream and its gain β of fresh weights, by depth (table 1)."""
        return (2 * self.num_hidden_layers) ** 0.25, (8 * self.num_hidden_layers) ** -0.25


class ConfigView:
    """A config some of whose fields read differently: one side of an encoder-decoder, or one type of layer.

    It has no values of its own besides: what happens to the config later is seen here too.
    """

    def __init__(self, config: BlockConfig, **fields: Any):
        self.__dict__.update(fields, viewed=config)

    def __getattr__(self, name: str) -> Any:
        if name == "viewed" or name.startswith("__"):  # a copy that is not filled yet
            raise AttributeError(name)
        return getattr(self.viewed, name)


def layer_types(config: BlockConfig) -> list[str]:
    """Return what each layer of a stack sees: `full_attention` or `sliding_attention`."""
    everywhere = "full_attention" if config.sliding_window is None else "sliding_attention"
    return getattr(config, "layer_types", None) or [everywhere] * config.num_hidden_layers
