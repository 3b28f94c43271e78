"""The special tokens of a config, and the other tokens, for random texts."""

from typing import Any

SPECIAL = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")


def token_ids(token: int | list[int] | None) -> list[int]:
    """Return the ids in the field of a special token, which may hold several or none."""
    return token if isinstance(token, list) else [] if token is None else [token]


def ordinary_tokens(config: Any, vocab_size: int) -> list[int]:
    """Return the tokens of a vocabulary that are not special, or all tokens if there are none."""
    special = {token for name in SPECIAL for token in token_ids(getattr(config, name, None))}
    return [token for token in range(vocab_size) if token not in special] or list(range(vocab_size))


def start_token(config: Any, generation_config: Any) -> Any:
    """Return the token that a translation starts from: the generation config's, or else the model config's."""
    start = getattr(generation_config, "decoder_start_token_id", None)
    return getattr(config, "decoder_start_token_id", None) if start is None else start
