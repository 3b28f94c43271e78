"""What a model computes: padding, masks, tied embeddings."""

import tempfile
import unittest

import torch
from torch.nn.functional import pad
from transformers import PreTrainedModel

from ..family import Inputs
from .base import Checks, main_output, not_applicable, sharpen

PADDING = 3
JUNK_TOKEN = 5


class ForwardChecks(Checks):
    """Padding, masks, tied embeddings, and the modules that must stay on one device."""

    def test_padding_invariance_forward(self) -> None:
        """Tokens under a zero of the attention mask change no output of the others."""
        if self.family.of_images:
            not_applicable("images are not padded")
        if self.family.kind == "decoder":
            not_applicable("padding on the right, under causal attention")
        classes = self.all_model_classes
        if self.family.kind == "encoder_decoder":  # a classifier's decoder reads the source, and grows with it
            classes = [self.family.auto_classes[name] for name in ("AutoModel", "AutoModelForSeq2SeqLM")]
        for model_class in classes:
            config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
            model = sharpen(model_class(config)).eval()
            with torch.no_grad():
                expected = main_output(model(**inputs))
                for token in (config.pad_token_id, JUNK_TOKEN):
                    output = main_output(model(**pad_source(inputs, token)))
                    if output.shape != expected.shape:  # one output for each source token
                        output = output[:, : expected.shape[1]]
                    torch.testing.assert_close(output, expected, atol=1e-3, rtol=1e-3)

    def test_attention_mask_none_equals_ones(self) -> None:
        """Without an attention mask all tokens count."""
        for model_class in self.all_model_classes:
            config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
            model = sharpen(model_class(config)).eval()
            unmasked = {name: value for name, value in inputs.items() if "attention_mask" not in name}
            if self.family.of_images:
                inputs["attention_mask"] = torch.ones(self.model_tester.batch_size, self.model_tester.seq_length)
            with torch.no_grad():
                output, expected = main_output(model(**unmasked)), main_output(model(**inputs))
            torch.testing.assert_close(output, expected, atol=1e-4, rtol=1e-4)

    def test_tie_word_embeddings_honoured(self) -> None:
        """Tied: one tensor, also after loading and resizing. Untied: two, both saved."""
        classes = [cls for cls in self.all_model_classes if cls(self.family.config()).get_output_embeddings()]
        if not classes:
            raise unittest.SkipTest("no class has output embeddings")
        for model_class in classes:
            for tied in (True, False):
                check_tied(self.make_model(model_class, tied), tied)

    def make_model(self, model_class: type[PreTrainedModel], tied: bool) -> PreTrainedModel:
        """Make a model with the embedding table as its output layer, or without."""
        config = self.family.config()
        config.tie_word_embeddings = tied
        return model_class(config)

    def test_no_split_modules_exist(self) -> None:
        """`_no_split_modules` names classes that the models have."""
        for model_class in self.all_model_classes:
            if not model_class._no_split_modules:
                raise unittest.SkipTest(f"{model_class.__name__} declares no _no_split_modules")
            names = {type(module).__name__ for module in model_class(self.family.config()).modules()}
            assert names & set(model_class._no_split_modules), model_class.__name__


def pad_source(inputs: Inputs, token: int) -> Inputs:
    """Lengthen the source by masked tokens."""
    fill = {"input_ids": token, "attention_mask": 0}
    return {
        name: pad(value, (0, PADDING), value=fill[name]) if name in fill else value for name, value in inputs.items()
    }


def check_tied(model: PreTrainedModel, tied: bool) -> None:
    """Check that input and output embeddings are one tensor exactly if they should be."""

    def are_one(model: PreTrainedModel) -> bool:
        return model.get_output_embeddings().weight is model.get_input_embeddings().weight

    name = type(model).__name__
    assert are_one(model) == tied, f"{name}: a new model"
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        loaded, info = type(model).from_pretrained(folder, output_loading_info=True)
    assert are_one(loaded) == tied, f"{name}: a loaded model"
    assert not info["missing_keys"], f"{name}, tied {tied}: {info['missing_keys']}"
    torch.testing.assert_close(loaded.get_output_embeddings().weight, model.get_output_embeddings().weight)
    model.resize_token_embeddings(model.config.vocab_size + 5)
    assert are_one(model) == tied, f"{name}: a resized model"
