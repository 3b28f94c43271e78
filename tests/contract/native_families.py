"""The native families: what they pass is what ours are measured against."""

from harness import Family
from harness.family import Inputs
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BartForQuestionAnswering,
    BartForSequenceClassification,
    BartModel,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    LlamaModel,
)


def llama() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=99,
        hidden_size=32,
        intermediate_size=37,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        num_labels=3,
    )


def bart() -> BartConfig:
    return BartConfig(
        vocab_size=99,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=37,
        decoder_ffn_dim=37,
        max_position_embeddings=128,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=2,
        num_labels=3,
    )


def bart_inputs(family: Family) -> Inputs:
    """End each source with the token at which `BartForSequenceClassification` reads its features."""
    inputs = family.token_inputs()
    inputs["input_ids"][:, -1] = family.config().eos_token_id
    return inputs


def bert() -> BertConfig:
    return BertConfig(
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=37,
        max_position_embeddings=128,
        type_vocab_size=4,
        pad_token_id=0,
        num_labels=3,
    )


FAMILIES = [
    Family(
        name="llama",
        kind="decoder",
        config=llama,
        auto_classes={
            "AutoModel": LlamaModel,
            "AutoModelForCausalLM": LlamaForCausalLM,
            "AutoModelForSequenceClassification": LlamaForSequenceClassification,
        },
        pipelines=("text-generation", "text-classification", "feature-extraction"),
        config_kwargs={"hidden_size": 64},
    ),
    Family(
        name="bart",
        kind="encoder_decoder",
        config=bart,
        auto_classes={
            "AutoModel": BartModel,
            "AutoModelForSeq2SeqLM": BartForConditionalGeneration,
            "AutoModelForSequenceClassification": BartForSequenceClassification,
            "AutoModelForQuestionAnswering": BartForQuestionAnswering,
        },
        pipelines=("text-classification", "feature-extraction"),
        config_kwargs={"d_model": 64},
        inputs=bart_inputs,
        # This head refuses `inputs_embeds`, and its output shape depends on the data.
        skip_classes={
            "test_inputs_embeds": (BartForSequenceClassification,),
            "test_export_plain_dynamic_batch_and_length": (BartForSequenceClassification,),
        },
    ),
    Family(
        name="bert",
        kind="encoder",
        config=bert,
        auto_classes={
            "AutoModel": BertModel,
            "AutoModelForMaskedLM": BertForMaskedLM,
            "AutoModelForSequenceClassification": BertForSequenceClassification,
            "AutoModelForTokenClassification": BertForTokenClassification,
        },
        pipelines=("fill-mask", "text-classification", "token-classification", "feature-extraction"),
        config_kwargs={"hidden_size": 48},
    ),
]
