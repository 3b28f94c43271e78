"""Writes models of this version, with what they compute, for later versions to be tested with: once for a release.

python tests/modeling/releases/make.py
"""

import os
from pathlib import Path

import torch
from safetensors.torch import save_file

os.environ["VANILLAFORMER_REMOTE_CODE"] = "0"  # the package itself is what has to read them

import vanillaformer
from vanillaformer import preset
from vanillaformer.modeling import AUTO_CLASSES

HERE = Path(__file__).parent
SIZE = {"vocab_size": 32, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16, "num_hidden_layers": 2}
# What is most likely to be renamed or computed otherwise one day: one model for each, besides the presets' own parts
MODELS = {
    "translator": ("AutoModelForSeq2SeqLM", "transformer-tiny", {"encoder_layers": 1}),
    "t5_translator": ("AutoModelForSeq2SeqLM", "t5-v1.1", {"encoder_layers": 1}),
    "gpt2": ("AutoModelForCausalLM", "gpt2", {"max_position_embeddings": 16}),
    "llama": ("AutoModelForCausalLM", "llama-tiny", {"num_key_value_heads": 1}),
    "bloom": ("AutoModelForCausalLM", "bloom", {}),
    "classifier": ("AutoModelForSequenceClassification", "bert-tiny", {"num_labels": 3}),
    "tagger": ("AutoModelForTokenClassification", "modernbert", {"num_labels": 3, "pad_token_id": 0}),
    "masked": ("AutoModelForMaskedLM", "bert-base", {}),
    "recurrent": ("AutoModelForSeq2SeqLM", "gru-attention", {}),
    "swin": ("AutoModelForImageClassification", "swin-tiny", {"num_labels": 3, "image_size": 16, "depths": [1, 1]}),
}


def main() -> None:
    """Write a folder for each model: config, weights, inputs and logits."""
    classes = {cls.__name__: cls for cls in AUTO_CLASSES}
    for number, (name, (auto_class, preset_name, changes)) in enumerate(MODELS.items()):
        torch.manual_seed(number)
        fields = {name: size for name, size in SIZE.items() if hasattr(preset(preset_name), name)}
        model = classes[auto_class].from_config(preset(preset_name, **(fields | changes))).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.2)  # none at 0 or 1
        tensors = {"input_ids": torch.randint(4, 24, (2, 7))}
        if model.main_input_name == "pixel_values":
            tensors = {"pixel_values": torch.randn(2, model.config.num_channels, 16, 16)}
        if model.config.is_encoder_decoder:
            tensors["decoder_input_ids"] = torch.randint(4, 24, (2, 5))
        logits = model(**tensors).logits.detach()
        folder = HERE / vanillaformer.__version__ / name
        model.save_pretrained(folder)
        save_file(tensors | {"logits": logits}, folder / "expected.safetensors")


if __name__ == "__main__":
    main()
