"""A native architecture: its classes, its fields and its tensors, and what stands in the way of a conversion."""

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig, PreTrainedModel

from vanillaformer.configuration import (
    BlockConfig,
    VanillaDecoderConfig,
    VanillaEncoderConfig,
    VanillaEncoderDecoderConfig,
)
from vanillaformer.configuration.options import ACTIVATION_ALIASES
from vanillaformer.modeling import (
    VanillaDecoderForCausalLM,
    VanillaDecoderForSequenceClassification,
    VanillaDecoderModel,
    VanillaEncoderDecoderForConditionalGeneration,
    VanillaEncoderDecoderModel,
    VanillaEncoderForMaskedLM,
    VanillaEncoderForPreTraining,
    VanillaEncoderForSequenceClassification,
    VanillaEncoderForTokenClassification,
    VanillaEncoderModel,
)

from .fields import LABELS, Field, Values, given, taken
from .fitting import FITTED, steps_towards, with_fields
from .function import LM_HEADS, differences, equal, function_of
from .tensors import Table

# Our classes by config and head
OUR_CLASSES: dict[type[BlockConfig], dict[str, type[PreTrainedModel]]] = {
    VanillaDecoderConfig: {
        "base": VanillaDecoderModel,
        "lm": VanillaDecoderForCausalLM,
        "sequence": VanillaDecoderForSequenceClassification,
    },
    VanillaEncoderConfig: {
        "base": VanillaEncoderModel,
        "lm": VanillaEncoderForMaskedLM,
        "pretraining": VanillaEncoderForPreTraining,
        "sequence": VanillaEncoderForSequenceClassification,
        "token": VanillaEncoderForTokenClassification,
    },
    VanillaEncoderDecoderConfig: {
        "base": VanillaEncoderDecoderModel,
        "lm": VanillaEncoderDecoderForConditionalGeneration,
    },
}

# Fields of native configs that change how a model is trained, started or called, how exactly it computes or how its
# labels are named, but not what it computes from its weights
NATIVE_NOT_FUNCTION = {
    "activation_dropout", "attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "classifier_dropout",
    "dropout", "dropout_rate", "embd_pdrop", "embedding_dropout", "hidden_dropout", "hidden_dropout_prob",
    "mlp_dropout", "qa_dropout", "resid_pdrop", "residual_dropout", "seq_classif_dropout", "summary_first_dropout",
    "decoder_layerdrop", "encoder_layerdrop", "layerdrop",
    "init_std", "initializer_cutoff_factor", "initializer_factor", "initializer_range",
    "summary_activation", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    "deterministic_flash_attn", "pretraining_tp", "reorder_and_upcast_attn", "slow_but_exact",
    "sparse_pred_ignore_index", "sparse_prediction",
    "cls_token_id", "sep_token_id", "forced_eos_token_id", "use_cache",
    "max_window_layers", "use_sliding_window",  # `layer_types` says it layer by layer
}  # fmt: skip


@dataclass(frozen=True)
class Head:
    """What stands on a stack.

    Args:
        native_class: Name of the transformers class.
        tensors: Which of its tensors are which of ours.
        fields: Which fields it adds.
        ignored: Native fields that it does not read.
        arguments: Further arguments of the native class.
    """

    native_class: str
    tensors: Table = field(default_factory=dict)
    fields: tuple[Field, ...] = ()
    ignored: tuple[str, ...] = ()
    arguments: Values = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """A stack of layers, or what lies beside it: a table with a prefix on either side.

    Args:
        table: Which tensors are which.
        ours: Prefix of our names, without that of the whole stack.
        native: Prefix of the native names, without that of the whole stack.
        depth: Our field that holds the number of its layers.
        when: Whether models with a config of ours have it, for tables that exclude each other.
    """

    table: Table
    ours: str = ""
    native: str = ""
    depth: str = "num_hidden_layers"
    when: Callable[[BlockConfig], bool] = lambda config: True


