"""Train a language model: a decoder that predicts the next token, or an encoder that predicts hidden ones.

Without arguments: a small decoder on the source text of Python's standard library. `--objective masked` trains an
encoder, from which `train-classifier` can start; `--objective mlm+nsp` does so as BERT was trained, on pairs of
segments. With `--turns_column` the texts are dialogues, and `vanillaformer generate --chat` talks with the model.

Examples:
  vanillaformer train-language-model --train_file input.txt --preset gpt2 --block_size 1024
  vanillaformer train-language-model --objective masked --preset bert-base --train_file a.csv
  vanillaformer train-language-model --train_file dialogues.jsonl --turns_column turns
"""

from collections.abc import Sequence
from typing import Any

from vanillaformer.console.program import program
from vanillaformer.data.arrow_files import TextColumn
from vanillaformer.data.dialogue import WithoutSeparators, reverse_dialogues, set_chat_template
from vanillaformer.data.preprocessing.blocks import block_cutter
from vanillaformer.data.preprocessing.language_model import (
    language_model_collator,
    language_model_rows,
    resolve_arguments,
)
from vanillaformer.data.preprocessing.packing import check_attention
from vanillaformer.data.streaming import StreamedRows
from vanillaformer.training import metrics
from vanillaformer.training.models import set_generation
from vanillaformer.training.programs import Arguments, parse_arguments
from vanillaformer.training.report.card.examples import example_row
from vanillaformer.training.run import (
    already_finished,
    describe_rows,
    new_model,
    open_data,
    start,
    train_and_save,
)
from vanillaformer.training.run_folder.run import Run
from vanillaformer.training.tokenizers import prepare_tokenizers
from vanillaformer.training.trainer.trainer import RunTrainer


def train(argv: Sequence[str] | None = None) -> Run:
    """Train as the arguments say; a run that is finished already is returned as it is."""
    args = parse_arguments("train-language-model", argv, __doc__)
    data_args: Any = args.data_args
    tokenizer_args: Any = args.tokenizer_args
    task = args.training_args.objective
    resolve_arguments(data_args, tokenizer_args, task)
    with start("train_language_model", argv, args, task=task, length=data_args.block_size) as run:
        return _train(run, args)


def _train(run: Run, args: Arguments) -> Run:
    data_args: Any = args.data_args
    training_args = args.training_args
    task, causal = training_args.objective, training_args.objective == "causal"
    data = open_data(run, task, args)
    size = data_args.block_size
    texts, example = data.splits, example_row(data.splits["validation"], "text")[:1_000]
    if run.complete:
        return already_finished(run, task, args, data=data, example=example)
    column: Any = TextColumn(texts["train"], "text")
    if data_args.turns_column is not None:
        column = WithoutSeparators(column)
        texts = reverse_dialogues(texts) if data_args.reverse_turns else texts
    tokenizers = prepare_tokenizers(run, task, args, column)
    tokenizer = tokenizers[0]
    if data_args.turns_column is not None:
        set_chat_template(tokenizer)
    with training_args.main_process_first(desc="tokenizing"):  # the others find what it has kept
        rows = language_model_rows(texts, tokenizer, data_args, training_args)
    stream = None
    if data.stream is not None:
        stream = StreamedRows(data.stream, *block_cutter(tokenizer, size, data_args.block_stride, masked=not causal))
    train_rows = describe_rows(run, args, data, rows, tokenizers, stream)
    model = new_model(run, task, args, tokenizer, length=size)
    set_generation(model, task, length=size)
    if data_args.packing:
        check_attention(model)
    compute: Any = metrics.language_model_metrics(tokenizer if causal else None)
    preprocess: Any = metrics.token_scores(causal=causal)
    if task == "mlm+nsp":
        compute, preprocess = metrics.pretraining_metrics(), metrics.pretraining_scores
    trainer = RunTrainer(
        model=model,
        args=training_args,
        train_dataset=train_rows,
        eval_dataset=rows["validation"],
        data_collator=language_model_collator(tokenizer, data_args, training_args),
        processing_class=tokenizer,
        compute_metrics=compute,
        preprocess_logits_for_metrics=preprocess,
    )
    return train_and_save(run, task, args, trainer, rows, tokenizers, data=data, example=example)


@program
def main(argv: Sequence[str] | None = None) -> None:
    """Run the program."""
    train(argv)


if __name__ == "__main__":
    main()
