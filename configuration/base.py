"""The base of the model configs: how fields are derived, read and overridden; plans for several devices."""

from typing import Any

from huggingface_hub.dataclasses import strict

from .block import DERIVED, without_stale_parts
from .names import CONDITIONAL_NAMES, ROPE_NAMES, STANDARD_NAMES, TRANSFORMERS_NAMES, unknown_reason
from .options import FIELD_READERS, POSITION_CHOICES, SIZE_READERS
from .package import PackageConfig
from .rules import BlockRules, take_rope_parameters

# Heads and inner width are split over the devices, outputs are summed. The plan names every projection that a block
# can have; a model keeps the entries of those it has (`modeling/base.py`).
STYLES = {"q_proj": "colwise", "k_proj": "colwise", "v_proj": "colwise", "o_proj": "rowwise"} | dict.fromkeys(
    ("q_norm", "k_norm"), "replicated_with_grad_allreduce"
)
TENSOR_PARALLEL_PLAN = {
    **{f"layers.*.{part}_attn.{name}": style for part in ("self", "cross") for name, style in STYLES.items()},
    **dict.fromkeys(("layers.*.mlp.gate_proj", "layers.*.mlp.up_proj"), "colwise"),
    "layers.*.mlp.down_proj": "rowwise",
}

# Modules gathered when used and then freed, and those that stay; the names are transformers' own, but for `merges`
IMAGE_FSDP_PLAN = {"layers.*": "free_full_weight", "merges.*": "free_full_weight", "norm": "keep_full_weight"}

# A norm over all heads, or with a weight for each, has to see all of them
WHOLE_HEADS = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "colwise_gather_output"), "o_proj": "rowwise_split_input"
}  # fmt: skip


class VanillaConfig(PackageConfig):
    """The base of the model configs: unknown names are refused, and fields left at `None` are derived from others.

    Raises:
        StrictDataclassFieldValidationError: A field has the wrong type or a value that is not allowed.
        StrictDataclassClassValidationError: Fields do not fit together.
        ValueError: An unknown keyword that looks like a misspelled field or a field of another library, or a field of
            another model type.
    """

    keys_to_ignore_at_inference = ["past_key_values", "cache"]  # noqa: RUF012 - the form transformers reads
    has_position_table = False

    @classmethod
    def refuse_unknown(cls, given: dict[str, Any]) -> None:
        """Raise ValueError for a keyword that is misspelled, or that belongs to another library or another config."""
        if pruned := given.get("pruned_heads"):
            raise ValueError(
                f"{cls.__name__}: pruned_heads={pruned!r} is no longer supported: use the model before pruning, or "
                "load this one by its own code, with trust_remote_code=True where vanillaformer is not imported"
            )
        known = cls.keywords() | set(TRANSFORMERS_NAMES) | {"pruned_heads"}
        package = __name__.rpartition(".")[0]  # its configs are those of the model types; users may derive others
        for key in given.keys() - known:
            types = [*VanillaConfig.__subclasses__(), *BlockConfig.__subclasses__()]
            types = [each for each in types if each.model_type and each.__module__.rpartition(".")[0] == package]
            shared = BlockConfig.keywords() | STANDARD_NAMES  # any config may have these
            owners = [each.__name__ for each in types if key in each.keywords() - shared]
            reason = f"it is a field of {' and '.join(owners)}" if owners else unknown_reason(key, sorted(known))
            if reason is not None:
                raise ValueError(f"{cls.__name__} has no field {key!r} (value {given[key]!r}): {reason}")

    def validate_model_type(self) -> None:
        """The config is for its class's type of model, and all layers have the same parts."""
        if self.is_encoder_decoder != type(self).is_encoder_decoder:
            raise ValueError(
                f"is_encoder_decoder={self.is_encoder_decoder} must be {type(self).is_encoder_decoder} in a "
                f"{type(self).__name__}"
            )
        if self.is_heterogeneous:
            raise ValueError("per_layer_config is not supported: the layers of a stack differ in layer_types only")

    def check_token_ids(self, vocab_size: int, *names: str) -> None:
        """Raise ValueError for a special token's id outside of a vocabulary of `vocab_size` tokens."""
        for name in names:
            value = getattr(self, name)
            for token_id in value if isinstance(value, list) else [value]:
                if token_id is not None and not 0 <= token_id < vocab_size:
                    raise ValueError(f"{name}={token_id} must be at least 0 and less than vocab_size={vocab_size}")


