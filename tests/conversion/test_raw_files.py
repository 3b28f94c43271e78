"""Files as others wrote them, of other versions and ties than transformers' classes have today, lose no tensor."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

from vanillaformer.conversion import from_native
from vanillaformer.conversion.convert import give_back
from vanillaformer.hub.loading import saved_folder

Weights = dict[str, torch.Tensor]
V, TARGETS, D = 40, 50, 16  # tokens of source and target, width
T5 = {"d_model": D, "num_heads": 2, "num_layers": 1, "d_ff": 32, "d_kv": 8, "vocab_size": V}
UNTIED = T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
BART = {
    "d_model": D, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_layers": 1, "decoder_layers": 1,
    "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 64, "vocab_size": V, "pad_token_id": 3,
    "decoder_start_token_id": 3,
}  # fmt: skip
SEPARATE = BART | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": TARGETS}
LLAMA = {"hidden_size": D, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 32, "vocab_size": V}
GPT2 = {
    "n_embd": D, "n_head": 2, "n_layer": 1, "n_positions": 32, "vocab_size": V, "bos_token_id": 1, "eos_token_id": 1,
}  # fmt: skip
TABLES = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")


def only(*tables: str, **added: tuple[int, int]) -> Callable[[Weights], Weights]:
    """A file with these of the token tables, and other tensors of these shapes; `head` is the output layer."""

    def change(weights: Weights) -> Weights:
        kept = {name: value for name, value in weights.items() if not name.endswith(TABLES) or name.endswith(tables)}
        names = {"head": "lm_head.weight", "bias": "final_logits_bias"}
        return kept | {names[name]: torch.randn(shape) for name, shape in added.items()}

    return change


def old_bert(weights: Weights) -> Weights:
    """Names of TensorFlow's layer norms, one bias of the output layer and its weight in the embeddings only."""
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in weights.items()
        if not name.startswith("cls.predictions.decoder")
    }
    return renamed | {"cls.predictions.bias": torch.randn(V), "bert.embeddings.position_ids": torch.arange(64)[None]}


def old_gpt2(weights: Weights) -> Weights:
    """The bare stack's names, and masks."""
    bare = {name.removeprefix("transformer."): value for name, value in weights.items() if name != "lm_head.weight"}
    return bare | {"h.0.attn.bias": torch.ones(1, 1, 32, 32)}


# Class, fields of config.json, and what the file has of the weights
FILES: dict[str, tuple[str, dict[str, Any], Callable[[Weights], Weights]]] = {
    "t5": ("T5ForConditionalGeneration", T5, only("shared.weight")),
    "t5-1.1": ("T5ForConditionalGeneration", UNTIED, only("shared.weight", head=(V, D))),
    "t5-1.1-all-names": ("T5ForConditionalGeneration", UNTIED, only(*TABLES[:3], head=(V, D))),
    "madlad": ("T5ForConditionalGeneration", UNTIED, only("decoder.embed_tokens.weight", head=(V, D))),
    "t5-by-encoder": ("T5ForConditionalGeneration", UNTIED, only("encoder.embed_tokens.weight", head=(V, D))),
    "mt5": ("MT5ForConditionalGeneration", UNTIED, only("shared.weight", head=(V, D))),
    "umt5": ("UMT5ForConditionalGeneration", UNTIED, only("shared.weight", head=(V, D))),
    "marian": ("MarianMTModel", BART, only("shared.weight", bias=(1, V))),
    "marian-separate": ("MarianMTModel", SEPARATE, only(*TABLES[1:3], bias=(1, TARGETS))),
    "marian-untied": ("MarianMTModel", SEPARATE | {"tie_word_embeddings": False},
                      only(*TABLES[1:3], head=(TARGETS, D), bias=(1, TARGETS))),
    "bart": ("BartForConditionalGeneration", BART, only("shared.weight", bias=(1, V))),
    "bert": ("BertForMaskedLM", LLAMA | {"max_position_embeddings": 64}, old_bert),
    "gpt2": ("GPT2LMHeadModel", GPT2, old_gpt2),
    "llama": ("LlamaForCausalLM", LLAMA,
              lambda weights: weights | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}),
}  # fmt: skip
UNREAD = ("position_ids", "attn.bias", "inv_freq")
"""Buffers that no class of today has."""


@pytest.mark.parametrize("name", FILES)
def test_tensors_of_a_file_come_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    class_name, fields, change = FILES[name]
    torch.manual_seed(0)
    model_class: Any = getattr(transformers, class_name)
    model = model_class(model_class.config_class(**fields))
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter)
    raw = {key: value.detach().clone().contiguous() for key, value in change(model.state_dict()).items()}
    save_file(raw, tmp_path / "model.safetensors", metadata={"format": "pt"})
    written = {"model_type": model.config.model_type, "architectures": [class_name], **fields}
    (tmp_path / "config.json").write_text(json.dumps(written))

    assert saved_folder(str(tmp_path)) == tmp_path  # as the programs look at it
    native = give_back(from_native(tmp_path))
    native.save_pretrained(tmp_path / "out")
    for tensors in (native.state_dict(), model_class.from_pretrained(tmp_path / "out").state_dict()):
        for key, value in raw.items():
            if key.endswith(UNREAD):
                continue
            today = key.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
            found = tensors[today if today in tensors else f"transformer.{today}"]
            assert torch.equal(found, value), key
