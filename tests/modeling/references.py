"""Models that others wrote, ours of the same shape, and which of their tensors is which of ours.

A `TensorMap` says for each parameter of ours where its values stand in the reference: a name, and for fused or
transposed weights a function of that tensor. The function is linear, so the same map carries gradients.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    PreTrainedModel,
)

from vanillaformer import (
    VanillaDecoderForCausalLM,
    VanillaEncoderConfig,
    VanillaEncoderDecoderConfig,
    VanillaEncoderDecoderForConditionalGeneration,
    VanillaEncoderDecoderModel,
    VanillaEncoderForMaskedLM,
    VanillaEncoderForSequenceClassification,
    VanillaEncoderModel,
    preset,
)

Function = Callable[[torch.Tensor], torch.Tensor]
TensorMap = dict[str, str | tuple[str, Function]]

D, H, LAYERS, INNER, VOCABULARY, TARGET_VOCABULARY, POSITIONS = 32, 4, 2, 48, 41, 31, 20
SHAPE = {"hidden_size": D, "num_attention_heads": H, "num_hidden_layers": LAYERS, "intermediate_size": INNER}
OURS = SHAPE | {"max_position_embeddings": POSITIONS, "dropout": 0.0, "attention_dropout": 0.0}


@dataclass
class Reference:
    """A reference, our model, and the map between them; `frozen` names parameters that only one of the two has."""

    theirs: nn.Module
    ours: PreTrainedModel
    tensors: TensorMap
    frozen: tuple[str, ...] = ()


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.T


def third(part: int, transpose: bool = False) -> Function:
    """The query, key or value part of a fused projection; GPT-2 stores its weights transposed."""
    return lambda tensor: (tensor.T if transpose else tensor).chunk(3)[part]


def with_bias(tensors: TensorMap) -> TensorMap:
    """Turn a map of modules into one of their weights and biases."""
    both: TensorMap = {}
    for name, source in tensors.items():
        for suffix in ("weight", "bias"):
            if isinstance(source, str):
                both[f"{name}.{suffix}"] = f"{source}.{suffix}"
            else:
                both[f"{name}.{suffix}"] = (f"{source[0]}.{suffix}", source[1])
    return both


def conv1d(name: str, source: str) -> TensorMap:
    """GPT's `Conv1D`: a linear map with its weight transposed."""
    return {f"{name}.weight": (f"{source}.weight", transposed), f"{name}.bias": f"{source}.bias"}


def fused(name: str, source: str) -> TensorMap:
    """Query, key and value in one `Conv1D`."""
    tensors: TensorMap = {}
    for part, letter in enumerate("qkv"):
        tensors[f"{name}.{letter}_proj.weight"] = (f"{source}.weight", third(part, transpose=True))
        tensors[f"{name}.{letter}_proj.bias"] = (f"{source}.bias", third(part))
    return tensors


def gpt_block(ours: str, theirs: str) -> TensorMap:
    """A block of GPT or GPT-2, which name their parts alike."""
    return (
        fused(f"{ours}.self_attn", f"{theirs}.attn.c_attn")
        | conv1d(f"{ours}.self_attn.o_proj", f"{theirs}.attn.c_proj")
        | conv1d(f"{ours}.mlp.up_proj", f"{theirs}.mlp.c_fc")
        | conv1d(f"{ours}.mlp.down_proj", f"{theirs}.mlp.c_proj")
        | with_bias(
            {f"{ours}.self_attn_residual.norm": f"{theirs}.ln_1", f"{ours}.mlp_residual.norm": f"{theirs}.ln_2"}
        )
    )


def gpt2(attention: str) -> Reference:
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=D, n_head=H, n_layer=LAYERS, n_inner=INNER, n_positions=POSITIONS,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
        attn_implementation=attention,
    )  # fmt: skip
    ours = preset("gpt2", **OURS, vocab_size=VOCABULARY, attn_implementation=attention)
    tensors: TensorMap = {
        "model.embed_tokens.weight": "transformer.wte.weight",
        "model.embeddings.positions.embed_positions.weight": "transformer.wpe.weight",
    } | with_bias({"model.norm": "transformer.ln_f"})
    for layer in range(LAYERS):
        tensors |= gpt_block(f"model.layers.{layer}", f"transformer.h.{layer}")
    return Reference(GPT2LMHeadModel(config), VanillaDecoderForCausalLM(ours), tensors)


