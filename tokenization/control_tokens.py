"""Control tokens (<s>, </s>, <pad>, [MASK] ...) in texts: whoever writes their names means text.

`tokenizers` and transformers take the name of a special token in a text for the token, so that HTML's `<s>` starts a
new document. Control tokens are the named ones of a tokenizer (`bos_token`, `mask_token` ...). Its other added tokens
were declared by somebody, and are found in texts.
"""

import copy
import json
from collections.abc import Collection

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER


def text_tokenizer(
    tokenizer: PreTrainedTokenizerBase, recognized: Collection[str] = (), unrecognized: Collection[str] = ()
) -> PreTrainedTokenizerBase:
    """Return a copy of a tokenizer for texts of users: names of control tokens are text, but for `recognized` ones.

    So are those of the `unrecognized` tokens, declared or not.
    """
    twin = copy.copy(tokenizer)
    twin.init_kwargs = {**tokenizer.init_kwargs, "split_special_tokens": True}
    twin.split_special_tokens = True
    twin.model_max_length = twin.init_kwargs["model_max_length"] = VERY_LARGE_INTEGER  # who reads texts cuts them
    if isinstance(twin, PreTrainedTokenizerFast):
        control = {*tokenizer.special_tokens_map.values()} - {*tokenizer.extra_special_tokens} - {*recognized}
        twin._tokenizer = with_special(tokenizer.backend_tokenizer, control | {*unrecognized})
    return twin


def with_special(backend: Tokenizer, tokens: Collection[str]) -> Tokenizer:
    """Return a copy of a backend in which just these of its added tokens are special."""
    content = json.loads(backend.to_str())
    for token in content["added_tokens"]:
        token["special"] = token["content"] in tokens
    return Tokenizer.from_str(json.dumps(content))
