"""What a family of models declares, and the tester object that transformers' test mixins ask for."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from transformers import PreTrainedConfig, PreTrainedModel

Inputs = dict[str, torch.Tensor]

BATCH_SIZE = 7  # with fewer rows transformers' sdpa tests fill the batch up with random tokens
SEQUENCE_LENGTH = 7
FIRST_ORDINARY_TOKEN = 3  # the special tokens of the toy configs lie below
# Tasks of transformers' pipelines, and the Auto class of the head that each needs
PIPELINES = {
    "text-generation": "AutoModelForCausalLM",
    "fill-mask": "AutoModelForMaskedLM",
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "feature-extraction": "AutoModel",
    "image-classification": "AutoModelForImageClassification",
    "image-feature-extraction": "AutoModel",
}


@dataclass(frozen=True)
class Family:
    """One model type with its heads.

    Args:
        name: Name in reports and on the command line; an identifier.
        kind: Decides on the inputs and on the checks that make sense.
        config: Makes a new toy config.
        auto_classes: Model class by the name of the Auto class that must lead to it.
        config_kwargs: Config arguments, unlike the defaults, that must survive saving and loading.
        reference: The native family that this one is measured against; empty for a native family.
        inputs: Makes the inputs in place of `token_inputs`.
        skip_classes: Test name to the classes that stay out of that test.
        not_applicable: Pattern of test names to the reason why they ask for something that these models do not have.
        attributes: What the test class says about the models, such as `has_attentions`.
        tester: Attributes of the tester that follow neither from the kind nor from the config.
    """

    name: str
    kind: Literal["encoder_decoder", "decoder", "encoder", "image_encoder"]
    config: Callable[[], PreTrainedConfig]
    auto_classes: dict[str, type[PreTrainedModel]]
    config_kwargs: dict[str, Any]
    reference: str = ""
    inputs: Callable[["Family"], Inputs] | None = None
    skip_classes: dict[str, tuple[type[PreTrainedModel], ...]] = field(default_factory=dict)
    not_applicable: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    tester: dict[str, Any] = field(default_factory=dict)

    @property
    def of_images(self) -> bool:
        """Return whether the models read images and not tokens."""
        return self.kind == "image_encoder"

    @property
    def pipelines(self) -> list[str]:
        """The pipeline tasks that the family serves: those of its heads."""
        tasks = [task for task, head in PIPELINES.items() if head in self.auto_classes]
        return [task for task in tasks if task.startswith("image-") == self.of_images]

    @property
    def language_model(self) -> str:
        """The Auto class of the head that predicts tokens."""
        heads = ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM")
        return next(name for name in heads if name in self.auto_classes)

    def make_inputs(self) -> Inputs:
        """Make a batch, the same at each call."""
        make = self.inputs or (Family.image_inputs if self.of_images else Family.token_inputs)
        return make(self)

    def token_inputs(self) -> Inputs:
        """Make a batch of random tokens, the same at each call."""
        generator = torch.Generator().manual_seed(1234)
        shape = (BATCH_SIZE, SEQUENCE_LENGTH)
        inputs = {}
        for side in ("", "decoder_") if self.kind == "encoder_decoder" else ("",):
            inputs[f"{side}input_ids"] = torch.randint(
                FIRST_ORDINARY_TOKEN, self.config().vocab_size, shape, generator=generator
            )
            inputs[f"{side}attention_mask"] = torch.ones(shape, dtype=torch.long)
        return inputs

    def image_inputs(self) -> Inputs:
        """Make a batch of random images, the same at each call."""
        config = self.config()
        shape = (BATCH_SIZE, config.num_channels, config.image_size, config.image_size)
        return {"pixel_values": torch.rand(shape, generator=torch.Generator().manual_seed(1234))}


def load_families(module: str) -> list[Family]:
    """Import the families of a module; this registers their models with the Auto classes."""
    return importlib.import_module(module).FAMILIES


class ModelTester:
    """The attributes and methods that transformers' mixins read from `self.model_tester`."""

    is_training = True
    batch_size = BATCH_SIZE
    seq_length = SEQUENCE_LENGTH
    num_choices = 3

    def __init__(self, family: Family) -> None:
        self.family = family
        config = family.config()
        self.hidden_size = config.hidden_size
        self.num_hidden_layers = config.num_hidden_layers
        self.num_attention_heads = getattr(config, "num_attention_heads", 1)
        self.num_labels = config.num_labels
        if family.of_images:
            self.image_size, self.patch_size = config.image_size, config.patch_size
            self.mask_length = (config.image_size // config.patch_size) ** 2
            self.num_masks = self.mask_length // 2
        else:
            self.pad_token_id = config.pad_token_id
        if family.kind == "encoder_decoder":
            self.encoder_seq_length = self.decoder_seq_length = self.key_length = SEQUENCE_LENGTH
        self.base_model_class = family.auto_classes["AutoModel"]
        self.causal_lm_class = family.auto_classes.get("AutoModelForCausalLM")
        self.conditional_generation_class = family.auto_classes.get("AutoModelForSeq2SeqLM")
        # The training test takes this class where there is no causal language model, with a copy of the input as
        # labels: it must be a head with a loss for each token, whatever the attribute's name says.
        self.sequence_classification_class = family.auto_classes.get("AutoModelForMaskedLM")
        vars(self).update(family.tester)

    def get_config(self) -> PreTrainedConfig:
        """Make a new toy config."""
        return self.family.config()

    def prepare_config_and_inputs_for_common(self) -> tuple[PreTrainedConfig, Inputs]:
        """Make a new toy config and inputs for it."""
        return self.get_config(), self.family.make_inputs()
