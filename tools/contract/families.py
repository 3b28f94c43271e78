"""The models under test, each beside the native family that it is measured against."""

import copy
from typing import Any

from harness import Family

from vanillaformer import (
    PRESETS,
    VanillaDecoderConfig,
    VanillaDecoderForCausalLM,
    VanillaDecoderForSequenceClassification,
    VanillaDecoderModel,
    VanillaEncoderConfig,
    VanillaEncoderDecoderConfig,
    VanillaEncoderDecoderForConditionalGeneration,
    VanillaEncoderDecoderModel,
    VanillaEncoderForMaskedLM,
    VanillaEncoderForQuestionAnswering,
    VanillaEncoderForSequenceClassification,
    VanillaEncoderForTokenClassification,
    VanillaEncoderModel,
    VanillaImageEncoderConfig,
    VanillaImageEncoderForImageClassification,
    VanillaImageEncoderForMaskedImageModeling,
    VanillaImageEncoderModel,
    VanillaRecurrentEncoderDecoderConfig,
    VanillaRecurrentEncoderDecoderForConditionalGeneration,
    VanillaRecurrentEncoderDecoderModel,
)
from vanillaformer.configuration import VanillaConfig

TOY = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 37,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "num_labels": 3,
}


DECODER = TOY | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ENCODER_DECODER = TOY | {
    "encoder_layers": 2,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}

IMAGES = {name: TOY[name] for name in ("hidden_size", "num_attention_heads", "num_labels")} | {
    "image_size": 16,
    "patch_size": 4,
    "initializer_range": 0.02,
    "initialization": "normal",
}
VIT = IMAGES | {"intermediate_size": 37, "num_hidden_layers": 2}
SWIN = IMAGES | {
    "intermediate_size": 64,
    "depths": [1, 1],
    "window_size": 2,
    "position_embedding_type": "window_relative",
    "patch_norm": True,
    "use_cls_token": False,
    "image_pooling": "mean",
}

RECURRENT_FIELDS = VanillaRecurrentEncoderDecoderConfig.keywords()


# From transformers 5.24 on, whose models warn of the old one
OF_NONE = {"test_bc_cache_name_forward": "both names of the cache are taken, without a warning"}


def like(name: str, fields: dict) -> dict:
    """Return a preset's fields in toy size, without dropout."""
    return PRESETS[name].fields | dict.fromkeys(("dropout", "attention_dropout"), 0.0) | fields


def family(name: str, reference: str, config_class: type[VanillaConfig], fields: dict, **more: Any) -> Family:
    """Return a family of the config's kind."""
    kind, auto_classes, hidden_size = KINDS[config_class]
    more["not_applicable"] = OF_NONE | more.get("not_applicable", {})
    return Family(
        name=name,
        kind=kind,
        reference=reference,
        config=lambda: config_class(**copy.deepcopy(fields)),
        auto_classes=auto_classes,
        config_kwargs={"hidden_size": hidden_size},
        **more,
    )


KINDS: dict[type[VanillaConfig], tuple] = {
    VanillaRecurrentEncoderDecoderConfig: (
        "encoder_decoder",
        {
            "AutoModel": VanillaRecurrentEncoderDecoderModel,
            "AutoModelForSeq2SeqLM": VanillaRecurrentEncoderDecoderForConditionalGeneration,
        },
        64,
    ),
    VanillaDecoderConfig: (
        "decoder",
        {
            "AutoModel": VanillaDecoderModel,
            "AutoModelForCausalLM": VanillaDecoderForCausalLM,
            "AutoModelForSequenceClassification": VanillaDecoderForSequenceClassification,
        },
        64,
    ),
    VanillaEncoderDecoderConfig: (
        "encoder_decoder",
        {
            "AutoModel": VanillaEncoderDecoderModel,
            "AutoModelForSeq2SeqLM": VanillaEncoderDecoderForConditionalGeneration,
        },
        64,
    ),
    VanillaEncoderConfig: (
        "encoder",
        {
            "AutoModel": VanillaEncoderModel,
            "AutoModelForMaskedLM": VanillaEncoderForMaskedLM,
            "AutoModelForSequenceClassification": VanillaEncoderForSequenceClassification,
            "AutoModelForTokenClassification": VanillaEncoderForTokenClassification,
            "AutoModelForQuestionAnswering": VanillaEncoderForQuestionAnswering,
        },
        48,
    ),
    VanillaImageEncoderConfig: (
        "image_encoder",
        {
            "AutoModel": VanillaImageEncoderModel,
            "AutoModelForImageClassification": VanillaImageEncoderForImageClassification,
            "AutoModelForMaskedImageModeling": VanillaImageEncoderForMaskedImageModeling,
        },
        48,
    ),
}

