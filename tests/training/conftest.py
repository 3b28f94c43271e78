from data.conftest import _own_cache, decoder_tokenizer, encoder_tokenizer, translator_tokenizer  # noqa: F401
