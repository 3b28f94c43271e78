"""Published (and tiny) architectures by name: a config class, the fields that differ from its defaults, papers."""

from difflib import get_close_matches
from typing import Any, NamedTuple

from .base import VanillaConfig
from .decoder import VanillaDecoderConfig
from .encoder import VanillaEncoderConfig
from .encoder_decoder import VanillaEncoderDecoderConfig
from .image_encoder import VanillaImageEncoderConfig
from .names import TRANSFORMERS_NAMES
from .recurrent import VanillaRecurrentEncoderDecoderConfig


class Preset(NamedTuple):
    """A config class with field values, and the papers of the model (keys of `training/report/card/references.bib`).

    The tiny presets leave `attention_dropout` at 0: on a CPU, dropout on the attention probabilities rules out
    the fused kernel, and models this small do not need it.
    """

    config_class: type[VanillaConfig]
    fields: dict[str, Any]
    papers: tuple[str, ...]


TWELVE_LAYERS = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
TINY = {"hidden_size": 128, "max_position_embeddings": 256, "dropout": 0.1}
GPT_SMALL = {**TWELVE_LAYERS, "position_embedding_type": "learned", "dropout": 0.1}
BERT_BASE = {**TWELVE_LAYERS, "dropout": 0.1, "attention_dropout": 0.1}
# The standard since Llama: RMSNorm, gated feed-forward layers, no biases
LLAMA_BLOCK = {
    "feed_forward": "gated", "norm": "rms_norm", "attention_bias": False, "mlp_bias": False,
    "initialization": "normal",
}  # fmt: skip
# Raffel et al. 2020, sections 2.1 and 3.1: the baseline of the size of BERT-base
T5_BASE = {
    **TWELVE_LAYERS, "vocab_size": 32128, "norm": "rms_norm", "norm_eps": 1e-6, "norm_placement": "pre",
    "position_embedding_type": "relative", "max_position_embeddings": 512, "mlp_bias": False,
    "attention_scale": 1.0,  # the initialization of the queries includes it
    "scale_embedding": False, "initialization": "t5", "dropout": 0.1,
}  # fmt: skip
# Touvron et al. 2021, Ti: the smallest ViT
VIT_TINY = {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "initialization": "normal"}
VIT_MINI = {
    "image_size": 32, "patch_size": 4, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "intermediate_size": 128, "position_embedding_type": "learned", "use_cls_token": False, "image_pooling": "mean",
    "initialization": "normal", "initializer_range": 0.08,
}  # fmt: skip

