"""Checks of a request to the server: types and limits of its fields, each with an error that names the field."""

import inspect
import json
from collections.abc import Callable
from math import isfinite
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from vanillaformer.console.limits import Limit

# Arguments of `apply_chat_template`, which a request could otherwise replace, even the template itself
TEMPLATE_ARGUMENTS = frozenset(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters)


class RequestError(ValueError):
    """A request that cannot be served, and the status of the answer."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status


class Limits(NamedTuple):
    """Limits of one request: tokens written, tokens read, and bytes of its body."""

    max_tokens: int
    max_prompt_tokens: int
    max_body_bytes: int


def integer(low: int, high: int) -> Limit:
    """Return the limit of an integer within bounds, Booleans excluded."""
    return f"an integer from {low:,} to {high:,}", lambda value: type(value) is int and low <= value <= high


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number and not a Boolean."""
    return type(value) in (int, float) and isfinite(value)


def is_list(value: Any, holds: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(holds, value))


def is_text(value: Any) -> bool:
    """Return whether a value is a non-empty text."""
    return isinstance(value, str) and value != ""


def number(low: float, high: float) -> Limit:
    return f"a number from {low:g} to {high:g}", lambda value: is_number(value) and low <= value <= high


def only(value: Any) -> Limit:
    """Return the limit of a field that may only have its neutral value."""
    words = f"{json.dumps(value)}, others are not supported"
    return words, lambda given: given == value and isinstance(given, bool) == isinstance(value, bool)


TEXT: Limit = ("a text", lambda value: isinstance(value, str))
FIELDS: dict[str, Limit] = {
    "model": TEXT,
    "stream": ("true or false", lambda value: isinstance(value, bool)),
    "temperature": number(0, 2),
    "top_p": number(0, 1),
    # 1 + this is the repetition penalty, which is above 0
    "frequency_penalty": ("a number above -1, at most 2", lambda v: is_number(v) and -1 < v <= 2),
    "seed": integer(0, 2**63 - 1),
    "stop": ("a text or up to 16 of them", lambda v: is_text(v) or (is_list(v, is_text) and 0 < len(v) <= 16)),
    "stream_options": (
        "an object with include_usage only",
        lambda v: isinstance(v, dict) and v.keys() <= {"include_usage"},
    ),
    "user": TEXT,
    "n": only(1),
    "logprobs": only(False),
    "presence_penalty": only(0),
}
COMPLETION_FIELDS = {**FIELDS, "best_of": only(1), "echo": only(False), "logit_bias": only({})}
CHAT_FIELDS: dict[str, Limit] = {
    **FIELDS,
    "logit_bias": (
        "an object of numbers by token id",
        lambda v: isinstance(v, dict) and all(key.isdecimal() and is_number(bias) for key, bias in v.items()),
    ),
    "tools": ("a list of objects", lambda value: is_list(value, lambda item: isinstance(item, dict))),
    "chat_template_kwargs": ("an object", lambda value: isinstance(value, dict)),
}
LENGTHS = ("max_tokens", "max_completion_tokens")


def check_fields(body: dict[str, Any], fields: dict[str, Limit], content: str) -> None:
    """Raise RequestError for a field other than the content that is unknown, not supported or outside its limits."""
    for name, value in body.items():
        if name == content:
            continue
        if name not in fields:
            raise RequestError(f"{name} is not accepted from clients: use {', '.join((content, *fields))}")
        allowed, holds = fields[name]
        if not holds(value):
            raise RequestError(f"{name}={value!r:.80}: it must be {allowed}")
    if taken := sorted(TEMPLATE_ARGUMENTS & body.get("chat_template_kwargs", {}).keys()):
        raise RequestError(f"chat_template_kwargs: {', '.join(taken)} cannot be set by a request")


