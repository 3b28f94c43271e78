"""Fields that one model type alone has."""

import pytest
from huggingface_hub.errors import StrictDataclassError

from vanillaformer import VanillaDecoderConfig, VanillaEncoderConfig, VanillaEncoderDecoderConfig

CONFIGS = [VanillaEncoderDecoderConfig, VanillaDecoderConfig, VanillaEncoderConfig]


@pytest.mark.parametrize("config_class", CONFIGS)
def test_the_model_type_is_its_own(config_class):
    names = [other.model_type for other in CONFIGS]
    assert names.count(config_class.model_type) == 1
    assert config_class().to_dict()["model_type"] == config_class.model_type


@pytest.mark.parametrize(
    ("config_class", "fields", "parts"),
    [
        (VanillaDecoderConfig, {"pad_token_id": 100}, ["pad_token_id=100", "vocab_size=100"]),
        (VanillaDecoderConfig, {"bos_token_id": -1}, ["bos_token_id=-1", "at least 0"]),
        (VanillaDecoderConfig, {"eos_token_id": [3, 100]}, ["eos_token_id=100", "vocab_size=100"]),
        (VanillaEncoderConfig, {"pad_token_id": 100}, ["pad_token_id=100", "vocab_size=100"]),
        (VanillaEncoderConfig, {"type_vocab_size": -1}, ["type_vocab_size", "-1", "at least 0"]),
        (VanillaEncoderConfig, {"classifier_pooling": "middle"}, ["middle", "first", "mean", "max", "last"]),
        (VanillaEncoderConfig, {"classifier_act": "tang"}, ["classifier_act", "tang", "tanh"]),
        (VanillaEncoderConfig, {"classifier_dropout": 1.0}, ["classifier_dropout", "less than 1"]),
        (VanillaEncoderDecoderConfig, {"decoder_start_token_id": 100}, ["start_token_id=100", "vocab_size=100"]),
        (VanillaEncoderDecoderConfig, {"encoder_layers": 0}, ["encoder_layers", "at least 1", "0"]),
        (VanillaEncoderDecoderConfig, {"decoder_vocab_size": 0}, ["decoder_vocab_size", "at least 1", "0"]),
        (
            VanillaEncoderDecoderConfig,
            {"decoder_vocab_size": 90},
            ["share_encoder_decoder_embeddings=True", "vocab_size=100", "decoder_vocab_size=90"],
        ),
        (
            VanillaEncoderDecoderConfig,
            {"decoder_vocab_size": 50, "share_encoder_decoder_embeddings": False, "eos_token_id": 60},
            ["eos_token_id=60", "vocab_size=50"],
        ),
        (
            VanillaEncoderDecoderConfig,
            {"decoder_vocab_size": 50, "share_encoder_decoder_embeddings": False, "pad_token_id": 60},
            ["pad_token_id=60", "vocab_size=50"],
        ),
    ],
)  # fmt: skip
def test_an_error_names_the_field_the_value_and_what_is_allowed(config_class, fields, parts):
    with pytest.raises((ValueError, StrictDataclassError)) as info:
        config_class(vocab_size=100, **fields)
    for part in parts:
        assert part in str(info.value), f"{part!r} is missing from: {info.value}"


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"encoder_hidden_size": 31}, ["even encoder_hidden_size", "31"]),
        ({"encoder_hidden_size": 2, "sinusoidal_layout": "tensor2tensor"}, ["tensor2tensor", "encoder_hidden_size=2"]),
        (
            {"encoder_hidden_size": 1024, "max_position_embeddings": 2**20},
            ["max_position_embeddings by encoder_hidden_size", "1,048,576 by 1,024"],
        ),
    ],
)
def test_an_encoders_sinusoids_are_checked_by_its_own_width(fields, parts):
    with pytest.raises(StrictDataclassError) as info:
        VanillaEncoderDecoderConfig(hidden_size=32, share_encoder_decoder_embeddings=False, **fields)
    for part in parts:
        assert part in str(info.value)


def test_depths_and_vocabularies_of_an_encoder_decoder():
    plain = VanillaEncoderDecoderConfig(vocab_size=100, num_hidden_layers=3)
    assert (plain.encoder_layers, plain.target_vocab_size) == (3, 100)
    other = VanillaEncoderDecoderConfig(
        vocab_size=100, decoder_vocab_size=60, share_encoder_decoder_embeddings=False, encoder_layers=5
    )
    assert (other.encoder_layers, other.num_hidden_layers, other.target_vocab_size) == (5, 6, 60)
    assert VanillaEncoderDecoderConfig.from_dict(other.to_dict()).to_dict() == other.to_dict()


def test_the_classifiers_dropout_is_the_blocks_unless_given():
    assert VanillaEncoderConfig(dropout=0.3).classifier_dropout == 0.3
    assert VanillaEncoderConfig(dropout=0.3, classifier_dropout=0).classifier_dropout == 0
