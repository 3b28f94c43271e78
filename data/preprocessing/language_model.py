"""Rows and collators of language models, by objective and by the form of the texts."""

from collections.abc import Callable
from functools import partial
from typing import Any

from datasets import DatasetDict
from transformers import PreTrainedTokenizerBase

from ..arguments import LanguageModelDataArguments
from ..dialogue import SEPARATOR
from .blocks import block_rows, check_stride
from .collators import BlockCollator, PackedCollator, PackedMasking, RowMasking
from .packing import packed_rows
from .sentence_pairs import sentence_pairs

FRAME = 2
"""[CLS] and [SEP] of a masked row."""


def resolve_arguments(data_args: LanguageModelDataArguments, tokenizer_args: Any, objective: str) -> None:
    """Set what an objective and dialogues need.

    Raises:
        ValueError: Options do not go with each other, or with the objective.
    """
    if data_args.turns_column is not None:
        if objective != "causal" or data_args.streaming:
            what = "--streaming" if data_args.streaming else f"--objective {objective}"
            raise ValueError(f"--turns_column {data_args.turns_column} does not go with {what}")
        data_args.packing = True
        if SEPARATOR not in tokenizer_args.extra_special_tokens:
            tokenizer_args.extra_special_tokens = [*tokenizer_args.extra_special_tokens, SEPARATOR]
    data_args.choose_sampling(objective)
    pairs = objective == "mlm+nsp"
    if data_args.packing and pairs:
        raise ValueError("--packing is for --objective causal and masked: the rows of mlm+nsp are pairs of segments")
    if data_args.block_stride is not None:
        if data_args.packing or pairs:
            other = f"--objective {objective}" if pairs else "--packing, which --turns_column implies"
            raise ValueError(f"--block_stride is for blocks cut from the stream of all texts, not for {other}")
        check_stride(data_args.block_stride, data_args.block_size - (0 if objective == "causal" else FRAME))
    if data_args.streaming and pairs:
        raise ValueError("--streaming is for --objective causal and masked: mlm+nsp draws from all documents")


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