def unpack_generation_config(body: dict[str, Any]) -> None:
    """Replace the generation config that `transformers chat` sends, as JSON, by the equivalent fields."""
    try:
        config = json.loads(body.pop("generation_config", "{}"))
        config.pop("transformers_version", None)
        sampled = {name: config.pop(name) for name in ("temperature", "top_p") if config.get(name) is not None}
        at_most, do_sample = config.pop("max_new_tokens", None), config.pop("do_sample", None)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise RequestError("generation_config: it must be the JSON of a generation config") from error
    if asked := sorted(name for name, value in config.items() if value is not None):
        raise RequestError(f"generation_config: {', '.join(asked)} cannot be set by a request")
    if do_sample is not None:
        sampled = {"temperature": 1, **sampled} if do_sample else {"temperature": 0}
    body |= sampled
    if at_most is not None:
        body["max_new_tokens"] = at_most


def check_completion(body: dict[str, Any], limits: Limits) -> None:
    """Raise RequestError for a request of /v1/completions that cannot be served; unpack a list of one prompt."""
    check_fields(body, {"max_tokens": integer(1, limits.max_tokens), **COMPLETION_FIELDS}, "prompt")
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) > 1 and is_list(prompt, is_text):
        raise RequestError(f"prompt has {len(prompt)} texts: send a request for each")
    if is_list(prompt, is_text) and prompt:
        body["prompt"] = prompt[0]
    elif not is_text(prompt):
        raise RequestError(f"prompt={prompt!r:.80}: it must be a non-empty text")


def check_chat(body: dict[str, Any], limits: Limits) -> None:
    """Raise RequestError for a request of /v1/chat/completions that cannot be served."""
    unpack_generation_config(body)
    lengths = dict.fromkeys(LENGTHS, integer(1, limits.max_tokens))
    # `transformers chat` sends 256 by default, of which as many are generated as allowed
    lengths["max_new_tokens"] = integer(1, 2**63 - 1)
    check_fields(body, lengths | CHAT_FIELDS, "messages")
    if biases := body.pop("logit_bias", None):  # transformers takes no integers, and no empty one
        body["logit_bias"] = {token: float(bias) for token, bias in biases.items()}
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError(f"messages={messages!r:.80}: it must be a non-empty list of messages")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not is_text(message.get("role")):
            raise RequestError(f"messages[{index}]: it must be an object with a role")
        content = message.get("content")
        if "tool_calls" in message:
            if not is_list(message["tool_calls"], is_call):
                raise RequestError(f"messages[{index}]: tool_calls must be functions with name and arguments")
        elif not all(
            isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
            for part in (content if isinstance(content, list) else [{"type": "text", "text": content}])
        ):
            raise RequestError(
                f"messages[{index}]: content={content!r:.80}: it must be a text, or a list of parts of type text"
            )


def is_call(call: Any) -> bool:
    """Return whether a value is a function call of an assistant's message."""
    function = call.get("function") or call if isinstance(call, dict) else None
    if not isinstance(function, dict) or not is_text(function.get("name")):
        return False
    arguments = function.get("arguments")
    if isinstance(arguments, dict):
        return True
    try:
        return isinstance(arguments, str) and isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        return False


def new_tokens(body: dict[str, Any], prompt: int, positions: int | None, limits: Limits) -> int:
    """Return the number of tokens to generate after a prompt: that requested, or what model and limits allow."""
    longest = limits.max_prompt_tokens if positions is None else min(limits.max_prompt_tokens, positions - 1)
    if not 1 <= prompt <= longest:
        raise RequestError(f"the prompt has {prompt:,} tokens, it must be from 1 to {longest:,}")
    room = limits.max_tokens if positions is None else min(limits.max_tokens, positions - prompt)
    name = next((name for name in reversed(LENGTHS) if name in body), None)  # as transformers chooses
    if name is None:
        return min(room, body.get("max_new_tokens", room))  # set by `transformers chat`, regardless of the model
    if body[name] > room:
        raise RequestError(f"{name}={body[name]}: after {prompt:,} tokens of prompt at most {room:,} fit")
    return body[name]