@strict
class BlockConfig(BlockRules, VanillaConfig):
    """The Transformer block, one field per axis (`BlockFields` describes them)."""

    # Names of the norm's epsilon in other configs
    attribute_map = dict.fromkeys(("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "rms_norm_eps"), "norm_eps")
    base_model_tp_plan = TENSOR_PARALLEL_PLAN
    ignore_keys_at_rope_validation = {"partial_rotary_factor"}  # noqa: RUF012
    derived_fields = DERIVED

    @classmethod
    def keywords(cls) -> set[str]:
        return super().keywords() | {*CONDITIONAL_NAMES}

    def overridden(self, fields: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
        return super().overridden(without_stale_parts(self, fields, overrides), overrides)

    def _fill_derived(self) -> None:
        super()._fill_derived()
        if self.head_dim is None:
            raise ValueError(
                f"hidden_size={self.hidden_size} must be a multiple of num_attention_heads="
                f"{self.num_attention_heads}, or head_dim must be given"
            )

    def _take_keywords(self, kwargs: dict[str, Any]) -> None:
        self._take_layer_types(kwargs)
        if self.position_embedding_type == "rotary":
            take_rope_parameters(self, kwargs)
            return
        for name in ROPE_NAMES:
            if value := kwargs.pop(name, None):
                raise ValueError(
                    f"{name}={value!r} only applies to position_embedding_type='rotary', "
                    f"got position_embedding_type={self.position_embedding_type!r}"
                )

    def _take_layer_types(self, kwargs: dict[str, Any]) -> None:
        # Not a dataclass field: transformers takes its presence to mean that layers differ
        self._take_pattern(kwargs, "layer_types", self.num_hidden_layers)

    def _take_pattern(self, kwargs: dict[str, Any], name: str, layers: int) -> None:
        """Set attribute `name` to the pattern given in `kwargs`, repeated or truncated to `layers`."""
        pattern = kwargs.pop(name, None)
        is_list = isinstance(pattern, list | tuple) and len(pattern) > 0
        if pattern is not None and not (is_list and all(isinstance(entry, str) for entry in pattern)):
            raise ValueError(f"{name} must be a list with at least one type of layer, got {pattern!r}")
        if self.sliding_window is not None:
            pattern = ["sliding_attention"] if pattern is None else list(pattern)
            setattr(self, name, [pattern[layer % len(pattern)] for layer in range(layers)])
        elif pattern is not None and any(entry != "full_attention" for entry in pattern):
            raise ValueError(f"{name}={pattern!r} needs a sliding_window")

    @property
    def has_position_table(self) -> bool:  # type: ignore[override]  # other models have none
        """Return whether positions are rows of a table of `max_position_embeddings` rows."""
        return POSITION_CHOICES[self.position_embedding_type].has_table

    def reads(self, field: str) -> bool:
        """Return whether a field has an effect with the chosen values of the options."""
        option, values = FIELD_READERS.get(field) or SIZE_READERS.get(field) or (None, ())
        return option is None or getattr(self, option) in values

    def has_attention_bias(self, projection: str) -> bool:
        """Return whether one of `q_proj`, `k_proj`, `v_proj` and `o_proj` has a bias."""
        return projection in self.attention_bias if isinstance(self.attention_bias, list) else self.attention_bias

    def rope_of(self, layer_type: str) -> dict[str, Any] | None:
        """Return the rotary parameters of a type of layer, `None` if its queries and keys are not rotated."""
        parameters = getattr(self, "rope_parameters", None)
        return parameters[layer_type] if parameters and layer_type in parameters else parameters

    def is_rotary_layer(self, layer_idx: int) -> bool:
        """Return whether a layer rotates its queries and keys, by the pattern of `rotary_layers`."""
        return self.rotary_layers is None or self.rotary_layers[layer_idx % len(self.rotary_layers)]

    def deepnorm_scales(self, cross_attention: bool) -> tuple[float, float]:
        """Return DeepNorm's factor α on the residual stream and its gain β of fresh weights, by depth (table 1)."""
        return (2 * self.num_hidden_layers) ** 0.25, (8 * self.num_hidden_layers) ** -0.25


class ConfigView:
    """A view of a config with other values for some fields: one side of an encoder-decoder, or one type of layer.

    All other fields are read from the config at each access, so later changes of the config show here too.
    """

    def __init__(self, config: BlockConfig, **fields: Any):
        self.__dict__.update(fields, viewed=config)

    def __getattr__(self, name: str) -> Any:
        if name == "viewed" or name.startswith("__"):  # a copy that is not filled yet
            raise AttributeError(name)
        return getattr(self.viewed, name)


def layer_types(config: BlockConfig) -> list[str]:
    """Return the type of each layer of a stack: `full_attention` or `sliding_attention`."""
    everywhere = "full_attention" if config.sliding_window is None else "sliding_attention"
    return getattr(config, "layer_types", None) or [everywhere] * config.num_hidden_layers
