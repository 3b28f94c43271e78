"""What every Transformer block is made of: the fields and rules that the three model types share."""

import dataclasses
import difflib
from typing import Any

from huggingface_hub.dataclasses import as_validated_field, strict
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from .options import FeedForward, Initialization, Norm, NormPlacement, PositionEmbedding, SinusoidalLayout

# Names that other Hugging Face configs use for our fields: accepted silently they would leave the default in force.
FOREIGN_NAMES = {
    "activation_function": "hidden_act",
    "attention_probs_dropout_prob": "attention_dropout",
    "attn_pdrop": "attention_dropout",
    "d_ff": "intermediate_size",
    "d_model": "hidden_size",
    "decoder_attention_heads": "num_attention_heads",
    "decoder_ffn_dim": "intermediate_size",
    "decoder_layers": "num_hidden_layers",
    "dropout_rate": "dropout",
    "embd_pdrop": "dropout",
    "encoder_attention_heads": "num_attention_heads",
    "encoder_ffn_dim": "intermediate_size",
    "feed_forward_proj": "feed_forward",
    "hidden_dropout": "dropout",
    "hidden_dropout_prob": "dropout",
    "init_std": "initializer_range",
    "n_ctx": "max_position_embeddings",
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "num_decoder_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_layers": "num_hidden_layers",
    "resid_pdrop": "dropout",
}

# How rotary positions may be described; transformers turns the last two into the first.
ROPE_NAMES = ("rope_parameters", "rope_scaling", "rope_theta")


@as_validated_field
def positive(value: int | None = None) -> None:
    """Field of a count that must be at least 1 (`None` stands for a derived value)."""
    if value is not None and (isinstance(value, bool) or value < 1):
        raise ValueError(f"must be an integer of at least 1, got {value!r}")


@as_validated_field
def non_negative(value: int | float | None = None) -> None:
    """Field of a number that must not be negative."""
    if value is not None and not 0 <= value < float("inf"):
        raise ValueError(f"must be a finite number of at least 0, got {value!r}")


@as_validated_field
def probability(value: float | int | None = None) -> None:
    """Field of a dropout rate: at least 0 and less than 1."""
    if value is not None and not 0 <= value < 1:
        raise ValueError(f"must be at least 0 and less than 1, got {value!r}")


@as_validated_field
def activation(value: str | None = None) -> None:
    """Field of an activation function known to transformers."""
    if value is not None and value not in ACT2FN:
        raise ValueError(f"must be one of {', '.join(sorted(ACT2FN))}, got {value!r}")


# Heads and inner width are split over the devices, outputs are summed. The plan names every projection that a block
# can have; a model keeps the entries that it has (`modeling/base.py`).
COLWISE = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
TENSOR_PARALLEL_PLAN = {
    f"layers.*.{part}.{projection}": "colwise" if projection in COLWISE else "rowwise"
    for part, projections in (
        ("self_attn", ("q_proj", "k_proj", "v_proj", "o_proj")),
        ("cross_attn", ("q_proj", "k_proj", "v_proj", "o_proj")),
        ("mlp", ("gate_proj", "up_proj", "down_proj")),
    )
    for projection in projections
}


