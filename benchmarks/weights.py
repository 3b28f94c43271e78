"""Models in pairs: ours and transformers' own of equal size, with the same weights.

A line of `Peer.names` is a regular expression for the names of transformers' parameters and what they are called here.
Every weight goes by such a line, and every parameter of ours gets a value: `pair` raises otherwise.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    ViTConfig,
    ViTForImageClassification,
)

from vanillaformer import (
    VanillaDecoderForCausalLM,
    VanillaEncoderDecoderForConditionalGeneration,
    VanillaEncoderForSequenceClassification,
    VanillaImageEncoderForImageClassification,
    preset,
)
from vanillaformer.conversion import from_native

PATCH, CLASSES = 4, 10  # of images
PAD, START, END, FIRST_WORD = 0, 2, 3, 4
SPECIAL = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}


@dataclass(frozen=True)
class Size:
    """The size that a pair has in common."""

    layers: int = 4
    width: int = 256
    heads: int = 4
    vocab: int = 8000
    max_length: int = 256
    dropout: float = 0.0
    attention_dropout: float = 0.0
    attention: str = "sdpa"

    def ours(self) -> dict[str, Any]:
        """Return the fields of our configs."""
        return {
            "vocab_size": self.vocab,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "max_position_embeddings": self.max_length,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "attn_implementation": self.attention,
            "attention_bias": True,
        }

    def theirs(self) -> dict[str, Any]:
        """Return the fields that all of transformers' configs understand."""
        return {
            "vocab_size": self.vocab,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "max_position_embeddings": self.max_length,
            "attn_implementation": self.attention,
            **SPECIAL,
        }


@dataclass(frozen=True)
class Peer:
    """How to build both models of a pair: by a map from their names to ours, or by conversion."""

    ours: Callable[[Size], PreTrainedModel]
    theirs: Callable[[Size], PreTrainedModel]
    names: dict[str, str]
    skip: str = r"$^"  # their weights that ours computes or does not have
    transposed: str = r"$^"  # their weights stored input first


def our_gpt2(size: Size) -> PreTrainedModel:
    return VanillaDecoderForCausalLM(preset("gpt2", **size.ours(), **SPECIAL))


def gpt2(size: Size) -> PreTrainedModel:
    dropout = {"resid_pdrop": size.dropout, "embd_pdrop": size.dropout, "attn_pdrop": size.attention_dropout}
    return GPT2LMHeadModel(GPT2Config(**size.theirs(), **dropout))


