"""Rules for fields that have to fit together; each error says what is wrong and what is allowed."""

import copy
import re
from collections.abc import Mapping
from typing import Any, get_args

from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from .block import BlockFields
from .names import ROPE_PARTS
from .options import FIELD_READERS, INITIALIZATION_CHOICES, PLACEMENT_CHOICES, POSITION_CHOICES, LayerType

# Numbers in the parameters of scaled rotary positions
ROPE_NUMBERS = (
    *("rope_theta", "factor", "original_max_position_embeddings", "attention_factor"),
    *("beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor"),
)
# Those that transformers computes if they are `None`, by type
ROPE_COMPUTED = {"yarn": ("attention_factor", "beta_fast", "beta_slow"), "longrope": ("attention_factor", "factor")}
ROPE_REQUIRED = {
    **dict.fromkeys(("linear", "dynamic", "yarn"), ("factor",)),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}

# Names of sizes here and in other architectures
LAYER_COUNTS = (
    "num_hidden_layers", "encoder_layers", "decoder_layers", "num_layers", "num_decoder_layers", "n_layer", "n_layers",
)  # fmt: skip
MODEL_WIDTHS = ("hidden_size", "encoder_hidden_size", "d_model", "n_embd")
INNER_WIDTHS = (
    "intermediate_size", "encoder_intermediate_size", "d_ff", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim",
)  # fmt: skip

# Limits far above the sizes of any model: beyond them, a damaged or malicious config would take all memory before any
# other check.
LARGEST = {
    **dict.fromkeys(LAYER_COUNTS, 10_000),
    **dict.fromkeys((*MODEL_WIDTHS, "head_dim"), 2**20),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "n_head"), 2**16),
    **dict.fromkeys(INNER_WIDTHS, 2**24),
    **dict.fromkeys(("vocab_size", "decoder_vocab_size", "type_vocab_size", "ngram_buckets", "wide_buckets"), 2**28),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "position_offset", "sliding_window"), 2**30),
    **dict.fromkeys(("relative_attention_num_buckets", "relative_attention_max_distance"), 2**30),
    **dict.fromkeys(("image_size", "patch_size"), 2**16),
    **dict.fromkeys(("num_channels", "num_register_tokens"), 2**12),
    **dict.fromkeys(("max_ngram", "wide_max_ngram", "ctc_upsampling"), 2**8),
    "max_length_difference": 2**16,
    "num_labels": 2**20,
}
LARGEST_POSITION_TABLE = 2**28  # entries of a table that is computed, not loaded


def check_limits(fields: Mapping[str, Any]) -> None:
    """Raise ValueError for a size far above that of any model."""
    for name, largest in LARGEST.items():
        value = fields.get(name)
        if isinstance(value, int | float) and value > largest:
            raise ValueError(f"{name}={value:,} must be at most {largest:,}")


