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
    BloomConfig,
    BloomForCausalLM,
    BloomForSequenceClassification,
    BloomModel,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma2ForSequenceClassification,
    Gemma2Model,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    LlamaModel,
    ModernBertConfig,
    ModernBertForMaskedLM,
    ModernBertForSequenceClassification,
    ModernBertForTokenClassification,
    ModernBertModel,
    SwinConfig,
    SwinForImageClassification,
    SwinForMaskedImageModeling,
    SwinModel,
    T5Config,
    T5ForConditionalGeneration,
    T5Model,
    ViTConfig,
    ViTForImageClassification,
    ViTForMaskedImageModeling,
    ViTModel,
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


def bloom() -> BloomConfig:
    return BloomConfig(
        vocab_size=99,
        hidden_size=32,
        n_layer=2,
        n_head=4,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        num_labels=3,
    )


def gemma2() -> Gemma2Config:
    return Gemma2Config(
        vocab_size=99,
        hidden_size=32,
        intermediate_size=37,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        query_pre_attn_scalar=8,
        sliding_window=4,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        num_labels=3,
    )


def modernbert() -> ModernBertConfig:
    return ModernBertConfig(
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=37,
        max_position_embeddings=512,
        local_attention=8,
        global_attn_every_n_layers=2,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        cls_token_id=1,
        sep_token_id=2,
        num_labels=3,
    )


def t5() -> T5Config:
    return T5Config(
        vocab_size=99,
        d_model=32,
        d_kv=8,
        d_ff=37,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        relative_attention_num_buckets=8,
        dropout_rate=0.0,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        num_labels=3,
    )


def vit() -> ViTConfig:
    return ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=37,
        image_size=16,
        patch_size=4,
        encoder_stride=4,
        num_labels=3,
    )


def swin() -> SwinConfig:
    return SwinConfig(
        embed_dim=32,
        depths=[1, 1],
        num_heads=[4, 8],
        mlp_ratio=2.0,
        window_size=2,
        image_size=16,
        patch_size=4,
        encoder_stride=8,
        drop_path_rate=0.0,
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
    Family(
        name="bloom",
        kind="decoder",
        config=bloom,
        auto_classes={
            "AutoModel": BloomModel,
            "AutoModelForCausalLM": BloomForCausalLM,
            "AutoModelForSequenceClassification": BloomForSequenceClassification,
        },
        pipelines=("text-generation", "text-classification", "feature-extraction"),
        config_kwargs={"hidden_size": 64},
    ),
    Family(
        name="gemma2",
        kind="decoder",
        config=gemma2,
        auto_classes={
            "AutoModel": Gemma2Model,
            "AutoModelForCausalLM": Gemma2ForCausalLM,
            "AutoModelForSequenceClassification": Gemma2ForSequenceClassification,
        },
        pipelines=("text-generation", "text-classification", "feature-extraction"),
        config_kwargs={"hidden_size": 64},
    ),
    Family(
        name="modernbert",
        kind="encoder",
        config=modernbert,
        auto_classes={
            "AutoModel": ModernBertModel,
            "AutoModelForMaskedLM": ModernBertForMaskedLM,
            "AutoModelForSequenceClassification": ModernBertForSequenceClassification,
            "AutoModelForTokenClassification": ModernBertForTokenClassification,
        },
        pipelines=("fill-mask", "text-classification", "token-classification", "feature-extraction"),
        config_kwargs={"hidden_size": 48},
    ),
    Family(
        name="t5",
        kind="encoder_decoder",
        config=t5,
        auto_classes={"AutoModel": T5Model, "AutoModelForSeq2SeqLM": T5ForConditionalGeneration},
        pipelines=("feature-extraction",),
        config_kwargs={"d_model": 64},
    ),
    Family(
        name="vit",
        kind="image_encoder",
        config=vit,
        auto_classes={
            "AutoModel": ViTModel,
            "AutoModelForImageClassification": ViTForImageClassification,
            "AutoModelForMaskedImageModeling": ViTForMaskedImageModeling,
        },
        pipelines=("image-classification", "image-feature-extraction"),
        config_kwargs={"hidden_size": 48},
        tester={"seq_length": 17},
    ),
    Family(
        name="swin",
        kind="image_encoder",
        config=swin,
        auto_classes={
            "AutoModel": SwinModel,
            "AutoModelForImageClassification": SwinForImageClassification,
            "AutoModelForMaskedImageModeling": SwinForMaskedImageModeling,
        },
        pipelines=("image-classification", "image-feature-extraction"),
        config_kwargs={"embed_dim": 48},
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