@strict
class BlockConfig(PreTrainedConfig):
    """The Transformer block, one field per axis; the base of the three model configs.

    Args:
        hidden_size: Model width D.
        num_hidden_layers: Number of blocks (of the decoder, in an encoder-decoder).
        num_attention_heads: Number of query heads H.
        num_key_value_heads: Number of key and value heads; fewer than H shares them between queries
            (multi-query attention, Shazeer 2019; grouped-query attention, Ainslie et al. 2023). Default H.
        head_dim: Width of a head. Default D / H.
        intermediate_size: Inner width of the feed-forward layer. Default 4 D.
        feed_forward: `plain` or `gated`.
        hidden_act: Activation of the feed-forward layer, any name of transformers' `ACT2FN`.
        norm: `layer_norm` or `rms_norm`.
        norm_eps: Added to the variance inside the norm.
        norm_placement: `post`, `pre` or `no_residual`.
        position_embedding_type: `sinusoidal`, `learned`, `rotary` or `none`.
        sinusoidal_layout: `interleaved` (the paper) or `halves`.
        rope_parameters: Base frequency and scaling of rotary positions, in transformers' form; a config has this
            attribute only with `position_embedding_type="rotary"`.
        max_position_embeddings: Longest input in tokens; the size of a learned table.
        scale_embedding: Multiply token embeddings by √D (Vaswani et al. 2017, section 3.4).
        embedding_norm: Normalise the sum of the embeddings (BERT).
        attention_bias: Biases in the query, key, value and output projections.
        mlp_bias: Biases in the feed-forward projections.
        dropout: Dropout on the embeddings and on each sublayer's output.
        attention_dropout: Dropout on the attention probabilities. On a CPU it switches off the fused attention
            kernel, which makes training two to three times slower.
        activation_dropout: Dropout after the activation of the feed-forward layer.
        initialization: `normal`, `gpt2` or `xavier`.
        initializer_range: Standard deviation of the normal initialisations.

    Raises:
        StrictDataclassFieldValidationError: A field has the wrong type or a value that is not allowed.
        StrictDataclassClassValidationError: Fields that do not fit together.
        ValueError: An unknown keyword that looks like a misspelled or another library's field name.
    """

    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 - the form transformers reads
    attribute_map = {  # noqa: RUF012 - names of one epsilon in other configs
        "layer_norm_eps": "norm_eps",
        "layer_norm_epsilon": "norm_eps",
        "rms_norm_eps": "norm_eps",
    }

    base_model_tp_plan = TENSOR_PARALLEL_PLAN

    hidden_size: int = positive(default=512)
    num_hidden_layers: int = positive(default=6)
    num_attention_heads: int = positive(default=8)
    num_key_value_heads: int | None = positive(default=None)
    head_dim: int | None = positive(default=None)
    intermediate_size: int | None = positive(default=None)
    feed_forward: FeedForward = "plain"
    hidden_act: str = activation(default="relu")
    norm: Norm = "layer_norm"
    norm_eps: float | int = non_negative(default=1e-5)
    norm_placement: NormPlacement = "pre"
    position_embedding_type: PositionEmbedding = "learned"
    sinusoidal_layout: SinusoidalLayout = "interleaved"
    max_position_embeddings: int = positive(default=1024)
    scale_embedding: bool = False
    embedding_norm: bool = False
    attention_bias: bool = True
    mlp_bias: bool = True
    dropout: float | int = probability(default=0.0)
    attention_dropout: float | int = probability(default=0.0)
    activation_dropout: float | int = probability(default=0.0)
    initialization: Initialization = "normal"
    initializer_range: float | int = non_negative(default=0.02)

    def __post_init__(self, **kwargs: Any) -> None:
        self._reject_misspelled(kwargs)
        self._fill_derived()
        self._take_rope_parameters(kwargs)
        super().__post_init__(**kwargs)

    def _take_rope_parameters(self, kwargs: dict[str, Any]) -> None:
        if self.position_embedding_type == "rotary":
            # Not a dataclass field: transformers takes its presence to mean that positions are rotary
            self.rope_parameters = kwargs.pop("rope_parameters", None) or {}
            return
        for name in ROPE_NAMES:
            if value := kwargs.pop(name, None):
                raise ValueError(
                    f"{name}={value!r} only applies to position_embedding_type='rotary', "
                    f"got position_embedding_type={self.position_embedding_type!r}"
                )

    def _fill_derived(self) -> None:
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.intermediate_size is None:
            self.intermediate_size = 4 * self.hidden_size
        if self.head_dim is None:
            if self.hidden_size % self.num_attention_heads:
                raise ValueError(
                    f"hidden_size={self.hidden_size} must be a multiple of num_attention_heads="
                    f"{self.num_attention_heads}, or head_dim must be given"
                )
            self.head_dim = self.hidden_size // self.num_attention_heads

    def _reject_misspelled(self, unknown: dict[str, Any]) -> None:
        names = [field.name for field in dataclasses.fields(self)] + list(ROPE_NAMES)
        for key in set(unknown) - set(ROPE_NAMES):
            meant = FOREIGN_NAMES.get(key) or next(iter(difflib.get_close_matches(key, names, n=1, cutoff=0.85)), None)
            if meant is not None:
                raise ValueError(
                    f"{type(self).__name__} has no field {key!r} (value {unknown[key]!r}); did you mean {meant!r}?"
                )

    def validate_block_heads(self) -> None:
        """Every key/value head serves the same number of query heads."""
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads} must be a multiple of num_key_value_heads="
                f"{self.num_key_value_heads}"
            )

    def validate_block_positions(self) -> None:
        """Rotary and sinusoidal positions work on pairs of dimensions."""
        if self.position_embedding_type == "rotary" and self.head_dim % 2:
            raise ValueError(f"position_embedding_type='rotary' needs an even head_dim, got head_dim={self.head_dim}")
        if self.position_embedding_type == "sinusoidal" and self.hidden_size % 2:
            raise ValueError(
                f"position_embedding_type='sinusoidal' needs an even hidden_size, got hidden_size={self.hidden_size}"
            )
        rope_type = getattr(self, "rope_parameters", {}).get("rope_type", "default")
        if rope_type != "default" and rope_type not in ROPE_INIT_FUNCTIONS:
            allowed = ", ".join(["default", *ROPE_INIT_FUNCTIONS])
            raise ValueError(f"rope_parameters['rope_type'] must be one of {allowed}, got {rope_type!r}")
        rotated_part = getattr(self, "rope_parameters", {}).get("partial_rotary_factor", 1.0)
        if rotated_part != 1.0:
            raise ValueError(f"rope_parameters['partial_rotary_factor'] must be 1.0, got {rotated_part!r}")

    def check_token_ids(self, vocab_size: int, *names: str) -> None:
        """Raise when a special token's id does not lie in a vocabulary of `vocab_size` tokens."""
        for name in names:
            value = getattr(self, name)
            for token_id in value if isinstance(value, list) else [value]:
                if token_id is not None and not 0 <= token_id < vocab_size:
                    raise ValueError(f"{name}={token_id} must be at least 0 and less than vocab_size={vocab_size}")