PRESETS: dict[str, Preset] = {
    # Vaswani et al. 2017, table 3: base and big (English-German).
    "transformer-base": Preset(VanillaEncoderDecoderConfig, {"dropout": 0.1}, papers=("vaswani2017attention",)),
    "transformer-big": Preset(VanillaEncoderDecoderConfig, {
        "hidden_size": 1024, "num_attention_heads": 16, "dropout": 0.3,
    }, papers=("vaswani2017attention",)),
    "transformer-tiny": Preset(VanillaEncoderDecoderConfig, {
        **TINY, "num_hidden_layers": 2, "num_attention_heads": 4,
    }, papers=("vaswani2017attention",)),
    # Marian's transformer-base (Junczys-Dowmunt et al. 2018) as the OPUS-MT models have it.
    "marian": Preset(VanillaEncoderDecoderConfig, {
        "vocab_size": 58101, "hidden_act": "silu", "sinusoidal_layout": "halves", "max_position_embeddings": 512,
        "attention_bias": True, "lm_head_bias": True, "dropout": 0.1,
    }, papers=("junczysdowmunt2018marian",)),
    # Lewis et al. 2020, base.
    "bart": Preset(VanillaEncoderDecoderConfig, {
        **TWELVE_LAYERS, "num_hidden_layers": 6, "vocab_size": 50265, "hidden_act": "gelu",
        "position_embedding_type": "learned", "position_offset": 2, "embedding_norm": True, "scale_embedding": False,
        "attention_bias": True, "initialization": "normal", "dropout": 0.1, "attention_dropout": 0.1,
        "activation_dropout": 0.1,
    }, papers=("lewis2020bart",)),
    "t5": Preset(VanillaEncoderDecoderConfig, {
        **T5_BASE, "scale_decoder_outputs": True,
    }, papers=("raffel2020exploring",)),
    # Shazeer 2020: GEGLU and an untied output layer.
    "t5-v1.1": Preset(VanillaEncoderDecoderConfig, {
        **T5_BASE, "intermediate_size": 2048, "feed_forward": "gated", "hidden_act": "gelu_new",
        "tie_word_embeddings": False,
    }, papers=("raffel2020exploring", "shazeer2020glu")),
    # PyTorch's tutorial "Translation with a Sequence to Sequence Network and Attention": a GRU on each side.
    "gru-attention": Preset(VanillaRecurrentEncoderDecoderConfig, {
        "hidden_size": 256, "cell": "gru", "bidirectional_encoder": False, "cross_attention": "additive",
        "input_feeding": True, "share_encoder_decoder_embeddings": False, "tie_word_embeddings": False,
        "lm_head_bias": True, "dropout": 0.1, "recurrent_initialization": "uniform",
    }, papers=("bahdanau2015neural",)),
    # Luong et al. 2015, section 4.1: four layers of LSTM.
    "lstm-attention": Preset(VanillaRecurrentEncoderDecoderConfig, {
        "vocab_size": 50000, "decoder_vocab_size": 50000, "hidden_size": 1000, "num_hidden_layers": 4,
        "cell": "lstm", "bidirectional_encoder": False, "cross_attention": "general", "input_feeding": True,
        "share_encoder_decoder_embeddings": False, "tie_word_embeddings": False, "dropout": 0.2,
        "recurrent_initialization": "uniform",
    }, papers=("luong2015effective",)),
    # Small enough for a CPU, and the fastest: the whole target runs through one kernel.
    "gru-tiny": Preset(VanillaRecurrentEncoderDecoderConfig, {
        "hidden_size": 128, "dropout": 0.1,
    }, papers=("luong2015effective",)),
    # Radford et al. 2018: learned positions, post-LN and an initialization independent of the depth.
    "gpt": Preset(VanillaDecoderConfig, {
        **GPT_SMALL, "vocab_size": 40478, "norm_placement": "post", "initialization": "normal",
        "attention_dropout": 0.1, "max_position_embeddings": 512,
    }, papers=("radford2018improving",)),
    # Radford et al. 2019, the smallest of the four.
    "gpt2": Preset(VanillaDecoderConfig, {**GPT_SMALL, "attention_dropout": 0.1}, papers=("radford2019language",)),
    # Karpathy's reproduction of it without biases, as its train.py configures it.
    "nanogpt": Preset(VanillaDecoderConfig, {
        **GPT_SMALL, "vocab_size": 50304, "hidden_act": "gelu", "attention_bias": False, "mlp_bias": False,
        "norm_bias": False, "dropout": 0.0,
    }, papers=("karpathy2022nanogpt",)),
    "gpt-tiny": Preset(VanillaDecoderConfig, {
        **TINY, "num_hidden_layers": 4, "num_attention_heads": 4, "position_embedding_type": "learned",
    }, papers=("radford2019language",)),
    # Zhang et al. 2022, 125M.
    "opt": Preset(VanillaDecoderConfig, {
        **GPT_SMALL, "vocab_size": 50272, "hidden_act": "relu", "max_position_embeddings": 2048,
        "position_offset": 2, "initialization": "normal",
    }, papers=("zhang2022opt",)),
    # Black et al. 2022, in the size of Pythia 160M (Biderman et al. 2023).
    "gpt-neox": Preset(VanillaDecoderConfig, {
        **TWELVE_LAYERS, "vocab_size": 50304, "hidden_act": "gelu", "block_layout": "parallel",
        "partial_rotary_factor": 0.25, "max_position_embeddings": 2048, "initialization": "normal",
        "tie_word_embeddings": False,
    }, papers=("black2022gptneox",)),
    # BigScience 2022, 560M.
    "bloom": Preset(VanillaDecoderConfig, {
        "vocab_size": 250880, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
        "hidden_act": "gelu_pytorch_tanh", "position_embedding_type": "alibi", "max_position_embeddings": 2048,
        "embedding_norm": True, "initialization": "normal",
    }, papers=("bigscience2022bloom",)),
    # Dosovitskiy et al. 2021, shrunk to small images: mean pooling, and larger first weights than BERT's 0.02.
    "vit-mini": Preset(VanillaImageEncoderConfig, VIT_MINI, papers=("dosovitskiy2021image",)),
    # The same with what makes it learn in fewer passes: early convolutions, rotary positions, wider heads.
    "vitc-mini": Preset(VanillaImageEncoderConfig, {
        **VIT_MINI, "num_attention_heads": 2, "patch_embedding": "early_convolutions",
        "position_embedding_type": "rotary_2d",
    }, papers=("xiao2021early", "heo2024rotary")),
    # Dosovitskiy et al. 2021, B/16, and its smallest relative.
    "vit-tiny": Preset(VanillaImageEncoderConfig, VIT_TINY, papers=("dosovitskiy2021image", "touvron2021training")),
    "vit-base": Preset(VanillaImageEncoderConfig, {
        **TWELVE_LAYERS, "dropout": 0.1, "initialization": "normal",
    }, papers=("dosovitskiy2021image",)),
    # Touvron et al. 2021: Ti with the token that follows a teacher.
    "deit-tiny": Preset(VanillaImageEncoderConfig, {
        **VIT_TINY, "use_distillation_token": True, "drop_path_rate": 0.1,
    }, papers=("touvron2021training",)),
    # Liu et al. 2021, T: stages of 96, 192, 384 and 768 dimensions.
    "swin-tiny": Preset(VanillaImageEncoderConfig, {
        "patch_size": 4, "hidden_size": 96, "depths": [2, 2, 6, 2], "num_attention_heads": 3, "window_size": 7,
        "position_embedding_type": "window_relative", "patch_norm": True, "norm_eps": 1e-5, "use_cls_token": False,
        "image_pooling": "mean", "drop_path_rate": 0.2, "initialization": "normal",
    }, papers=("liu2021swin",)),
    # Oquab et al. 2024, S/14 at the size of its last images.
    "dinov2-small": Preset(VanillaImageEncoderConfig, {
        "image_size": 518, "patch_size": 14, "hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6,
        "layer_scale_init_value": 1e-5, "image_pooling": "first_and_mean", "use_mask_token": True,
        "initialization": "normal",
    }, papers=("oquab2024dinov2",)),
    # Touvron et al. 2023, shrunk: RMSNorm, rotary positions, SwiGLU, grouped key/value heads, no biases.
    "llama-tiny": Preset(VanillaDecoderConfig, {
        **LLAMA_BLOCK, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 344, "hidden_act": "silu", "tie_word_embeddings": False,
    }, papers=("touvron2023llama",)),
    # Gemma team 2024, 2B.
    "gemma2": Preset(VanillaDecoderConfig, {
        **LLAMA_BLOCK, "vocab_size": 256000, "hidden_size": 2304, "num_hidden_layers": 26, "num_key_value_heads": 4,
        "head_dim": 256, "intermediate_size": 9216, "hidden_act": "gelu_pytorch_tanh", "norm_eps": 1e-6,
        "norm_unit_offset": True, "norm_placement": "sandwich", "scale_embedding": True,
        "max_position_embeddings": 8192, "attention_scale": 256**-0.5, "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0, "sliding_window": 4096,
        "layer_types": ["sliding_attention", "full_attention"],
    }, papers=("gemma2024gemma2",)),
    # OLMo team 2025, 1B.
    "olmo2": Preset(VanillaDecoderConfig, {
        **LLAMA_BLOCK, "vocab_size": 100352, "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16,
        "hidden_act": "silu", "norm_eps": 1e-6, "norm_placement": "inside", "qk_norm": "full",
        "rope_theta": 500000.0, "max_position_embeddings": 4096, "tie_word_embeddings": False,
    }, papers=("olmo2025furious",)),
    # Devlin et al. 2019.
    "bert-base": Preset(VanillaEncoderConfig, BERT_BASE, papers=("devlin2019bert",)),
    "bert-tiny": Preset(VanillaEncoderConfig, {
        **TINY, "num_hidden_layers": 2, "num_attention_heads": 2,
    }, papers=("devlin2019bert",)),
    # Liu et al. 2019: BERT without the second segment, on byte-level BPE.
    "roberta": Preset(VanillaEncoderConfig, {
        **BERT_BASE, "vocab_size": 50265, "type_vocab_size": 1, "norm_eps": 1e-5, "position_offset": 2,
    }, papers=("liu2019roberta",)),
    # Warner et al. 2024, base: windows of 64 tokens to either side in two layers of three.
    "modernbert": Preset(VanillaEncoderConfig, {
        **TWELVE_LAYERS, "num_hidden_layers": 22, "vocab_size": 50368, "intermediate_size": 1152,
        "feed_forward": "gated", "attention_bias": False, "mlp_bias": False, "norm_bias": False, "norm_eps": 1e-5,
        "norm_placement": "pre", "skip_first_norm": True, "position_embedding_type": "rotary",
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 160000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
        "max_position_embeddings": 8192, "sliding_window": 64,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"], "type_vocab_size": 0,
        "classifier_pooling": "mean", "classifier_act": "gelu", "classifier_norm": True, "head_bias": False,
        "initialization": "gpt2",
    }, papers=("warner2024smarter",)),
}  # fmt: skip


def preset(name: str, **overrides: Any) -> VanillaConfig:
    """Return the config called `name`, with `overrides` in place of its field values."""
    if name not in PRESETS:
        close = get_close_matches(name, PRESETS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}{hint}")
    config_class = PRESETS[name].config_class
    config_class.refuse_unknown(overrides)  # with the field that was meant
    for field in overrides.keys() - config_class.keywords() - {*TRANSFORMERS_NAMES}:
        raise ValueError(f"{config_class.__name__} has no field {field!r} (value {overrides[field]!r})")
    return config_class(**(PRESETS[name].fields | overrides))
