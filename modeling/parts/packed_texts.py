"""Several texts in one row: the text of each token, attention within texts, and the split into a row per text.

Shape letters: R rows, T length, S length of the source, N texts, D model width.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, masking_utils
from transformers.cache_utils import Cache
from transformers.utils import is_tracing


def text_numbers(position_ids: torch.Tensor, attention_mask: Any, rows: int) -> torch.Tensor:
    """Return the index of each token's text in its row, (R, T).

    A text begins at position 0 of `position_ids` (R or 1, T); padding, 0 in the mask (R, T), does not begin a text.
    """
    starts = position_ids.expand(rows, -1) == 0
    if attention_mask is not None:
        starts = starts & attention_mask.bool()
    return (starts.cumsum(-1) - 1).clamp(min=0)


def packed(position_ids: torch.Tensor | None, attention_mask: Any) -> bool:
    """Return whether positions (R or 1, T) are of several texts in a row; other masks than (R, T) part them."""
    if position_ids is None or getattr(attention_mask, "ndim", 2) != 2 or isinstance(attention_mask, dict):
        return False
    return is_tracing(position_ids) or bool((position_ids[:, 1:] == 0).any())


def same_text(position_ids: torch.Tensor | None, attention_mask: Any, rows: int) -> Callable | None:
    """Return the mask function that keeps the texts of a row apart, `None` if there is one in each."""
    if position_ids is None or not packed(position_ids, attention_mask):
        return None
    numbers = text_numbers(position_ids, attention_mask, rows)
    if not (is_tracing(numbers) or numbers.any()):  # padding in front may have position 0, too
        return None
    return masking_utils.packed_sequence_mask_function(numbers)


def same_text_before(
    position_ids: torch.Tensor | None, attention_mask: Any, cache: Cache | None, rows: int
) -> Callable | None:
    """Return the same for causal attention, also `None` without mask and cache: transformers then keeps texts apart.

    An empty cache changes nothing; tokens that follow cached ones see all of them.
    """
    if position_ids is None or (cache is None and attention_mask is None):
        return None
    if cache is not None and (is_tracing(position_ids) or not isinstance(cache, Cache) or cache.get_seq_length()):
        return None  # a paged cache keeps requests apart by itself
    if attention_mask is None:  # transformers' definition, so that a cache changes nothing
        numbers = masking_utils.find_packed_sequence_indices(position_ids.expand(rows, -1))
        texts = None if numbers is None else masking_utils.packed_sequence_mask_function(numbers)
    else:
        tokens = attention_mask[:, : position_ids.shape[1]] if torch.is_tensor(attention_mask) else attention_mask
        texts = same_text(position_ids, tokens, rows)
    if texts is None:
        return None
    last = position_ids.shape[1] - 1  # a static cache has keys beyond it, which causal attention does not see

    def attends(row: int, head: int, query: int, key: torch.Tensor) -> torch.Tensor:
        return texts(row, head, query, key.clamp(max=last))

    return attends


def same_pair(
    positions: torch.Tensor | None, source_positions: torch.Tensor | None, source_mask: Any, rows: int
) -> Callable | None:
    """Return the mask function by which each target of a packed row attends to its source, `None` if no row is packed.

    Positions of targets (R or 1, T) and sources (R or 1, S) restart with every text. Padding after the last target
    attends to the last source, since attention needs at least one key.
    """
    if positions is None or source_positions is None:
        return None
    if not (packed(positions, None) or packed(source_positions, source_mask)):
        return None
    sources = text_numbers(source_positions, source_mask, rows)
    targets = text_numbers(positions, None, rows).minimum(sources[:, -1:])

    def attends(row: int, head: int, query: int, key: int) -> torch.Tensor:
        return targets[row, query] == sources[row, key]

    return attends


def bidirectional_mask(
    config: PreTrainedConfig,
    hidden_states: torch.Tensor,
    padding: Any,
    source: torch.Tensor | None = None,
    *,
    texts: Callable | None = None,
) -> Any:
    """Return transformers' mask of attention to a source (R, S, D) with its padding mask (R, S).

    The source is by default the states (R, T, D) themselves; `texts` is `same_text` or `same_pair`.
    """
    if texts is None:
        return masking_utils.create_bidirectional_mask(config, hidden_states, padding, source)
    source = hidden_states if source is None else source
    # These functions only index and compare. transformers' own `and_mask_function` may do anything, and is called by
    # `vmap`: for rows of 128 tokens that takes longer than a small layer
    return masking_utils.ALL_MASK_ATTENTION_FUNCTIONS[config._attn_implementation](
        batch_size=source.shape[0],
        q_length=hidden_states.shape[1],
        kv_length=source.shape[1],
        mask_function=texts,
        attention_mask=None if padding is None else padding.to(hidden_states.device, torch.bool),
        allow_is_causal_skip=False,
        allow_is_bidirectional_skip=False,
        dtype=hidden_states.dtype,
        config=config,
        use_vmap=False,
        device=hidden_states.device,
    )


def bidirectional_window_mask(
    config: PreTrainedConfig, hidden_states: torch.Tensor, padding: Any, *, texts: Callable | None = None
) -> Any:
    """Return the same with the config's sliding window."""
    if texts is None:
        return masking_utils.create_bidirectional_sliding_window_mask(config, hidden_states, padding)
    both = masking_utils.and_masks(masking_utils.sliding_window_bidirectional_overlay(config.sliding_window), texts)
    return bidirectional_mask(config, hidden_states, padding, texts=both)


def one_text_per_row(
    position_ids: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
    states: torch.Tensor,
    input_ids: torch.Tensor | None,
) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor | None]:
    """Return the mask (N, T'), states (N, T', D) and ids (N, T') of the texts of packed rows, in their order.

    Each token is at its position in its text; where the mask is 0, tokens are arbitrary. Rows of one text, (R, T) and
    (R, T, D), stay unchanged.
    """
    if position_ids is None or not packed(position_ids, attention_mask):
        return attention_mask, states, input_ids
    shape = states.shape[:2]
    mask = states.new_ones(shape, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
    positions = position_ids.expand(shape)
    starts = ((positions == 0) & mask).flatten().nonzero()  # (N, 1)
    lengths = torch.diff(starts, dim=0, append=starts.new_tensor([[mask.numel()]]))
    columns = torch.arange(int(positions[mask].max()) + 1, device=states.device)
    tokens = starts + columns.minimum(lengths - 1)  # beyond its end, a text's last token is repeated
    real = mask.flatten()[tokens] & (columns < lengths)
    ids = None if input_ids is None else input_ids.flatten()[tokens]
    # An embedding lookup has the fastest gradient
    return real.long(), nn.functional.embedding(tokens, states.flatten(0, 1)), ids
