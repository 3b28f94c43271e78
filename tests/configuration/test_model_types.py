"""Fields that one model type alone has, and the version that a saved config names."""

import json
from pathlib import Path

import pytest
from modeling.toys import assert_refused
from transformers import AutoConfig

import vanillaformer
from vanillaformer import VanillaDecoderConfig, VanillaEncoderConfig, VanillaEncoderDecoderConfig
from vanillaformer.configuration import package

DECODER, PAIR = VanillaDecoderConfig, VanillaEncoderDecoderConfig
SEPARATE = {"decoder_vocab_size": 50, "share_encoder_decoder_embeddings": False}
NARROW = {"hidden_size": 32, "share_encoder_decoder_embeddings": False}
MASK_PREDICT = {"decoding": "mask_predict"}


@pytest.mark.parametrize(("config_class", "fields", "parts"), [
    (DECODER, {"pad_token_id": 100}, ["pad_token_id=100", "vocab_size=100"]),
    (DECODER, {"sliding_window": 1, "use_cache": True}, ["sliding_window=1", "no cache"]),
    (DECODER, {"eos_token_id": [3, 100]}, ["eos_token_id=100", "vocab_size=100"]),
    (PAIR, {"decoder_start_token_id": 100}, ["start_token_id=100", "vocab_size=100"]),
    (PAIR, {"encoder_hidden_size": 64},
     ["share_encoder_decoder_embeddings", "encoder_hidden_size=64", "hidden_size=512"]),
    (PAIR, {"decoder_vocab_size": 90},
     ["share_encoder_decoder_embeddings=True", "vocab_size=100", "decoder_vocab_size=90"]),
    (PAIR, SEPARATE | {"eos_token_id": 60}, ["eos_token_id=60", "vocab_size=50"]),
    (PAIR, SEPARATE | {"pad_token_id": 60}, ["pad_token_id=60", "vocab_size=50"]),
    # The encoder's sinusoids by its own width
    (PAIR, NARROW | {"encoder_hidden_size": 31}, ["even encoder_hidden_size", "31"]),
    (PAIR, NARROW | {"encoder_hidden_size": 2, "sinusoidal_layout": "tensor2tensor"},
     ["tensor2tensor", "encoder_hidden_size=2"]),
    (PAIR, NARROW | {"encoder_hidden_size": 1024, "max_position_embeddings": 2**20},
     ["max_position_embeddings by encoder_hidden_size", "1,048,576 by 1,024"]),
    (PAIR, {"output_distribution": "pointer_generator"} | SEPARATE, ["share_encoder_decoder_embeddings=True"]),
    (PAIR, MASK_PREDICT | {"position_embedding_type": "rotary"}, ["position_embedding_type must be"]),
    (PAIR, MASK_PREDICT | {"eos_token_id": None}, ["needs a eos_token_id"]),
    (PAIR, {"decoding": "ctc", "pad_token_id": None}, ["needs a pad_token_id"]),
    (PAIR, {"decoding": "ctc", "tie_word_embeddings": False} | SEPARATE, ["tie_word"]),
    (PAIR, MASK_PREDICT | {"ctc_upsampling": 2}, ["ctc_upsampling=2 only applies to decoding='ctc'"]),
    (PAIR, {"max_length_difference": 5}, ["max_length_difference=5 only applies to decoding='mask_predict'"]),
    (VanillaEncoderConfig, {"position_embedding_type": "rotary_2d"}, ["rotary_2d"]),
    (VanillaEncoderConfig, {"drop_path_rate": 0.1, "norm_placement": "no_residual"},
     ["drop_path_rate=0.1", "norm_placement='no_residual'"]),
])  # fmt: skip
def test_an_error_names_the_field_the_value_and_what_is_allowed(config_class, fields, parts):
    assert_refused(parts, config_class, **{"vocab_size": 100} | fields)


SMALL = {"vocab_size": 10, "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}


@pytest.fixture
def warnings(monkeypatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(package.logger, "warning_once", said.append)
    return said


def save(folder: Path, **changes) -> Path:
    VanillaDecoderConfig(**SMALL).save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def test_a_newer_version_is_warned_of_and_an_equal_or_older_one_is_not(tmp_path, warnings):
    AutoConfig.from_pretrained(save(tmp_path))
    assert json.loads((tmp_path / "config.json").read_text())["vanillaformer_version"] == vanillaformer.__version__
    AutoConfig.from_pretrained(save(tmp_path, vanillaformer_version="0.0.1"))
    assert warnings == []
    config = AutoConfig.from_pretrained(save(tmp_path, vanillaformer_version="99.0"))
    assert len(warnings) == 1
    assert f"saved by vanillaformer 99.0, which is newer than this one ({vanillaformer.__version__})" in warnings[0]
    config.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["vanillaformer_version"] == vanillaformer.__version__


@pytest.mark.parametrize("version", ["new", 3, [1]])
def test_what_is_no_version_is_refused(version, tmp_path):
    folder = save(tmp_path, vanillaformer_version=version)
    assert_refused(["vanillaformer_version must be a version such as '0.1.0'"], AutoConfig.from_pretrained, folder)