def gpt(attention: str) -> Reference:
    """The first GPT: post-norm, and in transformers eager attention only."""
    config = OpenAIGPTConfig(
        vocab_size=VOCABULARY, n_embd=D, n_head=H, n_layer=LAYERS, n_positions=POSITIONS,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, afn="gelu",
    )  # fmt: skip
    shape = OURS | {"intermediate_size": 4 * D}
    ours = preset("gpt", **shape, vocab_size=VOCABULARY, attn_implementation=attention)
    tensors: TensorMap = {
        "model.embed_tokens.weight": "transformer.tokens_embed.weight",
        "model.embeddings.positions.embed_positions.weight": "transformer.positions_embed.weight",
    }
    for layer in range(LAYERS):
        tensors |= gpt_block(f"model.layers.{layer}", f"transformer.h.{layer}")
    return Reference(OpenAIGPTLMHeadModel(config), VanillaDecoderForCausalLM(ours), tensors)


def llama(attention: str) -> Reference:
    shape = SHAPE | {"num_key_value_heads": 2, "head_dim": 12}
    config = LlamaConfig(
        **shape, vocab_size=VOCABULARY, rms_norm_eps=1e-4, tie_word_embeddings=False, bos_token_id=None,
        eos_token_id=None, rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        attn_implementation=attention,
    )  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": 500.0}
    ours = preset(
        "llama-tiny",
        **shape,
        vocab_size=VOCABULARY,
        norm_eps=1e-4,
        rope_parameters=rope,
        attn_implementation=attention,
    )
    tensors: TensorMap = {name: name for name in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")}
    for layer in range(LAYERS):
        block = f"model.layers.{layer}"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            tensors[f"{block}.self_attn.{name}.weight"] = f"{block}.self_attn.{name}.weight"
        for name in ("gate_proj", "up_proj", "down_proj"):
            tensors[f"{block}.mlp.{name}.weight"] = f"{block}.mlp.{name}.weight"
        tensors[f"{block}.self_attn_residual.norm.weight"] = f"{block}.input_layernorm.weight"
        tensors[f"{block}.mlp_residual.norm.weight"] = f"{block}.post_attention_layernorm.weight"
    return Reference(LlamaForCausalLM(config), VanillaDecoderForCausalLM(ours), tensors)


def bert_stack() -> TensorMap:
    tensors: TensorMap = {
        "model.embed_tokens.weight": "bert.embeddings.word_embeddings.weight",
        "model.embeddings.positions.embed_positions.weight": "bert.embeddings.position_embeddings.weight",
        "model.embeddings.token_types.embed_token_types.weight": "bert.embeddings.token_type_embeddings.weight",
    } | with_bias({"model.embeddings.norm": "bert.embeddings.LayerNorm"})
    for layer in range(LAYERS):
        ours, theirs = f"model.layers.{layer}", f"bert.encoder.layer.{layer}"
        tensors |= with_bias(
            {
                f"{ours}.self_attn.q_proj": f"{theirs}.attention.self.query",
                f"{ours}.self_attn.k_proj": f"{theirs}.attention.self.key",
                f"{ours}.self_attn.v_proj": f"{theirs}.attention.self.value",
                f"{ours}.self_attn.o_proj": f"{theirs}.attention.output.dense",
                f"{ours}.self_attn_residual.norm": f"{theirs}.attention.output.LayerNorm",
                f"{ours}.mlp.up_proj": f"{theirs}.intermediate.dense",
                f"{ours}.mlp.down_proj": f"{theirs}.output.dense",
                f"{ours}.mlp_residual.norm": f"{theirs}.output.LayerNorm",
            }
        )
    return tensors


def bert_configs(attention: str, **kwargs) -> tuple[BertConfig, VanillaEncoderConfig]:
    config = BertConfig(
        **SHAPE, vocab_size=VOCABULARY, max_position_embeddings=POSITIONS, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, attn_implementation=attention, **kwargs,
    )  # fmt: skip
    return config, preset("bert-base", **OURS, vocab_size=VOCABULARY, attn_implementation=attention, **kwargs)


def bert_masked_lm(attention: str) -> Reference:
    config, ours = bert_configs(attention)
    tensors = bert_stack() | with_bias(
        {
            "transform.dense": "cls.predictions.transform.dense",
            "transform.norm": "cls.predictions.transform.LayerNorm",
        }
    )
    tensors["lm_head.bias"] = "cls.predictions.bias"
    return Reference(BertForMaskedLM(config), VanillaEncoderForMaskedLM(ours), tensors)


def bert_classifier(attention: str) -> Reference:
    config, ours = bert_configs(attention, num_labels=3)
    tensors = bert_stack() | with_bias({"pooler.dense": "bert.pooler.dense", "classifier": "classifier"})
    return Reference(BertForSequenceClassification(config), VanillaEncoderForSequenceClassification(ours), tensors)


def marian_block(ours: str, theirs: str, cross_attention: bool) -> TensorMap:
    attentions = {"self_attn": "self_attn"} | ({"cross_attn": "encoder_attn"} if cross_attention else {})
    modules = {
        f"{ours}.mlp.up_proj": f"{theirs}.fc1",
        f"{ours}.mlp.down_proj": f"{theirs}.fc2",
        f"{ours}.mlp_residual.norm": f"{theirs}.final_layer_norm",
    }
    for our_name, their_name in attentions.items():
        modules[f"{ours}.{our_name}_residual.norm"] = f"{theirs}.{their_name}_layer_norm"
        modules[f"{ours}.{our_name}.o_proj"] = f"{theirs}.{their_name}.out_proj"
        for letter in "qkv":
            modules[f"{ours}.{our_name}.{letter}_proj"] = f"{theirs}.{their_name}.{letter}_proj"
    return with_bias(modules)


def marian(attention: str, shared: bool = True, activation: str = "swish") -> Reference:
    """Marian with one vocabulary, or with two and an untied head.

    Its published models start from the padding token, whose vector it does not train; ours trains every vector, so
    both start from another token here.
    """
    config = MarianConfig(
        vocab_size=VOCABULARY, decoder_vocab_size=None if shared else TARGET_VOCABULARY, d_model=D,
        encoder_layers=LAYERS, decoder_layers=LAYERS, encoder_attention_heads=H, decoder_attention_heads=H,
        encoder_ffn_dim=INNER, decoder_ffn_dim=INNER, max_position_embeddings=POSITIONS, scale_embedding=True,
        activation_function=activation, dropout=0.0, share_encoder_decoder_embeddings=shared,
        tie_word_embeddings=shared, pad_token_id=0, eos_token_id=3, decoder_start_token_id=2, forced_eos_token_id=None,
        attn_implementation=attention,
    )  # fmt: skip
    ours = VanillaEncoderDecoderConfig(
        **OURS, vocab_size=VOCABULARY, decoder_vocab_size=None if shared else TARGET_VOCABULARY,
        share_encoder_decoder_embeddings=shared, tie_word_embeddings=shared, hidden_act=activation,
        sinusoidal_layout="halves", attention_bias=True, attn_implementation=attention,
    )  # fmt: skip
    tensors: TensorMap = {"model.encoder.embed_tokens.weight": "model.shared.weight"}
    if not shared:
        names = [f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder")] + ["lm_head.weight"]
        tensors = {name: name for name in names}
    for layer in range(LAYERS):
        for side in ("encoder", "decoder"):
            name = f"model.{side}.layers.{layer}"
            tensors |= marian_block(name, name, cross_attention=side == "decoder")
    frozen = tuple(f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder"))
    return Reference(
        MarianMTModel(config), VanillaEncoderDecoderForConditionalGeneration(ours), tensors, frozen=frozen
    )


def torch_block(ours: str, theirs: str, cross_attention: bool) -> TensorMap:
    """A layer of `torch.nn.TransformerEncoder` or `torch.nn.TransformerDecoder`."""
    attentions = {"self_attn": "self_attn"} | ({"cross_attn": "multihead_attn"} if cross_attention else {})
    modules = {f"{ours}.mlp.up_proj": f"{theirs}.linear1", f"{ours}.mlp.down_proj": f"{theirs}.linear2"}
    tensors: TensorMap = {}
    for number, (our_name, their_name) in enumerate(attentions.items(), start=1):
        modules[f"{ours}.{our_name}.o_proj"] = f"{theirs}.{their_name}.out_proj"
        modules[f"{ours}.{our_name}_residual.norm"] = f"{theirs}.norm{number}"
        for part, letter in enumerate("qkv"):
            for suffix in ("weight", "bias"):
                source = f"{theirs}.{their_name}.in_proj_{suffix}"
                tensors[f"{ours}.{our_name}.{letter}_proj.{suffix}"] = (source, third(part))
    modules[f"{ours}.mlp_residual.norm"] = f"{theirs}.norm{len(attentions) + 1}"
    return tensors | with_bias(modules)


def torch_options(attention: str, placement: str, activation: str) -> tuple[dict, dict]:
    """Arguments of a `torch.nn` layer, and the fields of our config that say the same."""
    layer = {
        "d_model": D, "nhead": H, "dim_feedforward": INNER, "dropout": 0.0, "activation": activation,
        "batch_first": True, "norm_first": placement == "pre",
    }  # fmt: skip
    fields = OURS | {
        "vocab_size": VOCABULARY, "norm_placement": placement, "hidden_act": activation, "scale_embedding": False,
        "embedding_norm": False, "position_embedding_type": "none", "norm_eps": 1e-5, "pad_token_id": 0,
        "attention_bias": True,
        "attn_implementation": attention,
    }  # fmt: skip
    return layer, fields


def torch_encoder(attention: str, placement: str, activation: str) -> Reference:
    """`torch.nn.TransformerEncoder`, fed with embeddings."""
    layer, fields = torch_options(attention, placement, activation)
    norm = nn.LayerNorm(D) if placement == "pre" else None
    theirs = nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer), LAYERS, norm, enable_nested_tensor=False)
    tensors = with_bias({"norm": "norm"}) if norm else {}
    for number in range(LAYERS):
        tensors |= torch_block(f"layers.{number}", f"layers.{number}", cross_attention=False)
    ours = VanillaEncoderModel(VanillaEncoderConfig(**fields, type_vocab_size=0))
    return Reference(theirs, ours, tensors, frozen=("embed_tokens.weight",))


def torch_transformer(attention: str, placement: str, activation: str) -> Reference:
    """`torch.nn.Transformer`, fed with embeddings on both sides."""
    layer, fields = torch_options(attention, placement, activation)
    norms = [nn.LayerNorm(D) if placement == "pre" else None for _ in range(2)]
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer), LAYERS, norms[0], enable_nested_tensor=False)
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**layer), LAYERS, norms[1])
    theirs = nn.Transformer(d_model=D, nhead=H, custom_encoder=encoder, custom_decoder=decoder, batch_first=True)
    tensors: TensorMap = {}
    for side in ("encoder", "decoder"):
        tensors |= with_bias({f"{side}.norm": f"{side}.norm"}) if placement == "pre" else {}
        for number in range(LAYERS):
            name = f"{side}.layers.{number}"
            tensors |= torch_block(name, name, cross_attention=side == "decoder")
    ours = VanillaEncoderDecoderModel(VanillaEncoderDecoderConfig(**fields))
    return Reference(theirs, ours, tensors, frozen=("encoder.embed_tokens.weight",))


