"""A native architecture as tables: its classes, its fields and its tensors, read in both directions."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel

from vanillaformer.configuration import BlockConfig, VanillaConfig
from vanillaformer.modeling import AUTO_CLASSES
from vanillaformer.modeling.base import VanillaPreTrainedModel

from .fields import LABELS, Field, Values
from .tensors import Table

# The head of the models of an Auto class
HEADS = {
    "AutoModel": "base",
    **dict.fromkeys(("AutoModelForSeq2SeqLM", "AutoModelForCausalLM", "AutoModelForMaskedLM"), "lm"),
    "AutoModelForPreTraining": "pretraining",
    "AutoModelForSequenceClassification": "sequence",
    "AutoModelForTokenClassification": "token",
    "AutoModelForQuestionAnswering": "question",
    "AutoModelForMultipleChoice": "choice",
    "AutoModelForImageClassification": "image",
    "AutoModelForMaskedImageModeling": "masked_image",
}
OUR_CLASSES: dict[Any, dict[str, type[VanillaPreTrainedModel]]] = {}
"""Our classes by config and head."""
for auto_class, models in AUTO_CLASSES.items():
    for model_class in models:
        of_config = OUR_CLASSES.setdefault(model_class.config_class, {})
        if model_class not in of_config.values():  # language models are registered for pre-training, too
            of_config[HEADS[auto_class.__name__]] = model_class
CLASSIFIERS = ("sequence", "token", "image")


def main_head(config_class: type[VanillaConfig]) -> str:
    """Return the usual head of a kind of model: `lm`, or `image` for image models."""
    return "lm" if "lm" in OUR_CLASSES[config_class] else "image"


@dataclass(frozen=True)
class Head:
    """A head on a stack."""

    tensors: Table = field(default_factory=dict)
    fields: tuple[Field, ...] = ()  # the fields that it adds
    ignored: tuple[str, ...] = ()  # native fields that it does not read
    unconstrained: tuple[str, ...] = ()  # our fields that can have any value with this head, since the weights decide
    arguments: Callable[[BlockConfig], Values] = lambda config: {}  # returns further arguments of the native class
    native_class: str = ""  # name of the transformers class, if it does not follow from the architecture's and ours


@dataclass(frozen=True)
class Part:
    """A stack of layers, or other modules: a table of tensors with a prefix on either side."""

    table: Table
    ours: str = ""  # prefix of our names, without that of the whole stack
    native: str = ""  # prefix of the native names, without that of the whole stack
    depth: str = "num_hidden_layers"  # our field with the number of its layers
    # Whether models with this config have it, for tables that exclude each other
    when: Callable[[BlockConfig], bool] = lambda config: True


@dataclass(frozen=True)
class Architecture:
    """One architecture of transformers and how it corresponds to ours."""

    name: str  # its `model_type`
    classes: str  # prefix of the names of its classes
    config_class: type[BlockConfig]  # our config class
    fields: tuple[Field, ...]
    parts: tuple[Part, ...]  # the tables of the stack's tensors
    # The heads by name: `base` (none), `lm`, `pretraining`, `sequence`, `token`, `question` and `choice`, or `base`,
    # `image` and `masked_image`
    heads: dict[str, Head]
    prefix: str = "model."  # prefix of the native stack's tensors in a model with a head
    by_name: bool = False  # chosen only by its name, or if no other architecture fits
    unconstrained: tuple[str, ...] = ()  # our fields that can have any value, since the weights decide
    # Native tensors that nothing reads unless they are tied, each with our tensor to copy
    unused: dict[str, str] = field(default_factory=dict)
    # Pairs of our fields for special tokens that must not be the same token
    distinct_tokens: tuple[tuple[str, str], ...] = ()
    # Native tensors that are not trained, each with our table, which must be equal
    fixed_tables: dict[str, str] = field(default_factory=dict)
    # Returns those of our fields that only the native weights determine
    read: Callable[[PreTrainedModel], Values] = lambda model: {}
    # Changes a new native model in ways that its config cannot express
    finish: Callable[[PreTrainedModel, BlockConfig], None] = lambda model, config: None

    def native_class(self, head: str) -> str:
        """Return the name of the native class with a head, with the ending of our class, such as `ForMaskedLM`."""
        ours = {name: model_class.__name__ for name, model_class in OUR_CLASSES[self.config_class].items()}
        ending = ours[head].removeprefix(ours["base"].removesuffix("Model"))
        return self.heads[head].native_class or f"{self.classes}{ending}"

    def head_of(self, model_class_name: str) -> str:
        """Return the head of a native class; raise ValueError if it has no counterpart among ours."""
        heads = {self.native_class(head): head for head in self.heads}
        if model_class_name not in heads:
            raise ValueError(f"{model_class_name} has no counterpart: of {self.name} only {', '.join(heads)} have one")
        return heads[model_class_name]

    def all_fields(self, head: str) -> tuple[Field, ...]:
        """Return the field table of the stack with a head."""
        labels = (LABELS,) if head in CLASSIFIERS else ()
        return (*self.fields, *labels, *self.heads[head].fields)

    def to_our_config(self, config: PreTrainedConfig, head: str, known: Values | None = None) -> BlockConfig:
        """Return our config for a native one as far as possible; `known` fields take precedence."""
        fields = {name: value for field in self.all_fields(head) for name, value in field.to_ours(config).items()}
        return self.config_class(**arguments_of(fields | (known or {})))

    def to_native_config(self, config: BlockConfig, head: str) -> PreTrainedConfig:
        """Return the native config for ours as far as possible."""
        fields = {name: value for field in self.all_fields(head) for name, value in field.to_native(config).items()}
        return transformers.CONFIG_MAPPING[self.name](**arguments_of(fields))

    def native_model(
        self, config: BlockConfig, head: str, dtype: torch.dtype, native_config: PreTrainedConfig | None = None
    ) -> PreTrainedModel:
        """Return a new native model for our config, with `native_config` if it is given."""
        native_class = getattr(transformers, self.native_class(head))
        native_config = native_config or self.to_native_config(config, head)
        native = native_class._from_config(native_config, dtype=dtype, **self.heads[head].arguments(config))
        self.finish(native, config)
        return native


def arguments_of(fields: Values) -> dict[str, Any]:
    """Return fields as arguments of a config, copied, without label names that are not set."""
    unset = {name for name in ("id2label", "label2id") if fields.get(name) is None}
    return {name: copy.deepcopy(value) for name, value in fields.items() if name not in unset}
