"""The three model types under test, each beside the native family that it is measured against."""

from harness import Family

from vanillaformer import (
    VanillaDecoderConfig,
    VanillaDecoderForCausalLM,
    VanillaDecoderForSequenceClassification,
    VanillaDecoderModel,
    VanillaEncoderConfig,
    VanillaEncoderDecoderConfig,
    VanillaEncoderDecoderForConditionalGeneration,
    VanillaEncoderDecoderModel,
    VanillaEncoderForMaskedLM,
    VanillaEncoderForSequenceClassification,
    VanillaEncoderForTokenClassification,
    VanillaEncoderModel,
)

TOY = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 37,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "num_labels": 3,
}


def decoder() -> VanillaDecoderConfig:
    return VanillaDecoderConfig(**TOY, pad_token_id=0, bos_token_id=1, eos_token_id=2)


def encoder() -> VanillaEncoderConfig:
    return VanillaEncoderConfig(**TOY, pad_token_id=0)


def encoder_decoder() -> VanillaEncoderDecoderConfig:
    return VanillaEncoderDecoderConfig(
        **TOY, encoder_layers=2, pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2
    )


FAMILIES = [
    Family(
        name="decoder",
        kind="decoder",
        reference="llama",
        config=decoder,
        auto_classes={
            "AutoModel": VanillaDecoderModel,
            "AutoModelForCausalLM": VanillaDecoderForCausalLM,
            "AutoModelForSequenceClassification": VanillaDecoderForSequenceClassification,
        },
        pipelines=("text-generation", "text-classification", "feature-extraction"),
        config_kwargs={"hidden_size": 64},
    ),
    Family(
        name="encoder_decoder",
        kind="encoder_decoder",
        reference="bart",
        config=encoder_decoder,
        auto_classes={
            "AutoModel": VanillaEncoderDecoderModel,
            "AutoModelForSeq2SeqLM": VanillaEncoderDecoderForConditionalGeneration,
        },
        pipelines=("feature-extraction",),
        config_kwargs={"hidden_size": 64},
    ),
    Family(
        name="encoder",
        kind="encoder",
        reference="bert",
        config=encoder,
        auto_classes={
            "AutoModel": VanillaEncoderModel,
            "AutoModelForMaskedLM": VanillaEncoderForMaskedLM,
            "AutoModelForSequenceClassification": VanillaEncoderForSequenceClassification,
            "AutoModelForTokenClassification": VanillaEncoderForTokenClassification,
        },
        pipelines=("fill-mask", "text-classification", "token-classification", "feature-extraction"),
        config_kwargs={"hidden_size": 48},
    ),
]
