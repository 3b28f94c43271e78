"""Limits of the generation settings that come with a model: their types, and sizes that would take all memory."""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, NamedTuple

LARGEST_LENGTH = 2**20  # tokens
LARGEST_BEAMS = 256
LARGEST_TOKEN = 2**28  # as the largest vocabulary of a config


class Setting(NamedTuple):
    """Allowed values of a setting: a test, and its description."""

    holds: Callable[[Any], bool]
    allowed: str


def is_integer(value: Any, smallest: int, largest: int) -> bool:
    """Return whether a value is an integer within bounds, and not a Boolean."""
    return type(value) is int and smallest <= value <= largest


def integer(smallest: int, largest: int) -> Setting:
    """Return the setting that is a whole number within bounds."""
    return Setting(lambda value: is_integer(value, smallest, largest), f"an integer from {smallest:,} to {largest:,}")


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number, and not a Boolean."""
    return type(value) in (int, float) and isfinite(value)


def is_token(value: Any) -> bool:
    """Return whether a value can be the id of a token; -1 stands for none in many configs."""
    return is_integer(value, -1, LARGEST_TOKEN)


def is_list(value: Any, holds: Callable[[Any], bool]) -> bool:
    """Return whether a value is a list of such values."""
    return isinstance(value, list) and all(map(holds, value))


BOOLEAN = Setting(lambda value: isinstance(value, bool), "true or false")
NUMBER = Setting(is_number, "a finite number")
TOKEN = Setting(is_token, "a token id")
TOKENS = Setting(lambda value: is_token(value) or is_list(value, is_token), "a token id or a list of them")
LENGTH = integer(0, LARGEST_LENGTH)
BEAMS = integer(1, LARGEST_BEAMS)

SETTINGS: dict[str, Setting] = {
    **dict.fromkeys(("max_length", "max_new_tokens", "min_length", "min_new_tokens", "max_cache_len"), LENGTH),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), LENGTH),
    **dict.fromkeys(("prompt_lookup_num_tokens", "max_matching_ngram_size", "prefill_chunk_size"), LENGTH),
    **dict.fromkeys(("num_assistant_tokens", "assistant_lookbehind", "target_lookbehind"), LENGTH),
    **dict.fromkeys(("num_beams", "num_return_sequences", "num_beam_groups"), BEAMS),
    **dict.fromkeys(("temperature", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"), NUMBER),
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "length_penalty"), NUMBER),
    **dict.fromkeys(("diversity_penalty", "penalty_alpha", "guidance_scale", "max_time"), NUMBER),
    "refinement_steps": integer(1, LARGEST_LENGTH),
    "length_scale": NUMBER,
    "top_k": integer(0, LARGEST_TOKEN),
    **dict.fromkeys(("pad_token_id", "bos_token_id"), TOKEN),
    **dict.fromkeys(("eos_token_id", "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id"), TOKENS),
    **dict.fromkeys(
        ("suppress_tokens", "begin_suppress_tokens"), Setting(lambda v: is_list(v, is_token), "token ids")
    ),
    **dict.fromkeys(
        ("bad_words_ids", "force_words_ids"),
        Setting(lambda v: is_list(v, lambda words: is_list(words, is_token)), "lists of token ids"),
    ),
    **dict.fromkeys(("do_sample", "use_cache", "renormalize_logits", "remove_invalid_values"), BOOLEAN),
    **dict.fromkeys(("token_healing", "output_attentions", "output_hidden_states", "output_scores"), BOOLEAN),
    **dict.fromkeys(("output_logits", "return_dict_in_generate", "disable_compile"), BOOLEAN),
    "early_stopping": Setting(lambda v: isinstance(v, bool) or v == "never", 'true, false or "never"'),
    "stop_strings": Setting(
        lambda v: isinstance(v, str) or is_list(v, lambda text: isinstance(text, str)), "a text or a list of texts"
    ),
    # A static cache takes the memory of the greatest length at once
    "cache_implementation": Setting(
        lambda v: isinstance(v, str) and v in ("dynamic", "dynamic_full", "hybrid"), "dynamic, dynamic_full or hybrid"
    ),
}


def check_settings(settings: Mapping[str, Any], source_name: str) -> None:
    """Raise ValueError for a generation setting of a file that has the wrong type, or is outside the limits."""
    for name, setting in SETTINGS.items():
        value = settings.get(name)
        if value is not None and not setting.holds(value):
            raise ValueError(f"has {name}={value!r:.80} in {source_name}: it must be {setting.allowed}")