# Small enough that the rows of the tests are longer
WINDOW = {"sliding_window": 4}
GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
# transformers renames the weights of its own image models when it loads what was saved before version 5
NO_OLD_NAMES = dict.fromkeys(
    ("test_can_load_from_already_mapped_keys", "test_reverse_loading_mapping"),
    "there are no checkpoints with older names of weights",
)
# What a model of states instead of keys and values does not have
STATES = {
    **dict.fromkeys(
        (
            "test_*sdpa*",
            "test_attention_outputs",
            "test_can_set_attention_dynamically",
            "test_config_common_properties",
        ),
        "there is no self-attention, and there are no heads",
    ),
    **dict.fromkeys(("test_compile_backward", "test_compile_forward_fullgraph"), "Dynamo traces no torch.nn.RNNBase"),
    "test_export_*": "padding is taken out of a batch, whose sizes then depend on the data",
    **dict.fromkeys(("test_fsdp*", "test_hsdp*"), "there is no list of layers to wrap, and no plan"),
    "test_capture_outputs_decorator": "the states of a side are its embeddings and its output",
    "test_enable_input_require_grads_with_gradient_checkpointing": "there is no gradient checkpointing",
}

FAMILIES = [
    # The defaults
    family("decoder", "llama", VanillaDecoderConfig, DECODER),
    family("encoder_decoder", "bart", VanillaEncoderDecoderConfig, ENCODER_DECODER),
    family(
        "recurrent",
        "bart",
        VanillaRecurrentEncoderDecoderConfig,
        # One layer: the hidden states of a side are its embeddings and its output
        {key: value for key, value in ENCODER_DECODER.items() if key in RECURRENT_FIELDS}
        | {"num_hidden_layers": 1, "encoder_layers": 1, "num_labels": 3},
        attributes={"has_attentions": False},
        not_applicable=STATES,
    ),
    family("encoder", "bert", VanillaEncoderConfig, TOY | {"pad_token_id": 0}),
    family(
        "image_encoder",
        "vit",
        VanillaImageEncoderConfig,
        VIT,
        not_applicable=NO_OLD_NAMES,
        tester={"seq_length": 17},  # patches and class token
    ),
    # The rest of the family, beside the native model of the same recipe
    family("llama_like", "llama", VanillaDecoderConfig, like("llama-tiny", DECODER | {"num_key_value_heads": 2})),
    family("bloom_like", "bloom", VanillaDecoderConfig, like("bloom", DECODER)),
    family(
        "gemma2_like",
        "gemma2",
        VanillaDecoderConfig,
        like("gemma2", DECODER | GROUPED | WINDOW),
        not_applicable=dict.fromkeys(("test_*sdpa*", "test_*_sdpa_*"), "sdpa has no soft cap, and the config says so"),
    ),
    family(
        "rezero",
        "llama",
        VanillaDecoderConfig,
        DECODER | {"norm_placement": "rezero"},
        not_applicable={
            "test_model_rope_scaling_from_config_*": "a fresh ReZero model is the identity: no scaling changes it",
            "test_peft_lora": "adapters in a sublayer that counts zero times have no gradient in the first step",
            "test_training_overfit": "the gradient's norm starts at almost nothing and grows",
        },
    ),
    family(
        "t5_like",
        "t5",
        VanillaEncoderDecoderConfig,
        # smooth: which side of relu's kink a number falls on depends on the order of a sum over devices
        like("t5", ENCODER_DECODER | {"head_dim": 8, "hidden_act": "gelu_new"}),
        not_applicable={"test_keep_in_fp32_modules*": "no part asks for float32 in a float16 model"},
    ),
    family(
        "modernbert_like",
        "modernbert",
        VanillaEncoderConfig,
        like("modernbert", TOY | {"pad_token_id": 0} | WINDOW),
        not_applicable={
            "test_model_rope_scaling_frequencies": "two bases are two rotary embeddings here, each of a flat config"
        },
    ),
    family(
        "swin_like",
        "swin",
        VanillaImageEncoderConfig,
        SWIN,
        not_applicable=NO_OLD_NAMES,
        tester={"seq_length": 16, "encoder_seq_length": 4},  # patches of the image, of a window
    ),
]
