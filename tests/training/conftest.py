from data.conftest import (  # noqa: F401
    _own_cache,
    decoder_tokenizer,
    encoder_tokenizer,
    translator_tokenizer,
)
