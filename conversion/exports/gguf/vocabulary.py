"""Our tokenizers in GGUF's form: byte-level byte-pair encoding, with pre-tokenizers that llama.cpp has a name for."""

import json
from typing import Any

from transformers import PreTrainedTokenizerBase

Fields = dict[str, Any]

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # GGUF's types of tokens

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
ROLES = {"bos": "bos_token_id", "eos": "eos_token_id", "unknown": "unk_token_id", "padding": "pad_token_id"}


def vocabulary_fields(tokenizer: PreTrainedTokenizerBase | None, config: Any) -> Fields:
    """Return the fields on the tokenizer, by key."""
    if tokenizer is None:
        return {"tokenizer.ggml.model": "none"}
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(f"GGUF: the tokenizer {type(tokenizer).__name__} is not from the tokenizers library")
    whole = json.loads(backend.to_str())
    check(whole, len(tokenizer), config.vocab_size)
    known = {token_id: name for name, token_id in tokenizer.get_vocab().items()}
    added = {token["id"]: CONTROL if token["special"] else USER_DEFINED for token in whole["added_tokens"]}
    rows = range(config.vocab_size)
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in whole["model"]["merges"]]
    encoded = tokenizer("a")["input_ids"]
    fields: Fields = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre_tokenizer_of(whole),
        "tokenizer.ggml.tokens": [known.get(token, f"[PAD{token}]") for token in rows],
        "tokenizer.ggml.token_type": [added.get(token, NORMAL) if token in known else UNUSED for token in rows],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": encoded[0] == tokenizer.bos_token_id,
        "tokenizer.ggml.add_eos_token": encoded[-1] == tokenizer.eos_token_id,
        "tokenizer.ggml.add_space_prefix": False,
    }
    ids = {f"tokenizer.ggml.{role}_token_id": getattr(tokenizer, name) for role, name in ROLES.items()}
    fields |= {key: token for key, token in ids.items() if token is not None}
    if isinstance(getattr(tokenizer, "chat_template", None), str):
        fields["tokenizer.chat_template"] = tokenizer.chat_template
    return fields


def check(whole: dict[str, Any], tokens: int, vocab_size: int) -> None:
    """Raise ValueError for a tokenizer other than plain byte-level byte-pair encoding."""
    model = whole["model"]
    reasons = []
    if model["type"] != "BPE" or pre_tokenizer_of(whole) is None:
        reasons.append(
            "only byte-level byte-pair encoding goes without loss (our byte_level_bpe), with GPT-2's pre-tokenizer, "
            f"the same after single digits, or Llama 3's; this one is {model['type']} after {whole['pre_tokenizer']}"
        )
    if whole["normalizer"] is not None:
        reasons.append(f"llama.cpp does not normalize texts, this tokenizer does: {whole['normalizer']}")
    for name in ("continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "dropout"):
        if model.get(name):
            reasons.append(f"llama.cpp has no {name}={model[name]!r}")
    if bool(model.get("ignore_merges")) != (pre_tokenizer_of(whole) == "llama-bpe"):
        reasons.append(f"ignore_merges={model.get('ignore_merges')!r} does not fit its pre-tokenizer")
    if tokens > vocab_size:
        reasons.append(f"it has {tokens} tokens, the model vocab_size={vocab_size}")
    if reasons:
        raise ValueError(f"the tokenizer cannot be written to GGUF: {'; '.join(reasons)}")


def pre_tokenizer_of(whole: dict[str, Any]) -> str | None:
    """Return llama.cpp's name of a pre-tokenizer, `None` if it has none."""
    step = whole["pre_tokenizer"] or {}
    steps = step["pretokenizers"] if step.get("type") == "Sequence" else [step]
    *before, last = steps or [{}]
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return None
    by_regex = last.get("use_regex", True)
    if not before:
        return "gpt-2" if by_regex else None
    if len(before) > 1:
        return None
    if before[0].get("type") == "Digits" and before[0].get("individual_digits") and by_regex:
        return "starcoder"
    is_llama3 = before[0].get("type") == "Split" and before[0].get("pattern") == {"Regex": LLAMA3}
    return "llama-bpe" if is_llama3 and before[0].get("behavior") == "Isolated" and not by_regex else None