@dataclass(frozen=True)
class Architecture:
    """One architecture of transformers and how it corresponds to ours.

    Args:
        name: Its `model_type`.
        config_class: Our config class.
        native_config: Name of transformers' config class.
        prefix: What the names of the native stack's tensors start with below a head.
        fields: Which fields are which.
        parts: Which tensors of the stack are which.
        heads: What can stand on the stack: `base`, `lm`, `pretraining`, `sequence` or `token`.
        free: Our fields that can have any value, since the weights decide.
        unused: Native tensors that nothing reads when they are not tied, and the tensor of ours they are copies of.
        different: Pairs of our fields for special tokens that may not be the same token.
        computed: Native tensors that are not trained, and the table of ours that they must be equal to.
        read: Returns those of our fields that only the native weights tell.
        finish: Brings a fresh native model into a form that its config cannot say.
    """

    name: str
    config_class: type[BlockConfig]
    native_config: str
    prefix: str
    fields: tuple[Field, ...]
    parts: tuple[Part, ...]
    heads: dict[str, Head]
    free: tuple[str, ...] = ()
    unused: dict[str, str] = field(default_factory=dict)
    different: tuple[tuple[str, str], ...] = ()
    computed: dict[str, str] = field(default_factory=dict)
    read: Callable[[PreTrainedModel], Values] = lambda model: {}
    finish: Callable[[PreTrainedModel, BlockConfig], None] = lambda model, config: None

    def native_config_class(self) -> type[PreTrainedConfig]:
        """Return transformers' config class."""
        return getattr(transformers, self.native_config)

    def native_class(self, head: str) -> type[PreTrainedModel]:
        """Return transformers' model class with a head.

        Raises:
            ValueError: The architecture has no such head.
        """
        if head not in self.heads:
            raise ValueError(
                f"{self.name} has no head {head!r} that ours corresponds to, only {', '.join(self.heads)}"
            )
        return getattr(transformers, self.heads[head].native_class)

    def head_of(self, model_class_name: str) -> str:
        """Return the head of a native class.

        Raises:
            ValueError: None of ours corresponds to it.
        """
        for head, entry in self.heads.items():
            if entry.native_class == model_class_name:
                return head
        allowed = ", ".join(entry.native_class for entry in self.heads.values())
        raise ValueError(f"{model_class_name} has no counterpart here: of {self.name} only {allowed} have one")

    def all_fields(self, head: str) -> tuple[Field, ...]:
        """Return the field table of the stack with a head."""
        labels = (LABELS,) if head in ("sequence", "token") else ()
        return (*self.fields, *labels, *self.heads[head].fields)

    def to_our_config(self, config: PreTrainedConfig, head: str, known: Values) -> BlockConfig:
        """Return our config for a native one, with fields of ours that are `known` from the weights.

        Raises:
            ValueError: The native config says something that ours cannot.
        """
        fields = taken(self.all_fields(head), config) | known
        try:
            ours = self.config_class(**without_none(fields, LABEL_NAMES))
        except StrictDataclassError as error:
            raise ValueError(f"this {self.name} model has no counterpart here: {in_one_line(error)}") from error
        if obstacles := [*self.native_obstacles(config, ours, head), *self.confused(ours)]:
            raise ValueError(f"this {self.name} model has no counterpart here: {'; '.join(obstacles)}")
        return ours

    def to_native_config(self, config: BlockConfig, head: str) -> PreTrainedConfig:
        """Return the native config for ours, whether it says all that ours does or not."""
        fields = without_none(given(self.all_fields(head), config), LABEL_NAMES)
        return self.native_config_class()(**fields)

    def obstacles(self, config: BlockConfig, head: str) -> list[str]:
        """Return what the native architecture cannot say of our config, however it is fitted: the fields."""
        if not isinstance(config, self.config_class):
            return [f"{self.name} is a {self.config_class.model_type}, not a {config.model_type}"]
        if head not in self.heads:
            return [f"{self.name} has no head {head!r}"]
        try:
            found = self.unlike(self.fitted(config, head), head)
        except Exception as error:  # whatever a foreign config's own checks raise
            return [f"{self.name}: {in_one_line(error)}"]
        unlike = [f"{name}={ours!r}, where {self.name} has {theirs!r}" for name, (ours, theirs) in found.items()]
        return unlike + self.confused(config)

    def confused(self, config: BlockConfig) -> list[str]:
        """Return which special tokens are one in our config, but must not be in the native architecture."""
        return [
            f"{one}={getattr(config, one)!r} is {other}, which {self.name} treats differently from other tokens"
            for one, other in self.different
            if getattr(config, one) is not None and getattr(config, one) == getattr(config, other)
        ]

    def unlike(self, config: BlockConfig, head: str) -> dict[str, tuple[Any, Any]]:
        """Return the fields of our config that do not come back the same from the native one, with both values."""
        native = self.to_native_config(config, head)
        back = self.config_class(**without_none(taken(self.all_fields(head), native), LABEL_NAMES))
        found = differences(function_of(config, head), function_of(back, head))
        return {name: values for name, values in found.items() if name not in self.free}

    def fitted(self, config: BlockConfig, head: str) -> BlockConfig:
        """Return a config that computes the same as ours and is as near to the native architecture as there is."""
        for _ in FITTED:  # one step may make another possible
            if not (steps := steps_towards(config, self.unlike(config, head), head)):
                break
            config = with_fields(config, **steps)
        return config

    def native_model(self, config: BlockConfig, head: str, dtype: torch.dtype) -> PreTrainedModel:
        """Return a fresh native model for our config."""
        native_class, arguments = self.native_class(head), self.heads[head].arguments
        native = native_class._from_config(self.to_native_config(config, head), dtype=dtype, **arguments)
        self.finish(native, config)
        return native

    def native_obstacles(self, config: PreTrainedConfig, ours: BlockConfig, head: str) -> list[str]:
        """Return what our config cannot say of the native one: its fields that do not come back the same."""
        back = self.to_native_config(ours, head)
        base = {entry.name for entry in dataclasses.fields(PreTrainedConfig)}
        silent = base | NATIVE_NOT_FUNCTION | set(self.heads[head].ignored)
        names = [entry.name for entry in dataclasses.fields(config) if entry.name not in silent]
        if head not in LM_HEADS:
            names = [name for name in names if name != "tie_word_embeddings"]
        pairs = {name: (comparable(config, name), comparable(back, name)) for name in names}
        return [
            f"{name}={theirs!r}, which here can only be {again!r}"
            for name, (theirs, again) in pairs.items()
            if not equal(theirs, again) and name not in TIES
        ]


# Which tables of token vectors are one, the weights tell
TIES = ("tie_word_embeddings", "share_encoder_decoder_embeddings")
LABEL_NAMES = ("id2label", "label2id")


def in_one_line(error: Exception) -> str:
    """Return what an error says, without line breaks."""
    return " ".join(str(error).split())


def comparable(config: PreTrainedConfig, name: str) -> Any:
    """Return a native field in one form for all ways to say the same."""
    value = getattr(config, name, None)
    if name == "n_inner" and value is None:
        return 4 * config.n_embd
    if name == "local_attention":
        return value // 2  # to either side
    if name == "rope_parameters" and "rope_type" in value:
        return {"partial_rotary_factor": 1.0} | value
    return ACTIVATION_ALIASES.get(value, value) if isinstance(value, str) else value


def without_none(fields: Values, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields without those of `names` that are `None`, copied."""
    return {name: copy.deepcopy(value) for name, value in fields.items() if value is not None or name not in names}
