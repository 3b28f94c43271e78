"""Dialogues as texts of a language model: turns, each ended by [SEP], and the matching chat template."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # slow to import, and not needed to read rows
    from datasets import DatasetDict
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SEPARATOR = "[SEP]"
# Renders a dialogue as `<s> text </s>`, as in training; a reply is the text after it, up to the separator.
CHAT_TEMPLATE = (
    "{{ bos_token or '' }}{% for message in messages %}{{ message['content'].strip() }}" + SEPARATOR + "{% endfor %}"
    "{% if not add_generation_prompt %}{{ eos_token }}{% endif %}"
)


def dialogue_text(turns: list[str]) -> str:
    """Return the text of a dialogue: each turn followed by the separator, which is removed from the turns."""
    cleaned = [turn.replace(SEPARATOR, " ").strip() for turn in turns]
    return "".join(f"{turn}{SEPARATOR}" for turn in cleaned if turn)


def reverse_dialogues(dataset: "DatasetDict") -> "DatasetDict":
    def reverse(row: dict[str, str]) -> dict[str, str]:
        turns = row["text"].removesuffix(SEPARATOR).split(SEPARATOR)
        return {"text": "".join(f"{turn}{SEPARATOR}" for turn in reversed(turns))}

    return dataset.map(reverse, desc="Reversing turns")


def set_chat_template(tokenizer: "PreTrainedTokenizerBase") -> None:
    """Make `tokenizer.apply_chat_template` render messages like training dialogues; it needs the separator."""
    separator_id(tokenizer)
    if SEPARATOR not in tokenizer.all_special_tokens:  # so that decoding drops it
        tokenizer.add_special_tokens({"extra_special_tokens": [*tokenizer.extra_special_tokens, SEPARATOR]})
    tokenizer.chat_template = CHAT_TEMPLATE


def end_ids(model: Any) -> list[int]:
    """Return the tokens that end what a model or an engine generates, by its generation settings."""
    ends = model.generation_config.eos_token_id
    return ends if isinstance(ends, list) else [] if ends is None else [ends]


def end_at_separator(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase") -> None:
    """Make replies end with the turn: add the separator to the end tokens in the model's generation settings."""
    ends = dict.fromkeys((tokenizer.eos_token_id, *end_ids(model), separator_id(tokenizer)))
    model.generation_config.eos_token_id = [end for end in ends if end in tokenizer.added_tokens_decoder]


def separator_id(tokenizer: "PreTrainedTokenizerBase") -> int:
    """Return the id of the separator; raise ValueError if the tokenizer has none."""
    number = tokenizer.get_vocab().get(SEPARATOR)
    if number is None:
        raise ValueError(f"the tokenizer has no token {SEPARATOR}, which ends each turn of a dialogue")
    return number