def is_above_zero(value: Any) -> bool:
    """Return whether a value is a finite number greater than 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def take_rope_parameters(config: Any, keywords: dict[str, Any]) -> None:
    """Set a config's attribute `rope_parameters` to those given, before transformers completes them.

    It is not a field: transformers takes its presence to mean that positions are rotary.
    """
    for name in ("rope_parameters", "rope_scaling"):
        parameters = keywords.get(name)
        if parameters is not None and not isinstance(parameters, dict):
            raise ValueError(f"{name} must be a dictionary, got {parameters!r}")
        for layer_type in get_args(LayerType):
            entry = (parameters or {}).get(layer_type)
            if entry is not None and not isinstance(entry, dict):
                raise ValueError(f"{name}[{layer_type!r}] must be a dictionary or None, got {entry!r}")
    config.rope_parameters = parameters = copy.deepcopy(keywords.pop("rope_parameters", None)) or {}
    for name in ROPE_PARTS:
        for entry in (parameters, *parameters.values()):
            if name in keywords and isinstance(entry, dict) and entry.get(name, keywords[name]) != keywords[name]:
                raise ValueError(f"{name}={keywords[name]!r} contradicts rope_parameters={parameters!r}")


class BlockRules(BlockFields):
    """The cross-field checks of `BlockConfig`; they run when a config is made and when it is saved."""

    def validate_block_heads(self) -> None:
        """Every key/value head serves the same number of query heads."""
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads} must be a multiple of num_key_value_heads="
                f"{self.num_key_value_heads}"
            )

    def validate_block_layer_types(self) -> None:
        """Layers are of types for which the stacks have masks."""
        if self.sliding_window is None:  # there are no types either
            return
        for name in ("layer_types", "encoder_layer_types"):
            for entry in getattr(self, name, []):
                if entry not in get_args(LayerType):
                    raise ValueError(f"{name} must consist of {', '.join(get_args(LayerType))}, got {entry!r}")

    def validate_block_window(self) -> None:
        """The cache of a window is not empty."""
        if self.sliding_window == 1 and self.generates:
            raise ValueError(
                "sliding_window=1 lets a token see only itself, for which transformers has no cache: "
                "it must be at least 2 in a model that generates"
            )

    def validate_block_norms(self) -> None:
        """Fields that change or omit a norm need a norm for which this is possible."""
        if self.norm_unit_offset and not self.norm_weight:
            raise ValueError("norm_unit_offset=True adds 1 to the norms' weight: it needs norm_weight=True")
        if self.qk_norm == "each_head" and not self.norm_weight:
            raise ValueError("qk_norm='each_head' is a weight per head: it needs norm_weight=True (or qk_norm='head')")
        if self.skip_first_norm and (self.norm_placement != "pre" or self.block_layout == "parallel_shared_norm"):
            raise ValueError(
                "skip_first_norm=True omits the norm before the first attention and needs norm_placement='pre' "
                f"with a norm per sublayer, got norm_placement={self.norm_placement!r}, "
                f"block_layout={self.block_layout!r}"
            )

    def validate_block_layout(self) -> None:
        """Parallel sublayers need a placement that sums them."""
        if self.block_layout not in PLACEMENT_CHOICES[self.norm_placement].layouts:
            allowed = [name for name, choice in PLACEMENT_CHOICES.items() if self.block_layout in choice.layouts]
            raise ValueError(
                f"block_layout={self.block_layout!r} needs norm_placement to be one of {', '.join(allowed)}, "
                f"got norm_placement={self.norm_placement!r}"
            )

    def validate_block_drop_path(self) -> None:
        """A sublayer can only be skipped if there is a residual stream."""
        if self.norm_placement == "no_residual" and self.drop_path_rate:
            raise ValueError(f"drop_path_rate={self.drop_path_rate}: norm_placement='no_residual' has no residual sum")

    def validate_block_choices(self) -> None:
        """Fields that only some values of an option read are only set with those values."""
        for name, (option, readers) in FIELD_READERS.items():
            value, chosen = getattr(self, name, None), getattr(self, option)
            if chosen not in readers and value != getattr(type(self), name, None):
                raise ValueError(
                    f"{name}={value!r} only applies to {option}={' or '.join(map(repr, readers))}, "
                    f"got {option}={chosen!r}"
                )

    def validate_block_sinusoidal(self) -> None:
        """Sinusoids come in pairs, and their table fits into memory."""
        if self.position_embedding_type != "sinusoidal":
            return
        for name, width in self._widths().items():
            if width % 2:
                raise ValueError(f"position_embedding_type='sinusoidal' needs an even {name}, got {name}={width}")
            rows = self.max_position_embeddings + self.position_offset
            if rows * width > LARGEST_POSITION_TABLE:
                raise ValueError(
                    f"position_embedding_type='sinusoidal' makes a table of max_position_embeddings by {name} "
                    f"numbers, at most {LARGEST_POSITION_TABLE:,}, got {rows:,} by {width:,}"
                )
            if self.sinusoidal_layout == "tensor2tensor" and width < 4:
                raise ValueError(f"sinusoidal_layout='tensor2tensor' needs a {name} of at least 4, got {name}={width}")

    def _widths(self) -> dict[str, int]:
        """Return the width of each stack by its field."""
        widths = {name: getattr(self, name, None) for name in ("hidden_size", "encoder_hidden_size")}
        return {name: width for name, width in widths.items() if width is not None}

    def validate_block_rotary(self) -> None:
        """Rotary parameters name a known scaling, for each type of layer, and rotate pairs of dimensions."""
        if self.rotary_layers is not None and not self.rotary_layers:
            raise ValueError(f"rotary_layers must have at least one entry, got {self.rotary_layers!r}")
        if self.position_embedding_type != "rotary":
            return
        parameters = getattr(self, "rope_parameters", None)
        if parameters is None:
            raise ValueError("position_embedding_type='rotary' needs rope_parameters, got rope_parameters=None")
        for name, entry in self._rope_entries(parameters).items():
            if entry is not None:
                self._validate_rope_entry(name, entry)

    def _rope_entries(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters by their name in error messages."""
        used = set(getattr(self, "layer_types", [])) | set(getattr(self, "encoder_layer_types", []))
        by_type = [key for key, value in parameters.items() if key in used or isinstance(value, dict)]
        if not by_type:
            return {"rope_parameters": parameters}
        if not used or used - set(by_type):
            raise ValueError(
                f"rope_parameters for each type of layer must be given for {sorted(used) or 'no type'}, which the "
                f"layers have (sliding_window={self.sliding_window}), got them for {sorted(by_type)}"
            )
        return {f"rope_parameters[{key!r}]": parameters[key] for key in by_type}

    def _validate_rope_entry(self, name: str, entry: dict[str, Any]) -> None:
        rope_type = entry.get("rope_type", "default")
        if rope_type not in ("default", *ROPE_INIT_FUNCTIONS):
            allowed = ", ".join(["default", *ROPE_INIT_FUNCTIONS])
            raise ValueError(f"{name}['rope_type'] must be one of {allowed}, got {rope_type!r}")
        for key in ROPE_REQUIRED.get(rope_type, ()):
            if entry.get(key) is None:
                raise ValueError(f"{name} of rope_type {rope_type!r} must have {key!r}, got {entry!r}")
        for key in ROPE_NUMBERS:
            computed = key in ROPE_COMPUTED.get(rope_type, ()) and entry.get(key) is None
            if key in entry and not computed and not is_above_zero(entry[key]):
                raise ValueError(f"{name}[{key!r}] must be a finite number greater than 0, got {entry[key]!r}")
        if entry.get("high_freq_factor", float("inf")) <= entry.get("low_freq_factor", 0):
            raise ValueError(
                f"{name}['high_freq_factor'] must be greater than low_freq_factor, "
                f"got {entry['high_freq_factor']} and {entry['low_freq_factor']}"
            )
        part = entry.get("partial_rotary_factor", 1.0)
        if not isinstance(part, int | float) or not 0 < part <= 1:
            raise ValueError(f"{name}['partial_rotary_factor'] must be greater than 0 and at most 1, got {part!r}")
        rotated = int(self.head_dim * part)
        if rotated % 2 or rotated == 0:
            raise ValueError(
                "position_embedding_type='rotary' needs an even number of rotated dimensions: "
                f"head_dim={self.head_dim} with a partial_rotary_factor of {part} gives {rotated}"
            )
        if rope_type == "dynamic" and rotated == 2:
            raise ValueError(
                f"{name}['rope_type']='dynamic' needs at least 4 rotated dimensions: head_dim={self.head_dim} with a "
                f"partial_rotary_factor of {part} gives 2"
            )
        for key in ("short_factor", "long_factor") if rope_type == "longrope" else ():
            factors = entry.get(key)
            if not isinstance(factors, list) or len(factors) != rotated // 2 or not all(map(is_above_zero, factors)):
                raise ValueError(
                    f"{name}[{key!r}] must be a list of {rotated // 2} numbers greater than 0, one per rotated "
                    f"pair of dimensions, got {factors!r}"
                )

    def validate_block_relative(self) -> None:
        """T5's buckets: half of them for small distances, the others up to the maximal distance, on both sides."""
        if self.position_embedding_type != "relative":
            return
        buckets, distance = self.relative_attention_num_buckets, self.relative_attention_max_distance
        if buckets < 4 or buckets % 4 or distance <= buckets // 2:
            raise ValueError(
                "position_embedding_type='relative' needs relative_attention_num_buckets to be a multiple of 4 and "
                f"less than twice relative_attention_max_distance, got {buckets} and {distance}"
            )

    def validate_block_factors(self) -> None:
        """Embeddings and sublayers have at most one factor each, which with muP does not depend on the width."""
        if self.norm_placement == "no_residual" and self.residual_scale != 1:
            raise ValueError(f"residual_scale={self.residual_scale}: norm_placement='no_residual' has no residual sum")
        for name, other in (("embedding_scale", "scale_embedding"), ("residual_scale", "layer_scale_init_value")):
            if getattr(self, name) != 1 and getattr(self, other):
                raise ValueError(f"{name}={getattr(self, name)} and {other}={getattr(self, other)}: give one of them")
        for name in ("scale_embedding", "scale_decoder_outputs") if self.parametrization == "mup" else ():
            if getattr(self, name):
                raise ValueError(f"parametrization='mup' needs {name}=False: its factor would grow with the width")

    def validate_block_mimetic(self) -> None:
        """Mimetic initialization factors a matrix of the model's width for each head."""
        if self.initialization != "mimetic":
            return
        key_width = self.num_key_value_heads * self.head_dim
        for name, width in (("head_dim", self.head_dim), ("num_key_value_heads·head_dim", key_width)):
            for limit, value in self._widths().items():
                if width > value:
                    raise ValueError(
                        f"initialization='mimetic' needs {name} to be at most {limit}={value}, got {width}"
                    )

    def validate_block_initialization(self) -> None:
        """The initialization fits the placement: Admin sets its factor, DT-Fixup is for layers without norms."""
        if self.norm_placement not in (INITIALIZATION_CHOICES[self.initialization].placements or PLACEMENT_CHOICES):
            needed = " or ".join(map(repr, INITIALIZATION_CHOICES[self.initialization].placements))
            words = f"norm_placement={needed}, got norm_placement={self.norm_placement!r}"
            raise ValueError(f"initialization={self.initialization!r} needs {words}")

    def validate_block_attention_implementation(self) -> None:
        """The requested attention implementation supports the fields."""
        if (reason := self.attention_obstacle(getattr(self, "_attn_implementation_internal", None))) is not None:
            raise ValueError(reason)

    def attention_obstacle(self, implementation: str | None) -> str | None:
        """Return why an attention implementation cannot compute what the config describes, or `None`."""
        if not isinstance(implementation, str) or implementation == "eager":
            return None
        if self.attn_logit_softcapping is not None and re.match(r"paged\||sdpa$", implementation):
            return (
                f"attn_implementation={implementation!r} has no soft cap: attn_logit_softcapping="
                f"{self.attn_logit_softcapping} needs 'eager' or 'flex_attention'"
            )
        if POSITION_CHOICES[self.position_embedding_type].is_biased and re.search(r"^paged\||flash", implementation):
            return (
                f"attn_implementation={implementation!r} has no position bias: position_embedding_type="
                f"{self.position_embedding_type!r} needs 'eager', 'sdpa' or 'flex_attention'"
            )
        return None
