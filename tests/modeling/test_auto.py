"""`import vanillaformer` makes the Auto classes know the models, and transformers finds their parts."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainingArguments
from transformers.modeling_outputs import CausalLMOutput

import vanillaformer
from vanillaformer.modeling import AUTO_CLASSES, register

from .toys import ALL_KINDS, TARGET_VOCABULARY, tokens, toy, toy_config

PAIRS = [(auto, model) for auto, models in AUTO_CLASSES.items() for model in models]


@pytest.mark.parametrize(("auto_class", "model_class"), PAIRS, ids=lambda value: value.__name__)
def test_an_auto_class_builds_the_model_of_a_config_and_knows_its_name(auto_class, model_class):
    register()  # twice does no harm
    kind = model_class.config_class.model_type.removeprefix("vanilla_")
    assert type(auto_class.from_config(toy_config(kind))) is model_class
    names = auto_class._model_mapping._model_mapping  # `MODEL_FOR_..._MAPPING_NAMES`, which Trainer and cards read
    assert names[model_class.config_class.model_type] == model_class.__name__


def test_trainer_smooths_the_loss_of_a_decoder_as_that_of_llama(tmp_path):
    losses, logits = [], torch.randn(2, 9, 37)
    batch = {"input_ids": tokens(2, 9, 37), "labels": tokens(2, 9, 37)}
    llama = LlamaConfig(vocab_size=37, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    for name, model in {"ours": toy("decoder"), "llama": AutoModelForCausalLM.from_config(llama)}.items():
        model.forward = lambda **_: CausalLMOutput(loss=None, logits=logits)
        arguments = TrainingArguments(str(tmp_path / name), label_smoothing_factor=0.1, use_cpu=True, report_to=[])
        losses.append(Trainer(model, arguments).compute_loss(model, dict(batch)))
    targets = batch["labels"][:, 1:].flatten()
    expected = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), targets, label_smoothing=0.1)
    torch.testing.assert_close(losses, [expected, expected])


def test_every_model_class_has_an_auto_class():
    public = {value for name, value in vars(vanillaformer).items() if isinstance(value, type) and "Config" not in name}
    assert public == {model for _, model in PAIRS}


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_config_changed_to_what_saving_would_refuse_makes_no_model(kind):
    config = toy_config(kind)
    field, message = ("num_key_value_heads", r"num_attention_heads=4 .* num_key_value_heads=3")
    if kind == "recurrent_encoder_decoder":
        field, message = ("decoder_start_token_id", f"decoder_start_token_id={TARGET_VOCABULARY}")
    setattr(config, field, 3 if field == "num_key_value_heads" else TARGET_VOCABULARY)
    for model_class in {ALL_KINDS[kind][1], type(ALL_KINDS[kind][1](toy_config(kind)).base_model)}:
        with pytest.raises(StrictDataclassError, match=message):
            model_class(config)