def our_llama(size: Size) -> PreTrainedModel:
    fields = size.ours() | {"dropout": 0.0, "attention_bias": False}  # dropout on the attention probabilities alone
    heads = {"num_key_value_heads": size.heads // 2, "intermediate_size": 8 * size.width // 3}
    return VanillaDecoderForCausalLM(preset("llama-tiny", **fields, **heads, norm_eps=1e-6, **SPECIAL))


def llama(size: Size) -> PreTrainedModel:
    heads = {"num_key_value_heads": size.heads // 2, "intermediate_size": 8 * size.width // 3}
    return LlamaForCausalLM(LlamaConfig(**size.theirs(), **heads, attention_dropout=size.attention_dropout))


def our_bert(size: Size) -> PreTrainedModel:
    return VanillaEncoderForSequenceClassification(preset("bert-base", **size.ours(), pad_token_id=PAD, num_labels=4))


def bert(size: Size) -> PreTrainedModel:
    dropout = {"hidden_dropout_prob": size.dropout, "attention_probs_dropout_prob": size.attention_dropout}
    config = BertConfig(**size.theirs(), **dropout, intermediate_size=4 * size.width, num_labels=4)
    return BertForSequenceClassification(config)


def our_marian(size: Size) -> PreTrainedModel:
    fields = {"sinusoidal_layout": "halves", "decoder_start_token_id": START}
    return VanillaEncoderDecoderForConditionalGeneration(
        preset("transformer-base", **size.ours(), **SPECIAL, **fields)
    )


def marian(size: Size) -> PreTrainedModel:
    config = MarianConfig(
        vocab_size=size.vocab,
        d_model=size.width,
        max_position_embeddings=size.max_length,
        dropout=size.dropout,
        attention_dropout=size.attention_dropout,
        attn_implementation=size.attention,
        activation_function="relu",
        scale_embedding=True,
        decoder_start_token_id=START,
        forced_eos_token_id=None,
        **{f"{stack}_layers": size.layers for stack in ("encoder", "decoder")},
        **{f"{stack}_attention_heads": size.heads for stack in ("encoder", "decoder")},
        **{f"{stack}_ffn_dim": 4 * size.width for stack in ("encoder", "decoder")},
        **SPECIAL,
    )
    return MarianMTModel(config)


def our_vit(size: Size) -> PreTrainedModel:
    fields = {
        name: value for name, value in size.ours().items() if name not in ("vocab_size", "max_position_embeddings")
    }
    sides = {"image_size": image_side(size.max_length), "patch_size": PATCH}
    config = preset("vit-base", **fields, **sides, intermediate_size=4 * size.width, num_labels=CLASSES)
    return VanillaImageEncoderForImageClassification(config)


def vit(size: Size) -> PreTrainedModel:
    fields = {name: value for name, value in size.theirs().items() if name.startswith(("hidden", "num", "attn"))}
    dropout = {"hidden_dropout_prob": size.dropout, "attention_probs_dropout_prob": size.attention_dropout}
    sides = {"image_size": image_side(size.max_length), "patch_size": PATCH}
    config = ViTConfig(**fields, **dropout, **sides, intermediate_size=4 * size.width, num_labels=CLASSES)
    return ViTForImageClassification(config)


def image_side(patches: int) -> int:
    """Return the side in pixels of the largest square image with at most this many patches."""
    return PATCH * math.isqrt(patches)


PEERS: dict[str, Peer] = {
    "gpt2": Peer(
        our_gpt2,
        gpt2,
        names={
            r"^transformer\.wte\.": "model.embed_tokens.",
            r"^transformer\.wpe\.": "model.embeddings.positions.embed_positions.",
            r"^transformer\.ln_f\.": "model.norm.",
            r"^transformer\.h\.": "model.layers.",
            r"\.ln_1\.": ".self_attn_residual.norm.",
            r"\.ln_2\.": ".mlp_residual.norm.",
            r"\.attn\.c_attn\.": ".self_attn.qkv_proj.",  # three in one, split below
            r"\.attn\.c_proj\.": ".self_attn.o_proj.",
            r"\.mlp\.c_fc\.": ".mlp.up_proj.",
            r"\.mlp\.c_proj\.": ".mlp.down_proj.",
        },
        transposed=r"\.c_(attn|proj|fc)\.weight$",
    ),
    "llama": Peer(
        our_llama,
        llama,
        names={
            r"\.input_layernorm\.": ".self_attn_residual.norm.",
            r"\.post_attention_layernorm\.": ".mlp_residual.norm.",
        },
    ),
    "bert": Peer(
        our_bert,
        bert,
        names={
            r"^bert\.embeddings\.word_embeddings\.": "model.embed_tokens.",
            r"^bert\.embeddings\.position_embeddings\.": "model.embeddings.positions.embed_positions.",
            r"^bert\.embeddings\.token_type_embeddings\.": "model.embeddings.token_types.embed_token_types.",
            r"^bert\.embeddings\.LayerNorm\.": "model.embeddings.norm.",
            r"^bert\.encoder\.layer\.": "model.layers.",
            r"^bert\.pooler\.dense\.": "pooler.dense.",
            r"\.attention\.self\.(q|k|v)[a-z]+\.": r".self_attn.\1_proj.",
            r"\.attention\.output\.dense\.": ".self_attn.o_proj.",
            r"\.attention\.output\.LayerNorm\.": ".self_attn_residual.norm.",
            r"\.intermediate\.dense\.": ".mlp.up_proj.",
            r"(\d)\.output\.dense\.": r"\1.mlp.down_proj.",
            r"(\d)\.output\.LayerNorm\.": r"\1.mlp_residual.norm.",
        },
    ),
    "marian": Peer(
        our_marian,
        marian,
        names={
            r"\.out_proj\.": ".o_proj.",
            r"\.encoder_attn\.": ".cross_attn.",
            r"\.self_attn_layer_norm\.": ".self_attn_residual.norm.",
            r"\.encoder_attn_layer_norm\.": ".cross_attn_residual.norm.",
            r"\.final_layer_norm\.": ".mlp_residual.norm.",
            r"\.fc1\.": ".mlp.up_proj.",
            r"\.fc2\.": ".mlp.down_proj.",
        },
        skip=r"embed_positions|final_logits_bias|model\.shared",
    ),
    "vit": Peer(our_vit, vit, names={}),
}


def our_weights(peer: Peer, theirs: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return their weights under our names."""
    weights = {}
    for name, value in theirs.state_dict().items():
        if re.search(peer.skip, name):
            continue
        value = value.T if re.search(peer.transposed, name) else value
        for pattern, replacement in peer.names.items():
            name = re.sub(pattern, replacement, name)
        parts = [name.replace("qkv_proj", f"{part}_proj") for part in "qkv"] if "qkv_proj" in name else [name]
        weights |= dict(zip(parts, value.chunk(len(parts))))
    return weights


@torch.no_grad()
def pair(name: str, size: Size, seed: int = 0) -> dict[str, PreTrainedModel]:
    """Return `ours` and `theirs`, with the same random weights.

    Noise on all of them leaves none at 0 or 1 and makes attention select, so that a wrong weight shows in the logits.

    Raises:
        RuntimeError: A weight has no counterpart on the other side.
    """
    torch.manual_seed(seed)
    ours, theirs = PEERS[name].ours(size), PEERS[name].theirs(size)
    for path, parameter in theirs.named_parameters():
        if not re.search(PEERS[name].skip, path) or "shared" in path:
            parameter.add_(torch.randn_like(parameter) * size.width**-0.5)
    if not PEERS[name].names:
        ours.load_state_dict(from_native(theirs).state_dict())
    else:
        ours.load_state_dict(our_weights(PEERS[name], theirs))
    return {"ours": ours, "theirs": theirs}
