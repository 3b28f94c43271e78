"""LoRA adapters by peft on the three models: found by default, trained alone, saved, loaded and merged."""

from functools import partial
from typing import Any

import peft
import pytest
import torch
from modeling.toys import assert_close, relative_error
from peft import AutoPeftModelForCausalLM, LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM

import vanillaformer
from vanillaformer import VanillaDecoderForCausalLM, VanillaEncoderDecoderForConditionalGeneration

from .tiny import LOADERS, batch_of, kind_of, tiny


def logits_of(model: Any, model_class: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(**batch_of(kind_of(model_class))).logits


def adapted(model: Any, **fields: Any) -> PeftModel:
    """The model with adapters that already do something."""
    return get_peft_model(model, LoraConfig(r=2, init_lora_weights=False, **fields))


@pytest.mark.parametrize("model_class", list(LOADERS))
@pytest.mark.parametrize("targets", [None, "all-linear"])
def test_adapters_are_added_saved_loaded_and_merged(model_class, targets, saved, tmp_path):
    """To queries and values by default, or to every linear layer but the output."""
    load = partial(LOADERS[model_class].from_pretrained, dtype=torch.float64)
    folder = saved(model_class)
    base = load(folder)
    linear = {name for name, module in base.named_modules() if isinstance(module, nn.Linear)} - {"lm_head"}
    wanted = linear if targets else {name for name in linear if name.endswith(("q_proj", "v_proj"))}
    plain = logits_of(base, model_class)
    model = adapted(base, target_modules=targets)
    names = [name for name, _ in model.named_parameters() if ".lora_" in name]
    assert {name.split(".lora_")[0].removeprefix("base_model.model.") for name in names} == wanted
    expected = logits_of(model, model_class)
    assert relative_error(expected, plain) > 0.01, "the adapters do nothing"
    model.save_pretrained(tmp_path / "adapter")
    assert not list((tmp_path / "adapter").glob("model*.safetensors")), "the whole model was saved"

    loaded = PeftModel.from_pretrained(load(folder), tmp_path / "adapter")
    assert torch.equal(logits_of(loaded, model_class), expected)
    with loaded.disable_adapter():
        assert torch.equal(logits_of(loaded, model_class), plain)
    merged = loaded.merge_and_unload()
    assert type(merged) is model_class
    assert_close(logits_of(merged, model_class), expected, "merged logits")

    merged.save_pretrained(tmp_path / "merged")
    assert_close(logits_of(load(tmp_path / "merged"), model_class), expected, "saved merged logits")


def test_a_folder_of_adapters_names_its_model(saved, tmp_path):
    model = adapted(AutoModelForCausalLM.from_pretrained(saved(VanillaDecoderForCausalLM)), task_type="CAUSAL_LM")
    model.save_pretrained(tmp_path)
    for loaded in (AutoPeftModelForCausalLM.from_pretrained(tmp_path), AutoModelForCausalLM.from_pretrained(tmp_path)):
        assert torch.equal(logits_of(loaded, VanillaDecoderForCausalLM), logits_of(model, VanillaDecoderForCausalLM))
    prompt = batch_of("decoder")["input_ids"][:1, :4]
    greedy = {"do_sample": False, "max_new_tokens": 8}
    assert torch.equal(loaded.generate(prompt, **greedy), model.generate(input_ids=prompt, **greedy))


def test_an_image_classifier_takes_adapters():
    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 40}
    config = vanillaformer.VanillaImageEncoderConfig(**sizes, image_size=12, patch_size=4, num_labels=3)
    model = adapted(vanillaformer.VanillaImageEncoderForImageClassification(config))
    layers = [name.split(".lora_")[0] for name, _ in model.named_parameters() if ".lora_" in name]
    assert {name.rpartition(".")[2] for name in layers} == {"q_proj", "v_proj"}


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize("model_class", [VanillaDecoderForCausalLM, VanillaEncoderDecoderForConditionalGeneration])
def test_each_row_of_a_batch_has_its_adapter_in_generation(model_class, beams):
    model = adapted(tiny(model_class), target_modules=["q_proj", "v_proj"])
    model.add_adapter("other", LoraConfig(r=2, init_lora_weights=False, target_modules=["q_proj", "v_proj"]))
    mask = torch.arange(7) < torch.tensor([7, *[1 + row % 4 for row in range(11)]])[:, None]
    ids = torch.randint(4, 20, (12, 7), generator=torch.Generator().manual_seed(0)).masked_fill(~mask, 0)
    mask = mask if model_class is VanillaEncoderDecoderForConditionalGeneration else torch.ones_like(mask)
    batch = {"input_ids": ids, "attention_mask": mask.long()}
    options = {"max_new_tokens": 8, "num_beams": beams, "eos_token_id": list(range(4, 9)), "pad_token_id": 0}
    names = ["default", "other", "__base__"] * 4
    found = model.eval().generate(**batch, **options, adapter_names=names)
    for row in range(12):
        one = {name: value[row : row + 1] for name, value in batch.items()}
        alone = model.generate(**one, **options, adapter_names=names[row : row + 1])[0]
        assert torch.equal(found[row, : len(alone)], alone)


@pytest.mark.parametrize("tuning", ["PrefixTuningConfig", "PromptTuningConfig"])
def test_a_trained_prefix_is_read_in_generation(tuning):
    """Also by transformers 5.24, which calls the cache otherwise than peft."""
    config = getattr(peft, tuning)(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = get_peft_model(tiny(VanillaDecoderForCausalLM), config).eval()
    written = model.generate(input_ids=torch.randint(4, 20, (1, 6)), max_new_tokens=8, do_sample=False)
    with torch.no_grad():
        best = model(input_ids=written[:, :-1], attention_mask=torch.ones_like(written[:, 1:])).logits.argmax(-1)
    new = written.shape[1] - 6
    assert torch.equal(best[:, -new:], written[:, -new:])
