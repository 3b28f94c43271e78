"""Small random native models, several per architecture, with every switch of theirs turned at least once."""

import inspect
import math
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import transformers
from modeling.toys import padding, tokens
from torch import nn
from transformers import PreTrainedModel

from vanillaformer.configuration.image_encoder import image_sides
from vanillaformer.conversion import ARCHITECTURES, from_native
from vanillaformer.conversion.folders import random_inputs

V, D, H, LAYERS, INNER, LENGTH = 41, 24, 4, 2, 40, 20
B, S, T = 3, 9, 7
PAD, START, END = 1, 2, 3
IDS = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}

GPT = {"vocab_size": V, "n_embd": D, "n_head": H, "n_layer": LAYERS, "n_positions": LENGTH, **IDS}
GPT |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
DECODER = {
    "vocab_size": V, "hidden_size": D, "num_hidden_layers": LAYERS, "num_attention_heads": H,
    "intermediate_size": INNER, "max_position_embeddings": LENGTH, **IDS,
}  # fmt: skip
GROUPED, OPT = DECODER | {"num_key_value_heads": 2}, DECODER | {"ffn_dim": INNER}
GPT_NEO = DECODER | {"num_heads": H, "num_layers": LAYERS}
BLOOM = {"vocab_size": V, "hidden_size": D, "n_layer": LAYERS, "n_head": H, **IDS}
ENCODER = {
    **DECODER, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "type_vocab_size": 3,
    "layer_norm_eps": 1e-3,
}  # fmt: skip
DISTILBERT = {
    "vocab_size": V, "dim": D, "n_heads": H, "n_layers": LAYERS, "hidden_dim": INNER,
    "max_position_embeddings": LENGTH, "dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0, **IDS,
}  # fmt: skip
MODERNBERT = {**DECODER, "num_hidden_layers": 4, "cls_token_id": 4, "sep_token_id": 5, "local_attention": 6}
SEQ2SEQ = {
    "vocab_size": V, "d_model": D, "encoder_layers": LAYERS, "decoder_layers": 1, "encoder_attention_heads": H,
    "decoder_attention_heads": H, "encoder_ffn_dim": 32, "decoder_ffn_dim": INNER, "max_position_embeddings": LENGTH,
    "dropout": 0.0, "decoder_start_token_id": START, **IDS,
}  # fmt: skip
T5 = {
    "vocab_size": V, "d_model": D, "d_kv": 8, "d_ff": INNER, "num_layers": LAYERS, "num_decoder_layers": 1,
    "num_heads": H, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12, "dropout_rate": 0.0,
    "decoder_start_token_id": START, **IDS,
}  # fmt: skip
IMAGE = {
    "image_size": 12, "patch_size": 4, "num_channels": 2, "hidden_size": D, "num_hidden_layers": LAYERS,
    "num_attention_heads": H, "intermediate_size": INNER, "encoder_stride": 4,
}  # fmt: skip
BEIT = {name: value for name, value in IMAGE.items() if name != "encoder_stride"}
DINO = {name: value for name, value in BEIT.items() if name != "intermediate_size"} | {"mlp_ratio": 2}
SWIN = {
    "image_size": 16, "patch_size": 2, "num_channels": 2, "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 4],
    "window_size": 2, "mlp_ratio": 2.0, "encoder_stride": 4,
}  # fmt: skip
UNTIED, TIED = {"tie_word_embeddings": False}, {"tie_word_embeddings": True}
TWO_VOCABULARIES = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 31}
LINEAR = {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0}}
LLAMA3 = {"rope_parameters": {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8, "rope_theta": 100.0,
}}  # fmt: skip
HALF = {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.7}}
WHOLE = {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0}}
WINDOWED = {"use_sliding_window": True, "sliding_window": 3, "layer_types": ["full_attention", "sliding_attention"]}
ROPES = {"rope_parameters": {
    "full_attention": {"rope_type": "default", "rope_theta": 900.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
}}  # fmt: skip
SCALED = SEQ2SEQ | {"scale_embedding": True, "activation_function": "relu"}


@dataclass(frozen=True)
class Case:
    architecture: str
    config: dict[str, Any] = field(compare=False, hash=False, repr=False)
    head: str = "lm"
    number: int = 0

    def __str__(self) -> str:
        return f"{self.architecture}-{self.head}-{self.number}"


LM_CONFIGS: dict[str, list[dict[str, Any]]] = {
    "gpt2": [GPT, GPT | UNTIED | {"n_inner": INNER, "activation_function": "relu", "scale_attn_weights": False}],
    "openai-gpt": [GPT | {"layer_norm_epsilon": 1e-3}, GPT | UNTIED | {"afn": "relu"}, GPT | {"afn": "swish"}],
    "opt": [OPT, OPT | {"do_layer_norm_before": False, "activation_function": "gelu"},
            OPT | UNTIED | {"enable_bias": False, "layer_norm_elementwise_affine": False},
            OPT | {"_remove_final_layer_norm": True}],
    "gpt_neox": [DECODER | HALF, DECODER | TIED | WHOLE | {"use_parallel_residual": False},
                 DECODER | HALF | {"attention_bias": False}],
    "gptj": [GPT | {"rotary_dim": 4}, GPT | TIED | {"rotary_dim": 6, "n_inner": INNER}],
    "bloom": [BLOOM, BLOOM | UNTIED | {"n_head": 6, "layer_norm_epsilon": 1e-3}],
    "llama": [GROUPED | {"head_dim": 10, "rms_norm_eps": 1e-3}, GROUPED | TIED | LLAMA3 | {"attention_bias": True},
              DECODER | LINEAR | {"mlp_bias": True, "num_key_value_heads": 1}],
    "mistral": [GROUPED | {"sliding_window": 3}, GROUPED | TIED | {"sliding_window": None, "head_dim": 8}],
    "qwen2": [GROUPED, GROUPED | TIED | WINDOWED, GROUPED | {"head_dim": 10}],
    "qwen3": [GROUPED | {"head_dim": 10}, GROUPED | TIED | WINDOWED | {"attention_bias": True, "head_dim": 8}],
    "gemma": [GROUPED | {"head_dim": 10}, GROUPED | UNTIED | {"head_dim": 8, "attention_bias": True}],
    "gemma2": [GROUPED | {"head_dim": 10, "query_pre_attn_scalar": 24, "sliding_window": 3},
               GROUPED | UNTIED | {"head_dim": 8, "attn_logit_softcapping": None, "final_logit_softcapping": None},
               GROUPED | {"head_dim": 8, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}],
    "olmo2": [GROUPED, GROUPED | TIED | {"attention_bias": True, "rms_norm_eps": 1e-3, "head_dim": 10}],
    "starcoder2": [GROUPED, GROUPED | UNTIED | {"use_bias": False, "sliding_window": 3, "hidden_act": "relu"}],
    "stablelm": [GROUPED | HALF, GROUPED | TIED | {"use_qkv_bias": True, "use_parallel_residual": True} | WHOLE,
                 GROUPED | HALF | {"qk_layernorm": True}],
    "phi": [GROUPED | HALF, DECODER | TIED | WHOLE | {"qk_layernorm": True}],
    "cohere": [GROUPED, GROUPED | UNTIED | {"attention_bias": True, "logit_scale": 3.0, "head_dim": 8},
               GROUPED | {"use_qk_norm": True, "head_dim": 8}],
    "bert": [ENCODER, ENCODER | {"hidden_act": "relu", "type_vocab_size": 2}, ENCODER | UNTIED],
    "roberta": [ENCODER, ENCODER | UNTIED | {"pad_token_id": 0}, ENCODER | {"hidden_act": "relu"}],
    "distilbert": [DISTILBERT, DISTILBERT | UNTIED | {"activation": "relu"}],
    "modernbert": [MODERNBERT | ROPES, MODERNBERT | UNTIED | {"layer_types": ["full_attention"] * 4}
                   | {"norm_bias": True, "mlp_bias": True, "attention_bias": True},
                   MODERNBERT | {"decoder_bias": False, "classifier_bias": True, "hidden_activation": "relu"}
                   | {"classifier_activation": "silu", "norm_eps": 1e-3}],
    "marian": [SEQ2SEQ, SEQ2SEQ | UNTIED | TWO_VOCABULARIES, SEQ2SEQ | TWO_VOCABULARIES | {"scale_embedding": True}],
    "bart": [SEQ2SEQ, SCALED, SEQ2SEQ | UNTIED], "mbart": [SEQ2SEQ, SCALED], "pegasus": [SEQ2SEQ, SCALED],
    "m2m_100": [SEQ2SEQ, SEQ2SEQ | {"scale_embedding": False, "pad_token_id": 0}],
    "t5": [T5, T5 | {"feed_forward_proj": "gated-gelu", "layer_norm_epsilon": 1e-3} | UNTIED,
           T5 | {"feed_forward_proj": "gated-silu"}],
    # And variants of these
    "granite": [GROUPED | {"embedding_multiplier": 3, "residual_multiplier": 0.3, "attention_multiplier": 0.2}
                | {"logits_scaling": 8},
                GROUPED | TIED | {"attention_bias": True, "mlp_bias": True, "attention_multiplier": 0.5}],
    "olmo": [GROUPED, GROUPED | TIED | {"attention_bias": True}],
    "olmo3": [GROUPED | {"sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]} | ROPES,
              GROUPED | TIED | {"layer_types": ["full_attention"] * 2}],
    "arcee": [GROUPED | {"head_dim": 10}, GROUPED | TIED | {"mlp_bias": True, "hidden_act": "silu"}],
    "helium": [GROUPED | {"head_dim": 6}, GROUPED | TIED | {"head_dim": 6, "attention_bias": True, "mlp_bias": True}],
    "glm": [GROUPED | HALF | {"head_dim": 12}, GROUPED | TIED | WHOLE | {"head_dim": 6, "attention_bias": False}],
    "phi3": [GROUPED | {"original_max_position_embeddings": LENGTH}, GROUPED | TIED | HALF | {"sliding_window": 3}
             | {"original_max_position_embeddings": LENGTH}],
    "smollm3": [GROUPED | {"no_rope_layers": [1, 0]}, GROUPED | UNTIED | {"no_rope_layers": [1, 1]} | WINDOWED],
    "nemotron": [GROUPED | HALF, GROUPED | TIED | WHOLE | {"mlp_bias": True, "attention_bias": True, "head_dim": 10}],
    "persimmon": [DECODER | HALF, DECODER | TIED | WHOLE | {"qk_layernorm": False, "hidden_act": "relu"}],
    "gpt_neo": [GPT_NEO | {"attention_types": [[["global", "local"], 1]], "window_size": 3},
                GPT_NEO | UNTIED | {"attention_types": [[["global"], 2]]}],
    "gpt_bigcode": [GPT, GPT | UNTIED | {"multi_query": False, "n_inner": INNER, "scale_attn_weights": False}],
    "xglm": [{"d_model": D, "attention_heads": H, "num_layers": LAYERS, "ffn_dim": INNER, "vocab_size": V,
              "max_position_embeddings": LENGTH, "dropout": 0.0, "attention_dropout": 0.0, **IDS}],
    "biogpt": [ENCODER | {"layer_norm_eps": 1e-12},
               ENCODER | UNTIED | {"layer_norm_eps": 1e-12, "scale_embedding": False, "hidden_act": "relu"}],
    "xlm-roberta": [ENCODER], "camembert": [ENCODER | UNTIED], "data2vec-text": [ENCODER],
    "roberta-prelayernorm": [ENCODER], "megatron-bert": [ENCODER, ENCODER | {"hidden_act": "relu"}],
    "electra": [ENCODER | {"embedding_size": D}, ENCODER | UNTIED | {"embedding_size": D, "hidden_act": "relu"}],
    "blenderbot": [SCALED],
    "plbart": [SEQ2SEQ, SEQ2SEQ | {"scale_embedding": False, "activation_function": "relu"}],
    "mt5": [T5, T5 | {"feed_forward_proj": "relu"}], "umt5": [T5],
}  # fmt: skip
IMAGE_CONFIGS: dict[str, list[dict[str, Any]]] = {
    "vit": [IMAGE, IMAGE | {"qkv_bias": False, "hidden_act": "relu", "layer_norm_eps": 1e-3, "image_size": [12, 8]}],
    "deit": [IMAGE], "vit_msn": [IMAGE], "ijepa": [IMAGE | {"qkv_bias": False}],
    "dinov2": [DINO, DINO | {"use_swiglu_ffn": True, "mlp_ratio": 3, "use_mask_token": False}],
    "dinov2_with_registers": [DINO | {"num_register_tokens": 2}],
    "beit": [BEIT | {"use_shared_relative_position_bias": True},
             BEIT | {"use_relative_position_bias": True, "use_mean_pooling": False, "use_mask_token": True},
             BEIT | {"use_absolute_position_embeddings": True, "layer_scale_init_value": 0.0}],
    "swin": [SWIN, SWIN | {"depths": [2], "num_heads": [2], "window_size": 4, "qkv_bias": False, "patch_size": 4}],
}  # fmt: skip

LABELS = {"num_labels": 3}
CLASSIFIER = {"classifier_pooling": "mean", "classifier_activation": "silu", "classifier_bias": True}
CASES = [Case(name, config, "lm", n) for name, configs in LM_CONFIGS.items() for n, config in enumerate(configs)]
CASES += [
    Case(name, (MODERNBERT | CLASSIFIER if name == "modernbert" else configs[0]) | LABELS, head)
    for name, configs in LM_CONFIGS.items() for head in ("sequence", "token") if head in ARCHITECTURES[name].heads
]  # fmt: skip
for name, configs in IMAGE_CONFIGS.items():
    CASES += [Case(name, config | LABELS, "image", number) for number, config in enumerate(configs)]
    CASES += [Case(name, configs[0], "masked_image")] * ("masked_image" in ARCHITECTURES[name].heads)
CASES += [Case(name, ENCODER, head) for name in ("bert", "megatron-bert") for head in ("question", "choice")]
CASES += [Case("bert", ENCODER, "pretraining"), Case("modernbert", MODERNBERT | LABELS, "sequence", 1)]
CASES += [Case(name, configs[0], "base") for name, configs in (LM_CONFIGS | IMAGE_CONFIGS).items()]
CASES += [Case(name, IMAGE | {"pooler_act": "relu"}, "base", 1) for name in ("vit", "deit")]  # with all options
MAIN_CASES = [case for case in CASES if case.head in ("lm", "image") and case.number == 0]
MAIN = {case.architecture: case for case in MAIN_CASES}

ROBERTAS = ("roberta", "xlm-roberta", "camembert", "data2vec-text", "roberta-prelayernorm")
# What nothing reads in an untied model, and what it is a copy of
UNREAD = dict.fromkeys(ROBERTAS, ("lm_head.bias", "lm_head.decoder.bias"))
UNREAD["bart"] = ("model.shared.weight", "model.encoder.embed_tokens.weight")
UNREAD["bert"] = ("cls.predictions.bias", "cls.predictions.decoder.bias")


@torch.no_grad()
def poison(model: nn.Module, seed: int = 5) -> None:
    """Draw every trained tensor and the bias buffers: one lost on the way cannot hide at a default."""
    generator = torch.Generator().manual_seed(seed)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    biases = {name: buffer for name, buffer in model.named_buffers() if name == "final_logits_bias"}
    for name, tensor in (trained | biases).items():
        tensor.copy_(0.3 * torch.randn(tensor.shape, generator=generator))
        if tensor.ndim == 1 and name.endswith("weight"):
            tensor.add_(1.0)  # a norm


def native_model(case: Case) -> PreTrainedModel:
    """A poisoned native model in eval mode; its dead tables, if it has any, are copies of the living."""
    architecture = ARCHITECTURES[case.architecture]
    config = transformers.CONFIG_MAPPING[case.architecture](**case.config)
    model = transformers_class(architecture.native_class(case.head))(config, **arguments(case))
    if case.architecture == "t5" and case.config.get("tie_word_embeddings") is False and case.head == "lm":
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    poison(model)
    if case.head == "lm" and case.config.get("tie_word_embeddings") is False and case.architecture in UNREAD:
        copy, source = (model.get_parameter(name) for name in UNREAD[case.architecture])
        copy.data.copy_(source.data)
    return model.eval()


def arguments(case: Case) -> dict[str, Any]:
    """Arguments of a bare model: without its optional parts, or with all of them."""
    native_class = transformers_class(ARCHITECTURES[case.architecture].native_class(case.head))
    given = inspect.signature(native_class).parameters
    options = ("add_pooling_layer", "use_mask_token")
    if case.head != "base" or case.architecture == "beit":  # BEiT pools without a choice
        return {}
    return {name: case.number > 0 for name in options if name in given}


@cache
def converted(case: Case) -> tuple[PreTrainedModel, PreTrainedModel]:
    """The native model and ours: to be read, not changed, but for gradients."""
    native = native_model(case)
    return native, from_native(native)


def batch_for(case: Case, native: PreTrainedModel) -> dict[str, torch.Tensor]:
    """A padded batch with labels, and targets where there is a decoder beside the encoder; or images."""
    if case.architecture in IMAGE_CONFIGS:
        return images_for(case, native)
    mask = padding(B, S)
    pad = native.config.pad_token_id
    batch = {"input_ids": tokens(B, S, V).masked_fill(mask == 0, pad), "attention_mask": mask}
    if "token_type_ids" in inspect.signature(native.forward).parameters and "bert" in case.architecture:
        batch["token_type_ids"] = torch.arange(S).gt(4).long().expand(B, S)
    vocabulary, length = V, S
    if native.config.is_encoder_decoder:
        length = T
        vocabulary = getattr(native.config, "decoder_vocab_size", None) or V
        target_mask = padding(B, T)
        batch["decoder_input_ids"] = tokens(B, T, vocabulary, seed=3).masked_fill(target_mask == 0, pad)
        batch["decoder_attention_mask"] = target_mask
    labels = tokens(B, length, vocabulary, seed=4).masked_fill(padding(B, length) == 0, -100)
    if case.head == "sequence":
        labels = torch.tensor([2, 0, 1])
    elif case.head == "token":
        labels = labels.clamp(max=2)
    if case.head == "question":  # the second answer is not in the text; padding could be one, so there is none
        batch |= {"input_ids": tokens(B, S, V), "attention_mask": torch.ones(B, S, dtype=torch.long)}
        return batch | {"start_positions": torch.tensor([1, S, 3]), "end_positions": torch.tensor([2, S, 3])}
    if case.head == "choice":  # of three texts, one
        return {name: tensor[None] for name, tensor in batch.items()} | {"labels": torch.tensor([1])}
    if case.head == "pretraining":
        batch["next_sentence_label"] = torch.tensor([1, 0, 1])
    return batch if case.head == "base" else batch | {"labels": labels}


def real(scores: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """What is not padding."""
    mask = batch.get("decoder_attention_mask", batch.get("attention_mask"))
    return scores if mask is None or scores.shape[:2] != mask.shape else scores[mask == 1]


def images_for(case: Case, native: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Images with labels, or with masked patches."""
    batch = {"pixel_values": random_inputs(native)["pixel_values"]}
    if case.head == "image":
        return batch | {"labels": torch.tensor([2, 0])}
    if case.head == "masked_image" or case.number:
        count = math.prod(side // native.config.patch_size for side in image_sides(native.config.image_size))
        return batch | {"bool_masked_pos": torch.arange(2 * count).view(2, count) % 3 > 0}
    return batch


def transformers_class(name: str) -> Any:
    return getattr(transformers, name)
