"""The native families: what they pass is what ours are measured against."""

from typing import Any

import transformers
from harness import Family
from harness.family import Inputs

HEADS = {
    "encoder_decoder": ("AutoModel", "AutoModelForSeq2SeqLM"),
    "decoder": ("AutoModel", "AutoModelForCausalLM", "AutoModelForSequenceClassification"),
    "encoder": (
        *("AutoModel", "AutoModelForMaskedLM"),
        *("AutoModelForSequenceClassification", "AutoModelForTokenClassification"),
    ),
    "image_encoder": ("AutoModel", "AutoModelForImageClassification", "AutoModelForMaskedImageModeling"),
}
LABELS = {"num_labels": 3}
TOY = LABELS | {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 37}
LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 4}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
DECODER = TOY | LAYERS | IDS | {"max_position_embeddings": 512}
GROUPED = DECODER | {"num_key_value_heads": 2}
IMAGES = LABELS | {"image_size": 16, "patch_size": 4}
BART = LABELS | {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 37,
    "max_position_embeddings": 128,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
T5 = LABELS | {
    "vocab_size": 99,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 37,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "dropout_rate": 0.0,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}
SWIN = IMAGES | {
    "embed_dim": 32,
    "depths": [1, 1],
    "num_heads": [4, 8],
    "mlp_ratio": 2.0,
    "window_size": 2,
    "encoder_stride": 8,
    "drop_path_rate": 0.0,
}


def family(
    name: str, kind: Any, fields: dict[str, Any], kept: dict[str, Any], heads: tuple[str, ...] = (), **more: Any
) -> Family:
    """Return the family of a model type; `kept` are config arguments that must survive saving and loading."""
    config_class = transformers.CONFIG_MAPPING[name]
    return Family(
        name=name,
        kind=kind,
        config=lambda: config_class(**fields),
        auto_classes={
            head: getattr(transformers, head)._model_mapping[config_class] for head in (*HEADS[kind], *heads)
        },
        config_kwargs=kept,
        **more,
    )


def bart_inputs(family: Family) -> Inputs:
    """End each source with the token at which `BartForSequenceClassification` reads its features."""
    inputs = family.token_inputs()
    inputs["input_ids"][:, -1] = family.config().eos_token_id
    return inputs


FAMILIES = [
    family("llama", "decoder", GROUPED, {"hidden_size": 64}),
    family(
        "bart",
        "encoder_decoder",
        BART,
        {"d_model": 64},
        heads=("AutoModelForSequenceClassification", "AutoModelForQuestionAnswering"),
        inputs=bart_inputs,
        # This head refuses `inputs_embeds`, and its output shape depends on the data.
        skip_classes=dict.fromkeys(
            ("test_inputs_embeds", "test_export_plain_dynamic_batch_and_length"),
            (transformers.BartForSequenceClassification,),
        ),
    ),
    family(
        "bert",
        "encoder",
        TOY | LAYERS | {"max_position_embeddings": 128, "type_vocab_size": 4, "pad_token_id": 0},
        {"hidden_size": 48},
    ),
    family(
        "bloom",
        "decoder",
        LABELS | IDS | {"vocab_size": 99, "hidden_size": 32, "n_layer": 2, "n_head": 4},
        {"hidden_size": 64},
    ),
    family(
        "gemma2",
        "decoder",
        GROUPED | {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4},
        {"hidden_size": 64},
    ),
    family(
        "modernbert",
        "encoder",
        DECODER | {"local_attention": 8, "global_attn_every_n_layers": 2, "cls_token_id": 1, "sep_token_id": 2},
        {"hidden_size": 48},
    ),
    family("t5", "encoder_decoder", T5, {"d_model": 64}),
    family(
        "vit",
        "image_encoder",
        IMAGES | LAYERS | {"hidden_size": 32, "intermediate_size": 37, "encoder_stride": 4},
        {"hidden_size": 48},
        tester={"seq_length": 17},
    ),
    family(
        "swin",
        "image_encoder",
        SWIN,
        {"embed_dim": 48},
        # the other half of the hidden states are those in the form of an image
        tester={
            "seq_length": 16,
            "encoder_seq_length": 4,
            "hidden_size": 32,
            "num_attention_heads": 4,
            "num_hidden_states_types": 2,
        },
    ),
]