@torch.no_grad()
def poison(model: nn.Module, frozen: tuple[str, ...] = (), seed: int = 5) -> None:
    """Draw every parameter, biases and norm weights included: a tensor lost on the way cannot hide at a default."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name not in frozen:
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
            if parameter.ndim == 1 and name.endswith("weight"):
                parameter.add_(1.0)  # a norm


def carry(tensors: TensorMap, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Rename, cut and transpose `values` of the reference into ours."""
    carried = {}
    for name, source in tensors.items():
        carried[name] = values[source] if isinstance(source, str) else source[1](values[source[0]])
    return carried


def copied(reference: Reference) -> Reference:
    """Poison the reference, copy its weights to ours, and check that both sides are covered to the last tensor."""
    poison(reference.theirs, reference.frozen)
    values = dict(reference.theirs.named_parameters())
    sources = {source if isinstance(source, str) else source[0] for source in reference.tensors.values()}
    left = set(values) - sources - set(reference.frozen)
    assert not left, f"parameters of the reference that nothing of ours comes from: {sorted(left)}"
    ours = dict(reference.ours.named_parameters())
    left = set(ours) - set(reference.tensors) - set(reference.frozen)
    assert not left, f"parameters of ours that come from nowhere: {sorted(left)}"
    with torch.no_grad():
        for name, value in carry(reference.tensors, values).items():
            ours[name].copy_(value)
    return reference
