"""Rows and collators of language models, by objective and by the form of the texts."""

from collections.abc import Callable
from functools import partial
from typing import Any

from datasets import DatasetDict
from transformers import PreTrainedTokenizerBase

from ..arguments import LanguageModelDataArguments
from .blocks import block_rows
from .collators import BlockCollator, PackedCollator, PackedMasking, RowMasking
from .packing import packed_rows
from .sentence_pairs import sentence_pairs

FRAME = 2
"""[CLS] and [SEP] of a masked row."""


def language_model_rows(
    texts: DatasetDict, tokenizer: PreTrainedTokenizerBase, data_args: LanguageModelDataArguments, training_args: Any
) -> Any:
    """Return the rows of token ids that the objective asks for."""
    masked = training_args.objective == "masked"
    make: Callable[..., Any] = partial(block_rows, block_stride=data_args.block_stride, masked=masked)
    if data_args.packing:
        make = partial(packed_rows, masked=masked, long_texts=data_args.long_texts)
    if training_args.objective == "mlm+nsp":
        make = partial(sentence_pairs, seed=training_args.seed)
    return make(texts, tokenizer, block_size=data_args.block_size, num_proc=data_args.preprocessing_num_workers)


def language_model_collator(
    tokenizer: PreTrainedTokenizerBase, data_args: LanguageModelDataArguments, training_args: Any
) -> Any:
    """Return the collator of such rows."""
    if training_args.objective == "causal":
        return (PackedCollator if data_args.packing else BlockCollator)(tokenizer)
    masking = PackedMasking if data_args.packing else RowMasking
    return masking(tokenizer, mlm_probability=training_args.mlm_probability, mask_seed=training_args.seed)
