"""Train a language model: a decoder that predicts the next token, or an encoder that predicts masked ones.

Without arguments: a small decoder on the source text of Python's standard library. `--objective masked` trains an
encoder, whose weights `train_classifier` can start from; `--objective mlm+nsp` does so as BERT was trained: on pairs
of segments, of which the second follows the first in half of the cases and is from another document in the others.
A document is one text (of the standard library: one file), its sentences are its lines and the sentences in them.

With `--turns_column` the texts are dialogues: each turn ends with [SEP], the tokenizer gets the chat template to that,
and `generate --chat` talks with the model.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from datasets import DatasetDict
from transformers import PreTrainedTokenizerBase

from vanillaformer.scripts.console import program
from vanillaformer.training.arguments import ModelArguments, TokenizerArguments
from vanillaformer.training.arrow_files import TextColumn
from vanillaformer.training.data.arguments import DataArguments
from vanillaformer.training.data.dialogue import SEPARATOR, WithoutSeparators, reverse_dialogues, set_chat_template
from vanillaformer.training.data.loading import load_data
from vanillaformer.training.metrics import (
    language_model_metrics,
    pretraining_metrics,
    pretraining_scores,
    token_scores,
)
from vanillaformer.training.models import build_model, check_preset, set_generation
from vanillaformer.training.parsing import parse
from vanillaformer.training.preprocessing.batching import order_seed
from vanillaformer.training.preprocessing.collators import (
    BlockCollator,
    PackedCollator,
    PackedMasking,
    RowMasking,
)
from vanillaformer.training.preprocessing.packing import check_attention, packed_rows
from vanillaformer.training.preprocessing.sentence_pairs import sentence_pairs
from vanillaformer.training.preprocessing.statistics import describe_data
from vanillaformer.training.preprocessing.streamed_rows import stream_blocks
from vanillaformer.training.preprocessing.tokenizing import causal_blocks, check_stride, masked_blocks
from vanillaformer.training.run import already_finished, announce, prepare_tokenizers, start, train_and_save
from vanillaformer.training.run_folder.fingerprints import fingerprints
from vanillaformer.training.run_folder.run import Run
from vanillaformer.training.trainer.trainer import RunTrainer
from vanillaformer.training.training_arguments import LanguageModelTrainingArguments

ARGUMENTS = (ModelArguments, DataArguments, TokenizerArguments, LanguageModelTrainingArguments)


def prepare_dialogues(
    data: DataArguments, tokenizer: TokenizerArguments, settings: LanguageModelTrainingArguments
) -> None:
    """Have each dialogue in a row with a separator known to the tokenizer.

    Raises:
        ValueError: Another option does not go with dialogues.
    """
    if settings.objective != "causal" or data.streaming:
        what = "--streaming" if data.streaming else f"--objective {settings.objective}"
        raise ValueError(f"--turns_column {data.turns_column} does not go with {what}")
    data.packing = True
    if SEPARATOR not in tokenizer.extra_special_tokens:
        tokenizer.extra_special_tokens = [*tokenizer.extra_special_tokens, SEPARATOR]


def check_rows(data: DataArguments, objective: str) -> None:
    """Raise ValueError for options on rows that do not go with each other or with the objective."""
    if data.packing and objective == "mlm+nsp":
        raise ValueError("--packing is for --objective causal and masked: the rows of mlm+nsp are pairs of segments")
    if data.block_stride is None:
        return
    if data.packing or objective == "mlm+nsp":
        other = f"--objective {objective}" if objective == "mlm+nsp" else "--packing, which --turns_column implies"
        raise ValueError(f"--block_stride is for blocks cut from the stream of all texts, not for {other}")
    check_stride(data.block_stride, data.block_size - (0 if objective == "causal" else 2))  # [CLS] and [SEP]


def make_rows(
    texts: DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    data: DataArguments,
    settings: LanguageModelTrainingArguments,
) -> DatasetDict:
    """Return the rows of token ids that the objective asks for."""
    blocks = causal_blocks if settings.objective == "causal" else masked_blocks
    make: Callable[..., DatasetDict] = partial(blocks, block_stride=data.block_stride)
    if data.packing:
        make = partial(packed_rows, masked=settings.objective == "masked", long_texts=data.long_texts)
    if settings.objective == "mlm+nsp":
        make = partial(sentence_pairs, seed=settings.seed)
    return make(texts, tokenizer, block_size=data.block_size, num_proc=data.preprocessing_num_workers)


def make_collator(
    tokenizer: PreTrainedTokenizerBase, data: DataArguments, settings: LanguageModelTrainingArguments
) -> Any:
    """Return what makes batches of such rows."""
    if settings.objective == "causal":
        return (PackedCollator if data.packing else BlockCollator)(tokenizer)
    masking = PackedMasking if data.packing else RowMasking
    return masking(tokenizer, mlm_probability=settings.mlm_probability, mask_seed=settings.seed)


def train(argv: Sequence[str] | None = None) -> Run:
    """Train as the arguments say; a run that is finished already is returned as it is."""
    model_arguments, data, tokenizer_arguments, settings = parse(ARGUMENTS, argv, description=__doc__)
    task, arguments = settings.objective, (settings, model_arguments, data, tokenizer_arguments)
    check_preset(task, model_arguments)
    data.check_dialogue("language_model")
    if data.turns_column is not None:
        prepare_dialogues(data, tokenizer_arguments, settings)
    data.choose_sampling(task)
    check_rows(data, task)
    if data.streaming and task == "mlm+nsp":
        raise ValueError("--streaming is for --objective causal and masked: mlm+nsp draws from all documents")
    with start("train_language_model", argv, *arguments, task=task, length=data.block_size) as run:
        return _train(run, *arguments)


def _train(
    run: Run,
    settings: LanguageModelTrainingArguments,
    model_arguments: ModelArguments,
    data: DataArguments,
    tokenizer_arguments: TokenizerArguments,
) -> Run:
    task, causal = settings.objective, settings.objective == "causal"
    loaded = load_data(data, "language_model", order_seed(settings))
    texts, stream = loaded.splits, loaded.stream
    example = texts["validation"][0]["text"][:1_000]
    run.check_data(fingerprints(texts))
    if run.finished and not run.new_test:
        return already_finished(run, task, settings, data, example=example)
    kind = check_preset(task, model_arguments)
    plain: Any = TextColumn(texts["train"], "text")
    if data.turns_column is not None:
        plain = WithoutSeparators(plain)
        texts = reverse_dialogues(texts) if data.reverse_turns else texts
    tokenizers = prepare_tokenizers(run, settings, model_arguments, tokenizer_arguments, kind, plain)
    tokenizer = tokenizers[0]
    if data.turns_column is not None:
        set_chat_template(tokenizer)
    with settings.main_process_first(desc="tokenising"):  # the others find what it has kept
        rows = make_rows(texts, tokenizer, data, settings)
    run.details["data"] = describe_data(rows, tokenizers, settings, loaded.stats, sample=stream is not None)
    train_rows: Any = rows["train"]
    if stream is not None:
        size, stride = data.block_size, data.block_stride
        train_rows = stream_blocks(stream, tokenizer, size, block_stride=stride, masked=not causal)
        del rows["train"]
    trained = run.folder if run.finished else None
    model = build_model(task, model_arguments, tokenizer, length=data.block_size, seed=settings.seed, trained=trained)
    set_generation(model, task, length=data.block_size)
    if data.packing:
        check_attention(model)
    metrics: tuple[Any, Any] = language_model_metrics(tokenizer if causal else None), token_scores(causal=causal)
    if task == "mlm+nsp":
        metrics = pretraining_metrics(), pretraining_scores
    trainer = RunTrainer(
        model=model,
        args=settings,
        train_dataset=train_rows,
        eval_dataset=rows["validation"],
        data_collator=make_collator(tokenizer, data, settings),
        processing_class=tokenizer,
        compute_metrics=metrics[0],
        preprocess_logits_for_metrics=metrics[1],
    )
    train_and_save(run, task, trainer, data, rows, example=example, tokenizers=tokenizers)
    return announce(run, task, data, example=example)


@program
def main(argv: Sequence[str] | None = None) -> None:
    """Run the program."""
    train(argv)


if __name__ == "__main__":
    main()
