"""What the checks share: the names they find on the test class, and small helpers."""

import unittest
from typing import Any, NoReturn

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from ..family import Family, ModelTester
from ..results import NOT_APPLICABLE


class Checks:
    """A part of a family's test class; `FamilyCase` and `ModelTesterMixin` provide what is only declared here."""

    family: Family
    model_tester: ModelTester
    all_model_classes: tuple[type[PreTrainedModel], ...]
    _prepare_for_class: Any

    def inputs_for(self, model_class: type[PreTrainedModel], labels: bool = False) -> tuple[PreTrainedConfig, dict]:
        """Make a new config, and inputs as one class takes them."""
        config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
        return config, self._prepare_for_class(inputs, model_class, return_labels=labels)

    def toy_tokenizer(self, config: PreTrainedConfig, padding_side: str = "right") -> PreTrainedTokenizerFast:
        """Make a tokenizer of the words w0, w1, ... that fits a config's vocabulary and special tokens."""
        names = {
            name: getattr(config, f"{name}_id", None)
            for name in ("pad_token", "eos_token", "bos_token", "mask_token", "unk_token")
        }
        given = [number for number in names.values() if number is not None]
        free = (number for number in range(config.vocab_size) if number not in given)
        vocabulary = {f"[{name}]": next(free) if number is None else number for name, number in names.items()}
        vocabulary |= {f"w{word}": number for word, number in enumerate(free)}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[unk_token]"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        if self.family.kind == "encoder_decoder":
            end = ("[eos_token]", vocabulary["[eos_token]"])
            tokenizer.post_processor = processors.TemplateProcessing(f"$A {end[0]}", special_tokens=[end])
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, padding_side=padding_side, **{name: f"[{name}]" for name in names}
        )


def not_applicable(reason: str) -> NoReturn:
    """Skip a test that the family, by what it declares, has no part in."""
    raise unittest.SkipTest(NOT_APPLICABLE + reason)


def main_output(outputs: Any) -> torch.Tensor:
    """Return the logits, or the last hidden states where a model has no head."""
    for name in ("logits", "start_logits", "reconstruction", "last_hidden_state"):
        if name in outputs:
            return outputs[name]
    raise AssertionError(f"neither logits nor hidden states among {list(outputs)}")


def sharpen(model: PreTrainedModel) -> PreTrainedModel:
    """Draw weights under which a fault shows: logits with a deviation near 3, and attention that selects."""
    generator = torch.Generator().manual_seed(100)
    with torch.no_grad():
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.ndim >= 2:
                    deviation = 0.5 if isinstance(module, nn.Embedding) else 3.0 / parameter.shape[-1] ** 0.5
                    parameter.normal_(0, deviation, generator=generator)
                elif name.endswith("bias"):
                    parameter.normal_(0, 0.05, generator=generator)
    model.tie_weights()
    return model
